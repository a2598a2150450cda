"""Eviction: when the store is at its capacity, its oldest whole episodes go.

Demonstrations never go, nor do episodes that are still open; an episode counts as what its first
row says, so one that the operator took over in the middle goes like any other episode of an actor.
An episode leaves the list of episodes at once; its rows follow in bounded steps, so that no commit
is long. What was evicted stays counted.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import lmdb

from robot_rl.replay.counts import TableCounts
from robot_rl.replay.environment import (
    ANNOTATIONS,
    EPISODES,
    EVICTED,
    ROWS,
    TABLES,
    Environment,
)
from robot_rl.replay.errors import CapacityRefused, StoreError, StoreFull
from robot_rl.replay.records import (
    EPISODE_KEY,
    ROW_KEY,
    SESSION_KEY,
    TABLE_KEY,
    EpisodeRecord,
    SessionKey,
)
from robot_rl.replay.session_book import read_session

MAP_SHARE = 1.25  # pages that are free but scattered, pages that readers still see, weights
EVICTED_ROWS_PER_COMMIT = 256
_ROWS_PER_OWN_COMMIT = 64
_FILE_BYTES_PER_BYTE = 2  # LMDB rounds a larger row up to whole pages
_STATE = b"state"
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Capacity:
    """How much a store keeps; None stands for no limit.

    Open episodes may exceed it until they are complete, and those that one commit completes until
    the next commit, so that a learner may see them.

    Attributes:
        rows: Most rows, of all tables together.
        bytes: Most bytes of the file that hold rows and annotations.
    """

    rows: int | None = None
    bytes: int | None = None

    def check(self, map_size_bytes: int) -> None:
        """Check that the store's file can hold this much.

        Raises:
            CapacityRefused: It cannot, or a number is out of range.
        """
        for name, value in (("capacity_rows", self.rows), ("capacity_bytes", self.bytes)):
            if value is not None and (type(value) is not int or value < 1):
                raise CapacityRefused(
                    f"{name} is out of range", got=value, expected="a whole number >= 1, or null"
                )
        if self.bytes is not None and map_size_bytes < MAP_SHARE * self.bytes:
            raise CapacityRefused(
                "map_size_bytes is too small for capacity_bytes",
                got=f"{map_size_bytes} and {self.bytes}",
                expected=f"map_size_bytes >= {MAP_SHARE} x capacity_bytes",
                hint="raise map_size_bytes (the file is sparse) or lower capacity_bytes",
            )


@dataclass(frozen=True)
class _State:
    """What must survive a restart.

    Attributes:
        next_episode: Identifier behind the newest episode that was evicted.
        rows: Session, first and end sequence of rows that are still to be deleted.
    """

    next_episode: int = 0
    rows: tuple[SessionKey, int, int] | None = None


def read_evicted(
    txn: lmdb.Transaction[Any], databases: Mapping[bytes, lmdb._Database], table: int
) -> TableCounts:
    """Return the totals of what was evicted from a table."""
    if EVICTED not in databases:
        return TableCounts()
    value = txn.get(TABLE_KEY.pack(table), db=databases[EVICTED])
    return TableCounts() if value is None else TableCounts.from_bytes(bytes(value))


class Evictor:
    """Evicts in the transactions of the store's one writer.

    Args:
        environment: The open store. Give its episodes to `line_up`.
        capacity: How much is kept.

    Attributes:
        next_episode: Identifier behind the newest episode that was evicted before.
    """

    def __init__(self, environment: Environment, capacity: Capacity) -> None:
        """Read how far eviction has come; see the class."""
        self._environment, self._databases = environment, environment.databases
        self._capacity = capacity
        self._waiting: list[int] = []
        with environment.begin() as txn:
            state = self._read_state(txn)
        self.next_episode = state.next_episode
        self._unfinished = state.rows is not None

    @property
    def has_limits(self) -> bool:
        """Whether there is anything to do at all."""
        return self._capacity != Capacity()

    def line_up(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Let episodes go one day: those that are complete and no demonstrations."""
        for episode in episodes:
            if self.has_limits and episode.sealed and not episode.is_demonstration:
                heapq.heappush(self._waiting, episode.identifier)

    def refusal(
        self, txn: lmdb.Transaction[bytes], new_rows: int, stored: TableCounts
    ) -> StoreFull | None:
        """Return why rows cannot be taken: demonstrations alone fill the capacity.

        Args:
            txn: The transaction in which they would be put.
            new_rows: How many of them are of demonstrations.
            stored: What all tables hold.
        """
        limit, rows = self._capacity.rows, stored.demonstration_rows + new_rows
        if limit is not None and (rows > limit or stored.demonstration_rows >= limit):
            return _filled("capacity_rows", f"{rows} rows", limit)
        limit = self._capacity.bytes
        if limit is not None:
            # A row takes more of the file than it is long; how much more is the same for all.
            size = self._used_bytes(txn) * stored.demonstration_size // max(stored.size, 1)
            if size >= limit:
                return _filled("capacity_bytes", f"{size} bytes", limit)
        return None

    def step(self, txn: lmdb.Transaction[bytes], rows: int) -> list[EpisodeRecord]:
        """Evict what is over the capacity, a bounded number of rows.

        Args:
            txn: The transaction of a commit.
            rows: Most rows that are deleted.

        Returns:
            The episodes that are no longer listed. Give them to `line_up` if the commit fails.
        """
        if not self.has_limits and not self._unfinished:
            return []
        left = rows
        gone: list[EpisodeRecord] = []
        state = before = self._read_state(txn)
        try:
            while left > 0:
                if state.rows is None:
                    episode = self._oldest(txn) if self._is_over(txn) else None
                    if episode is None:
                        break
                    gone.append(episode)
                    state = self._withdraw(txn, episode, state)
                assert state.rows is not None
                key, first, end = state.rows
                until = min(end, first + left)
                self._delete_rows(txn, key, first, until)
                left -= until - first
                state = replace(state, rows=(key, until, end) if until < end else None)
            if state != before:
                txn.put(_STATE, json.dumps(asdict(state)).encode(), db=self._databases[EVICTED])
        except lmdb.Error:
            self.line_up(gone)
            raise
        # The commit may fail yet, so that what was unfinished counts as such once more.
        self._unfinished = before.rows is not None or state.rows is not None
        return gone

    def give_room(
        self, put: Callable[[], _Result], size: int, note: Callable[[list[EpisodeRecord]], None]
    ) -> _Result:
        """Put in one commit; where there is no room, evict what is over the capacity and try again.

        Args:
            put: Makes the commit and returns its result.
            size: Bytes that it puts.
            note: Told of the episodes that are no longer listed.

        Raises:
            lmdb.MapFullError: Still no room; nothing was put.
            lmdb.Error: The commit failed; nothing was put.
        """
        try:
            return put()
        except lmdb.MapFullError:
            worked = False
            with suppress(lmdb.MapFullError):  # what has gone is free once no reader sees it
                for gone in self._make_room(_FILE_BYTES_PER_BYTE * size):
                    note(gone)
                    worked = True
            if not worked:
                raise
        return put()

    def _make_room(self, size: int) -> Iterator[list[EpisodeRecord]]:
        """Evict what is over the capacity, in commits of its own, until so many more bytes fit.

        These are small, as they work in the slack of a full file.

        Args:
            size: Bytes of the file.

        Yields:
            For each commit the episodes that are no longer listed.

        Raises:
            lmdb.Error: A commit failed, and changed nothing.
        """
        fits = False
        while not fits:
            gone: list[EpisodeRecord] = []
            try:
                with self._environment.begin(write=True) as txn:
                    before = txn.stat(self._databases[ROWS])["entries"]
                    gone = self.step(txn, _ROWS_PER_OWN_COMMIT)
                    worked = txn.stat(self._databases[ROWS])["entries"] < before
                    used = self._environment.used_bytes(txn)
            except lmdb.Error:
                self.line_up(gone)
                raise
            if not worked:
                return
            fits = used + size <= self._environment.limit_bytes
            yield gone

    def _is_over(self, txn: lmdb.Transaction[bytes]) -> bool:
        rows, size = self._capacity.rows, self._capacity.bytes
        return (rows is not None and txn.stat(self._databases[ROWS])["entries"] > rows) or (
            size is not None and self._used_bytes(txn) > size
        )

    def _used_bytes(self, txn: lmdb.Transaction[bytes]) -> int:
        return self._environment.used_bytes(txn, (ROWS, ANNOTATIONS))

    def _oldest(self, txn: lmdb.Transaction[bytes]) -> EpisodeRecord | None:
        if not self._waiting:
            return None
        key = EPISODE_KEY.pack(heapq.heappop(self._waiting))
        value = txn.get(key, db=self._databases[EPISODES])
        if value is None:
            raise StoreError("an episode that was to be evicted is not in the store", got=key)
        return EpisodeRecord.from_bytes(key, value)

    def _withdraw(
        self, txn: lmdb.Transaction[bytes], episode: EpisodeRecord, state: _State
    ) -> _State:
        """Take an episode off the list and keep what must be known of it."""
        txn.delete(EPISODE_KEY.pack(episode.identifier), db=self._databases[EPISODES])
        counts = read_evicted(txn, self._databases, episode.table)
        counts.add(episode)
        txn.put(TABLE_KEY.pack(episode.table), counts.to_bytes(), db=self._databases[EVICTED])
        key, end = episode.session_key, episode.first_sequence + episode.rows
        record = read_session(txn, self._databases[TABLES], key)
        if record is None:
            raise StoreError("an episode has no session", got=key)
        record = replace(record, evicted_before=end)
        txn.put(SESSION_KEY.pack(*key), record.to_bytes(), db=self._databases[TABLES])
        following = max(state.next_episode, episode.identifier + 1)
        return _State(following, (key, episode.first_sequence, end))

    def _delete_rows(
        self, txn: lmdb.Transaction[bytes], key: SessionKey, first: int, end: int
    ) -> None:
        """Delete the rows of a stretch of a session, and their annotations."""
        start, stop = ROW_KEY.pack(*key, first), ROW_KEY.pack(*key, end)
        for name in (ROWS, ANNOTATIONS):
            with txn.cursor(self._databases[name]) as cursor:
                found = cursor.set_range(start)
                while found and cursor.key() < stop:
                    cursor.delete()
                    found = bool(cursor.key())

    def _read_state(self, txn: lmdb.Transaction[bytes]) -> _State:
        value = txn.get(_STATE, db=self._databases[EVICTED])
        if value is None:
            return _State()
        content: dict[str, Any] = json.loads(value)
        rows = content["rows"]
        return _State(
            content["next_episode"], None if rows is None else (tuple(rows[0]), rows[1], rows[2])
        )


def _filled(name: str, got: str, limit: int) -> StoreFull:
    return StoreFull(
        "demonstrations alone fill the store's capacity, and they are never evicted",
        got=got,
        expected=f"fewer than replay.{name}={limit}",
        hint=f"restart the replay server with a larger {name}",
    )
