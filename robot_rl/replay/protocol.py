"""The messages between replay's clients and its server, and what stands between them and rows.

The server answers each request with the kind that stands behind it here, or with `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

import msgspec
import numpy as np
from msgspec import Meta

from robot_rl.data.schema import DTYPES, RowSchema
from robot_rl.replay import AnnotationRefused
from robot_rl.replay.episode_records import Annotations, SessionKey, WeightsRecord
from robot_rl.replay.sampler import SampleSpec, Visible
from robot_rl.wire import WireError
from robot_rl.wire.messages import (
    MAXIMUM_PAYLOAD_FRAMES,
    Facts,
    Frame,
    Name,
    Natural,
    Numbered,
    Payload,
    Refused,
)

MAXIMUM_ANNOTATED_ROWS = 4096

TableNumber = Annotated[int, Meta(ge=0, lt=2**16)]
ActorNumber = Annotated[int, Meta(ge=0, lt=2**32)]
Dtype = Annotated[str, Meta(pattern=rf"\A({'|'.join(sorted(DTYPES))})\Z")]


class Open(Numbered):
    """Begin a session, or go on with one: in `store`, where the client knows one."""

    table: Name
    schema: Annotated[str, Meta(min_length=1, max_length=2**16)]
    actor: ActorNumber
    owner: Name
    session: Annotated[int, Meta(ge=0, lt=2**62)] | None = None  # the next one is a number too
    metadata: Facts = msgspec.field(default_factory=dict)
    store: Name | None = None


class InSession(Numbered):
    """What is about one session."""

    table: TableNumber
    actor: ActorNumber
    session: Natural

    @classmethod
    def of(cls, place: SessionKey, **values: Any) -> Self:
        """Make a message about a session."""
        table, actor, session = place
        return cls(table=table, actor=actor, session=session, **values)

    @property
    def place(self) -> SessionKey:
        """Table, actor and session."""
        return self.table, self.actor, self.session


class Opened(InSession):
    """Where the session that a client writes stands."""

    owner: Name  # token with which it can be gone on with
    store: Name  # identity of the store that it is in
    next_sequence: Natural  # rows that it had when it was opened
    in_episode: bool  # an episode was open then
    ended: bool  # only that episode's row with ``is_last`` was missing


class Append(InSession):
    """Rows of a session from sequence `first` on.

    Of the episodes that begin here, their metadata are given by sequence.
    """

    payload_frames: ClassVar[tuple[int, int]] = (1, MAXIMUM_PAYLOAD_FRAMES)
    owner: Name
    first: Natural
    episodes: dict[Natural, Facts] = msgspec.field(default_factory=dict)


class Acknowledged(InSession):
    """All rows of a session below sequence `next` are committed."""

    next: Natural


class PutWeights(Numbered):
    """Weights to keep as the latest ones of this name."""

    payload_frames: ClassVar[tuple[int, int]] = (1, 1)
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
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0  # s

    def is_answered_by(self, weights: WeightsRecord | None) -> bool:
        """Whether these are of its name, and newer."""
        newer_than = -1 if self.newer_than is None else self.newer_than
        return weights is not None and weights.name == self.name and weights.version > newer_than


class Weights(Numbered):
    """The latest weights; version None where there are none newer."""

    payload_frames: ClassVar[tuple[int, int]] = (0, 1)
    version: Natural | None = None
    metadata: Facts = msgspec.field(default_factory=dict)


class GetStatistics(Numbered):
    """Ask for the server's counters and the totals of its tables."""


class Statistics(Numbered):
    """Those counters and totals."""

    statistics: Facts


class Annotate(InSession):
    """Values beside rows of a session: two frames, their sequences, int64, and float32 values."""

    payload_frames: ClassVar[tuple[int, int]] = (2, 2)
    name: Name
    version: Natural


class Sample(Numbered):
    """Draw a mini-batch, or none and only see what there is.

    The answer depends on nothing but this message and the store.
    """

    table: Name
    spec: SampleSpec
    draw: bool
    state: Facts


class Sampled(Numbered):
    """A batch, a frame for each of its arrays, and the sampler's state after it.

    The layout is the dtype of each array and the shape of one item.
    """

    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    state: Facts
    visible: Visible
    layout: dict[str, tuple[Dtype, tuple[Natural, ...]]]


ANSWERS = (Opened, Acknowledged, Stored, Weights, Statistics, Sampled, Refused)


def split_rows(payload: Payload, schema: RowSchema) -> list[memoryview]:
    """Cut payload frames into rows, checked and without another copy; raises `SchemaMismatch`."""
    size = schema.dtype.itemsize
    rows: list[memoryview] = []
    for frame in payload:
        schema.check(schema.unpack(frame))
        rows += [frame[at : at + size] for at in range(0, len(frame), size)]
    return rows


def annotate_requests(new: Annotations) -> Iterator[tuple[Annotate, list[Frame]]]:
    """Yield the requests, each of a bounded size, that store annotations."""
    sequences, values = np.asarray(new.sequences), np.asarray(new.values)
    fits = sequences.dtype == np.int64 and values.dtype == np.float32
    if not fits or sequences.ndim != 1 or values.shape != sequences.shape:
        raise AnnotationRefused(
            f"the annotation {new.name!r} needs one float32 for each row",
            got=f"sequences {sequences.dtype} {sequences.shape}, values {values.dtype}"
            f" {values.shape}",
            expected="int64 (n,), as EpisodeRecord.sequences, and float32 (n,)",
        )
    message = Annotate.of(new.session, name=new.name, version=int(new.version))
    for at in range(0, len(sequences), MAXIMUM_ANNOTATED_ROWS):
        part = slice(at, at + MAXIMUM_ANNOTATED_ROWS)
        yield message, [sequences[part].tobytes(), values[part].tobytes()]


def parse_annotations(message: Annotate, payload: Payload) -> Annotations:
    """Read an annotate message."""
    rows, rest = divmod(len(payload[0]), 8)
    if rest or not 0 < rows <= MAXIMUM_ANNOTATED_ROWS or len(payload[1]) != 4 * rows:
        raise WireError(
            "annotations are none, not whole or too many",
            got=f"{len(payload[0])} bytes of sequences, {len(payload[1])} of values",
            expected=f"8 and 4 bytes a row, of at most {MAXIMUM_ANNOTATED_ROWS} rows",
        )
    sequences, values = np.frombuffer(payload[0], "<i8"), np.frombuffer(payload[1], "<f4")
    if not np.isfinite(values).all():
        raise AnnotationRefused(
            f"a value of the annotation {message.name!r} is not finite",
            got=float(values[~np.isfinite(values)][0]),
            expected="finite numbers",
        )
    return Annotations(message.place, message.name, message.version, sequences, values)
