"""A client's view of its connection: whether it stands, and whether the keys were accepted."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import zmq

from robot_rl.replay.errors import KeysRefused

_EVENT = struct.Struct("=HI")  # as zmq_socket_monitor(3) packs event and value
_MECHANISM_MISMATCH = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH of zmq.h
_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True)
class Connected:
    """A handshake succeeded.

    Attributes:
        again: Whether the same socket had been connected before: what was on its way is lost.
    """

    again: bool


class Handshakes:
    """Follows the connections of a client's sockets, one socket at a time.

    Args:
        has_keys: Whether the client uses keys.
        doubt_seconds: How long every handshake must fail without a reason before the keys are
            blamed: a server that restarts behind a tunnel looks the same for a while.

    Attributes:
        connected: Whether the socket followed is connected at the moment.
    """

    def __init__(self, *, has_keys: bool, doubt_seconds: float) -> None:
        """Follow no socket yet."""
        self._has_keys, self._doubt_seconds = has_keys, doubt_seconds
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self.connected = False
        self._connections = 0
        self._in_doubt_since: float | None = None

    def follow(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Follow a socket that is about to connect; `leave` the one before first.

        Returns:
            A socket that is readable when there is something for `look`.
        """
        self._socket, self._connections, self.connected = socket, 0, False
        self._monitor = socket.get_monitor_socket(_EVENTS)
        return self._monitor

    def leave(self) -> None:
        """Stop following; call before the socket is closed."""
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket = self._monitor = None

    def look(self, now: float) -> Connected | KeysRefused | None:
        """Return the next thing that happened to the connection and matters, if any.

        Args:
            now: Steady clock, seconds.
        """
        while self._monitor is not None and self._monitor.poll(0):
            event, value = _EVENT.unpack(self._monitor.recv_multipart()[0])
            found = self._interpret(event, value, now)
            if found is not None:
                return found
        return None

    def _interpret(self, event: int, value: int, now: float) -> Connected | KeysRefused | None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._in_doubt_since, self.connected = None, True
            self._connections += 1
            return Connected(self._connections > 1)
        if event == zmq.EVENT_DISCONNECTED:
            self.connected = False
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return KeysRefused(
                "the replay server does not admit this client's key",
                hint="in the server's folder of keys there must be a clients/NAME.public for it;"
                " after a change the server must be restarted",
            )
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _MECHANISM_MISMATCH:
            return self._one_side_has_keys()
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and self._has_keys:
            if self._in_doubt_since is None:
                self._in_doubt_since = now
            elif now > self._in_doubt_since + self._doubt_seconds:
                return KeysRefused(
                    "what listens there ends every handshake",
                    hint="server.public is not the key of this server, or it is no replay server",
                )
        return None

    def _one_side_has_keys(self) -> KeysRefused:
        if self._has_keys:
            return KeysRefused(
                "this client uses keys, and the replay server does not",
                hint="start the server with replay.keys=FOLDER, or this client without",
            )
        return KeysRefused(
            "the replay server did not accept a client without keys",
            hint="replay.keys=FOLDER, with keys that robot-rl keys has made beside the server's",
        )
