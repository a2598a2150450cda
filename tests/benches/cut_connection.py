"""A way to a server on this machine that can be cut, as a network is."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from robot_rl.errors import RobotRLError

_BYTES = 1 << 16


class CuttableConnection:
    """Forwards a TCP port of its own to a server's, which may move; each end has a thread.

    Args:
        server_port: Asked for the server's port at every connection.

    Attributes:
        address: ``tcp://127.0.0.1:PORT`` that clients connect to.
    """

    def __init__(self, server_port: Callable[[], int]) -> None:
        """Listen; see the class."""
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._cut_until = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        """Drop all connections, and refuse new ones for so long."""
        self._cut_until = time.monotonic() + seconds
        self._drop()

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            dropped, self._sockets = self._sockets, []
        for one in dropped:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                if time.monotonic() < self._cut_until:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._server_port()), 5.0)
                server.settimeout(None)
            except (OSError, RobotRLError):  # the server is being killed: the client tries again
                client.close()
                continue
            with self._lock:
                self._sockets += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_forward, args=ends, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_BYTES):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
