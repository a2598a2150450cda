"""The durable store's one writer, which the replay server owns.

A row is put once under its key and never changed. What `StoreWriter.append` returns from is
committed: it survives kill -9 of every process, and with ``fsync="group"`` a power cut too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import lmdb

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay.annotations import Annotations, write_annotations
from robot_rl.replay.counts import TableCounts, statistics, total
from robot_rl.replay.environment import (
    ABOUT,
    EPISODES,
    ROWS,
    TABLES,
    WEIGHTS,
    lock_store,
    open_for_writing,
    store_error,
)
from robot_rl.replay.errors import (
    RowRefused,
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreFull,
    WeightsRefused,
)
from robot_rl.replay.eviction import EVICTED_ROWS_PER_COMMIT, Capacity, Evictor, read_evicted
from robot_rl.replay.reader import (
    IDENTITY_KEY,
    read_episodes,
    read_identity,
    read_tables,
    read_weights,
)
from robot_rl.replay.records import (
    EPISODE_KEY,
    ROW_KEY,
    TABLE_KEY,
    TABLE_LIMIT,
    EpisodeRecord,
    RowFlags,
    SessionKey,
    TableInfo,
    WeightsRecord,
)
from robot_rl.replay.session_book import SessionBook
from robot_rl.replay.sessions import Plan, RowBatch, Session, plan_batch

Fsync = Literal["none", "group"]
DEFAULT_MAP_SIZE = 256 << 30
MAXIMUM_TABLES = 256
NO_LIMIT = Capacity()
_Result = TypeVar("_Result")


class StoreWriter:
    """The only writer of a store.

    Args:
        path: Folder; created where absent.
        fsync: ``"none"`` commits without waiting for the disk, ``"group"`` waits.
        map_size_bytes: Limit of what the store's (sparse) file holds; see `open_for_writing`.
        capacity: How much is kept before the oldest episodes are evicted.

    Attributes:
        identity: Name of this store and its copies, made up when it was created.

    Raises:
        CapacityRefused: The capacity does not fit `map_size_bytes`.
        StoreInUse: Another process writes this store.
        StoreError: The folder cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        fsync: Fsync = "none",
        map_size_bytes: int = DEFAULT_MAP_SIZE,
        capacity: Capacity = NO_LIMIT,
    ) -> None:
        """Lock and open the store; see the class."""
        capacity.check(map_size_bytes)
        self.path = path
        self._lock_file = lock_store(path)
        try:
            self._environment = open_for_writing(
                path, map_size_bytes=map_size_bytes, durable=fsync == "group"
            )
        except BaseException:
            self._lock_file.close()
            raise
        self.identity = read_identity(self._environment) or self._give_identity()
        databases = self._environment.databases
        self._rows, self._episodes, self._tables_db, self._weights_db = (
            databases[name] for name in (ROWS, EPISODES, TABLES, WEIGHTS)
        )
        with self._environment.begin() as txn:
            self.tables = {info.name: info for info in read_tables(txn, self._tables_db)}
            numbers = [t.identifier for t in self.tables.values()]
            self._evicted = {number: read_evicted(txn, databases, number) for number in numbers}
        self._schemas = {t.identifier: t.schema for t in self.tables.values()}
        self._flags = {t.identifier: RowFlags.of(t.schema) for t in self.tables.values()}
        self._counts = {number: TableCounts() for number in numbers}
        self._book = SessionBook(self._environment, self._flags)
        self._evictor = Evictor(self._environment, capacity)
        self._next_episode = self._evictor.next_episode
        self._read_episodes()

    def open_table(
        self, name: str, schema: RowSchema, metadata: Mapping[str, object] | None = None
    ) -> TableInfo:
        """Create a table, or check that it has this schema.

        Raises:
            SchemaMismatch: It exists with another schema; names the field.
            StoreError: There are too many tables, or it cannot be written.
        """
        known = self.tables.get(name)
        if known is not None:
            known.schema.compare(schema, what=f"table {name!r}")
            return known
        if len(self.tables) >= MAXIMUM_TABLES:
            raise StoreError(
                "the store has as many tables as it may", got=name, expected=sorted(self.tables)[:9]
            )
        flags = RowFlags.of(schema)
        identifier = max((t.identifier for t in self.tables.values()), default=0) + 1
        if identifier >= TABLE_LIMIT:
            raise StoreError("the store has no room for another table", got=identifier)
        info = TableInfo(identifier, name, schema, dict(metadata or {}))
        self._put(self._tables_db, TABLE_KEY.pack(identifier), info.to_bytes())
        self.tables[name] = info
        self._schemas[identifier] = schema
        self._flags[identifier] = flags
        self._counts[identifier], self._evicted[identifier] = TableCounts(), TableCounts()
        return info

    def open_session(self, table: int, actor: int, session: int | None, owner: str) -> SessionKey:
        """Begin a session, or go on with one that the same owner began.

        Beginning one closes the actor's session before it; an episode that was open there is cut
        short.

        Args:
            table: Number of the table.
            actor: Number of the actor.
            session: Number of the session, or None for the actor's next one.
            owner: Token that only this writer of the session knows.

        Raises:
            SessionTaken: The session has another owner, or newer sessions exist already.
            StoreError: It cannot be written.
        """
        try:
            key, cut = self._book.open(table, actor, session, owner)
        except lmdb.Error as error:
            raise store_error(error, self.path) from error
        if cut is not None:
            self._recount(*cut)
        return key

    def session(self, key: SessionKey) -> Session:
        """Return where a begun session stands, read from the store if need be.

        Raises:
            SessionTaken: Nobody has begun it.
        """
        return self._book.state(key)

    def schema(self, table: int) -> RowSchema:
        """Return the schema of a table's rows.

        Raises:
            StoreError: There is no such table.
        """
        if table not in self._schemas:
            raise StoreError("there is no such table", got=table, expected=sorted(self._schemas))
        return self._schemas[table]

    def append(self, batches: Sequence[RowBatch]) -> list[RobotRLError | None]:
        """Put rows in one commit, and evict the oldest episodes where the store is too full.

        Rows that are there already are skipped.

        Returns:
            For each batch None, or the error for which the whole batch was refused.

        Raises:
            StoreFull: Nothing of all batches was written.
            StoreError: LMDB failed; nothing of all batches was written.
        """
        size = sum(len(row) for batch in batches for row in batch.rows)
        return self._write(lambda: self._append(batches), size)

    def annotate(self, new: Annotations) -> int:
        """Put annotations durably; those that are stored already are skipped.

        Returns:
            How many were new.

        Raises:
            StoreError: There is no such table, or LMDB failed.
            SchemaMismatch: The name was declared with another dtype or shape.
            AnnotationRefused: Impossible values, rows that are not there, or a version that is
                stored with another value. Nothing was written.
        """
        info = self.tables.get(new.table)
        if info is None:
            raise StoreError("there is no such table", got=new.table, expected=sorted(self.tables))

        def put() -> int:
            with self._environment.begin(write=True) as txn:
                count = write_annotations(txn, self._environment.databases, info, new)
                self._environment.check_limit(txn)
                return count

        return self._write(put, len(new.values))

    def put_weights(self, record: WeightsRecord) -> None:
        """Keep the latest weights under a name, durably; the same ones again are accepted.

        Raises:
            WeightsRefused: The stored version is as new or newer.
            StoreFull: They do not fit; the stored ones stay.
        """
        stored = self.weights_version(record.name)
        if stored is not None and stored >= record.version:
            if stored == record.version and self.weights(record.name) == record:
                return
            raise WeightsRefused(
                f"weights {record.name!r} are not newer than the stored ones",
                got=record.version,
                expected=f"> {stored}",
            )
        data = record.to_bytes()

        def put() -> None:
            with self._environment.begin(write=True) as txn:
                txn.put(record.name.encode(), data, db=self._weights_db)
                self._environment.check_limit(txn)

        self._write(put, len(data))

    def weights(self, name: str) -> WeightsRecord | None:
        """Return the latest weights under a name."""
        return read_weights(self._environment, name)

    def weights_version(self, name: str) -> int | None:
        """Return the version of the latest weights under a name."""
        record = read_weights(self._environment, name, tensors=False)
        return None if record is None else record.version

    def statistics(self) -> dict[str, object]:
        """Return totals per table and how full the store is."""
        info = self._environment.handle.info()
        page = self._environment.handle.stat()["psize"]
        return {
            "tables": {
                t.name: statistics(self._counts[t.identifier], self._evicted[t.identifier])
                for t in self.tables.values()
            },
            "file_bytes": (info["last_pgno"] + 1) * page,
            "map_size_bytes": self._environment.limit_bytes,
        }

    def check_readers(self) -> int:
        """Free the slots of readers that were killed, so that their pages can be reused."""
        return int(self._environment.handle.reader_check())

    def close(self) -> None:
        """Release the store; commits that were not forced to the disk are, best effort."""
        self._environment.handle.sync(True)
        self._environment.release()
        self._lock_file.close()

    def _give_identity(self) -> str:
        identity = secrets.token_hex(16)
        self._put(self._environment.databases[ABOUT], IDENTITY_KEY, identity.encode())
        return identity

    def _append(self, batches: Sequence[RowBatch]) -> list[RobotRLError | None]:
        states: dict[SessionKey, Session] = {}
        changed: dict[int, EpisodeRecord] = {}
        results: list[RobotRLError | None] = []
        gone: list[EpisodeRecord] = []
        inserted, next_episode = 0, self._next_episode
        try:
            with self._environment.begin(write=True) as txn:
                for batch in batches:
                    before = states.get(batch.session)
                    try:
                        before = before or self.session(batch.session)
                        plan = self._plan(txn, batch, before, next_episode)
                    except (SequenceGap, SessionTaken, RowRefused, StoreFull) as error:
                        results.append(error)
                        continue
                    inserted += self._put_rows(txn, batch, before.next_sequence)
                    states[batch.session] = plan.after
                    changed.update(plan.episodes)
                    next_episode = plan.next_episode
                    results.append(None)
                for record in changed.values():
                    key = EPISODE_KEY.pack(record.identifier)
                    txn.put(key, record.to_bytes(), db=self._episodes)
                self._environment.check_limit(txn)
                most = max(EVICTED_ROWS_PER_COMMIT, 2 * inserted)
                gone = self._evictor.step(txn, most)
        except lmdb.Error:
            self._evictor.line_up(gone)
            raise
        self._count(changed.values(), gone)
        self._book.update(states)
        self._next_episode = next_episode
        return results

    def _write(self, put: Callable[[], _Result], size: int) -> _Result:
        """Put so many bytes in one commit; where they do not fit, evict and try once more."""
        try:
            return self._evictor.give_room(put, size, lambda gone: self._count((), gone))
        except lmdb.Error as error:
            raise store_error(error, self.path) from error

    def _put(self, database: lmdb._Database, key: bytes, value: bytes) -> None:
        try:
            with self._environment.begin(write=True) as txn:
                txn.put(key, value, db=database)
        except lmdb.Error as error:
            raise store_error(error, self.path) from error

    def _read_episodes(self) -> None:
        """Count what is stored, and close what an older server left open."""
        still_open = []
        with self._environment.begin() as txn:
            for record in read_episodes(txn, self._episodes):
                self._recount(None, record)
                self._next_episode = max(self._next_episode, record.identifier + 1)
                if not record.sealed:
                    still_open.append(record)
        for old, new in self._book.cut_orphans(still_open):
            self._recount(old, new)

    def _plan(
        self, txn: lmdb.Transaction[bytes], batch: RowBatch, before: Session, next_episode: int
    ) -> Plan:
        """Work out what a batch does.

        Raises:
            SequenceGap, SessionTaken, RowRefused: It breaks the order of its session.
            StoreFull: There is no room for its rows, whatever is evicted.
        """
        plan = plan_batch(batch, before, self._flags[batch.session[0]], next_episode)
        new = plan.after.next_sequence - before.next_sequence
        if new and self._evictor.has_limits:
            of_demonstrations = any(e.is_demonstration for e in plan.episodes.values())
            full = self._evictor.refusal(
                txn, new if of_demonstrations else 0, total(self._counts.values())
            )
            if full is not None:
                raise full
        return plan

    def _put_rows(self, txn: lmdb.Transaction[bytes], batch: RowBatch, stored: int) -> int:
        """Put the rows that are not stored yet and return how many they are."""
        skip = max(stored - batch.first_sequence, 0)
        for index in range(skip, len(batch.rows)):
            key = ROW_KEY.pack(*batch.session, batch.first_sequence + index)
            if not txn.put(key, batch.rows[index], overwrite=False, db=self._rows):
                raise StoreError("a row is in the store that its episode does not know", got=key)
        return max(len(batch.rows) - skip, 0)

    def _count(self, changed: Iterable[EpisodeRecord], gone: Iterable[EpisodeRecord]) -> None:
        """Bring the totals up to date; call before the sessions' states are replaced."""
        for record in changed:
            old = self._book.state(record.session_key).episode
            same = old is not None and old.identifier == record.identifier
            self._recount(old if same else None, record)
        for record in gone:
            self._counts[record.table].remove(record)
            self._evicted[record.table].add(record)

    def _recount(self, old: EpisodeRecord | None, new: EpisodeRecord) -> None:
        if old is not None:
            self._counts[new.table].remove(old)
        self._counts[new.table].add(new)
        self._evictor.line_up([new])
