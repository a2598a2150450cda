"""The durable store's one writer, which the replay server owns.

A row is appended once to its session's file and never changed. What `StoreWriter.append` accepts
survives kill -9 of every process, and with ``fsync="group"`` a power cut too.

    STORE/rows/              the segments, see `robot_rl.replay.segments`
    STORE/catalogue.sqlite   see `robot_rl.replay.catalogue`
    STORE/weights/           see `robot_rl.replay.mailbox`
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay.annotations import Annotations, write_annotations
from robot_rl.replay.catalogue import Catalogue, SessionRecord
from robot_rl.replay.errors import (
    RowRefused,
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreFull,
)
from robot_rl.replay.records import (
    TABLE_LIMIT,
    EpisodeRecord,
    RowFlags,
    SessionKey,
    TableInfo,
    statistics,
)
from robot_rl.replay.recovery import Recovery, StoreState, Table
from robot_rl.replay.segments import facts_of
from robot_rl.replay.session_files import (
    NO_LIMIT,
    Capacity,
    SessionFiles,
    lock_store,
    write_error,
)
from robot_rl.replay.sessions import (
    Plan,
    RowBatch,
    Session,
    plan_rows,
    read_facts,
    rows_to_skip,
)

Fsync = Literal["none", "group"]
MAXIMUM_TABLES = 256


class StoreWriter:
    """The only writer of a store.

    Args:
        path: Folder; created where absent.
        fsync: ``"none"`` does not wait for the disk, ``"group"`` does.
        capacity: How much is kept before the oldest segments are evicted.

    Attributes:
        identity: Name of this store and its copies, made up when it was created.

    Raises:
        CapacityRefused: The capacity is out of range.
        StoreInUse: Another process writes this store.
        StoreError: The folder cannot be opened; says what is wrong.
    """

    def __init__(self, path: Path, *, fsync: Fsync = "none", capacity: Capacity = NO_LIMIT) -> None:
        """Lock and open the store; see the class."""
        capacity.check()
        self.path, self._capacity, self._durable = path, capacity, fsync == "group"
        self._lock_file = lock_store(path)
        try:
            self._catalogue = Catalogue(path, write=True, durable=self._durable)
            self.identity = self._catalogue.identity
            self._state = StoreState()
            self._failure: StoreError | None = None
            self._files = SessionFiles(
                path, self.identity, capacity, durable=self._durable, describe=self._describe
            )
            Recovery(path, self._catalogue, self._files, self._state).run()
            for key in list(self._state.sessions):
                if key != self._state.latest(*key[:2]):
                    self._close_session(key)
        except BaseException:
            self._lock_file.close()
            raise

    @property
    def tables(self) -> dict[str, TableInfo]:
        """The tables by name."""
        return {table.info.name: table.info for table in self._state.tables.values()}

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
        if len(self._state.tables) >= MAXIMUM_TABLES:
            raise StoreError(
                "the store has as many tables as it may", got=name, expected=sorted(self.tables)[:9]
            )
        flags = RowFlags.of(schema)
        identifier = max(self._state.tables, default=0) + 1
        assert identifier < TABLE_LIMIT
        info = TableInfo(identifier, name, schema, dict(metadata or {}))
        self._catalogue.add_table(info)
        self._state.tables[identifier] = Table(info, flags)
        return info

    def schema(self, table: int) -> RowSchema:
        """Return the schema of a table's rows.

        Raises:
            StoreError: There is no such table.
        """
        if table not in self._state.tables:
            raise StoreError(
                "there is no such table", got=table, expected=sorted(self._state.tables)
            )
        return self._state.tables[table].info.schema

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
        latest = self._state.latest(table, actor)
        number = -1 if latest is None else latest[2]
        if session is None:
            goes_on = latest is not None and self._state.sessions[latest].owner == owner
            session = number if goes_on else number + 1
        key = (table, actor, session)
        known = self._state.sessions.get(key)
        if known is not None and known.owner != owner:
            raise SessionTaken(
                f"session {session} of actor {actor} was begun by another writer",
                hint="open a new session, or pass the owner token that the session began with",
            )
        if known is not None:
            return key
        if session < number:
            raise SessionTaken(
                f"actor {actor} has begun a later session already",
                got=session,
                expected=f"> {number}, so that sessions are in order of time",
            )
        self._catalogue.add_session(SessionRecord(key, owner))
        self._state.sessions[key] = Session(owner)
        if latest is not None:
            self._close_session(latest)
        return key

    def session(self, key: SessionKey) -> Session:
        """Return where a begun session stands.

        Raises:
            SessionTaken: Nobody has begun it.
        """
        if key not in self._state.sessions:
            raise SessionTaken("the session was never opened", got=key)
        return self._state.sessions[key]

    def append(self, batches: Sequence[RowBatch]) -> list[RobotRLError | None]:
        """Put rows, and evict the oldest segments where the store holds too much.

        Rows that are there already are skipped.

        Returns:
            For each batch None, or the error for which it was refused. On a full disk some of its
            rows may be there nevertheless: sent again, they are skipped.

        Raises:
            StoreError: The disk failed. Nothing can be put until the store is opened again.
        """
        if self._failure is not None:
            raise self._failure
        results: list[RobotRLError | None] = []
        for batch in batches:
            try:
                self._append(batch)
            except (SequenceGap, SessionTaken, RowRefused, StoreFull) as error:
                results.append(error)
            else:
                results.append(None)
        self._sync()
        # What this commit has touched stays until the next, so that a learner may see it.
        touched = list(self._state.changed.values())
        try:
            self._write_catalogue()
        except StoreFull as full:  # no reader would see the rows: they count when sent again
            return [error or full for error in results]
        self._evict(touched)
        return results

    def annotate(self, new: Annotations) -> int:
        """Put annotations durably; those that are stored already are skipped.

        Returns:
            How many were new.

        Raises:
            StoreError: There is no such table, or it cannot be written.
            SchemaMismatch: The name was declared with another dtype or shape.
            AnnotationRefused: Impossible values, rows that are not there, or a version that is
                stored with another value. Nothing was written.
        """
        info = self.tables.get(new.table)
        if info is None:
            raise StoreError("there is no such table", got=new.table, expected=sorted(self.tables))
        return write_annotations(self._catalogue, info, new, self._files.has_rows)

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return the totals of each table by its name."""
        return {
            t.info.name: statistics(t.counts, t.evicted, t.flags.size)
            for t in self._state.tables.values()
        }

    def close(self) -> None:
        """Release the store; what was not forced to the disk is, best effort."""
        self._files.close()
        with suppress(StoreError):
            self._write_catalogue()
        self._catalogue.close()
        self._lock_file.close()

    def _append(self, batch: RowBatch) -> None:
        """Put the rows of a batch that are new.

        Raises:
            SequenceGap, SessionTaken, RowRefused: It breaks the order of its session.
            StoreFull: There is no room for all of them.
        """
        before = self.session(batch.session)
        rows = batch.rows[rows_to_skip(batch, before) :]
        if not rows:
            return
        state, flags = self._state, self._state.tables[batch.session[0]].flags
        facts = [read_facts(row, flags) for row in rows]
        plan = plan_rows(batch.session, before, facts, batch.episodes, state.next_episode)
        self._check_capacity(plan, len(rows))
        done, failure = self._put(batch.session, rows, _begins(plan, before.next_sequence))
        if done < len(rows):  # what is there is there, and is skipped when it comes again
            facts = facts[:done]
            plan = plan_rows(batch.session, before, facts, batch.episodes, state.next_episode)
        self._apply(batch.session, plan)
        if failure is not None:
            raise write_error(failure, self.path) from failure

    def _put(
        self, key: SessionKey, rows: Sequence[memoryview], begins: Mapping[int, EpisodeRecord]
    ) -> tuple[int, OSError | None]:
        """Append rows to the files of a session.

        Args:
            key: The session.
            rows: The packed rows.
            begins: The episodes that begin, by the number of their row among these.

        Returns:
            How many were put, and why not all.
        """
        done = 0
        cuts = sorted({0, *begins, len(rows)})
        for start, end in itertools.pairwise(cuts):
            try:
                written = self._files.append(key, rows[start:end], begins.get(start))
            except OSError as error:
                return done, error
            done += written
            if start + written < end:
                return done, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return done, None

    def _apply(self, key: SessionKey, plan: Plan) -> None:
        """Take note of what was put."""
        counts = self._state.tables[key[0]].counts
        before = self._state.sessions[key].episode
        for record in plan.episodes.values():
            goes_on = before is not None and before.identifier == record.identifier
            if before is not None and goes_on:
                counts.add(before, -1)
            counts.add(record)
            if record.sealed or not goes_on:
                self._state.changed[record.identifier] = record
        self._state.sessions[key] = plan.after
        self._state.next_episode = plan.next_episode

    def _sync(self) -> None:
        """Wait for the disk, where that was asked for.

        Raises:
            StoreError: The disk failed: what it holds of the newest rows is not known any more.
        """
        try:
            self._files.sync()
        except OSError as error:
            self._failure = StoreError(
                f"the disk of the store {self.path} failed, and nothing is accepted any more",
                got=error,
                hint="see that the disk is sound, and start the replay server again",
            )
            raise self._failure from error

    def _write_catalogue(self) -> None:
        """Put the episodes that have begun or are complete.

        Raises:
            StoreFull: The disk is full; they are put with the next commit.
        """
        if self._state.changed:
            self._catalogue.put_episodes(self._state.changed.values())
            self._state.changed.clear()

    def _check_capacity(self, plan: Plan, rows: int) -> None:
        """Check that eviction can make room for rows.

        Raises:
            StoreFull: Demonstrations alone fill the capacity.
        """
        if self._capacity == NO_LIMIT:
            return
        first = next(iter(plan.episodes.values()))
        new = rows if first.is_demonstration else 0
        tables = self._state.tables.values()
        stored = sum(t.counts.demonstration_rows for t in tables)
        limit = self._capacity.rows
        if limit is not None and (stored + new > limit or stored >= limit):
            raise _filled("capacity_rows", f"{stored + new} rows", limit)
        limit = self._capacity.bytes
        size = sum(t.counts.demonstration_rows * t.flags.size for t in tables)
        size += new * self._state.tables[first.table].flags.size
        if limit is not None and (size > limit or (new == 0 and size >= limit)):
            raise _filled("capacity_bytes", f"{size} bytes", limit)

    def _evict(self, touched: Sequence[EpisodeRecord]) -> None:
        """Let the oldest segments go until the store holds no more than it may.

        Args:
            touched: Episodes that stay, like those that are open.
        """
        tables, sessions = self._state.tables, self._state.sessions
        while self._holds_too_much():
            still_open = [s.episode for s in sessions.values() if s.episode is not None]
            oldest = self._files.oldest([*still_open, *touched])
            if oldest is None:
                return
            key, first = oldest.segment.key, oldest.segment.first
            gone = self._catalogue.episodes_of_session(key, first, oldest.end)
            total = replace(tables[key[0]].evicted)
            for record in gone:
                total.add(record)
            try:
                self._catalogue.evict(key, first, oldest.end, total)
            except StoreFull:
                return  # until somebody has made room on the disk
            for record in gone:
                tables[key[0]].counts.add(record, -1)
            tables[key[0]].evicted = total
            self._files.remove(oldest)

    def _holds_too_much(self) -> bool:
        limits, tables = self._capacity, self._state.tables.values()
        rows = sum(t.counts.rows for t in tables)
        size = sum(t.counts.rows * t.flags.size for t in tables)
        return (limits.rows is not None and rows > limits.rows) or (
            limits.bytes is not None and size > limits.bytes
        )

    def _close_session(self, key: SessionKey) -> None:
        """Close a session for ever, and cut short the episode that is open there."""
        session, table = self._state.sessions[key], self._state.tables[key[0]]
        if session.episode is not None:
            dtype = table.info.schema.dtype
            last = self._files.rows_from(key, session.next_sequence - 1, dtype)
            (facts,) = facts_of(last, table.flags)
            record = session.episode.cut_short(facts.source if facts.terminated else None)
            table.counts.add(session.episode, -1)
            table.counts.add(record)
            self._state.changed[record.identifier] = record
        self._state.sessions[key] = Session(session.owner, session.next_sequence, closed=True)
        self._files.close_session(key)
        with suppress(StoreFull):  # it is put with the next commit
            self._write_catalogue()

    def _describe(self, key: SessionKey) -> dict[str, object]:
        """Return what the header of a session's file says, so that the catalogue can be rebuilt."""
        table = self._state.tables[key[0]]
        return {
            "table": table.info.name,
            "schema": table.info.schema.to_json(),
            "metadata": dict(table.info.metadata),
            "owner": self._state.sessions[key].owner,
            "evicted": table.evicted.to_json(),
        }


def _begins(plan: Plan, first: int) -> dict[int, EpisodeRecord]:
    """Return the episodes that a plan begins, by the number of their row from a sequence on."""
    records = plan.episodes.values()
    return {e.first_sequence - first: e for e in records if e.first_sequence >= first}


def _filled(name: str, got: str, limit: int) -> StoreFull:
    return StoreFull(
        "demonstrations alone fill the store's capacity, and they are never evicted",
        got=got,
        expected=f"fewer than replay.{name}={limit}",
        hint=f"restart the replay server with a larger {name}",
    )
