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
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from robot_rl.data.schema import SOURCE_NAMES, RowSchema
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
from robot_rl.replay.catalogue import LOCK, Catalogue
from robot_rl.replay.episode_records import EpisodeRecord, Session, SessionKey
from robot_rl.replay.protocol import Annotations, Append, Changes, GetChanges, GetRows
from robot_rl.replay.row_file import write_error
from robot_rl.replay.store_files import WrittenSegment, lock_store, not_there
from robot_rl.replay.store_state import StoreState
from robot_rl.wire.messages import Frame

Fsync = Literal["none", "group"]
# What a replica gets in one message.
PART_EPISODES = 512
PART_ANNOTATIONS = 16384
PART_BYTES = 1 << 20
RowBatch = tuple[Append, Sequence[memoryview]]  # and the rows that came with it


class StoreWriter:
    """The only writer of a store, in a folder that is created where absent.

    With fsync ``"group"`` it waits for the disk. Beyond `capacity_rows` the oldest segments are
    evicted, but never demonstrations or an open episode.

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
        self._run, self._commits = secrets.token_hex(4), 0  # what a replica may not have seen
        with ExitStack() as opened:
            self._lock_file = opened.enter_context(lock_store(path))
            self._catalogue = Catalogue(path, write=True, durable=self._durable)
            opened.callback(self._catalogue.close)
            self.identity = self._catalogue.identity
            self._state = StoreState(path, self._catalogue)
            opened.pop_all()

    def open_session(
        self,
        schema: RowSchema,
        actor: int,
        session: int | None,
        owner: str,
        metadata: Mapping[str, object] | None = None,
    ) -> SessionKey:
        """Begin a session (None: the actor's next), or go on with one that the same owner began.

        The first one says what the rows of the store are. Beginning one closes the actor's session
        before it; an episode that was open there is cut short.

        Raises:
            SchemaMismatch: The store has rows of another schema; names the field.
            SessionTaken: The session has another owner, or newer sessions exist already.
            StoreError: It cannot be written.
        """
        if self._state.schema is None:
            self._state.set_schema(schema, metadata or {})
        self.schema.compare(schema, what=f"the store {self.path}")
        latest = self._state.latest(actor)
        number = -1 if latest is None else latest[1]
        if session is None:
            goes_on = latest is not None and self._state.sessions[latest].owner == owner
            session = number if goes_on else number + 1
        key = (actor, session)
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
        self._commits += 1
        self._catalogue.add_session(key, owner)
        self._state.sessions[key] = Session(owner)
        if latest is not None:
            self._state.close_session(latest)
        return key

    @property
    def schema(self) -> RowSchema:
        """Of the rows; raises `StoreError` before the first session."""
        if self._state.schema is None:
            raise StoreError(f"nobody has begun a session in the store {self.path}")
        return self._state.schema

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
        self._commits += 1
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
                expected="actor, session and sequence of a stored row",
                hint="it may have been evicted; leave it out and send the others again",
            )
        self._commits += 1
        return self._catalogue.annotate(new)

    def statistics(self) -> dict[str, object]:
        """Return the totals of the store.

        ``environment_steps`` counts all that were ever stored, so it never decreases; everything
        else is what is there now.
        """
        stored, evicted = self._state.stored, self._state.evicted
        return {
            "rows": stored["rows"],
            "episodes": stored["episodes"],
            "environment_steps": {name: stored[name] + evicted[name] for name in SOURCE_NAMES},
            "evicted": {
                "rows": evicted["rows"],
                "episodes": evicted["episodes"],
                "environment_steps": sum(evicted[name] for name in SOURCE_NAMES),
            },
        }

    def changes(self, question: GetChanges) -> tuple[Changes, list[Frame]]:
        """What a replica lacks; see `GetChanges`."""
        token = f"{self._catalogue.made}-{self._run}-{self._commits}"
        answer = Changes(
            request=question.request,
            token=token,
            store=self.identity,
            catalogue=self._catalogue.made,
        )
        if question.token == token:
            return answer, []
        catalogue, first = self._catalogue, question.next_episode
        new = catalogue.episodes(first, PART_EPISODES)
        known = [e for i in question.open if i < first and (e := catalogue.episode(i)) is not None]
        values = catalogue.annotations_after(question.last_annotation, PART_ANNOTATIONS)
        more = len(new) == PART_EPISODES or len(values) == PART_ANNOTATIONS
        segments = [
            (*segment.key, segment.first, segment.rows)
            for segment in itertools.chain(*self._state.segments.values())
        ]
        answer = msgspec.structs.replace(
            answer,
            token="" if more else token,
            schema=None if self._state.schema is None else self.schema.to_json(),
            more=more,
            evicted=dict(self._state.evicted),
            written=catalogue.annotation_counts(),
        )
        encoded = msgspec.json.encode([*known, *new]), msgspec.json.encode(values)
        return answer, [*encoded, np.array(segments, np.int64).reshape(-1, 4).tobytes()]

    def rows(self, question: GetRows) -> memoryview:
        """Rows that a replica asks for, as many as a message takes.

        Raises:
            NotEnoughData: They are not there; for example, they were evicted.
        """
        there = self._state.segments.get(question.place, [])
        segment = next((s for s in there if s.first == question.first), None)
        rows = None if segment is None else segment.view(self.identity, self.schema.dtype)
        start = question.start - question.first
        if rows is None or not 0 <= start < len(rows):
            raise not_there(f"row {question.start} of session {question.place}")
        most = max(PART_BYTES // rows.itemsize, 1)
        return rows[start : start + most].view(np.uint8).data

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
        facts = [state.flags.read(row) for row in rows]
        after, episodes = before.after(key, facts, message.episodes, state.next_episode)
        if self._capacity is not None:
            self._check_capacity(self._capacity, next(iter(episodes.values())), len(rows))
        begins = {e.first_sequence - at: e for e in episodes.values() if e.first_sequence >= at}
        done, failure = self._put(key, rows, begins)
        if done < len(rows):  # what is there is there, and is skipped when it comes again
            facts = facts[:done]
            after, episodes = before.after(key, facts, message.episodes, state.next_episode)
        for record in episodes.values():
            state.count(record, before.episode)
            if record.sealed or record.identifier >= state.next_episode:
                state.changed[record.identifier] = record
        state.sessions[key] = after
        state.next_episode = max([state.next_episode - 1, *episodes]) + 1
        if failure is not None:
            error = write_error(failure, self.path)
            raise (error if isinstance(error, StoreFull) else self._failed(failure)) from failure

    def _check_capacity(self, capacity: int, first: EpisodeRecord, rows: int) -> None:
        """Check that eviction can make room for rows, the first of which are of an episode."""
        new, there = rows if first.is_demonstration else 0, self._state.stored["demonstration_rows"]
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
        about = {
            "store": self.identity,
            "session": list(key),
            "first": begins.first_sequence,
            "created_ns": time.time_ns(),
            # To rebuild the catalogue from:
            "schema": self.schema.to_json(),
            "metadata": dict(self._catalogue.metadata),
            "owner": self._state.sessions[key].owner,
            "evicted": self._state.evicted,
        }
        new = WrittenSegment.of(
            self.path, key, begins.first_sequence, row_bytes=self._state.row_bytes, begins=begins
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
