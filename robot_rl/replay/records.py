"""What a store keeps: tables, episodes, annotations and weights.

Table, actor, session and sequence are a row's exactly-once identity; an episode is a run of
consecutive sequences of one session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_NAMES, RowSchema

TABLE_LIMIT = 2**16
ACTOR_LIMIT = 2**32
MAXIMUM_EPISODE_METADATA = 4000  # bytes of JSON

ROW_KEY_DTYPE = np.dtype(
    [("table", ">u2"), ("actor", ">u4"), ("session", ">u8"), ("sequence", ">u8")]
)

SessionKey = tuple[int, int, int]  # table, actor and session


class RowFacts(NamedTuple):
    """What the store needs to know of a row."""

    is_last: bool
    ended: bool
    terminated: bool
    success: bool
    source: int


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


class EpisodeRecord(msgspec.Struct, frozen=True):
    """One episode: rows ``first_sequence ... first_sequence + rows - 1`` of one session.

    Attributes:
        identifier: Increases in the order in which episodes began.
        table: Number of its table.
        actor: Who recorded it.
        session: In which session.
        first_sequence: Sequence of its first row.
        rows: Rows so far; T + 1 once sealed, or fewer if cut short.
        steps: Environment steps by source: demonstration, policy, intervention. A step that ended
            the episode counts once the row with ``is_last`` is there.
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
    steps: tuple[int, ...] = (0, 0, 0)
    sealed: bool = False
    cut: bool = False
    source: str = SOURCE_NAMES[SOURCE_DEMONSTRATION]
    success: bool = False
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)

    @property
    def environment_steps(self) -> int:
        """Environment steps that were taken in it."""
        return sum(self.steps)

    @property
    def session_key(self) -> SessionKey:
        """Table, actor and session."""
        return self.table, self.actor, self.session

    @property
    def end(self) -> int:
        """Sequence behind its last row."""
        return self.first_sequence + self.rows

    @property
    def is_demonstration(self) -> bool:
        """Whether it began as a demonstration; such an episode is never evicted."""
        return self.source == SOURCE_NAMES[SOURCE_DEMONSTRATION]

    def begun_anew(self) -> EpisodeRecord:
        """Return the record as it was before its first row, to be worked out again."""
        return EpisodeRecord(
            self.identifier, *self.session_key, self.first_sequence, metadata=self.metadata
        )

    def with_row(self, row: RowFacts, finished: int | None) -> EpisodeRecord:
        """Return the record after a further row, which completes a step of source `finished`."""
        return EpisodeRecord(
            self.identifier,
            *self.session_key,
            self.first_sequence,
            self.rows + 1,
            self._steps_after(finished),
            row.is_last,
            self.cut,
            self.source if self.rows else SOURCE_NAMES[row.source],
            self.success or row.success,
            self.metadata,
        )

    def cut_short(self, last: RowFacts | None) -> EpisodeRecord:
        """Return the record of the episode closed behind its last row, if that is known."""
        finished = last.source if last is not None and last.terminated else None
        steps = self._steps_after(finished)
        return msgspec.structs.replace(self, steps=steps, sealed=True, cut=True)

    def _steps_after(self, finished: int | None) -> tuple[int, ...]:
        if finished is None:
            return self.steps
        return (*self.steps[:finished], self.steps[finished] + 1, *self.steps[finished + 1 :])

    def totals(self) -> Counter[str]:
        """What it adds to the totals of its table."""
        return Counter(
            episodes=1,
            rows=self.rows,
            sealed=int(self.sealed),
            cut=int(self.cut),
            successes=int(self.success),
            demonstration_rows=self.rows if self.is_demonstration else 0,
            **dict(zip(SOURCE_NAMES, self.steps, strict=True)),
        )


def online_steps(totals: Counter[str]) -> int:
    """Environment steps of actors, interventions included, among totals."""
    return totals["policy"] + totals["intervention"]


@dataclass(frozen=True)
class Annotations:
    """Values (n,) of one name and version for the rows with these keys, (n,) `ROW_KEY_DTYPE`."""

    table: str
    name: str
    version: int
    keys: npt.NDArray[np.void]
    values: npt.NDArray[np.float32]


def row_keys(episode: EpisodeRecord) -> npt.NDArray[np.void]:
    """Return the keys of an episode's rows, shape (rows,), dtype `ROW_KEY_DTYPE`."""
    return session_keys(episode.session_key, episode.first_sequence, episode.rows)


def session_keys(session: SessionKey, first: int, rows: int) -> npt.NDArray[np.void]:
    """Return the keys of so many rows of a session from a sequence on."""
    keys = np.empty(rows, ROW_KEY_DTYPE)
    keys["table"], keys["actor"], keys["session"] = session
    keys["sequence"] = first + np.arange(rows)
    return keys


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
