"""Messages between our processes: ZeroMQ multipart frames of typed JSON and raw bytes.

Frame 0 is the magic, the wire version and a JSON object. Its entry ``kind`` names a message class.
The fields of that class define the other entries, their types and their bounds, which are checked
during parsing. The remaining frames, the payload, are raw bytes and are never copied. Nothing is
ever unpickled. Any language can implement this protocol.

Every size is limited, since a reader must hold a whole message. A payload frame is sent in pieces
of `PIECE_BYTES`, the last one shorter, because ZeroMQ allocates the announced size of a frame
before any of its data has arrived.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, dataclass_transform

import msgspec
from msgspec import Meta

from robot_rl.errors import RobotRLError
from robot_rl.wire import WireError

MAGIC = b"RRLW"
WIRE_VERSION = 5
PREFIX = struct.Struct(">4sH")
MAXIMUM_HEADER_BYTES = 1 << 18
MAXIMUM_HEADER_DEPTH = 16
MAXIMUM_PAYLOAD_FRAMES = 256
PIECE_BYTES = 2 << 20
MAXIMUM_ERROR_CHARACTERS = 4000
DEFAULT_PAYLOAD_BYTES = 1 << 30
_PREFIX = PREFIX.pack(MAGIC, WIRE_VERSION)
_LIMIT_HINT = "the receiver sets the limit; a replay server has it from replay.message_bytes"
_PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"

Frame = bytes | memoryview
Payload = Sequence[memoryview]

# Field types.
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=_PRINTABLE)]
Facts = dict[str, Any]  # any JSON object within the header's depth limit


def _kind(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclass_transform(frozen_default=True, kw_only_default=True)  # for the type checker
class Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=_kind,
):
    """Base of all messages; the kind is the class name: ``PutWeights`` becomes put_weights."""

    payload_frames: ClassVar[tuple[int, int]] = (0, 0)  # minimum and maximum number


class Numbered(Message, kw_only=True):
    """A request or its answer, with the request number chosen by the sender."""

    request: Natural | None = None


class Refused(Numbered):
    """The answer to a message that cannot be served: the error's class and text."""

    error: str
    message: str


class Decoder:
    """Decodes messages of the given kinds."""

    def __init__(self, *kinds: type[Message], payload_bytes: int = DEFAULT_PAYLOAD_BYTES) -> None:
        self._payload_bytes = payload_bytes
        self._json = msgspec.json.Decoder(functools.reduce(operator.or_, kinds))

    def decode(self, frames: Sequence[Frame]) -> tuple[Any, list[memoryview]]:
        """Check the frames of a message; return it and its payload with pieces joined.

        Raises:
            WireError: The kind or wire version is wrong, or the message exceeds its limits.
        """
        first = frames[0] if frames else b""
        if first[: PREFIX.size] != _PREFIX:
            raise _other_prefix(bytes(first[: PREFIX.size]))
        text = bytes(first[PREFIX.size :])
        _check_size("header", len(text), MAXIMUM_HEADER_BYTES)
        try:
            message = self._json.decode(text)
            # The count includes brackets in strings, so a low count proves a shallow header.
            if text.count(b"[") + text.count(b"{") > MAXIMUM_HEADER_DEPTH:
                _check_depth(msgspec.json.decode(text), MAXIMUM_HEADER_DEPTH)
        except (ValueError, RecursionError) as error:
            raise _explained(error, text) from error
        try:
            _check_size("payload", sum(map(len, frames[1:])), self._payload_bytes, _LIMIT_HINT)
            payload = _joined(frames[1:])
            _check_number(message, len(payload))
        except WireError as error:
            error.header = msgspec.structs.asdict(message)
            raise
        return message, payload


def encode(message: Message, payload: Sequence[Frame] = ()) -> list[Frame]:
    """Build the frames of a message; raises `WireError` if it is too large or not JSON."""
    try:
        text = msgspec.json.encode(message, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("the header cannot be sent as JSON", got=repr(error)) from error
    _check_size("header", len(text), MAXIMUM_HEADER_BYTES)
    _check_number(message, len(payload))
    return [_PREFIX + text, *(piece for frame in payload for piece in _pieces(frame))]


def refusal(error: Exception, about: Message | None = None) -> Refused:
    """Build the answer to a message that cannot be served; `about` is None if it was unreadable.

    Any error other than a `RobotRLError` is a bug in the server.
    """
    number = getattr(about, "request", None)
    if about is None and isinstance(error, WireError):
        number = error.header.get("request")
    ours = isinstance(error, RobotRLError)
    text = str(error) if ours else f"the server failed on this message; got: {error!r}"
    return Refused(
        request=number if type(number) is int and 0 <= number < 2**63 else None,
        error=type(error).__name__,
        message=text[:MAXIMUM_ERROR_CHARACTERS].encode(errors="backslashreplace").decode(),
    )


def json_text(content: Mapping[str, object], limit: int = MAXIMUM_HEADER_BYTES) -> bytes:
    """Return a caller's data as JSON of at most `limit` bytes; raises `WireError`."""
    try:
        text = json.dumps(dict(content), allow_nan=False, ensure_ascii=False).encode()
        _check_depth(msgspec.json.decode(text), MAXIMUM_HEADER_DEPTH - 2)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("this cannot be sent as JSON", got=repr(error)) from error
    if len(text) > limit:
        raise WireError("this is too large", got=len(text), expected=f"<= {limit} bytes of JSON")
    return text


def _plain(value: object) -> float:
    """Convert NumPy's float64, which is a float but unknown to msgspec."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def _explained(error: Exception, text: bytes) -> WireError:
    """Build an error that names the wrong entry and what was expected."""
    try:
        header = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return WireError("the header is not JSON", got=repr(error)[:200])
    if not isinstance(header, dict):
        return WireError("the header is not an object", got=type(header).__name__)
    explained = WireError(
        f"a message {str(header.get('kind'))[:40]!r} has a bad entry: {str(error)[:200]!a}",
        got=repr(header)[:200],
    )
    explained.header = header
    return explained


def _other_prefix(got: bytes) -> WireError:
    if got[:4] != MAGIC or len(got) < PREFIX.size:
        return WireError("this is not a message of robot_rl", got=got, expected=_PREFIX)
    return WireError(
        "the message has another wire version",
        got=PREFIX.unpack(got)[1],
        expected=WIRE_VERSION,
        hint="run the same robot_rl version on both sides",
    )


def _check_depth(content: object, limit: int) -> None:
    level: list[Any] = [content]
    for _ in range(limit):
        inside = [value.values() if isinstance(value, dict) else value for value in level]
        level = [v for values in inside for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise WireError("the header is nested too deeply", expected=f"<= {limit} levels")


def _pieces(frame: Frame) -> list[Frame]:
    """Split a payload frame without copying."""
    if len(frame) < PIECE_BYTES:
        return [frame]
    view = memoryview(frame)
    return [view[at : at + PIECE_BYTES] for at in range(0, len(view) + 1, PIECE_BYTES)]


def _joined(pieces: Sequence[Frame]) -> list[memoryview]:
    """Join payload frames; copy only frames that arrived in several pieces."""
    payload: list[memoryview] = []
    parts: list[Frame] = []
    for piece in pieces:
        _check_size("largest piece", len(piece), PIECE_BYTES)
        parts.append(piece)
        if len(piece) < PIECE_BYTES:
            payload.append(memoryview(b"".join(parts) if len(parts) > 1 else piece))
            parts = []
    if parts:
        raise WireError("the message ends in the middle of a payload frame")
    return payload


def _check_number(message: Message, got: int) -> None:
    fewest, most = message.payload_frames
    if not fewest <= got <= most:
        raise WireError(
            f"a message {_kind(type(message).__name__)!r} has another number of payload frames",
            got=got,
            expected=fewest if fewest == most else f"{fewest} to {most}",
        )


def _check_size(part: str, got: int, limit: int, hint: str | None = None) -> None:
    if got > limit:
        problem = f"the message is too large: its {part}"
        raise WireError(problem, got=f"{got} bytes", expected=f"<= {limit} bytes", hint=hint)
