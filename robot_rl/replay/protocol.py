"""The messages between replay's clients and its server, and their conversion to rows.

The server answers each request with the kind defined after it here, or with `Refused`.
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
    """Float32 values (n,) of one name and version, for the session's rows int64 (n,)."""

    session: SessionKey
    name: str
    version: int
    sequences: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class WeightsRecord:
    """The latest weights under a name."""

    name: str  # for example ``"policy"``
    version: int  # gradient updates so far; strictly increasing
    tensors: bytes  # a safetensors file, never parsed by the replay path
    metadata: Mapping[str, object] = field(default_factory=dict)  # JSON-able


class Open(Numbered):
    """Start a session or resume one, in `store` if the client knows it."""

    schema: Annotated[str, Meta(min_length=1, max_length=2**16)]
    actor: ActorNumber
    owner: Name
    session: Annotated[int, Meta(ge=0, lt=2**62)] | None = None  # leaves room for the next number
    metadata: Facts = msgspec.field(default_factory=dict)
    store: Name | None = None


class InSession(Numbered):
    """A message about one session."""

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
    """State of the session that a client writes."""

    owner: Name  # token for resuming it
    store: Name  # identity of its store
    next_sequence: Natural  # number of its rows when it was opened
    in_episode: bool  # an episode was open at that time
    ended: bool  # only that episode's row with ``is_last`` was missing


class Append(InSession):
    """Rows of a session from sequence `first` on.

    `episodes` maps the first sequence of each episode that starts here to its metadata.
    """

    payload_frames: ClassVar[tuple[int, int]] = (1, MAXIMUM_PAYLOAD_FRAMES)
    owner: Name
    first: Natural
    episodes: dict[Natural, Facts] = msgspec.field(default_factory=dict)


class Acknowledged(InSession):
    """All rows of a session below sequence `next` are committed."""

    next: Natural


class PutWeights(Numbered):
    """Weights to store as the latest under this name."""

    payload_frames: ClassVar[tuple[int, int]] = (1, 1)
    name: Name
    version: Natural
    metadata: Facts = msgspec.field(default_factory=dict)


class Stored(Numbered):
    """Weights or annotations are durable; `new` of them were not stored before."""

    new: Natural = 1


class GetWeights(Numbered):
    """Request weights newer than a version, and wait for them."""

    name: Name
    newer_than: Natural | None = None
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0  # s

    def is_answered_by(self, weights: WeightsRecord | None) -> bool:
        """Whether these have the requested name and are newer."""
        newer_than = -1 if self.newer_than is None else self.newer_than
        return weights is not None and weights.name == self.name and weights.version > newer_than


class Weights(Numbered):
    """The latest weights; version None if there are none newer."""

    payload_frames: ClassVar[tuple[int, int]] = (0, 1)
    version: Natural | None = None
    metadata: Facts = msgspec.field(default_factory=dict)


class GetStatistics(Numbered):
    """Request the server's counters and the totals of its store."""


class Statistics(Numbered):
    """The server's counters and the totals of its store."""

    statistics: Facts


class Annotate(InSession):
    """Annotations of a session's rows: two frames, int64 sequences and float32 values."""

    payload_frames: ClassVar[tuple[int, int]] = (2, 2)
    name: Name
    version: Natural


class GetChanges(Numbered):
    """Request the changes that a replica's catalogue lacks.

    It has the episodes below `next_episode`, those in `open` unsealed, and the annotations up to
    number `last_annotation`. A `token` that matches the server's last answer means no changes.
    """

    token: Annotated[str, Meta(max_length=64)] = ""
    next_episode: Natural = 0
    open: Annotated[list[Natural], Meta(max_length=MAXIMUM_OPEN_EPISODES)] = msgspec.field(
        default_factory=list
    )
    last_annotation: Natural = 0


class Changes(Numbered):
    """JSON of new `EpisodeRecord`s and `WrittenValue`s, and the list of segments.

    Segments are int64 (n, 4): actor, session, sequence of the first row, rows. No frames means no
    changes. If `more` is set, the next request returns further episodes and annotations.
    """

    payload_frames: ClassVar[tuple[int, int]] = (0, 3)
    token: str
    store: Name  # identity
    catalogue: Name  # changes when the store's catalogue is rebuilt
    schema: str | None = None  # None before the first session
    more: bool = False
    evicted: dict[str, Natural] = msgspec.field(default_factory=dict)
    written: dict[str, Natural] = msgspec.field(default_factory=dict)  # values by annotation


class GetRows(InSession):
    """Request rows of the segment whose first row is `first`, from sequence `start` on."""

    first: Natural
    start: Natural


class SegmentRows(InSession):
    """The requested rows, as many as fit in a message."""

    payload_frames: ClassVar[tuple[int, int]] = (1, 1)


ANSWERS = (Opened, Acknowledged, Stored, Weights, Statistics, Changes, SegmentRows, Refused)


def split_rows(payload: Payload, schema: RowSchema) -> list[memoryview]:
    """Split payload frames into checked rows without copying; raises `SchemaMismatch`."""
    size = schema.dtype.itemsize
    rows: list[memoryview] = []
    for frame in payload:
        schema.check(schema.unpack(frame))
        rows += [frame[at : at + size] for at in range(0, len(frame), size)]
    return rows


def annotate_requests(new: Annotations) -> Iterator[tuple[Annotate, list[Frame]]]:
    """Yield size-limited requests that store annotations."""
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
