"""Building append messages; taking append and annotate messages apart.

Taking apart makes every check that needs no store.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np

from robot_rl.data.schema import DTYPES, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay.annotations import MAXIMUM_ANNOTATION_BYTES, VERSION_LIMIT, Annotations
from robot_rl.replay.errors import WireError
from robot_rl.replay.records import MAXIMUM_EPISODE_METADATA, ROW_KEY_DTYPE
from robot_rl.replay.spool import OpenSession, Stretch
from robot_rl.replay.wire import (
    REQUEST_LIMIT,
    Frame,
    Kind,
    Message,
    encode,
)

MAXIMUM_ANNOTATED_ROWS = 4096
MAXIMUM_ANNOTATION_AXES = 8
MAXIMUM_GAP_BYTES = 256


def encode_rows(session: OpenSession, first: int, rows: list[Stretch], gap: int) -> list[Frame]:
    """Build an append message from stretches of rows with so many bytes between two rows."""
    header: dict[str, object] = {
        "table": session.table,
        "actor": session.actor,
        "session": session.number,
        "owner": session.owner,
        "first": first,
        "gap": gap,
    }
    episodes, following = {}, first
    for stretch in rows:
        following += stretch.rows
        if stretch.episode:
            episodes[str(following - 1)] = json.loads(stretch.episode)
    if episodes:
        header["episodes"] = episodes
    return encode(Kind.APPEND, header, [stretch.data for stretch in rows])


def split_rows(message: Message, schema: RowSchema) -> list[memoryview]:
    """Check payload frames and cut them into rows, without copying.

    Raises:
        WireError: A frame is not a whole number of rows, or there are none.
        SchemaMismatch: A value is not finite or out of range; names the field.
    """
    size = schema.dtype.itemsize
    gap = message.integer("gap", MAXIMUM_GAP_BYTES) if "gap" in message.header else 0
    rows: list[memoryview] = []
    for frame in message.payload:
        if len(frame) < size or (len(frame) + gap) % (size + gap):
            raise WireError(
                "a payload frame is not a whole number of rows",
                got=f"{len(frame)} bytes",
                expected=f"rows of {size} bytes, and {gap} between two",
                hint="the client packs another schema than it opened the session with",
            )
        schema.check_packed(frame, gap)
        rows += [frame[at : at + size] for at in range(0, len(frame), size + gap)]
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
        size = len(json.dumps(value))
        if size > MAXIMUM_EPISODE_METADATA:
            raise WireError(
                "episode metadata is too large",
                got=size,
                expected=f"<= {MAXIMUM_EPISODE_METADATA} bytes of JSON",
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


def parse_annotations(message: Message) -> Annotations:
    """Read an annotate message, without copying the values.

    Raises:
        WireError: An entry or a frame that cannot be annotations.
    """
    if len(message.payload) != 2:
        raise WireError(
            "annotations come as two payload frames, keys and values",
            got=len(message.payload),
            expected=2,
        )
    keys, values = message.payload
    size = ROW_KEY_DTYPE.itemsize
    if len(keys) % size or not 0 < len(keys) <= size * MAXIMUM_ANNOTATED_ROWS:
        raise WireError(
            "the keys of annotations are none, not whole or too many",
            got=f"{len(keys)} bytes",
            expected=f"a multiple of {size} bytes, at most {MAXIMUM_ANNOTATED_ROWS} keys",
        )
    dtype, shape = _annotation_type(message)
    return Annotations(
        message.text("table", 64),
        message.text("name", 64),
        message.integer("version", VERSION_LIMIT),
        dtype,
        shape,
        np.frombuffer(keys, ROW_KEY_DTYPE),
        values,
    )


def _annotation_type(message: Message) -> tuple[str, tuple[int, ...]]:
    """Read dtype and shape of one value."""
    name, axes = message.text("dtype", 16), message.header.get("shape")
    if (
        not isinstance(axes, list)
        or len(axes) > MAXIMUM_ANNOTATION_AXES
        or not all(type(axis) is int and 1 <= axis <= MAXIMUM_ANNOTATION_BYTES for axis in axes)
    ):
        raise WireError("the shape of annotations is impossible", got=repr(axes)[:200])
    if name not in DTYPES:
        raise WireError("bad dtype of annotations", got=name, expected=sorted(DTYPES))
    size = np.dtype(name).itemsize * math.prod(axes)
    if size > MAXIMUM_ANNOTATION_BYTES:
        raise WireError(
            "a value of an annotation is too large",
            got=f"{size} bytes",
            expected=f"<= {MAXIMUM_ANNOTATION_BYTES} bytes",
        )
    return name, tuple(axes)
