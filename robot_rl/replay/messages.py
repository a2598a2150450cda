"""Taking append messages apart, with every check that needs no session."""

from __future__ import annotations

from collections.abc import Mapping

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay.errors import WireError
from robot_rl.replay.wire import REQUEST_LIMIT, Message

MAXIMUM_EPISODE_METADATA = 1 << 14


def split_rows(message: Message, schema: RowSchema) -> list[memoryview]:
    """Check payload frames and cut them into rows, without copying.

    Raises:
        WireError: A frame is not a whole number of rows, or there are none.
        SchemaMismatch: A value is not finite or out of range; names the field.
    """
    size = schema.dtype.itemsize
    rows: list[memoryview] = []
    for frame in message.payload:
        if len(frame) == 0 or len(frame) % size:
            raise WireError(
                "a payload frame is not a whole number of rows",
                got=f"{len(frame)} bytes",
                expected=f"a multiple of {size} bytes",
                hint="the client packs another schema than it opened the session with",
            )
        schema.check_packed(frame)
        if len(frame) == size:
            rows.append(frame)
        else:
            rows.extend(frame[at : at + size] for at in range(0, len(frame), size))
    if not rows:
        raise WireError("an append message carries no rows")
    return rows


def parse_episodes(message: Message) -> dict[int, Mapping[str, object]]:
    """Read the metadata of the episodes that begin in an append message.

    Raises:
        WireError: Not an object of objects by sequence, or too large.
    """
    episodes: dict[int, Mapping[str, object]] = {}
    for key, value in message.mapping("episodes").items():
        if not key.isdecimal() or len(key) > 19 or not isinstance(value, dict):
            raise WireError("episode metadata is not an object by sequence", got=key[:40])
        if len(repr(value)) > MAXIMUM_EPISODE_METADATA:
            raise WireError(
                "episode metadata is too large",
                got=len(repr(value)),
                expected=f"<= {MAXIMUM_EPISODE_METADATA} characters",
            )
        episodes[int(key)] = value
    return episodes


def error_header(error: RobotRLError, header: Mapping[str, object]) -> dict[str, object]:
    """Return the header of the answer to a message that cannot be served.

    Args:
        error: What is wrong.
        header: That of the message; it says what the answer is about.
    """
    about = {
        name: value
        for name in ("request", "table", "actor", "session")
        if type(value := header.get(name)) is int and 0 <= value < REQUEST_LIMIT
    }
    return {**about, "error": type(error).__name__, "message": str(error)[:4000]}
