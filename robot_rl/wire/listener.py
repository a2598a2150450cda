"""The server's socket: where it listens, whom it lets in, and how much may wait in memory."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from pathlib import Path

import zmq

from robot_rl.wire.endpoint import (
    ENDPOINT_FILE,
    Endpoint,
    check_protected,
    is_ipv6,
    local_address,
    local_socket,
    parse_address,
    read_endpoint,
    write_endpoint,
)
from robot_rl.wire.errors import AddressInUse, AddressRefused, ServerUnreachable
from robot_rl.wire.keys import Admission, ServerKeys
from robot_rl.wire.limits import anonymous_bytes, return_freed_memory
from robot_rl.wire.messages import MAXIMUM_FRAME_BYTES, MAXIMUM_PAYLOAD_FRAMES, Frame

logger = logging.getLogger(__name__)

WAITING_MESSAGES = 128
DEFAULT_MEMORY_BYTES = 4 << 30
HANDSHAKE_MILLISECONDS = 10_000
SILENCE_SECONDS = 60
_PROBE_SECONDS, _PROBES = 15, 4
_LINGER_MILLISECONDS = 200
_MEMORY_CHECK_SECONDS = 0.05
_REOPEN_SECONDS = 10.0
# Frames after the client's identity: the prefix and header, the payload, and one too many.
_KEPT_FRAMES = MAXIMUM_PAYLOAD_FRAMES + 2
_DROPPED_FRAMES = 100_000  # reading over more of them would keep the others waiting


class Listener:
    """Receives whole messages from clients and sends messages to them.

    ZeroMQ limits the size of a frame and the number of messages that wait, but not the number of
    frames in a message, nor the bytes that wait in all; and it cannot cut one client's connection.
    So when this process's own memory grows by more than `memory_bytes`, or a message has frames
    without end, every connection is cut and what waited is forgotten. Honest clients connect
    anew and send again what was not acknowledged.

    Args:
        address: ``tcp://HOST:PORT``; port 0 takes that of the server that was killed on this
            folder, so that its clients find it again, or else any free one.
        folder: Where it is announced, see `announce`; None where its clients know the address.
        keys: Whom to let in; None lets everybody on this machine in.
        secret: What clients on this machine must say, where there are no keys.
        memory_bytes: Most that may wait, unread or unsent; None where this process does much else.
        frame_bytes: Largest frame that a client may send.
        unread_messages: Most messages that wait for a client to read them.

    Attributes:
        address: Where it listens, with the port it really got.
        traffic_bytes: Bytes received and sent so far.
        resets: How often every connection was cut.
        admission: Who was let in and who not; None where everybody is.

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
        memory_bytes: int | None = None,
        frame_bytes: int = MAXIMUM_FRAME_BYTES,
        unread_messages: int = 1000,
    ) -> None:
        """Listen; see the class."""
        check_protected(address, keys=keys is not None)
        host, port = parse_address(address)
        self._ipv6, self._memory_bytes, self._folder = is_ipv6(address), memory_bytes, folder
        self._asked, self._secret = keys or secret, secret
        self._frame_bytes, self._unread_messages = frame_bytes, unread_messages
        self.traffic_bytes = self.resets = 0
        self._next_memory_check = 0.0
        self._local = None if folder is None else local_socket(folder)
        self._open()
        try:
            self.address = self._bind(host, _ports(folder, port))
        except BaseException:
            self.close()
            raise
        self._expected_bytes = anonymous_bytes()

    @property
    def endpoint(self) -> Endpoint:
        """Where a client on this machine reaches it."""
        return Endpoint(local_address(self.address), os.getpid(), self._local, self._secret)

    def announce(self) -> None:
        """Say in its folder where it listens.

        Raises:
            OSError: The folder cannot be written.
        """
        assert self._folder is not None
        write_endpoint(self._folder, self.endpoint)

    def withdraw(self) -> None:
        """Say it no more."""
        assert self._folder is not None
        (self._folder / ENDPOINT_FILE).unlink(missing_ok=True)

    def poll(self, seconds: float, other: zmq.Socket[bytes] | None = None) -> bool:
        """Wait until a message can be received, `other` is readable, or time is over.

        Args:
            seconds: How long.
            other: A further socket that ends the wait.

        Returns:
            Whether there may be a message.
        """
        if other is not None:
            self._poller.register(other, zmq.POLLIN)
        ready = dict(self._poller.poll(math.ceil(1000 * seconds)))
        if other is not None:
            self._poller.unregister(other)
        if self.admission is not None:
            self.admission.answer()
        return self._socket in ready

    def receive(self) -> tuple[bytes, list[Frame]] | None:
        """Return the client and the frames of one waiting message, without copying; None without.

        Of a message with too many frames only so many are returned that it shows.

        Raises:
            AddressInUse: As `limit_memory`.
        """
        try:
            first = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        frames: list[Frame] = []
        dropped = 0
        while self._socket.getsockopt(zmq.RCVMORE):
            frame = self._socket.recv(copy=False)
            if len(frames) < _KEPT_FRAMES:
                self.traffic_bytes += len(frame)
                frames.append(frame.buffer)
                continue
            dropped += 1
            if dropped > _DROPPED_FRAMES:
                self._reset(f"a message has more than {_DROPPED_FRAMES} frames")
                return None
        return first.bytes, frames

    def send(self, client: bytes, frames: list[Frame]) -> bool:
        """Send a message; return False where the client is gone or does not read."""
        self.traffic_bytes += sum(len(frame) for frame in frames)
        try:
            self._socket.send_multipart([client, *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return False
        return True

    def limit_memory(self) -> bool:
        """Cut all connections if too much waits in memory; return whether that was so.

        Raises:
            AddressInUse: Meanwhile another program has taken the port.
        """
        now = time.monotonic()
        if self._memory_bytes is None or now < self._next_memory_check:
            return False
        self._next_memory_check = now + _MEMORY_CHECK_SECONDS
        waiting = anonymous_bytes() - self._expected_bytes
        if waiting <= self._memory_bytes:
            return False
        self._reset(f"{waiting >> 20} MiB wait in memory")
        return True

    def close(self, linger_milliseconds: int = _LINGER_MILLISECONDS) -> None:
        """Send what waits to be sent, for a moment, and stop listening."""
        self._socket.close(linger_milliseconds)
        if self.admission is not None:
            self.admission.close()
        self._context.term()

    def _open(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, self._frame_bytes)
        self._socket.setsockopt(zmq.SNDHWM, self._unread_messages)
        self._socket.setsockopt(zmq.RCVHWM, WAITING_MESSAGES)
        self._socket.setsockopt(zmq.IPV6, self._ipv6)
        # Who connects and then says nothing, or is no longer there, gives its descriptor back. Not
        # by ZeroMQ's heartbeats: with them libzmq 4.3.5 aborts the process when a peer hangs up
        # whose messages wait to be read ("Assertion failed: !_io_error", its issue 4364).
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, SILENCE_SECONDS)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _PROBE_SECONDS)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _PROBES)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self.admission: Admission | None = None
        if self._asked is not None:
            self.admission = Admission(self._context, self._socket, self._asked)
            self._poller.register(self.admission.socket, zmq.POLLIN)

    def _bind(self, host: str, ports: list[int]) -> str:
        for port in ports:
            try:
                self._socket.bind(f"tcp://{host}:{port or '*'}")
                address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
                self._bind_local()
                return address
            except zmq.ZMQError as error:
                reason = error
        if reason.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"a server cannot listen on tcp://{host}:{ports[0]}",
                got=reason.strerror,
                hint="stop the program that uses the port, or choose another, or port 0",
            )
        raise AddressRefused(
            f"a server cannot listen on tcp://{host}:{ports[0]}",
            got=reason.strerror,
            expected="an address of this machine, or tcp://0.0.0.0:PORT for all of them",
        )

    def _bind_local(self) -> None:
        """Listen on a Unix socket too, over which rows come with less work for the system."""
        if self._local is None:
            return
        try:
            self._socket.bind(self._local)
        except zmq.ZMQError as error:
            logger.warning("no Unix socket for clients on this machine: %s", error)
            self._local = None

    def _reset(self, reason: str) -> None:
        """Cut all connections and listen again at the same address."""
        logger.error("%s: all connections are cut", reason)
        self.resets += 1
        self.close(linger_milliseconds=0)
        return_freed_memory()
        self._open()
        host, port = parse_address(self.address)
        deadline = time.monotonic() + _REOPEN_SECONDS
        while True:
            try:
                self._bind(host, [port])
                break
            except AddressInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._expected_bytes = anonymous_bytes()


def _ports(folder: Path | None, port: int) -> list[int]:
    """Return the ports to try."""
    if port != 0 or folder is None:
        return [port]
    try:
        return [parse_address(read_endpoint(folder).address)[1], 0]
    except (ServerUnreachable, AddressRefused):
        return [0]
