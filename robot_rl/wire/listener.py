"""The server's socket: where it listens, whom it lets in, and how much may wait for each client."""

from __future__ import annotations

import errno
import math
import os
from contextlib import suppress
from pathlib import Path

import zmq

from robot_rl.wire import AddressInUse, AddressRefused, ServerUnreachable
from robot_rl.wire.endpoint import (
    ENDPOINT_FILE,
    Endpoint,
    check_protected,
    local_address,
    parse_address,
    read_endpoint,
    write_endpoint,
)
from robot_rl.wire.keys import Admission, ServerKeys
from robot_rl.wire.messages import MAXIMUM_FRAME_BYTES, Frame

_UNREAD_BY_US = 128  # messages of one client
_LINGER_MILLISECONDS = 200
_OPTIONS = {
    zmq.ROUTER_MANDATORY: 1,
    zmq.RCVHWM: _UNREAD_BY_US,
    # Who connects and then says nothing, or is no longer there, gives its descriptor back. Not
    # by ZeroMQ's heartbeats: with them libzmq 4.3.5 aborts the process when a peer hangs up
    # whose messages wait to be read ("Assertion failed: !_io_error", its issue 4364).
    zmq.HANDSHAKE_IVL: 10_000,  # ms
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,  # s
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
}


class Listener:
    """Receives whole messages from clients and sends messages to them.

    Args:
        address: ``tcp://HOST:PORT``; port 0 takes that of the server that was killed on this
            folder, so that its clients find it again, or else any free one.
        folder: Where it is announced, see `announce`; None where its clients know the address.
        keys: Whom to let in; None lets everybody on this machine in.
        secret: What clients on this machine must say, where there are no keys.
        frame_bytes: Largest frame that a client may send.
        unread_messages: Most messages that wait for a client to read them.

    Attributes:
        address: Where it listens, with the port it really got.
        admission: Who was let in and who not; None where everybody is.
        poller: What ends a wait; a further socket can be registered.

    Raises:
        AddressRefused: Not an address of this machine, or beyond loopback without keys.
        AddressInUse: The port is taken.
    """

    def __init__(
        self,
        address: str,
        *,
        folder: Path | None = None,
        keys: ServerKeys | None = None,
        secret: str | None = None,
        frame_bytes: int = MAXIMUM_FRAME_BYTES,
        unread_messages: int = 1000,
    ) -> None:
        check_protected(address, keys=keys is not None)
        host, port = parse_address(address)
        self._folder, self._secret = folder, secret
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
        self._socket.setsockopt(zmq.SNDHWM, unread_messages)
        self._socket.setsockopt(zmq.IPV6, host.startswith("["))
        self.poller = zmq.Poller()
        self.poller.register(self._socket, zmq.POLLIN)
        self.admission: Admission | None = None
        try:
            asked = keys or secret
            if asked is not None:
                self.admission = Admission(self._context, self._socket, asked)
                self.poller.register(self.admission.socket, zmq.POLLIN)
            self.address = self._bind(host, port)
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """Where a client on this machine reaches it."""
        return Endpoint(local_address(self.address), os.getpid(), self._secret)

    def announce(self) -> None:
        """Say in its folder where it listens."""
        assert self._folder is not None
        write_endpoint(self._folder, self.endpoint)

    def withdraw(self) -> None:
        """Say it no more."""
        assert self._folder is not None
        (self._folder / ENDPOINT_FILE).unlink(missing_ok=True)

    def poll(self, seconds: float) -> bool:
        """Wait until something happens or time is over; return whether there may be a message."""
        ready = dict(self.poller.poll(math.ceil(1000 * seconds)))
        if self.admission is not None:
            self.admission.answer()
        return self._socket in ready

    def receive(self) -> tuple[bytes, list[Frame]] | None:
        """Return the client and the uncopied frames of one waiting message; None without."""
        try:
            client, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return client.bytes, [frame.buffer for frame in frames]

    def send(self, client: bytes, frames: list[Frame]) -> bool:
        """Send a message; return False where the client is gone or does not read."""
        try:
            self._socket.send_multipart([client, *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Send what waits to be sent, for a moment, and stop listening."""
        self._socket.close(_LINGER_MILLISECONDS)
        if self.admission is not None:
            self.admission.close()
        self._context.term()

    def _bind(self, host: str, port: int) -> str:
        if port == 0 and self._folder is not None:
            with suppress(ServerUnreachable, AddressRefused, zmq.ZMQError):
                former = parse_address(read_endpoint(self._folder).address)[1]
                self._socket.bind(f"tcp://{host}:{former}")
                return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            problem, got = f"a server cannot listen on tcp://{host}:{port}", error.strerror
            if error.errno == errno.EADDRINUSE:
                hint = "stop the program that uses the port, or choose another, or port 0"
                raise AddressInUse(problem, got=got, hint=hint) from error
            expected = "an address of this machine, or tcp://0.0.0.0:PORT for all of them"
            raise AddressRefused(problem, got=got, expected=expected) from error
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
