"""Follows one table of a growing store: what came, what was cut short, what was evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lmdb
import numpy as np

from robot_rl.data.schema import RowSchema
from robot_rl.replay.annotations import AnnotationField, values_in_stretch
from robot_rl.replay.counts import TableCounts
from robot_rl.replay.environment import EPISODES, ROWS, Environment
from robot_rl.replay.errors import StoreError
from robot_rl.replay.eviction import read_evicted
from robot_rl.replay.records import EPISODE_KEY, ROW_KEY, EpisodeRecord, field_offset
from robot_rl.replay.windows import (
    LABELS,
    SCALARS,
    STRETCH,
    UNKNOWN,
    Records,
    WindowIndex,
    end_at_success,
)


@dataclass(slots=True)
class _Followed:
    """How far an episode has been read.

    Attributes:
        session: The session's number in the index.
        first: Sequence of its first row.
        of_actor: Whether it can be evicted.
        rows: Rows that were taken into the index.
        steps: Online steps among them.
        complete: Whether nothing more will come.
    """

    session: int
    first: int
    of_actor: bool
    rows: int = 0
    steps: int = 0
    complete: bool = False


class TableFollower:
    """Feeds the rows of a table into a window index, in the order in which episodes began.

    Evicted steps stay counted, also those that were evicted before they were seen: numbers of
    steps and rows are the same whenever they are looked at.

    Args:
        environment: The open store.
        table: Number of the table.
        schema: Its schema.
        index: Where the rows go.
        rewards: Name of the annotation whose newest version gives the rewards. Labels replace those
            of the rows that have one, and a label of success ends its episode too: see
            `end_at_success`. Any other is the only reward: what has none is left out.
        field: What that annotation is, None while no row has it.

    Attributes:
        sessions: Actor and session numbers, by the index's session numbers.
        demonstration_rows: Rows of demonstrations so far, which are never evicted.
    """

    def __init__(
        self,
        environment: Environment,
        table: int,
        schema: RowSchema,
        index: WindowIndex,
        rewards: str | None = None,
        field: AnnotationField | None = None,
    ) -> None:
        """Begin before the first episode; see the class."""
        self._environment, self._table, self._index = environment, table, index
        self._rewards, self._field = rewards, field
        self._layout, self._scalars_at = _scalars_layout(schema)
        self.sessions: list[tuple[int, int]] = []
        self.demonstration_rows = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._evicted = TableCounts()
        self._next_episode = 0
        # Demonstrations that are complete need no attention any more.
        self._followed: dict[int, _Followed] = {}
        self._forgotten: list[tuple[int, int, int]] = []

    def read(self) -> None:
        """Take in what has changed since the last time.

        Raises:
            StoreError: The store contradicts itself.
        """
        with self._environment.begin_buffers() as txn:
            self._notice_evictions(txn)
            for identifier in [i for i, e in self._followed.items() if not e.complete]:
                self._advance(txn, self._record(txn, identifier))
            with txn.cursor(self._environment.databases[EPISODES]) as cursor:
                found = cursor.set_range(EPISODE_KEY.pack(self._next_episode))
                while found:
                    record = EpisodeRecord.from_bytes(bytes(cursor.key()), bytes(cursor.value()))
                    self._next_episode = record.identifier + 1
                    if record.table == self._table:
                        self._begin(record)
                        self._advance(txn, record)
                    found = cursor.next()

    def forget_evicted(self) -> None:
        """Drop the windows of evicted episodes from the index."""
        if self._forgotten:
            stretches = np.array(self._forgotten, STRETCH)
            for pool in self._index.pools:
                pool.forget(stretches)
            self._forgotten = []

    def _notice_evictions(self, txn: lmdb.Transaction[memoryview]) -> None:
        """Find the episodes that are gone, and count what was gone before it was seen."""
        databases = self._environment.databases
        evicted = read_evicted(txn, databases, self._table)
        steps = evicted.online_steps - self._evicted.online_steps
        rows = evicted.rows - self._evicted.rows
        if rows == 0:
            return
        self._evicted = evicted
        for identifier, episode in list(self._followed.items()):
            there = txn.get(EPISODE_KEY.pack(identifier), db=databases[EPISODES]) is not None
            if there and episode.complete and episode.of_actor:
                break  # of complete episodes the oldest goes first
            if not there:
                del self._followed[identifier]
                stretch = (episode.session, episode.first, episode.first + episode.rows)
                self._forgotten.append(stretch)
                steps -= episode.steps
                rows -= episode.rows
        self._index.online_transitions += steps
        self._index.online_rows += rows

    def _record(self, txn: lmdb.Transaction[memoryview], identifier: int) -> EpisodeRecord:
        key = EPISODE_KEY.pack(identifier)
        value = txn.get(key, db=self._environment.databases[EPISODES])
        if value is None:
            raise StoreError("an open episode is no longer in the store", got=identifier)
        return EpisodeRecord.from_bytes(key, bytes(value))

    def _begin(self, record: EpisodeRecord) -> None:
        place = (record.actor, record.session)
        if place not in self._numbers:
            self._numbers[place] = len(self.sessions)
            self.sessions.append(place)
        number = self._numbers[place]
        self._index.begin(number, record.first_sequence)
        self._followed[record.identifier] = _Followed(
            number, record.first_sequence, not record.is_demonstration
        )

    def _advance(self, txn: lmdb.Transaction[memoryview], record: EpisodeRecord) -> None:
        """Take in the rows of an episode that came since the last time."""
        episode, index = self._followed[record.identifier], self._index
        scalars = self._read_scalars(txn, record, episode.rows)
        steps = index.online_transitions
        taken = index.add(episode.session, scalars, of_actor=episode.of_actor)
        if record.cut:
            index.cut(episode.session, scalars[taken:], of_actor=episode.of_actor)
            taken = len(scalars)
        episode.rows += taken
        episode.steps += index.online_transitions - steps
        episode.complete = record.sealed
        if not episode.of_actor:
            self.demonstration_rows += taken
            if episode.complete:
                del self._followed[record.identifier]

    def _read_scalars(
        self, txn: lmdb.Transaction[memoryview], record: EpisodeRecord, done: int
    ) -> Records:
        """Return the scalars of an episode's rows from number `done` on, shape (rows,)."""
        start, end = self._scalars_at
        count = record.rows - done
        heads: list[bytes] = []
        if count:
            first = record.first_sequence + done
            cursor = txn.cursor(self._environment.databases[ROWS])
            found = cursor.set_key(ROW_KEY.pack(*record.session_key, first))
            while found and len(heads) < count:
                heads.append(bytes(cursor.value()[start:end]))
                found = cursor.next()
        if len(heads) < count:
            raise StoreError("an episode lacks rows", got=record)
        scalars: Records = np.frombuffer(b"".join(heads), self._layout).astype(SCALARS)
        if self._rewards is not None and count:
            self._annotate(txn, record, scalars, first)
        return scalars

    def _annotate(
        self,
        txn: lmdb.Transaction[memoryview],
        record: EpisodeRecord,
        scalars: Records,
        first: int,
    ) -> None:
        """Replace the rewards of the rows from sequence `first` on; see the class."""
        if self._rewards != LABELS:
            scalars["reward"] = UNKNOWN
        if self._field is None:
            return
        stretch = (first, first + len(scalars))
        databases = self._environment.databases
        annotated = np.zeros(len(scalars), np.bool_)
        for sequence, _, value in values_in_stretch(
            txn, databases, self._field, record.session_key, stretch
        ):
            scalars["reward"][sequence - first] = np.frombuffer(value, self._field.dtype)[0]
            annotated[sequence - first] = True
        if self._rewards == LABELS:
            end_at_success(scalars, annotated)


def _scalars_layout(schema: RowSchema) -> tuple[np.dtype[Any], tuple[int, int]]:
    """Return the dtype of the bytes of a row that hold its scalars, and where these bytes are."""
    offsets = {name: field_offset(schema, name) for name in SCALARS.names or ()}
    start = min(offsets.values())
    end = max(offset + SCALARS[name].itemsize for name, offset in offsets.items())
    layout = {
        "names": list(offsets),
        "formats": [SCALARS[name] for name in offsets],
        "offsets": [offset - start for offset in offsets.values()],
        "itemsize": end - start,
    }
    return np.dtype(layout), (start, end)  # type: ignore[call-overload]
