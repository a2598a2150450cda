"""One connection of a replay client: a socket, and what ZeroMQ tells of its handshakes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.wire.endpoint import EVENTS, Endpoint, client_socket, read_endpoint
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import Frame


class Connection:
    """Connects to the server at an address, or to the one that has told its own in a folder.

    The poller is woken by messages and by events.

    Raises:
        ServerUnreachable: No server has told its address there.
    """

    def __init__(self, address: str | Path, keys: ClientKeys | None, poller: zmq.Poller) -> None:
        endpoint = read_endpoint(address) if isinstance(address, Path) else Endpoint(address, pid=0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: Any = client_socket(self._context, endpoint, keys)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._monitor: Any = self._socket.get_monitor_socket(EVENTS)
        self._socket.connect(endpoint.address)
        poller.register(self._monitor, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)

    def event(self) -> dict[str, Any] | None:
        """Return the next of `EVENTS`, with its ``event`` and ``value``; None if there is none."""
        return dict(recv_monitor_message(self._monitor)) if self._monitor.poll(0) else None

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message, None if there is none."""
        try:
            frames: list[bytes] = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frames

    def send(self, frames: list[Frame]) -> None:
        """Send a message, uncopied; one that cannot be sent counts as lost on its way."""
        # ZeroMQ gives a connection up whose keys are refused, and then does not take any more.
        with suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """End the connection; what is on its way is dropped."""
        self._socket.disable_monitor()
        self._context.destroy(linger=0)
