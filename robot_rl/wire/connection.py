"""The client's socket: finding the server again and again, and whether the keys were accepted."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from robot_rl.wire.endpoint import Endpoint, check_protected, is_ipv6
from robot_rl.wire.errors import KeysRefused
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import Frame

_EVENT = struct.Struct("=HI")  # as zmq_socket_monitor(3) packs event and value
_MECHANISM_MISMATCH = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH of zmq.h
_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def client_socket(
    context: zmq.Context[Any], endpoint: Endpoint, keys: ClientKeys | None = None
) -> Any:
    """Make a client's socket for a server, not yet connected.

    Raises:
        AddressRefused: Not an address, or one beyond this machine and no keys.
    """
    check_protected(endpoint.address, keys=keys is not None)
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
    socket.setsockopt(zmq.IPV6, is_ipv6(endpoint.address))
    if keys is not None:
        socket.curve_serverkey = keys.server
        socket.curve_publickey = keys.public
        socket.curve_secretkey = keys.secret
    elif endpoint.secret is not None:
        socket.plain_username = b"robot_rl"
        socket.plain_password = endpoint.secret.encode()
    return socket


class Connection:
    """A client's connection to a server that may go away and come back.

    Args:
        find: Says where the server is; asked at every connection.
        wake: A file descriptor that ends the waiting.
        keys: With them the connection is authenticated and encrypted.
        doubt_seconds: How long every handshake must fail without a reason before the keys are
            blamed: a server that restarts behind a tunnel looks the same for a while.

    Attributes:
        open: Whether there is a socket, connected or trying to be.
        up: Whether it is connected at the moment.
    """

    def __init__(
        self,
        find: Callable[[], Endpoint],
        wake: int,
        keys: ClientKeys | None,
        doubt_seconds: float,
    ) -> None:
        """Not yet connected; see `connect`."""
        self._find, self._wake, self._keys, self._doubt_seconds = find, wake, keys, doubt_seconds
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self.up = False
        self._was_up = False
        self._in_doubt_since: float | None = None
        self.close()

    @property
    def open(self) -> bool:
        """See the class."""
        return self._socket is not None

    def connect(self) -> None:
        """Connect with a fresh socket: what the old one had not sent is forgotten.

        Raises:
            ServerUnreachable: Nobody has said where the server is.
            AddressRefused: It is beyond this machine, and there are no keys.
        """
        self.close()
        endpoint = self._find()
        context = self._context = zmq.Context()
        self._socket = client_socket(context, endpoint, self._keys)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        self._socket.connect(endpoint.local or endpoint.address)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)

    def close(self) -> None:
        """End the connection; afterwards nothing looks at what was on its way."""
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
        if self._context is not None:
            self._context.term()
        self._context = self._socket = self._monitor = None
        self.up = self._was_up = False
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)

    def poll(self, seconds: float) -> bool:
        """Wait until something happens, or time is over; return whether it did."""
        return bool(self._poller.poll(math.ceil(1000 * seconds)))

    def receive(self) -> list[bytes] | None:
        """Return the frames of one message that has come; None without."""
        if self._socket is None:
            return None
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, frames: list[Frame]) -> None:
        """Send a message; one that cannot be sent counts as lost on its way.

        Large frames are not copied.
        """
        assert self._socket is not None
        # ZeroMQ gives a connection up whose keys are refused, and then does not take any more.
        with suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def look(self, now: float) -> KeysRefused | bool | None:
        """Return the next thing that happened to the connection and matters; None without.

        Args:
            now: Steady clock, seconds.

        Returns:
            Why there is none, or whether the same socket is connected once more: then what was on
            its way is lost.
        """
        while self._monitor is not None and self._monitor.poll(0):
            event, value = _EVENT.unpack(self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                again, self._was_up = self._was_up, True
                self._in_doubt_since, self.up = None, True
                return again
            refused = self._refused(event, value, now)
            if refused is not None:
                return refused
        return None

    def _refused(self, event: int, value: int, now: float) -> KeysRefused | None:
        if event == zmq.EVENT_DISCONNECTED:
            self.up = False
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return KeysRefused(
                "the server does not admit this client's key",
                hint="in the server's folder of keys there must be a clients/NAME.public for it;"
                " after a change the server must be restarted",
            )
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _MECHANISM_MISMATCH:
            return self._one_side_has_keys()
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and self._keys is not None:
            if self._in_doubt_since is None:
                self._in_doubt_since = now
            elif now > self._in_doubt_since + self._doubt_seconds:
                return KeysRefused(
                    "what listens there ends every handshake",
                    hint="server.public is not the key of this server, or it is none of ours",
                )
        return None

    def _one_side_has_keys(self) -> KeysRefused:
        if self._keys is not None:
            return KeysRefused(
                "this client uses keys, and the server does not",
                hint="start the server with replay.keys=FOLDER, or this client without",
            )
        return KeysRefused(
            "the server did not accept a client without keys",
            hint="replay.keys=FOLDER, with keys that robot-rl keys has made beside the server's",
        )
