"""How rows form sessions and episodes, and the fields of a packed row that determine it.

Actor, session and sequence are a row's exactly-once identity; an episode is a run of consecutive
sequences of one session.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import (
    SOURCE_DEMONSTRATION,
    SOURCE_INTERVENTION,
    SOURCE_NAMES,
    SOURCE_POLICY,
    RowSchema,
    SchemaMismatch,
)
from robot_rl.replay import RowRefused

MAXIMUM_EPISODE_METADATA = 4000  # bytes of JSON

SessionKey = tuple[int, int]  # actor and session
# Allowed numbers and names in a catalogue; msgspec checks them when records are read.
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Source = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(SOURCE_NAMES)})$")]
_Steps = Annotated[tuple[Count, ...], msgspec.Meta(min_length=3, max_length=3)]


class RowFacts(NamedTuple):
    """The fields of a row that the store uses."""

    is_last: bool
    ended: bool
    terminated: bool
    success: bool
    source: int


class EpisodeRecord(msgspec.Struct, frozen=True):
    """One episode: rows ``first_sequence ... first_sequence + rows - 1`` of one session.

    An episode is `cut` if its actor started a later session before the row with ``is_last`` came.
    The last row then serves as the final observation, and its action is not used. If that row is
    terminated, though, the episode is whole, without a final observation.
    """

    identifier: Count  # increases in the order in which episodes start
    actor: Count
    session: Count
    first_sequence: Count
    rows: Count = 0  # so far; T + 1 once sealed, or fewer if cut short
    # Environment steps by source: demonstration, policy, intervention. A step that ended the
    # episode counts once the row with ``is_last`` is there.
    steps: _Steps = (0, 0, 0)
    sealed: bool = False  # complete: its row with ``is_last`` is there, or it was cut short
    cut: bool = False
    source: _Source = SOURCE_NAMES[SOURCE_DEMONSTRATION]  # of its first row
    success: bool = False  # whether any row has it set
    # Set by the actor: ``task``, ``seed``, ``instruction``.
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)

    @property
    def environment_steps(self) -> int:
        """Number of environment steps in it."""
        return sum(self.steps)

    @property
    def session_key(self) -> SessionKey:
        """Actor and session."""
        return self.actor, self.session

    @property
    def end(self) -> int:
        """Sequence after its last row."""
        return self.first_sequence + self.rows

    @property
    def sequences(self) -> npt.NDArray[np.int64]:
        """Sequences of its rows, shape (rows,)."""
        return np.arange(self.first_sequence, self.end)

    @property
    def is_demonstration(self) -> bool:
        """Whether it started as a demonstration; such an episode is never evicted."""
        return self.source == SOURCE_NAMES[SOURCE_DEMONSTRATION]

    @property
    def overall_source(self) -> int:
        """SOURCE code of the whole episode, whose steps may have several.

        Demonstration if it started as one, intervention if an operator intervened, else policy.
        """
        if self.is_demonstration:
            return SOURCE_DEMONSTRATION
        return SOURCE_INTERVENTION if self.steps[SOURCE_INTERVENTION] else SOURCE_POLICY

    def restarted(self) -> EpisodeRecord:
        """Return the record as it was before its first row, to be recomputed."""
        return EpisodeRecord(
            self.identifier, *self.session_key, self.first_sequence, metadata=self.metadata
        )

    def with_row(self, row: RowFacts, finished: int | None) -> EpisodeRecord:
        """Return the record after another row, which completes a step of source `finished`."""
        return msgspec.structs.replace(
            self,
            rows=self.rows + 1,
            steps=self._steps_with(finished),
            sealed=row.is_last,
            source=self.source if self.rows else SOURCE_NAMES[row.source],
            success=self.success or row.success,
        )

    def cut_short(self, last: RowFacts | None) -> EpisodeRecord:
        """Return the record of the episode closed after its last row, if that row is known."""
        finished = last.source if last is not None and last.terminated else None
        steps = self._steps_with(finished)
        return msgspec.structs.replace(self, steps=steps, sealed=True, cut=True)

    def _steps_with(self, finished: int | None) -> tuple[int, ...]:
        return tuple(count + (source == finished) for source, count in enumerate(self.steps))

    def totals(self) -> Counter[str]:
        """Its contribution to the store's totals."""
        return Counter(
            episodes=1,
            rows=self.rows,
            sealed=int(self.sealed),
            successes=int(self.success),
            demonstration_rows=self.rows if self.is_demonstration else 0,
            **dict(zip(SOURCE_NAMES, self.steps, strict=True)),
        )


MAXIMUM_ROW_BYTES = 64 << 20  # each row fits in one message


class RowFlags:
    """Reader of the bytes of a packed row that determine the episode structure.

    Raises:
        SchemaMismatch: A field is not a plain number, is too large, or a flag is absent.
    """

    def __init__(self, schema: RowSchema) -> None:
        for column in schema.fields:
            if np.dtype(column.dtype).kind not in "biuf" or min(column.shape, default=1) < 1:
                raise SchemaMismatch(
                    f"field {column.name!r} cannot be stored",
                    got=f"{column.dtype} {column.shape}",
                    expected="booleans, integers or floats, no empty axis",
                )
        sizes = [np.dtype(c.dtype).itemsize * math.prod(c.shape) for c in schema.fields]
        if sum(sizes) > MAXIMUM_ROW_BYTES:
            raise SchemaMismatch(
                "a row is too large",
                got=f"{sum(sizes)} bytes",
                expected=f"<= {MAXIMUM_ROW_BYTES} bytes",
            )
        columns = schema.dtype.fields
        assert columns is not None
        self._offsets: list[int] = []
        for name in ("is_last", "terminated", "truncated", "success", "source"):
            dtype, offset = columns.get(name, (None, 0))[:2]
            if dtype is None or dtype.itemsize != 1 or dtype.shape != ():
                raise SchemaMismatch(
                    f"replay needs the field {name!r}", got=dtype, expected="one byte a row"
                )
            self._offsets.append(offset)

    def read(self, row: memoryview | bytes) -> RowFacts:
        """Read and check the facts of a packed row; raises `RowRefused`."""
        is_last, terminated, truncated, success, source = (row[at] for at in self._offsets)
        booleans = is_last, terminated, truncated, success
        if max(booleans) > 1 or source >= len(SOURCE_NAMES):
            raise RowRefused(
                "a row has an impossible flag",
                got={"booleans": booleans, "source": source},
                expected="booleans 0 or 1, source 0 (demo), 1 (policy) or 2 (intervention)",
            )
        ended = not is_last and bool(terminated or truncated)
        return RowFacts(bool(is_last), ended, bool(terminated), bool(success), source)

    def read_all(self, rows: npt.NDArray[np.void]) -> list[RowFacts]:
        """Read and check the facts of mapped rows; raises `RowRefused`."""
        size, data = rows.itemsize, rows.view(np.uint8).data
        return [self.read(data[at : at + size]) for at in range(0, len(data), size)]


def check_order(row: RowFacts, *, begins: bool, ended: bool) -> None:
    """Check that a row may start an episode, or follow one that `ended`; raises `RowRefused`."""
    if begins and row.is_last:
        raise RowRefused(
            "an episode cannot begin with its last row",
            expected="at least one row with an action before the row with is_last",
        )
    if ended and not row.is_last:
        raise RowRefused(
            "a row follows the end of its episode",
            expected="after a terminated or truncated row, one row with is_last",
        )


@dataclass
class StoredSession:
    """State of a session, which determines the valid next rows."""

    owner: str  # token of the only writer that may add rows
    next_sequence: int = 0  # all rows before it are stored
    episode: EpisodeRecord | None = None  # the open episode
    ended_by: int | None = None  # source of the last row if ``is_last`` must follow it
    closed: bool = False  # the actor has started a later session

    def after(
        self,
        key: SessionKey,
        rows: Iterable[RowFacts],
        metadata: Mapping[int, Mapping[str, object]],
        next_episode: int,
    ) -> tuple[StoredSession, dict[int, EpisodeRecord]]:
        """Compute the state of session `key` after further rows; raises `RowRefused`.

        Metadata of the episodes that start here is given by sequence, with the identifier of the
        first.

        Returns:
            The new state, and the affected episodes by identifier.
        """
        state = replace(self)
        episodes: dict[int, EpisodeRecord] = {}
        for row in rows:
            episode, at = state.episode, state.next_sequence
            check_order(row, begins=episode is None, ended=state.ended_by is not None)
            if episode is None:
                facts = metadata.get(at, {})
                episode = EpisodeRecord(next_episode, *key, at, metadata=facts)
                next_episode += 1
            step = None if row.ended else row.source
            episode = episode.with_row(row, state.ended_by if row.is_last else step)
            episodes[episode.identifier] = episode
            state.episode = None if row.is_last else episode
            state.ended_by = row.source if row.ended else None
            state.next_sequence = at + 1
        return state, episodes
