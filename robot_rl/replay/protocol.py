"""The messages between replay's clients and its server, and what stands between them and rows.

The server answers each request with the kind that stands behind it here, or with `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from robot_rl.data.schema import RowSchema
from robot_rl.replay import AnnotationRefused
from robot_rl.replay.episode_records import SessionKey
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
MAXIMUM_OPEN_EPISODES = 4096  # of a replica

ActorNumber = Annotated[int, Meta(ge=0, lt=2**32)]


@dataclass(frozen=True)
class Annotations:
    """Values float32 (n,) of one name and version for rows of a session, sequences int64 (n,)."""

    session: SessionKey
    name: str
    version: int
    sequences: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class WeightsRecord:
    """The latest weights under a name."""

    name: str  # whose weights, for example ``"policy"``
    version: int  # gradient updates behind them; strictly increasing
    tensors: bytes  # a safetensors file; the replay path never looks into it
    metadata: Mapping[str, object] = field(default_factory=dict)  # JSON-able


class Open(Numbered):
    """Begin a session, or go on with one: in `store`, where the client knows one."""

    schema: Annotated[str, Meta(min_length=1, max_length=2**16)]
    actor: ActorNumber
    owner: Name
    session: Annotated[int, Meta(ge=0, lt=2**62)] | None = None  # the next one is a number too
    metadata: Facts = msgspec.field(default_factory=dict)
    store: Name | None = None


class InSession(Numbered):
    """What is about one session."""

    actor: ActorNumber
    session: Natural

    @classmethod
    def of(cls, place: SessionKey, **values: Any) -> Self:
        """Make a message about a session."""
        actor, session = place
        return cls(actor=actor, session=session, **values)

    @property
    def place(self) -> SessionKey:
        """Actor and session."""
        return self.actor, self.session


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
    """Ask for the server's counters and the totals of its store."""


class Statistics(Numbered):
    """Those counters and totals."""

    statistics: Facts


class Annotate(InSession):
    """Values beside rows of a session: two frames, their sequences, int64, and float32 values."""

    payload_frames: ClassVar[tuple[int, int]] = (2, 2)
    name: Name
    version: Natural


class GetChanges(Numbered):
    """Ask for what a replica's catalogue lacks.

    It has the episodes below `next_episode`, those in `open` unsealed, and the annotations up to
    number `last_annotation`. Where `token` is that of the server's last answer, nothing has come.
    """

    token: Annotated[str, Meta(max_length=64)] = ""
    next_episode: Natural = 0
    open: Annotated[list[Natural], Meta(max_length=MAXIMUM_OPEN_EPISODES)] = msgspec.field(
        default_factory=list
    )
    last_annotation: Natural = 0


class Changes(Numbered):
    """What has come: JSON of `EpisodeRecord`s and of `WrittenValue`s, and the segments there are.

    These are int64 (n, 4): actor, session, sequence of the first row, rows. Without frames nothing
    has come. With `more` the next question gets further episodes and annotations.
    """

    payload_frames: ClassVar[tuple[int, int]] = (0, 3)
    token: str
    store: Name  # identity
    catalogue: Name  # which is another one once the store was rebuilt
    schema: str | None = None  # None before the first session
    more: bool = False
    evicted: dict[str, Natural] = msgspec.field(default_factory=dict)
    written: dict[str, Natural] = msgspec.field(default_factory=dict)  # values by annotation


class GetRows(InSession):
    """Ask for rows of the segment whose first row is `first`, from sequence `start` on."""

    first: Natural
    start: Natural


class SegmentRows(InSession):
    """Those rows, as many as a message takes."""

    payload_frames: ClassVar[tuple[int, int]] = (1, 1)


ANSWERS = (Opened, Acknowledged, Stored, Weights, Statistics, Changes, SegmentRows, Refused)


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
