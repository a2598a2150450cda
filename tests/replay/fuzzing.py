"""A peer that does everything wrong, in a process of its own: damaged messages and raw bytes.

`python fuzzing.py ADDRESS SEED SECONDS FACTS` attacks a replay server until the time is over and
prints what it did as JSON. It starts from valid messages of every kind and damages them knowing
their structure, so that the damage gets past the first check. FACTS is a JSON object:

    schema  what rows look like, as `RowSchema.to_json` gives it
    honest  actor, session and owner of somebody else's session
    rows    how many rows of that session are stored, which must never change
    keys    folder of a client's keys, or null
"""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from robot_rl.data.schema import RowSchema
from robot_rl.replay.protocol import ANSWERS, Acknowledged, Opened
from robot_rl.wire import WireError
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import (
    MAGIC,
    PIECE_BYTES,
    PREFIX,
    WIRE_VERSION,
    Decoder,
    Refused,
)

REQUESTS = (
    "open", "append", "annotate", "put_weights", "get_weights", "get_statistics", "get_changes",
    "get_rows",
)  # fmt: skip
decode = Decoder(*ANSWERS).decode
INTERNAL = "the server failed on"
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00NULL" + bytes(16) + b"\0" + bytes(31)
PING = b"\x04\x0b\x04PING\x00\x01ctxt"  # asks to be forgotten after 0.1 s of silence
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


def build(kind: str, header: dict[str, Any], *payload: bytes) -> list[bytes]:
    """Build a message without checking anything."""
    text = json.dumps({"kind": kind, **header}).encode()
    return [PREFIX.pack(MAGIC, WIRE_VERSION) + text, *payload]


class Messages:
    """Valid messages of every kind, and ways to damage them."""

    def __init__(self, rng: random.Random, facts: dict[str, Any]) -> None:
        self._rng = rng
        self._schema = facts["schema"]
        self._row_bytes = RowSchema.from_json(self._schema).dtype.itemsize
        self._honest, self._honest_rows = facts["honest"], facts["rows"]
        self.session: dict[str, Any] | None = None  # once the server has opened one
        self._version = 0

    def valid(self) -> list[bytes]:
        """Return a message that an honest client could send."""
        rng, kind = self._rng, self._rng.choice(REQUESTS)
        header: dict[str, Any] = {} if kind == "append" else {"request": rng.randrange(1, 1000)}
        payload: list[bytes] = []
        if kind == "open":
            header |= {"schema": self._schema, "actor": rng.randrange(60, 70)}
            header |= {"session": None, "owner": f"o{rng.randrange(9)}", "metadata": {"a": [1]}}
        elif kind == "append":
            place = self.session or {**self._honest, "owner": "guessed"}
            names = ("actor", "session", "owner")
            header |= {name: place[name] for name in names} | {"first": place.get("next", 0)}
            header["episodes"] = {str(header["first"]): {"task": "reach", "seed": 1}}
            payload = [self._row() for _ in range(rng.randrange(1, 4))]
            if rng.random() < 0.5:
                payload = [b"".join(payload)]
        elif kind == "annotate":
            header |= {name: self._honest[name] for name in ("actor", "session")}
            rows = range(rng.randrange(1, 5))
            header |= {"name": f"a{rng.randrange(3)}"}
            header |= {"version": rng.randrange(1, 50)}
            payload = [np.array(rows, np.int64).tobytes(), bytes(4 * len(rows))]
        elif kind == "put_weights":
            self._version += 1
            header |= {"name": f"w{rng.randrange(3)}", "version": self._version, "metadata": {}}
            payload = [rng.randbytes(rng.choice([0, 10, 5000]))]
        elif kind == "get_weights":
            header |= {"name": f"w{rng.randrange(4)}", "newer_than": rng.choice([None, 0, 10**9])}
            header["wait"] = rng.choice([0, 0.01, 1.0])
        elif kind == "get_changes":
            header |= {"token": rng.choice(["", "x"]), "next_episode": rng.choice([0, 3, 10**9])}
            header |= {"open": rng.choice([[], [0], [1, 2, 10**6]])}
            header["last_annotation"] = rng.choice([0, 5])
        elif kind == "get_rows":
            header |= {name: self._honest[name] for name in ("actor", "session")}
            header |= {"first": 0, "start": rng.choice([0, 1, 10**6])}
        return build(kind, header, *payload)

    def overwriting(self) -> list[bytes]:
        """Return rows, with the right owner token, that are stored already with other bytes."""
        header = {**self._honest, "first": self._rng.randrange(max(self._honest_rows - 4, 1))}
        count = min(3, self._honest_rows - header["first"])
        return build("append", header, *(self._row() for _ in range(count)))

    def damaged(self, frames: list[bytes]) -> list[bytes]:
        """Return a message with one to three kinds of damage."""
        ways: list[Callable[[list[bytes]], list[bytes]]] = [
            self._flip, self._cut, self._frames, self._entry, self._entry, self._entry,
            self._prefix, self._schema_text,
        ]  # fmt: skip
        for _ in range(self._rng.randrange(1, 4)):
            frames = self._rng.choice(ways)(list(frames))
        return frames

    def _row(self) -> bytes:
        rng = self._rng
        fill = rng.choice([b"\0", b"\0", b"\0", b"\1", b"\xff", b"\x7f"])
        row = bytearray(fill * self._row_bytes)
        if rng.random() < 0.5:
            row[:40] = bytes(40)
            for place in rng.sample(range(40), 3):
                row[place] = rng.choice([0, 1, 2, 255])
        return bytes(row)

    def _flip(self, frames: list[bytes]) -> list[bytes]:
        index = self._rng.randrange(len(frames))
        data = bytearray(frames[index])
        for _ in range(self._rng.randrange(1, 5) if data else 0):
            data[self._rng.randrange(min(len(data), 400))] ^= 1 << self._rng.randrange(8)
        frames[index] = bytes(data)
        return frames

    def _cut(self, frames: list[bytes]) -> list[bytes]:
        index = self._rng.randrange(len(frames))
        data = frames[index]
        at = self._rng.randrange(len(data) + 1)
        more = self._rng.randbytes(self._rng.choice([1, 7, 100_000]))
        frames[index] = self._rng.choice([data[:at], data[:at] + data[at + 1 :], data + more, b""])
        return frames

    def _frames(self, frames: list[bytes]) -> list[bytes]:
        rng = self._rng
        extra = rng.choice([b"", b"x", bytes(100), frames[0], rng.randbytes(1 << 16)])
        return rng.choice(
            [
                frames[1:] or [b""],
                frames[:-1] or [b""],
                frames * 2,
                frames[::-1],
                [*frames, extra],
                [extra, *frames],
                frames + [extra] * rng.choice([1, 255, 256, 257, 3000]),
            ]
        )

    def _strange(self) -> Any:
        rng = self._rng
        nested: Any = 1
        for _ in range(rng.choice([3, 14, 16, 17, 200])):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return rng.choice(
            [
                None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 2**200, -(2**70),
                0.5, 1e308, -0.0, "", "x", "\0", "\ud800", "x" * 300, "é" * 64, "y" * 200_000,
                [], {}, [[]], {"": 0}, list(range(3000)), nested, float("nan"), float("inf"),
                self._schema, [self._schema] * 3, "1", "-1", {str(2**70): {}}, {"0": nested},
                {"0": {"x" * 20_000: 1}}, ["action", "action"], ["nothing"], [None], 70_000,
            ]
        )  # fmt: skip

    def _entry(self, frames: list[bytes]) -> list[bytes]:
        """Damage one entry of the header, or its text, and keep the prefix right."""
        rng = self._rng
        try:
            header = json.loads(frames[0][PREFIX.size :])
        except (ValueError, RecursionError):
            return frames
        if not isinstance(header, dict):
            return frames
        name = rng.choice([*header, "request", "new"])
        if rng.random() < 0.2:
            header.pop(name, None)
        elif rng.random() < 0.2 and isinstance(header.get(name), dict) and header[name]:
            header[name][rng.choice(list(header[name]))] = self._strange()
        else:
            header[name] = self._strange()
        text = json.dumps(header)
        if rng.random() < 0.1:
            inside = rng.choice(["NaN", "1e999", "9" * 5000, "[" * 5000, '"\\u', "\xff", "-"])
            place = rng.randrange(len(text) + 1)
            text = text[:place] + inside + text[place:]
        data = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.05:
            data = rng.choice([text.encode("utf-16"), b"\xff" + data, b"", b"[1]", b"null"])
        frames[0] = frames[0][: PREFIX.size] + data
        return frames

    def _prefix(self, frames: list[bytes]) -> list[bytes]:
        rng = self._rng
        if len(frames[0]) < PREFIX.size:
            return frames
        fields = list(PREFIX.unpack_from(frames[0]))
        if rng.random() < 0.8:
            kind = rng.choice([*REQUESTS, "acknowledged", "refused", "x" * 300])
            named = b'"kind":"%s"' % kind.encode()
            header = re.sub(rb'"kind": *"[a-z_]*"', named, frames[0], count=1)
            return [header, *frames[1:]]
        place = rng.randrange(2)
        fields[place] = [rng.randbytes(4), rng.choice([0, 2, 65535])][place]
        frames[0] = PREFIX.pack(*fields) + frames[0][PREFIX.size :]
        return frames

    def _schema_text(self, frames: list[bytes]) -> list[bytes]:
        """Open a session with a schema that is nearly right."""
        rng = self._rng
        content = json.loads(self._schema)
        fields = content["fields"]
        column = rng.choice(fields)
        choice = rng.randrange(8)
        if choice == 0:
            column[rng.randrange(3)] = self._strange()
        elif choice == 1:
            fields.append(rng.choice([column, ["x", "f8", [2**40, 2**40]], ["x", "O", []], []]))
        elif choice == 2:
            column[2] = rng.choice([[0], [-1], [2**31], [1] * 70, [2**70], [1.5], "34", {}])
        elif choice == 3:
            column[1] = rng.choice(["O", "V8", "S3", "U3", "M8[s]", "c16", ">f4", "f2", "f16", "x"])
        elif choice == 4:
            fields.remove(column)
        elif choice == 5:
            content[rng.choice(list(content))] = self._strange()
        elif choice == 6:
            fields += [[f"f{n}", "f4", []] for n in range(rng.choice([100, 3000]))]
        else:
            column[0] = rng.choice(["", "\0", "\ud800", "a/b", "x" * 5000, column[0] + " "])
        text = json.dumps(content)
        header = {"request": 5, "schema": text, "actor": 60}
        return build("open", {**header, "owner": "o", "metadata": {}})


class Attack:
    """Sends to one server, on several connections, for a while."""

    def __init__(self, address: str, seed: int, facts: dict[str, Any]) -> None:
        self._address, self._rng = address, random.Random(seed)
        self._messages = Messages(self._rng, facts)
        self._keys = None if facts["keys"] is None else ClientKeys.load(Path(facts["keys"]))
        self._context = zmq.Context()
        self._sockets = [self._connected() for _ in range(3)]
        self._left: deque[socket.socket] = deque()
        self._sent: deque[list[bytes]] = deque(maxlen=200)
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            way = self._rng.random()
            if way < 0.04:
                self._raw()
            elif way < 0.041:
                self._huge()
            elif way < 0.06:
                self._reconnect()
            else:
                self._send(self._message(way))
            self._read()

    def close(self) -> None:
        for place in self._left:
            place.close()
        for place in self._sockets:
            place.close(linger=0)
        self._context.term()

    def _message(self, way: float) -> list[bytes]:
        if way < 0.15:
            return self._messages.valid()
        if way < 0.25:
            return self._messages.overwriting()
        if way < 0.32 and self._sent:
            return self._rng.choice(self._sent)
        return self._messages.damaged(self._messages.valid())

    def _connected(self) -> zmq.Socket[bytes]:
        kind = self._rng.choice([zmq.DEALER] * 12 + [zmq.REQ, zmq.ROUTER, zmq.PUSH])
        place = self._context.socket(zmq.DEALER if not hasattr(self, "_sockets") else kind)
        place.setsockopt(zmq.LINGER, 0)
        place.setsockopt(zmq.SNDTIMEO, 200)
        place.setsockopt(zmq.SNDHWM, 50)
        if self._rng.random() < 0.3:
            place.setsockopt(zmq.ROUTING_ID, b"somebody")
        if self._keys is not None:
            place.curve_serverkey = self._keys.server
            place.curve_publickey = zmq.curve_public(self._keys.secret)
            place.curve_secretkey = self._keys.secret
            if hasattr(self, "_sockets") and self._rng.random() < 0.2:
                place.curve_publickey, place.curve_secretkey = zmq.curve_keypair()
        place.connect(self._address)
        return place

    def _send(self, frames: list[bytes]) -> None:
        place = self._rng.choice(self._sockets)
        self._sent.append(frames)
        try:
            place.send_multipart(frames, zmq.NOBLOCK)
            self.counts["messages"] += 1
        except zmq.ZMQError:  # a socket type or connection that cannot send now
            self.counts["not sent"] += 1

    def _read(self) -> None:
        if self._rng.random() < 0.2:
            return
        for place in self._sockets:
            if place.socket_type == zmq.PUSH:
                continue
            while place.poll(0):
                self._check(place.recv_multipart())

    def _check(self, frames: list[bytes]) -> None:
        """Look at an answer: it must follow the format, and own up to no failure."""
        try:
            answer, _ = decode(frames)
        except WireError:
            self.counts["answers through another socket type"] += 1
            return
        self.counts[f"answered {type(answer).__name__}"] += 1
        if isinstance(answer, Refused):
            self.counts[f"error {answer.error}"] += 1
            if INTERNAL in answer.message:
                sys.stderr.write(f"{answer.message}\n")
                self.counts["internal errors"] += 1
        elif isinstance(answer, Opened):
            self._messages.session = msgspec.structs.asdict(answer)
        elif isinstance(answer, Acknowledged) and self._messages.session:
            self._messages.session["next"] = answer.next

    def _reconnect(self) -> None:
        index = self._rng.randrange(len(self._sockets))
        self._sockets[index].close(linger=0)
        self._sockets[index] = self._connected()
        self.counts["reconnects"] += 1

    def _huge(self) -> None:
        """Send frames without number, or one that is larger than allowed."""
        place = self._connected()
        frames = self._rng.choice(
            [
                [b""] * 20_000,
                [bytes(1000)] * 2000,
                [bytes(PIECE_BYTES + 1)],
                [bytes(1 << 22)] * 4,
            ]
        )
        try:
            place.send_multipart(frames, copy=False)
            place.poll(100)
            self.counts["huge messages"] += 1
        except zmq.ZMQError:
            self.counts["not sent"] += 1
        place.close(linger=0)

    def _raw(self) -> None:
        """Talk to the port without ZeroMQ, and perhaps leave the connection open."""
        rng = self._rng
        host, port = self._address.removeprefix("tcp://").rsplit(":", 1)
        frame = b"\x00" + bytes([20]) + self._messages.valid()[0][:20]
        data = rng.choice(
            [
                rng.randbytes(rng.randrange(300)),
                b"GET / HTTP/1.1\r\n\r\n",
                SIGNATURE[: rng.randrange(10)],
                GREETING[: rng.randrange(len(GREETING))],
                GREETING,
                GREETING + READY[: rng.randrange(len(READY))],
                GREETING + READY + frame[: rng.randrange(len(frame))],
                GREETING + READY + frame + b"\x02" + struct.pack(">Q", 2**62),
                GREETING + READY + b"\x02" + struct.pack(">Q", PIECE_BYTES) + bytes(1000),
                GREETING + READY + b"\x01\x01x" * 1000,
                GREETING + READY + rng.randbytes(200),
                GREETING + b"\x04\xff" + rng.randbytes(255),
                GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15)) + rng.randbytes(300),
                GREETING + READY + PING * rng.randrange(1, 50),
                GREETING + READY + PING + b"\x02" + struct.pack(">Q", 1000) + bytes(500),
                GREETING + READY + PING + (b"\x00\x14" + frame[2:22]) * 1000,
                GREETING + READY + (b"\x00\x14" + frame[2:22]) * 1000,
                GREETING + READY + b"\x04\x06\x05ERROR" + b"\x04\x05\x04JOIN",
                GREETING + READY + b"\x04\xff\x04PONG" + bytes(250),
                b"\xff" * 64,
            ]
        )
        try:
            place = socket.create_connection((host, int(port)), timeout=5)
            place.sendall(data)
        except OSError:
            self.counts["raw connections refused"] += 1
            return
        self.counts["raw connections"] += 1
        if rng.random() < 0.3:  # with a reset in place of a farewell
            place.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if rng.random() < 0.6:
            place.close()
            return
        self._left.append(place)
        if len(self._left) > 100:
            self._left.popleft().close()


def main(address: str, seed: str, seconds: str, facts: str) -> None:
    attack = Attack(address, int(seed), json.loads(facts))
    try:
        attack.run(float(seconds))
    finally:
        attack.close()
    sys.stdout.write(json.dumps(attack.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
