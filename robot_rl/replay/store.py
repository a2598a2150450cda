"""The durable store's one writer, which the replay server owns.

A row is appended once to its session's file and never changed. What `StoreWriter.append` accepts
survives kill -9 of every process, and with ``fsync="group"`` a power cut too.

    STORE/rows/, STORE/weights/    see `robot_rl.replay.store_files`
    STORE/catalogue.sqlite         see `robot_rl.replay.catalogue`
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import numpy as np

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.processes.files import is_in_place
from robot_rl.replay import (
    AnnotationRefused,
    ReplayError,
    RowRefused,
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreFull,
)
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.catalogue_file import LOCK
from robot_rl.replay.episode_records import (
    Annotations,
    EpisodeRecord,
    Session,
    SessionKey,
    TableInfo,
)
from robot_rl.replay.protocol import Append
from robot_rl.replay.row_file import write_error
from robot_rl.replay.store_files import WrittenSegment, lock_store
from robot_rl.replay.store_state import StoreState, Table

Fsync = Literal["none", "group"]
RowBatch = tuple[Append, Sequence[memoryview]]  # and the rows that came with it
MAXIMUM_TABLES = 256


class StoreWriter:
    """The only writer of a store, in a folder that is created where absent.

    With fsync ``"group"`` it waits for the disk. Beyond `capacity_rows`, of all tables together,
    the oldest segments are evicted, but never demonstrations or an open episode.

    Raises:
        ReplayError: The capacity is out of range.
        StoreInUse: Another process writes this store.
        StoreError: The folder cannot be opened; says what is wrong.
    """

    def __init__(
        self, path: Path, *, fsync: Fsync = "none", capacity_rows: int | None = None
    ) -> None:
        if capacity_rows is not None and (type(capacity_rows) is not int or capacity_rows < 1):
            raise ReplayError(
                "capacity_rows is out of range", got=capacity_rows, expected="a whole number >= 1"
            )
        self.path, self._capacity, self._durable = path, capacity_rows, fsync == "group"
        self._failure: OSError | None = None
        self._unsynced: list[WrittenSegment] = []
        with ExitStack() as opened:
            self._lock_file = opened.enter_context(lock_store(path))
            self._catalogue = Catalogue(path, write=True, durable=self._durable)
            opened.callback(self._catalogue.close)
            self.identity = self._catalogue.identity
            self._state = StoreState(path, self._catalogue)
            opened.pop_all()

    def open_table(
        self, name: str, schema: RowSchema, metadata: Mapping[str, object] | None = None
    ) -> TableInfo:
        """Create a table, or check its schema; raises `SchemaMismatch` and `StoreError`."""
        for known in self._state.tables.values():
            if known.info.name == name:
                known.info.schema.compare(schema, what=f"table {name!r}")
                return known.info
        identifier = max(self._state.tables, default=0) + 1
        if identifier > MAXIMUM_TABLES:
            raise StoreError("the store has as many tables as it may", got=name)
        table = Table(TableInfo(identifier, name, schema, dict(metadata or {})), Counter())
        self._catalogue.add_table(table.info, table.evicted)
        self._state.tables[identifier] = table
        return table.info

    def schema(self, table: int) -> RowSchema:
        """Return the schema of a table's rows; raises `StoreError` where there is no such table."""
        if table not in self._state.tables:
            raise StoreError(
                "there is no such table", got=table, expected=sorted(self._state.tables)
            )
        return self._state.tables[table].info.schema

    def open_session(self, table: int, actor: int, session: int | None, owner: str) -> SessionKey:
        """Begin a session (None: the actor's next), or go on with one that the same owner began.

        Beginning one closes the actor's session before it; an episode that was open there is cut
        short.

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
        known = self._state.sessions.get(key) or self._closed(key)
        if known is not None:
            if known.owner == owner:
                return key
            raise SessionTaken(
                f"session {session} of actor {actor} was begun by another writer",
                hint="open a new session, or pass the owner token that the session began with",
            )
        if session < number:
            raise SessionTaken(
                f"actor {actor} has begun a later session already",
                got=session,
                expected=f"> {number}, so that sessions are in order of time",
            )
        self._catalogue.add_session(key, owner)
        self._state.sessions[key] = Session(owner)
        if latest is not None:
            self._state.close_session(latest)
        return key

    def session(self, key: SessionKey) -> Session:
        """Return where a session stands; raises `SessionTaken` where nobody has begun it."""
        session = self._state.sessions.get(key) or self._closed(key)
        if session is None:
            raise SessionTaken("the session was never opened", got=key)
        return session

    def append(self, batches: Sequence[RowBatch]) -> list[RobotRLError | None]:
        """Put rows that are not there yet, and evict the oldest segments of a store too large.

        Returns:
            For each batch None, or the error for which it was refused. On a full disk some of its
            rows may be there nevertheless: sent again, they are skipped.

        Raises:
            StoreError: The disk failed, and nothing can be put until the store is opened again. Or
                the catalogue cannot be written: that is tried again with the next rows.
        """
        if self._failure is not None:
            raise self._failed(self._failure)
        results: list[RobotRLError | None] = []
        for batch in batches:
            try:
                self._append(batch)
                results.append(None)
            except (SequenceGap, SessionTaken, RowRefused, StoreFull) as error:
                results.append(error)
        self._sync()
        # What this commit has touched stays until the next, so that a learner may see it.
        touched = list(self._state.changed.values())
        try:
            self._state.put_episodes()
        except StoreFull as full:  # no reader would see the rows: they count when sent again
            return [error or full for error in results]
        if self._capacity is not None:
            self._state.evict(self._capacity, touched)
        return results

    def annotate(self, new: Annotations) -> int:
        """Put annotations durably and return how many were new; stored ones are skipped.

        Raises:
            StoreError: They cannot be written.
            AnnotationRefused: Rows that are not there, or a version that is stored with another
                value. Nothing was written.
        """
        there = np.zeros(len(new.sequences), np.bool_)
        for segment in self._state.segments.get(new.session, []):
            there |= (new.sequences >= segment.first) & (new.sequences < segment.end)
        if not there.all():
            raise AnnotationRefused(
                f"a row to annotate is not in the store {self.path}",
                got=(*new.session, int(new.sequences[np.argmin(there)])),
                expected="table, actor, session and sequence of a stored row",
                hint="it may have been evicted; leave it out and send the others again",
            )
        return self._catalogue.annotate(new)

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return the totals of each table by its name.

        ``environment_steps`` counts all that were ever stored, so it never decreases; everything
        else is what is there now.
        """
        return {table.info.name: table.statistics() for table in self._state.tables.values()}

    def check_in_place(self) -> None:
        """Raise `StoreError` where the folder is not at its path any more."""
        if not is_in_place(self.path / LOCK, self._lock_file.fileno()):
            raise StoreError(
                f"the store {self.path} was moved, removed or replaced while it was served",
                hint="put it back, and start the replay server again; rows that are not"
                " acknowledged wait at their actors",
            )

    def close(self) -> None:
        """Release the store; what was not forced to the disk is, best effort."""
        for segment in itertools.chain(*self._state.segments.values()):
            with suppress(OSError):
                segment.sync()
            segment.close()
        with suppress(StoreError):
            self._state.put_episodes()
        self._catalogue.close()
        self._lock_file.close()

    def _append(self, batch: RowBatch) -> None:
        message, rows = batch
        key, state, before = message.place, self._state, self.session(message.place)
        if message.owner != before.owner:
            raise SessionTaken("the session belongs to another writer", got=key)
        at = before.next_sequence
        if message.first > at:
            raise SequenceGap("rows are missing before these", got=message.first, expected=at)
        rows = rows[at - message.first :]
        if not rows:
            return
        if before.closed:
            raise SessionTaken(
                "the session is closed: its actor has begun a later one",
                got=key,
                hint="let only one process write as this actor",
            )
        table = state.tables[key[0]]
        facts = [table.flags.read(row) for row in rows]
        after, episodes = before.after(key, facts, message.episodes, state.next_episode)
        if self._capacity is not None:
            self._check_capacity(self._capacity, next(iter(episodes.values())), len(rows))
        begins = {e.first_sequence - at: e for e in episodes.values() if e.first_sequence >= at}
        done, failure = self._put(key, rows, begins)
        if done < len(rows):  # what is there is there, and is skipped when it comes again
            facts = facts[:done]
            after, episodes = before.after(key, facts, message.episodes, state.next_episode)
        for record in episodes.values():
            table.count(record, before.episode)
            if record.sealed or record.identifier >= state.next_episode:
                state.changed[record.identifier] = record
        state.sessions[key] = after
        state.next_episode = max([state.next_episode - 1, *episodes]) + 1
        if failure is not None:
            error = write_error(failure, self.path)
            raise (error if isinstance(error, StoreFull) else self._failed(failure)) from failure

    def _check_capacity(self, capacity: int, first: EpisodeRecord, rows: int) -> None:
        """Check that eviction can make room for rows, the first of which are of an episode."""
        new, there = rows if first.is_demonstration else 0, self._state.rows("demonstration_rows")
        if there + new > capacity or (not new and there >= capacity):
            raise StoreFull(
                "demonstrations alone fill the store's capacity, and they are never evicted",
                got=there + new,
                expected=f"fewer than replay.capacity_rows={capacity}",
                hint="restart the replay server with a larger one",
            )

    def _put(
        self, key: SessionKey, rows: Sequence[memoryview], begins: Mapping[int, EpisodeRecord]
    ) -> tuple[int, OSError | None]:
        """Append rows to the files of a session; return how many were put, and why not all.

        The episodes that begin are given by the number of their row among these.
        """
        done = 0
        for start, end in itertools.pairwise(sorted({0, *begins, len(rows)})):
            episode = begins.get(start)
            try:
                segment = self._segment_for(key, episode)
                if self._durable and segment not in self._unsynced:
                    self._unsynced.append(segment)
                written = segment.append(self.identity, rows[start:end], episode)
            except OSError as error:
                return done, error
            done += written
            if start + written < end:
                return done, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return done, None

    def _segment_for(self, key: SessionKey, begins: EpisodeRecord | None) -> WrittenSegment:
        """Return the segment that rows go to; a new episode may begin a further one."""
        segments = self._state.segments.setdefault(key, [])
        last = segments[-1] if segments else None
        if last is not None and last.rows == 0:  # the server was killed when it had made the file
            last.begins = begins
        if last is not None and (begins is None or not last.is_full(begins, self._capacity)):
            return last
        assert begins is not None
        if last is not None:
            self._sync()  # which passes over what is closed
            last.close()
        table = self._state.tables[key[0]]
        about = {
            "store": self.identity,
            "session": list(key),
            "first": begins.first_sequence,
            "created_ns": time.time_ns(),
            # For whoever makes the catalogue anew:
            "table": table.info.name,
            "schema": table.info.schema.to_json(),
            "metadata": dict(table.info.metadata),
            "owner": self._state.sessions[key].owner,
            "evicted": table.evicted,
        }
        new = WrittenSegment.of(
            self.path, key, begins.first_sequence, row_bytes=table.row_bytes, begins=begins
        )
        new.create(about, durable=self._durable)
        segments.append(new)
        return new

    def _sync(self) -> None:
        """Wait for the disk, where that was asked for."""
        unsynced, self._unsynced = self._unsynced, []
        try:
            for segment in unsynced:
                segment.sync()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        """Accept nothing from now on: what the files hold is not known any more."""
        self._failure = error
        return StoreError(
            f"the disk of the store {self.path} failed, and nothing is accepted any more",
            got=error,
            hint="see that it is sound and can be written, and start the replay server again",
        )

    def _closed(self, key: SessionKey) -> Session | None:
        """Read a closed session back; None where nobody has begun it."""
        session = self._catalogue.sessions(key).get(key)
        if session is not None:
            session.closed = True
            ends = [segment.end for segment in self._state.segments.get(key, [])]
            session.next_sequence = max([session.next_sequence, *ends])
        return session
