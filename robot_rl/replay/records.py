"""What a store keeps: tables, episodes and weights, and where a packed row has its flags.

Table, actor, session and sequence are a row's exactly-once identity; an episode is a run of
consecutive sequences of one session.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np

from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_NAMES, RowSchema, SchemaMismatch

TABLE_LIMIT = 2**16
ACTOR_LIMIT = 2**32
SESSION_LIMIT = 2**63
SEQUENCE_LIMIT = 2**63
MAXIMUM_ROW_BYTES = 64 << 20  # a row must fit into one frame of a message
MAXIMUM_FIELDS = 512
MAXIMUM_EPISODE_METADATA = 4000  # bytes of JSON

ROW_KEY_DTYPE = np.dtype(
    [("table", ">u2"), ("actor", ">u4"), ("session", ">u8"), ("sequence", ">u8")]
)

SessionKey = tuple[int, int, int]


@dataclass(frozen=True)
class TableInfo:
    """A table: rows of one schema.

    Attributes:
        identifier: The number that starts each of its keys.
        name: What clients call it.
        schema: Its columns.
        metadata: Facts about the recording, for example ``{"simulated": True}``.
    """

    identifier: int
    name: str
    schema: RowSchema
    metadata: Mapping[str, object] = field(default_factory=dict)


class RowFacts(NamedTuple):
    """What the store needs to know of a row."""

    is_last: bool
    ended: bool
    terminated: bool
    success: bool
    source: int


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode: rows ``first_sequence ... first_sequence + rows - 1`` of one session.

    A step that was taken counts, whether or not its outcome was ever stored.

    Attributes:
        identifier: Increases in the order in which episodes began.
        table: Number of its table.
        actor: Who recorded it.
        session: In which session.
        first_sequence: Sequence of its first row.
        rows: Rows so far; T + 1 once sealed, or fewer if cut short.
        steps: Environment steps by source: demonstration, policy, intervention. A step that
            ended the episode counts once the row with ``is_last`` is there.
        sealed: Whether it is complete: its row with ``is_last`` is there, or it was cut short.
        cut: Whether its actor began a later session before the row with ``is_last`` came. The last
            row then serves as the final observation, and what it says of an action is not used;
            but where that row is terminated the episode is whole, without a final observation.
        source: Source of its first row: ``demo``, ``policy`` or ``intervention``.
        success: Whether any of its rows says so.
        metadata: What the actor said of it: ``task``, ``seed``, ``instruction``.
    """

    identifier: int
    table: int
    actor: int
    session: int
    first_sequence: int
    rows: int = 0
    steps: tuple[int, int, int] = (0, 0, 0)
    sealed: bool = False
    cut: bool = False
    source: str = SOURCE_NAMES[0]
    success: bool = False
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def environment_steps(self) -> int:
        """Environment steps that were taken in it."""
        return sum(self.steps)

    @property
    def session_key(self) -> SessionKey:
        """Table, actor and session."""
        return (self.table, self.actor, self.session)

    @property
    def is_demonstration(self) -> bool:
        """Whether it began as a demonstration; such an episode is never evicted."""
        return self.source == SOURCE_NAMES[0]

    def without_rows(self) -> EpisodeRecord:
        """Return the record as it was before its first row, to be worked out anew."""
        return replace(self, rows=0, steps=(0, 0, 0), success=False)

    def with_rows(self, rows: Sequence[RowFacts], finished: Sequence[int]) -> EpisodeRecord:
        """Return the record after one or more further rows.

        Args:
            rows: What the rows say of themselves.
            finished: Sources of the environment steps that are complete with these rows.
        """
        return EpisodeRecord(  # quicker than `replace`, which counts for the server
            self.identifier,
            self.table,
            self.actor,
            self.session,
            self.first_sequence,
            self.rows + len(rows),
            self._steps_after(finished),
            rows[-1].is_last,
            self.cut,
            SOURCE_NAMES[rows[0].source] if self.rows == 0 else self.source,
            self.success or any(row.success for row in rows),
            self.metadata,
        )

    def cut_short(self, finished: int | None) -> EpisodeRecord:
        """Return the record of the episode closed without its row with ``is_last``.

        Args:
            finished: Source of the last row, if that row terminated the episode.
        """
        steps = self._steps_after([] if finished is None else [finished])
        return replace(self, steps=steps, sealed=True, cut=True)

    def _steps_after(self, finished: Sequence[int]) -> tuple[int, int, int]:
        demonstrated, chosen, corrected = self.steps
        return (
            demonstrated + finished.count(0),
            chosen + finished.count(1),
            corrected + finished.count(2),
        )


@dataclass
class TableCounts:
    """Totals over episodes of one table.

    Attributes:
        rows: Rows.
        episodes: Episodes, open ones included.
        sealed: Episodes that are complete.
        cut: Complete episodes that were cut short.
        successes: Episodes with success.
        steps: Environment steps by source: demonstration, policy, intervention.
        demonstration_rows: Rows of episodes that began as demonstrations.
    """

    rows: int = 0
    episodes: int = 0
    sealed: int = 0
    cut: int = 0
    successes: int = 0
    steps: tuple[int, int, int] = (0, 0, 0)
    demonstration_rows: int = 0

    @property
    def online_steps(self) -> int:
        """Environment steps of actors, interventions included."""
        return sum(self.steps) - self.steps[SOURCE_DEMONSTRATION]

    def add(self, episode: EpisodeRecord, sign: int = 1) -> None:
        """Count an episode, or with -1 count it no longer."""
        self.rows += sign * episode.rows
        self.episodes += sign
        self.sealed += sign * episode.sealed
        self.cut += sign * episode.cut
        self.successes += sign * episode.success
        a, b, c = (n + sign * e for n, e in zip(self.steps, episode.steps, strict=True))
        self.steps = (a, b, c)
        if episode.is_demonstration:
            self.demonstration_rows += sign * episode.rows

    def to_json(self) -> str:
        """Serialise for the catalogue."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TableCounts:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        return cls(**{**content, "steps": tuple(content["steps"])})


def statistics(stored: TableCounts, evicted: TableCounts, row_bytes: int) -> dict[str, object]:
    """Return the totals of a table as JSON-able numbers.

    ``environment_steps`` counts all that were ever stored, so it never decreases; everything else
    is what is there now.
    """
    steps = (s + e for s, e in zip(stored.steps, evicted.steps, strict=True))
    return {
        "rows": stored.rows,
        "episodes": stored.episodes,
        "sealed_episodes": stored.sealed,
        "cut_episodes": stored.cut,
        "successful_episodes": stored.successes,
        "bytes": stored.rows * row_bytes,
        "environment_steps": dict(zip(SOURCE_NAMES, steps, strict=True)),
        "evicted": {
            "rows": evicted.rows,
            "episodes": evicted.episodes,
            "environment_steps": sum(evicted.steps),
        },
    }


@dataclass(frozen=True)
class WeightsRecord:
    """The latest weights under a name.

    Attributes:
        name: Whose weights, for example ``"policy"``.
        version: Gradient updates behind them; strictly increasing.
        tensors: A safetensors file as bytes; the replay path never looks into it.
        metadata: JSON-able facts that travel with them.
    """

    name: str
    version: int
    tensors: bytes
    metadata: Mapping[str, object] = field(default_factory=dict)


FLAG_NAMES = ("is_last", "terminated", "truncated", "success", "source")


@dataclass(frozen=True)
class RowFlags:
    """Where a packed row keeps the bytes that give an episode its shape.

    Attributes:
        size: Bytes of a row.
        end: Offset behind the last of the flags.
    """

    size: int
    end: int
    is_last: int
    terminated: int
    truncated: int
    success: int
    source: int

    @classmethod
    def of(cls, schema: RowSchema) -> RowFlags:
        """Find the offsets in the schema's packed rows.

        Raises:
            SchemaMismatch: A field is no plain number, too large, or a flag is absent, or there
                are too many.
        """
        if len(schema.fields) > MAXIMUM_FIELDS:
            raise SchemaMismatch(
                "a row has too many fields",
                got=len(schema.fields),
                expected=f"<= {MAXIMUM_FIELDS}",
            )
        for column in schema.fields:
            if np.dtype(column.dtype).kind not in "biuf" or min(column.shape, default=1) < 1:
                raise SchemaMismatch(
                    f"field {column.name!r} cannot be stored",
                    got=f"{column.dtype} {column.shape}",
                    expected="booleans, integers or floats, no empty axis",
                )
        size = sum(
            np.dtype(column.dtype).itemsize * math.prod(column.shape) for column in schema.fields
        )
        if size > MAXIMUM_ROW_BYTES:
            raise SchemaMismatch(
                "a row is too large", got=f"{size} bytes", expected=f"<= {MAXIMUM_ROW_BYTES} bytes"
            )
        fields = {column.name: column for column in schema.fields}
        for name in FLAG_NAMES:
            flag = fields.get(name)
            if flag is None or np.dtype(flag.dtype).itemsize != 1 or flag.shape != ():
                raise SchemaMismatch(
                    f"replay needs the field {name!r}", got=flag, expected="one byte a row"
                )
        offsets = [field_offset(schema, name) for name in FLAG_NAMES]
        return cls(size, max(offsets) + 1, *offsets)


def field_offset(schema: RowSchema, name: str) -> int:
    """Return where a field begins in a packed row, in bytes."""
    fields = schema.dtype.fields
    assert fields is not None
    return int(fields[name][1])
