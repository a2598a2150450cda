"""Limits on a server's connections: their number, memory and stalls.

ZeroMQ limits the size of a frame and the number of queued messages. It does not limit the number of
connections, the size of a multipart message, or the time it takes to arrive.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.wire.keys import is_logged
from robot_rl.wire.messages import Frame

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 128
# A peer in the middle of a message must send `_LEAST_BYTES` in this time or is disconnected.
STALL_SECONDS = 10.0
_LEAST_BYTES = 1 << 16
_LOOK_SECONDS = 0.05
_TRIM_SECONDS = 1.0
# Upper bound. The actual size is known once no bytes of a later message are waiting.
_MOST_HANDSHAKE_BYTES = 4096
_RECEIVED_AT = 128  # of ``tcpi_bytes_received`` in Linux's ``struct tcp_info``
_INFO_BYTES = 136
CURVE_BYTES = 33  # added to a frame by encryption
_MONITOR = "inproc://robot_rl.peers"


@dataclass(eq=False)
class _Peer:
    """One connection. Times are on the steady clock [s]."""

    descriptor: int  # ZeroMQ's
    inode: int  # of the socket; descriptor numbers are reused
    heard_at: float  # time of its last whole message, or of its connection
    moved_at: float  # last time it had sent enough, or was between two messages
    client: bytes | None = None  # ZeroMQ's name for it; None before its first whole message
    received: int = 0  # bytes received by the system
    moved: int = 0  # bytes at `moved_at`
    taken: int = 0  # bytes of its messages that the server has received
    handshake: int = _MOST_HANDSHAKE_BYTES

    @property
    def held(self) -> int:
        """Bytes of messages that have arrived but that the server has not received yet."""
        return self.received - self.taken - self.handshake


@dataclass(eq=False)
class Peers:
    """Monitors a server socket's connections in a thread, and disconnects some of them.

    Above `MOST_CONNECTIONS`, connections that never sent a whole message are closed first, then
    those with the oldest last message. An idle client reconnects when it sends.
    """

    context: zmq.Context[Any]
    socket: Any  # not yet bound
    encrypted: bool
    held_bytes: int  # most bytes from all peers that the server has not received yet
    memory_bytes: int | None = None  # most memory of this process
    ended: int = field(default=0, init=False)  # number of closed connections

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}
        self._idle_at = self._trimmed_at = time.monotonic()
        self._closing = threading.Event()
        self.socket.monitor(_MONITOR, zmq.EVENT_ACCEPTED)
        self._accepted = self.context.socket(zmq.PAIR)
        self._accepted.set_hwm(0)  # otherwise ZeroMQ's thread would wait for this one
        self._accepted.connect(_MONITOR)
        self._thread = threading.Thread(target=self._watch, name="wire-peers", daemon=True)
        self._thread.start()

    def note_message(self, client: bytes, descriptor: int, frames: Sequence[Frame]) -> None:
        """Record that the server has received a whole message."""
        size = 0
        for frame in frames:
            length = len(frame) + CURVE_BYTES * self.encrypted
            size += length + (2 if length < 256 else 9)
        with self._lock:
            self._take_accepted()
            peer = self._peers.get(descriptor)
            if peer is not None:
                peer.client, peer.heard_at = client, time.monotonic()
                peer.moved_at = peer.heard_at
                peer.taken += size

    def note_idle(self) -> None:
        """Record that no message is waiting for the server."""
        self._idle_at = time.monotonic()

    def end(self, client: bytes, why: str) -> None:
        """Disconnect a client."""
        with self._lock:
            for peer in [peer for peer in self._peers.values() if peer.client == client]:
                self._end(peer, why)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()
        self.socket.disable_monitor()
        self._accepted.close(linger=0)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            with self._lock:
                self._take_accepted()
                self._look()

    def _take_accepted(self) -> None:
        """Record new connections, and enforce their maximum number."""
        while self._accepted.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            descriptor, now = recv_monitor_message(self._accepted)["value"], time.monotonic()
            with suppress(OSError):  # already disconnected
                inode = os.fstat(descriptor).st_ino
                self._peers[descriptor] = _Peer(descriptor, inode, heard_at=now, moved_at=now)
            if len(self._peers) > MOST_CONNECTIONS:
                peers = self._peers.values()
                last = min(peers, key=lambda peer: (peer.client is not None, peer.heard_at))
                self._end(last, f"there are more than {MOST_CONNECTIONS} connections")

    def _look(self) -> None:
        now = time.monotonic()
        for peer in list(self._peers.values()):
            connection = self._opened(peer)
            if connection is None:
                continue
            with connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            (peer.received,) = struct.unpack_from("Q", info, _RECEIVED_AT)
            if self._is_stalled(peer, now):
                self._end(peer, f"it has stayed in a message for {STALL_SECONDS:g} s")
        # Tiny parts use much more memory than the bytes sent.
        most = 0 if self._is_out_of_memory(now) else self.held_bytes
        by_cost = sorted(self._peers.values(), key=lambda p: -p.held * (now - p.heard_at))
        total = sum(peer.held for peer in by_cost)
        for peer in by_cost:
            if total <= most or peer.held < _LEAST_BYTES:
                break
            total -= peer.held
            self._end(peer, f"{peer.held} bytes of it wait, and there is no more room")

    def _is_stalled(self, peer: _Peer, now: float) -> bool:
        """Return whether a peer is stuck in the middle of a message while the server is idle."""
        if peer.client is None:
            shaking_hands = now < peer.heard_at + STALL_SECONDS
            rests = shaking_hands or peer.received == peer.moved
        else:
            peer.handshake = min(peer.handshake, peer.received - peer.taken)
            rests = peer.held <= 0
        if rests or peer.received - peer.moved >= _LEAST_BYTES:
            peer.moved, peer.moved_at = peer.received, now
        return self._idle_at > peer.moved_at and now > peer.moved_at + STALL_SECONDS

    def _is_out_of_memory(self, now: float) -> bool:
        if self.memory_bytes is None or _own_memory() <= self.memory_bytes:
            return False
        if now > self._trimmed_at + _TRIM_SECONDS:
            self._trimmed_at = now
            _give_back_freed_memory()
        return _own_memory() > self.memory_bytes

    def _end(self, peer: _Peer, why: str) -> None:
        connection = self._opened(peer)
        if connection is None:
            return
        self.ended += 1
        if is_logged(self.ended):
            logger.warning("hung up on connection %d: %s", self.ended, why)
        with connection, suppress(OSError):  # it has disconnected by itself
            connection.shutdown(socket.SHUT_RDWR)
        self._peers.pop(peer.descriptor, None)

    def _opened(self, peer: _Peer) -> socket.socket | None:
        """Duplicate a connection's socket; if the peer is gone, drop it and return None."""
        with suppress(OSError):
            copy = os.dup(peer.descriptor)
            if os.fstat(copy).st_ino == peer.inode:
                with suppress(OSError):
                    return socket.socket(fileno=copy)
            os.close(copy)
        self._peers.pop(peer.descriptor, None)
        return None


def _own_memory() -> int:
    """Return this process's memory [bytes], without file-backed pages."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _give_back_freed_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # missing in other C libraries
        trim(0)
