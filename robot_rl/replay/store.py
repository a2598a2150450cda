"""The durable store's one writer, which the replay server owns.

A row is put once under its key and never changed. What `StoreWriter.append` returns from is
committed: it survives kill -9 of every process, and with ``fsync="group"`` a power cut too.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

import lmdb

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay.environment import (
    EPISODES,
    ROWS,
    TABLES,
    WEIGHTS,
    open_for_writing,
    store_error,
)
from robot_rl.replay.errors import (
    RowRefused,
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreInUse,
    WeightsRefused,
)
from robot_rl.replay.reader import read_episodes, read_tables, read_weights
from robot_rl.replay.records import (
    EPISODE_KEY,
    ROW_KEY,
    SEQUENCE_LIMIT,
    SESSION_KEY,
    SESSION_LIMIT,
    TABLE_KEY,
    TABLE_LIMIT,
    EpisodeRecord,
    RowFlags,
    SessionKey,
    TableCounts,
    TableInfo,
    WeightsRecord,
)
from robot_rl.replay.sessions import RowBatch, Session, plan_batch, read_facts

Fsync = Literal["none", "group"]
DEFAULT_MAP_SIZE = 256 << 30
MAXIMUM_TABLES = 256


class StoreWriter:
    """The only writer of a store.

    Args:
        path: Folder; created where absent.
        fsync: ``"none"`` commits without waiting for the disk, ``"group"`` waits.
        map_size_bytes: Largest size of the store's (sparse) file.

    Raises:
        StoreInUse: Another process writes this store.
        StoreError: The folder cannot be opened.
    """

    def __init__(
        self, path: Path, *, fsync: Fsync = "none", map_size_bytes: int = DEFAULT_MAP_SIZE
    ) -> None:
        """Lock and open the store; see the class."""
        self.path = path
        self._lock_file = _lock_store(path)
        try:
            self._environment = open_for_writing(
                path, map_size_bytes=map_size_bytes, durable=fsync == "group"
            )
        except BaseException:
            self._lock_file.close()
            raise
        self._rows, self._episodes, self._tables_db, self._weights_db = (
            self._environment.databases[name] for name in (ROWS, EPISODES, TABLES, WEIGHTS)
        )
        self._sessions: dict[SessionKey, Session] = {}
        with self._environment.begin() as txn:
            self.tables = {info.name: info for info in read_tables(txn, self._tables_db)}
            self._schemas = {t.identifier: t.schema for t in self.tables.values()}
            self._flags = {t.identifier: RowFlags.of(t.schema) for t in self.tables.values()}
            self._counts = {t.identifier: TableCounts() for t in self.tables.values()}
            self._next_episode = 0
            for record in read_episodes(txn, self._episodes):
                self._counts[record.table].replace_episode(None, record)
                self._next_episode = record.identifier + 1

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
        self._counts[identifier] = TableCounts()
        return info

    def open_session(self, table: int, actor: int, session: int | None, owner: str) -> SessionKey:
        """Begin a session, or go on with one that the same owner began.

        Args:
            table: Number of the table.
            actor: Number of the actor.
            session: Number of the session, or None for the actor's next one.
            owner: Token that only this writer of the session knows.

        Raises:
            SessionTaken: The session has another owner, or newer sessions exist already.
        """
        latest = self._latest_session(table, actor)
        if session is None:
            session = 0 if latest is None else latest[0] + (latest[1] != owner)
        key = (table, actor, session)
        known = self._owner(key)
        if known is not None and known != owner:
            raise SessionTaken(
                f"session {session} of actor {actor} was begun by another writer",
                hint="open a new session, or pass the owner token that the session began with",
            )
        if known is None:
            if latest is not None and session < latest[0]:
                raise SessionTaken(
                    f"actor {actor} has begun a later session already",
                    got=session,
                    expected=f"> {latest[0]}, so that sessions are in order of time",
                )
            value = json.dumps({"owner": owner}).encode()
            self._put(self._tables_db, SESSION_KEY.pack(*key), value)
        self.session(key)
        return key

    def session(self, key: SessionKey) -> Session:
        """Return where a begun session stands, read from the store if need be.

        Raises:
            SessionTaken: Nobody has begun it.
        """
        state = self._sessions.get(key)
        if state is None:
            owner = self._owner(key)
            if owner is None:
                raise SessionTaken("the session was never opened", got=key)
            state = self._sessions[key] = self._recover(key, owner)
        return state

    def schema(self, table: int) -> RowSchema:
        """Return the schema of a table's rows.

        Raises:
            StoreError: There is no such table.
        """
        if table not in self._schemas:
            raise StoreError("there is no such table", got=table, expected=sorted(self._schemas))
        return self._schemas[table]

    def append(self, batches: Sequence[RowBatch]) -> list[RobotRLError | None]:
        """Put rows in one commit; rows that are there already are skipped.

        Returns:
            For each batch None, or the error for which the whole batch was refused.

        Raises:
            StoreFull: Nothing of all batches was written.
            StoreError: LMDB failed; nothing of all batches was written.
        """
        states: dict[SessionKey, Session] = {}
        changed: dict[int, EpisodeRecord] = {}
        results: list[RobotRLError | None] = []
        next_episode = self._next_episode
        try:
            with self._environment.begin(write=True) as txn:
                for batch in batches:
                    try:
                        before = states.get(batch.session) or self.session(batch.session)
                        flags = self._flags[batch.session[0]]
                        plan = plan_batch(batch, before, flags, next_episode)
                    except (SequenceGap, SessionTaken, RowRefused) as error:
                        results.append(error)
                        continue
                    self._put_rows(txn, batch, before.next_sequence)
                    states[batch.session] = plan.after
                    changed.update(plan.episodes)
                    next_episode = plan.next_episode
                    results.append(None)
                for record in changed.values():
                    key = EPISODE_KEY.pack(record.identifier)
                    txn.put(key, record.to_bytes(), db=self._episodes)
        except lmdb.Error as error:
            raise store_error(error, self.path) from error
        self._count(changed)
        self._sessions.update(states)
        self._next_episode = next_episode
        return results

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
        self._put(self._weights_db, record.name.encode(), record.to_bytes())

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
            "tables": {t.name: self._counts[t.identifier].to_dict() for t in self.tables.values()},
            "file_bytes": (info["last_pgno"] + 1) * page,
            "map_size_bytes": info["map_size"],
        }

    def check_readers(self) -> int:
        """Free the slots of readers that were killed, so that their pages can be reused."""
        return int(self._environment.handle.reader_check())

    def close(self) -> None:
        """Release the store; commits that were not forced to the disk are, best effort."""
        self._environment.handle.sync(True)
        self._environment.release()
        self._lock_file.close()

    def _put(self, database: lmdb._Database, key: bytes, value: bytes) -> None:
        try:
            with self._environment.begin(write=True) as txn:
                txn.put(key, value, db=database)
        except lmdb.Error as error:
            raise store_error(error, self.path) from error

    def _put_rows(self, txn: lmdb.Transaction[bytes], batch: RowBatch, stored: int) -> None:
        skip = max(stored - batch.first_sequence, 0)
        for index in range(skip, len(batch.rows)):
            key = ROW_KEY.pack(*batch.session, batch.first_sequence + index)
            if not txn.put(key, batch.rows[index], overwrite=False, db=self._rows):
                raise StoreError("a row is in the store that its episode does not know", got=key)

    def _count(self, changed: Mapping[int, EpisodeRecord]) -> None:
        for record in changed.values():
            old = self._sessions[(record.table, record.actor, record.session)].episode
            same = old is not None and old.identifier == record.identifier
            self._counts[record.table].replace_episode(old if same else None, record)

    def _owner(self, key: SessionKey) -> str | None:
        with self._environment.begin() as txn:
            value = txn.get(SESSION_KEY.pack(*key), db=self._tables_db)
        return None if value is None else str(json.loads(value)["owner"])

    def _latest_session(self, table: int, actor: int) -> tuple[int, str] | None:
        with self._environment.begin() as txn, txn.cursor(self._tables_db) as cursor:
            found = cursor.set_range(SESSION_KEY.pack(table, actor, SESSION_LIMIT))
            if not (cursor.prev() if found else cursor.last()):
                return None
            key = cursor.key()
            if len(key) != SESSION_KEY.size or SESSION_KEY.unpack(key)[:2] != (table, actor):
                return None
            return SESSION_KEY.unpack(key)[2], str(json.loads(cursor.value())["owner"])

    def _recover(self, key: SessionKey, owner: str) -> Session:
        """Find the end of a session that was written before this process started."""
        with self._environment.begin() as txn:
            with txn.cursor(self._rows) as cursor:
                found = cursor.set_range(ROW_KEY.pack(*key, SEQUENCE_LIMIT))
                if not (cursor.prev() if found else cursor.last()):
                    return Session(owner)
                *prefix, sequence = ROW_KEY.unpack(cursor.key())
                if tuple(prefix) != key:
                    return Session(owner)
                row = cursor.value()
            facts = read_facts(row, self._flags[key[0]])
            if facts.is_last:
                return Session(owner, sequence + 1)
            with txn.cursor(self._episodes) as cursor:
                for identifier, value in cursor.iterprev():
                    record = EpisodeRecord.from_bytes(identifier, value)
                    if (record.table, record.actor, record.session) == key:
                        ended_by = facts.source if facts.ended else None
                        return Session(owner, sequence + 1, record, ended_by)
        raise StoreError("a session has rows but no episode", got=key)


def _lock_store(path: Path) -> IO[bytes]:
    """Take the store's lock; the system frees it when the process ends, however it ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / "server.lock").open("wb")
    except OSError as error:
        raise store_error(error, path) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StoreInUse(
            f"another replay server is writing the store {path}",
            hint="stop it, or give this server another folder",
        ) from error
    return file
