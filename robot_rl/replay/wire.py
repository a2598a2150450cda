"""Messages between replay clients and the server: ZeroMQ multipart frames of raw bytes.

Frame 0 is a fixed prefix (magic, wire version, kind, header length, number of payload frames)
followed by a small JSON header; the payload frames are raw bytes. Nothing is ever unpickled.

Every size has a limit, since whoever reads a message must hold all of it: `MAXIMUM_FRAME_BYTES`
for a frame (ZeroMQ drops a connection that announces a larger one), `MAXIMUM_PAYLOAD_FRAMES` for
their number, and what the server is configured for in all. What is larger than a frame (weights,
mini-batches) is cut into several by `split`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from robot_rl.replay.errors import WireError

MAGIC = b"RRLW"
WIRE_VERSION = 2
PREFIX = struct.Struct(">4sHHII")
MAXIMUM_HEADER_BYTES = 1 << 18
MAXIMUM_HEADER_DEPTH = 16
MAXIMUM_PAYLOAD_FRAMES = 256
MAXIMUM_FRAME_BYTES = 64 << 20
DEFAULT_MESSAGE_BYTES = 1 << 30
REQUEST_LIMIT = 2**63

Frame = bytes | memoryview


class Kind(IntEnum):
    """What a message is. Clients send the odd ones, the server answers with the even ones."""

    OPEN = 1
    OPENED = 2
    APPEND = 3
    ACKNOWLEDGED = 4
    PUT_WEIGHTS = 5
    WEIGHTS_STORED = 6
    GET_WEIGHTS = 7
    WEIGHTS = 8
    GET_STATISTICS = 9
    STATISTICS = 10
    ERROR = 12
    ANNOTATE = 13
    ANNOTATED = 14
    SAMPLE = 15
    SAMPLED = 16
    COUNT_WINDOWS = 17
    WINDOWS_COUNTED = 18


@dataclass(frozen=True)
class Message:
    """One decoded message; the accessors check what the header says.

    Attributes:
        kind: What it is.
        header: The JSON object.
        payload: Raw frames, uncopied.
    """

    kind: Kind
    header: Mapping[str, object]
    payload: tuple[memoryview, ...] = ()

    def integer(self, name: str, limit: int = 2**63) -> int:
        """Return header entry `name`, an integer in [0, limit).

        Raises:
            WireError: Absent, not an integer, or out of range.
        """
        value = self.header.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
            raise self._error(name, value, f"an integer in [0, {limit})")
        return value

    def number(self, name: str, limit: float) -> float:
        """Return header entry `name`, a number in [0, limit].

        Raises:
            WireError: Absent, not a number, or out of range.
        """
        value = self.header.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= limit:
            raise self._error(name, value, f"a number in [0, {limit}]")
        return float(value)

    def text(self, name: str, limit: int = 256) -> str:
        """Return header entry `name`, a string of 1 to `limit` characters.

        Raises:
            WireError: Absent, not a string, empty or too long.
        """
        value = self.header.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
            raise self._error(name, value, f"printable text of 1 to {limit} characters")
        return value

    def mapping(self, name: str) -> dict[str, object]:
        """Return header entry `name`, an object; absent means empty.

        Raises:
            WireError: Not an object.
        """
        value = self.header.get(name, {})
        if not isinstance(value, dict):
            raise self._error(name, value, "an object")
        return value

    def request(self) -> int | None:
        """Return the number that the sender gave this request, None where it gave none.

        Raises:
            WireError: Not an integer, or out of range.
        """
        return None if self.header.get("request") is None else self.integer("request")

    def check_size(self, limit: int) -> None:
        """Check that the payload has at most `limit` bytes.

        Raises:
            WireError: It has more.
        """
        total = sum(len(frame) for frame in self.payload)
        if total > limit:
            raise WireError(
                "the message is too large",
                got=f"{total} bytes",
                expected=f"<= {limit} bytes",
                hint="the server's replay.message_bytes sets the limit",
            )

    def joined(self) -> bytes:
        """Return the payload frames as one, as `split` has cut them."""
        return b"".join(self.payload)

    def _error(self, name: str, value: object, expected: str) -> WireError:
        return WireError(
            f"{self.kind.name} message: bad entry {name!r}",
            got=repr(value)[:200],
            expected=expected,
        )


def encode(kind: Kind, header: Mapping[str, object], payload: Sequence[Frame] = ()) -> list[Frame]:
    """Build the frames of a message.

    Raises:
        WireError: The header is not JSON or the message is larger than the format allows.
    """
    try:
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("the header cannot be sent as JSON", got=repr(error)) from error
    _check_sizes(len(text), payload)
    prefix = PREFIX.pack(MAGIC, WIRE_VERSION, int(kind), len(text), len(payload))
    return [prefix + text, *payload]


def split(data: Frame) -> list[Frame]:
    """Cut bytes into frames of at most `MAXIMUM_FRAME_BYTES`, without copying; at least one."""
    if len(data) <= MAXIMUM_FRAME_BYTES:
        return [data]
    view = memoryview(data)
    return [view[at : at + MAXIMUM_FRAME_BYTES] for at in range(0, len(view), MAXIMUM_FRAME_BYTES)]


def decode(frames: Sequence[Frame]) -> Message:
    """Check the frames of a message and take them apart, without copying the payload.

    Raises:
        WireError: Not a message of this wire version, cut short, or too large.
    """
    if not frames or len(frames[0]) < PREFIX.size:
        raise WireError(
            "the message is shorter than its prefix",
            got=f"{len(frames)} frames, first of {len(frames[0]) if frames else 0} bytes",
            expected=f"at least {PREFIX.size} bytes",
        )
    first = memoryview(frames[0])
    magic, version, kind, header_size, payload_count = PREFIX.unpack_from(first)
    if magic != MAGIC:
        raise WireError("this is not a replay message", got=magic, expected=MAGIC)
    if version != WIRE_VERSION:
        raise WireError(
            "the message has another wire version",
            got=version,
            expected=WIRE_VERSION,
            hint="run the same robot_rl version on both sides",
        )
    if kind not in Kind._value2member_map_:
        raise WireError("unknown message kind", got=kind, expected=[int(k) for k in Kind])
    if header_size != len(first) - PREFIX.size:
        raise WireError(
            "the header is cut short or has bytes after it",
            got=f"{len(first) - PREFIX.size} bytes",
            expected=f"{header_size} bytes",
        )
    if payload_count != len(frames) - 1:
        raise WireError(
            "the message has another number of frames", got=len(frames) - 1, expected=payload_count
        )
    payload = tuple(memoryview(frame) for frame in frames[1:])
    _check_sizes(header_size, payload)
    return Message(Kind(kind), _parse_header(first[PREFIX.size :]), payload)


def _parse_header(data: memoryview) -> dict[str, object]:
    text = bytes(data)
    try:
        header = _HEADER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise WireError("the header is not JSON", got=repr(error)[:200]) from error
    if not isinstance(header, dict):
        raise WireError("the header is not an object", got=type(header).__name__)
    # Brackets inside of strings count too, so few of them prove that the header is shallow.
    if text.count(b"[") + text.count(b"{") > MAXIMUM_HEADER_DEPTH:
        check_depth(header, MAXIMUM_HEADER_DEPTH)
    return header


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # NaN and Infinity are not JSON, and 1e999 would become one
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


_HEADER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def check_depth(content: dict[str, object], limit: int) -> None:
    """Check that objects and lists are nested at most so many levels deep.

    Raises:
        WireError: They are nested deeper.
    """
    level: list[dict[str, object] | list[object]] = [content]
    for _ in range(limit):
        inside = [value.values() if isinstance(value, dict) else value for value in level]
        level = [v for values in inside for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise WireError("the header is nested too deeply", expected=f"<= {limit} levels")


def _check_sizes(header_size: int, payload: Sequence[Frame]) -> None:
    if header_size > MAXIMUM_HEADER_BYTES:
        raise WireError(
            "the header is too large", got=header_size, expected=f"<= {MAXIMUM_HEADER_BYTES} bytes"
        )
    if len(payload) > MAXIMUM_PAYLOAD_FRAMES:
        raise WireError(
            "too many payload frames", got=len(payload), expected=f"<= {MAXIMUM_PAYLOAD_FRAMES}"
        )
    for frame in payload:
        if len(frame) > MAXIMUM_FRAME_BYTES:
            raise WireError(
                "a payload frame is too large",
                got=len(frame),
                expected=f"<= {MAXIMUM_FRAME_BYTES} bytes",
            )
