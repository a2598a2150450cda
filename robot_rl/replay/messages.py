"""The messages between replay's clients and its server, and what stands between them and rows.

The server answers each request with the kind that stands behind it here, or with `Refused`.
Taking messages apart makes every check that needs no store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from robot_rl.data.schema import DTYPES, Array, RowSchema
from robot_rl.replay.errors import AnnotationRefused
from robot_rl.replay.records import (
    ACTOR_LIMIT,
    MAXIMUM_ANNOTATION_BYTES,
    MAXIMUM_EPISODE_METADATA,
    ROW_KEY_DTYPE,
    TABLE_LIMIT,
    Annotations,
    SessionKey,
)
from robot_rl.replay.sampler import SampleSpec, Visible
from robot_rl.replay.sessions import OpenSession
from robot_rl.replay.spool import Stretch
from robot_rl.wire.errors import WireError
from robot_rl.wire.messages import (
    MAXIMUM_PAYLOAD_FRAMES,
    Facts,
    Frame,
    Name,
    Natural,
    Numbered,
    Payload,
    Refused,
    encode,
)

MAXIMUM_SCHEMA_BYTES = 1 << 16
MAXIMUM_WAIT_SECONDS = 60.0
MAXIMUM_ANNOTATED_ROWS = 4096
MAXIMUM_ANNOTATION_AXES = 8
_ROWS_PER_REQUEST = 1024
_BYTES_PER_REQUEST = 4 << 20

TableNumber = Annotated[int, Meta(ge=0, lt=TABLE_LIMIT)]
ActorNumber = Annotated[int, Meta(ge=0, lt=ACTOR_LIMIT)]
Seconds = Annotated[float, Meta(ge=0, le=MAXIMUM_WAIT_SECONDS)]
Axis = Annotated[int, Meta(ge=1, le=MAXIMUM_ANNOTATION_BYTES)]
_FACTS = msgspec.json.Decoder(Facts)


class Open(Numbered):
    """Begin a session, or go on with one: in `store`, where the client knows one."""

    table: Name
    schema: Annotated[str, Meta(min_length=1, max_length=MAXIMUM_SCHEMA_BYTES)]
    actor: ActorNumber
    owner: Name
    session: Natural | None = None
    metadata: Facts = msgspec.field(default_factory=dict)
    store: Name | None = None


class InSession(Numbered):
    """What is about one session."""

    table: TableNumber
    actor: ActorNumber
    session: Natural

    @property
    def place(self) -> SessionKey:
        """Table, actor and session."""
        return self.table, self.actor, self.session


class Opened(InSession):
    """Where the session stands."""

    owner: Name
    store: Name
    next: Natural
    in_episode: bool
    ended: bool


class Append(InSession):
    """Rows of a session from sequence `first` on.

    Of the episodes that begin here, their metadata are given by sequence.
    """

    payload_frames: ClassVar[tuple[int, int]] = (1, MAXIMUM_PAYLOAD_FRAMES)
    owner: Name
    first: Natural
    episodes: dict[Natural, msgspec.Raw] = msgspec.field(default_factory=dict)


class Acknowledged(InSession):
    """All rows of a session below sequence `next` are committed."""

    next: Natural


class PutWeights(Numbered):
    """Weights to keep as the latest ones of this name."""

    payload_frames: ClassVar[tuple[int, int]] = (1, MAXIMUM_PAYLOAD_FRAMES)
    name: Name
    version: Natural
    metadata: Facts = msgspec.field(default_factory=dict)


class Stored(Numbered):
    """Weights or annotations are durable; of these, so many were new."""

    new: Natural = 1


class GetWeights(Numbered):
    """Ask for weights that are newer than a version, and wait for them."""

    name: Name
    newer_than: Natural | None = None
    wait: Seconds = 0.0


class Weights(Numbered):
    """The latest weights; version None where there are none newer."""

    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    version: Natural | None = None
    metadata: Facts = msgspec.field(default_factory=dict)


class GetStatistics(Numbered):
    """Ask for the server's counters and the totals of its tables."""


class Statistics(Numbered):
    """What was asked for."""

    statistics: Facts


class Annotate(Numbered):
    """Values beside rows: two frames, the rows' keys and the values."""

    payload_frames: ClassVar[tuple[int, int]] = (2, 2)
    table: Name
    name: Name
    version: Natural
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Axis, ...], Meta(max_length=MAXIMUM_ANNOTATION_AXES)]


class Sample(Numbered):
    """Draw a mini-batch; the answer depends on nothing but this message and the store."""

    table: Name
    spec: SampleSpec
    state: Facts


class Sampled(Numbered):
    """The bytes of a batch's arrays, one after the other, and the sampler's state after it."""

    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    state: Facts
    visible: Visible


class CountWindows(Numbered):
    """Ask what there is to draw from."""

    table: Name
    spec: SampleSpec
    state: Facts


class WindowsCounted(Numbered):
    """What there is, and for each array of a batch its dtype and the shape of one item."""

    store: Name
    visible: Visible
    layout: dict[str, tuple[str, tuple[Natural, ...]]]


Drawing = Sample | CountWindows
ANSWERS = (Opened, Acknowledged, Stored, Weights, Statistics, Sampled, WindowsCounted, Refused)


def encode_rows(session: OpenSession, first: int, rows: list[Stretch]) -> list[Frame]:
    """Build an append message from stretches of rows."""
    episodes, following = {}, first
    for stretch in rows:
        following += stretch.rows
        if stretch.episode:
            episodes[following - 1] = msgspec.Raw(stretch.episode)
    message = Append(
        table=session.table,
        actor=session.actor,
        session=session.number,
        owner=session.owner,
        first=first,
        episodes=episodes,
    )
    return encode(message, [stretch.data for stretch in rows])


def split_rows(payload: Payload, schema: RowSchema) -> list[memoryview]:
    """Check payload frames and cut them into rows, without copying.

    Raises:
        WireError: A frame is not a whole number of rows.
        SchemaMismatch: A value is not finite or out of range; names the field.
    """
    size = schema.dtype.itemsize
    rows: list[memoryview] = []
    for frame in payload:
        if not len(frame) or len(frame) % size:
            raise WireError(
                "a payload frame is not a whole number of rows",
                got=f"{len(frame)} bytes",
                expected=f"rows of {size} bytes",
                hint="the client packs another schema than it opened the session with",
            )
        schema.check_packed(frame)
        rows += [frame[at : at + size] for at in range(0, len(frame), size)]
    return rows


def parse_episodes(message: Append) -> dict[int, Facts]:
    """Read the metadata of the episodes that begin in an append message.

    Raises:
        WireError: Not objects, or too large.
    """
    episodes: dict[int, Facts] = {}
    for sequence, text in message.episodes.items():
        size = memoryview(text).nbytes
        if size > MAXIMUM_EPISODE_METADATA:
            raise WireError(
                "episode metadata is too large",
                got=size,
                expected=f"<= {MAXIMUM_EPISODE_METADATA} bytes of JSON",
            )
        try:
            episodes[sequence] = _FACTS.decode(text)
        except (ValueError, RecursionError) as error:
            raise WireError("episode metadata is not a JSON object", got=repr(error)) from error
    return episodes


def annotate_requests(
    table: str, name: str, version: int, keys: Array, values: Array
) -> Iterator[tuple[Annotate, list[Frame]]]:
    """Yield the requests, of a bounded size, that store annotations; see `ReplayClient.annotate`.

    Raises:
        AnnotationRefused: The keys are no row keys, or there are not as many values.
    """
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if keys.dtype != ROW_KEY_DTYPE or keys.ndim != 1 or values.shape[:1] != keys.shape:
        raise AnnotationRefused(
            f"the annotation {name!r} needs one value for each row key",
            got=f"keys {keys.dtype} {keys.shape}, values {values.dtype} {values.shape}",
            expected="keys from row_keys(episode), and values of shape (len(keys), *shape)",
        )
    message = Annotate(
        table=table,
        name=name,
        version=int(version),
        dtype=values.dtype.name,
        shape=values.shape[1:],
    )
    size = max(values.nbytes // max(len(values), 1), 1)
    rows = max(min(_ROWS_PER_REQUEST, _BYTES_PER_REQUEST // size), 1)
    for at in range(0, len(keys), rows):
        part = slice(at, at + rows)
        yield message, [keys[part].tobytes(), values[part].tobytes()]


def parse_annotations(message: Annotate, payload: Payload) -> Annotations:
    """Read an annotate message, without copying the values.

    Raises:
        WireError: What cannot be annotations.
    """
    keys, values = payload
    size = ROW_KEY_DTYPE.itemsize
    if len(keys) % size or not 0 < len(keys) <= size * MAXIMUM_ANNOTATED_ROWS:
        raise WireError(
            "the keys of annotations are none, not whole or too many",
            got=f"{len(keys)} bytes",
            expected=f"a multiple of {size} bytes, at most {MAXIMUM_ANNOTATED_ROWS} keys",
        )
    if message.dtype not in DTYPES:
        raise WireError("bad dtype of annotations", got=message.dtype, expected=sorted(DTYPES))
    value_bytes = np.dtype(message.dtype).itemsize * math.prod(message.shape)
    if value_bytes > MAXIMUM_ANNOTATION_BYTES:
        raise WireError(
            "a value of an annotation is too large",
            got=f"{value_bytes} bytes",
            expected=f"<= {MAXIMUM_ANNOTATION_BYTES} bytes",
        )
    return Annotations(
        message.table,
        message.name,
        message.version,
        message.dtype,
        message.shape,
        np.frombuffer(keys, ROW_KEY_DTYPE),
        values,
    )
