"""Peers that take connections and memory and give nothing for it, in a process of their own.

`python slow_peers.py ADDRESS COUNT SECONDS [KIND…]` opens so many connections, which go on being
slow for so long. One that the server closes comes again. It prints as JSON how many were opened.
"""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from fuzzing import GREETING, READY, build

from robot_rl.wire.endpoint import parse_address

HELLO = GREETING + READY
CHUNK = bytes(1 << 16)


def announced(size: int, flags: int = 2) -> bytes:
    """The head of a frame of ZMTP, without the frame."""
    return bytes((flags,)) + struct.pack(">Q", size)


def question() -> bytes:
    """A whole question to the server, whose answer nobody reads."""
    (text,) = build("get_statistics", {"request": 1})
    return bytes((0, len(text))) + text


# What is sent at once, and what again and again.
KINDS: dict[str, tuple[bytes, bytes]] = {
    "says nothing": (b"", b""),
    "half a greeting": (GREETING[:20], b""),
    "drips its greeting": (b"", b"\xff"),
    "greets only": (GREETING, b""),
    "is silent": (HELLO, b""),
    "announces 64 MiB": (HELLO + announced(64 << 20), b"a"),
    "announces 1 MiB": (HELLO + announced(1 << 20), b"a"),
    "announces before it is ready": (GREETING + announced(1 << 20, 6), b"a"),
    "drips parts": (HELLO, announced(1, 3) + b"a"),
    "sends parts without end": (HELLO, announced(len(CHUNK), 3) + CHUNK),
    "never reads": (HELLO, 200 * question()),
    "talks nonsense": (HELLO, b"\x00\x04junk"),
}


class Peer:
    """One connection."""

    def __init__(self, kind: str, place: tuple[str, int]) -> None:
        self.kind, self._again = kind, KINDS[kind][1]
        self._unsent = KINDS[kind][0]
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(place)

    def go_on(self) -> None:
        """Send what the system takes of it; raises `OSError` where the server has hung up."""
        if not self._unsent:
            self._unsent = self._again
        with suppress(BlockingIOError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def has_ended(self) -> bool:
        """Whether the server has hung up; what it says otherwise is left where it is."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False


def trouble(address: str, count: int, seconds: float, kinds: list[str]) -> dict[str, Any]:
    """Hold so many connections for a while."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    host, port = parse_address(address)
    opened: Counter[str] = Counter()
    peers: list[Peer] = []
    chance, until = random.Random(0), time.monotonic() + seconds
    most = 0
    while time.monotonic() < until:
        while len(peers) < count:
            kind = kinds[sum(opened.values()) % len(kinds)]
            peers.append(Peer(kind, (host, int(port))))
            opened[kind] += 1
        chance.shuffle(peers)
        left = []
        for peer in peers:
            try:
                peer.go_on()
                if peer.has_ended():
                    raise ConnectionResetError
                left.append(peer)
            except OSError:
                peer.socket.close()
        peers = left
        most = max(most, len(peers))
        time.sleep(0.2)
    return {"most at a time": most, **opened}


if __name__ == "__main__":
    address, count, seconds, *kinds = sys.argv[1:]
    done = trouble(address, int(count), float(seconds), kinds or list(KINDS))
    sys.stdout.write(json.dumps(done) + "\n")
