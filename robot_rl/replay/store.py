"""The only writer of the durable store, owned by the replay server.

A row is appended once to its session's file and never changed. Rows that `StoreWriter.append`
accepts survive kill -9 of every process, and with ``fsync="group"`` a power cut too.

    STORE/rows/, STORE/weights/    see `robot_rl.replay.store_files`
    STORE/catalogue.sqlite         see `robot_rl.replay.catalogue`
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np

from robot_rl.data.schema import SOURCE_NAMES, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.processes.files import is_in_place
from robot_rl.replay import (
    AnnotationRefused,
    FileDamaged,
    ReplayError,
    RowRefused,
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreFull,
)
from robot_rl.replay.catalogue import FILE, LOCK, Catalogue, is_store
from robot_rl.replay.episode_records import EpisodeRecord, RowFlags, SessionKey, StoredSession
from robot_rl.replay.protocol import Annotations, Append, Changes, GetChanges, GetRows
from robot_rl.replay.row_file import RowFile, is_blank, write_error
from robot_rl.replay.store_files import (
    Segment,
    WrittenSegment,
    lacks_rows,
    lock_store,
    not_there,
    segments_of,
)
from robot_rl.wire.messages import Frame

Fsync = Literal["none", "group"]
# Limits of one message to a replica.
PART_EPISODES = 512
PART_ANNOTATIONS = 16384
PART_BYTES = 1 << 20
RowBatch = tuple[Append, Sequence[memoryview]]  # with the rows that came with it


class StoreWriter:
    """The only writer of a store, in a folder that is created if absent.

    With fsync ``"group"`` it waits for the disk. Above `capacity_rows` it evicts the oldest
    segments, but never demonstrations or an open episode. Pass `lock` if the caller already holds
    the store's lock.

    Attributes:
        sessions: The open sessions, by actor and session.

    Raises:
        ReplayError: The capacity is out of range.
        StoreError: The folder cannot be opened, or another process writes it; a file is damaged; or
            rows that the catalogue lists are missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        fsync: Fsync = "none",
        capacity_rows: int | None = None,
        lock: IO[bytes] | None = None,
    ) -> None:
        if capacity_rows is not None and (type(capacity_rows) is not int or capacity_rows < 1):
            raise ReplayError(
                "capacity_rows is out of range", got=capacity_rows, expected="a whole number >= 1"
            )
        self.path, self._capacity, self._durable = path, capacity_rows, fsync == "group"
        self._failure: OSError | None = None
        self._unsynced: list[WrittenSegment] = []
        self._run, self._commits = secrets.token_hex(4), 0  # identify a state for replicas
        with ExitStack() as opened:
            self._lock_file = opened.enter_context(lock or lock_store(path))
            self._catalogue = Catalogue(path, write=True, durable=self._durable)
            opened.callback(self._catalogue.close)
            self.identity = self._catalogue.identity
            self._schema: RowSchema | None = None
            if (schema := self._catalogue.schema) is not None:
                self._use(schema)
            self.sessions = self._catalogue.sessions()
            self._segments: dict[SessionKey, list[WrittenSegment]] = {}
            # Totals of the rows in the store, open episodes included, and of the evicted ones.
            self._stored, self._evicted = Counter[str](), self._catalogue.evicted()
            self._changed: dict[int, EpisodeRecord] = {}  # not yet in the catalogue
            self._next_episode = self._catalogue.next_episode()
            self._recover()
            opened.pop_all()

    def open_session(
        self,
        schema: RowSchema,
        actor: int,
        session: int | None,
        owner: str,
        metadata: Mapping[str, object] | None = None,
    ) -> SessionKey:
        """Start a session (None: the actor's next), or resume one of the same owner.

        The first session sets the store's schema. Starting one closes the actor's previous
        session; an episode that is open there is cut short.

        Raises:
            SchemaMismatch: The store has rows of another schema; names the field.
            SessionTaken: The session has another owner, or newer sessions exist already.
            StoreError: It cannot be written.
        """
        if self._schema is None:
            self._use(schema)
            self._catalogue.set_schema(schema, metadata or {})
        self.schema.compare(schema, what=f"the store {self.path}")
        latest = self._latest(actor)
        number = -1 if latest is None else latest[1]
        if session is None:
            goes_on = latest is not None and self.sessions[latest].owner == owner
            session = number if goes_on else number + 1
        key = (actor, session)
        known = self._find(key)
        if known is not None:
            if known.owner == owner:
                return key
            raise SessionTaken(
                f"session {session} of actor {actor} was started by another writer",
                hint="open a new session, or pass the owner token of the session",
            )
        if session < number:
            raise SessionTaken(
                f"actor {actor} has started a later session already",
                got=session,
                expected=f"> {number}, so that sessions are in order of time",
            )
        self._commits += 1
        self._catalogue.add_session(key, owner)
        self.sessions[key] = StoredSession(owner)
        if latest is not None:
            self._close_session(latest)
        return key

    @property
    def schema(self) -> RowSchema:
        """Schema of the rows; raises `StoreError` before the first session."""
        if self._schema is None:
            raise StoreError(f"no session has been started in the store {self.path}")
        return self._schema

    def session(self, key: SessionKey) -> StoredSession:
        """Return the state of a session; raises `SessionTaken` if it was never started."""
        session = self._find(key)
        if session is None:
            raise SessionTaken("the session was never opened", got=key)
        return session

    def append(self, batches: Sequence[RowBatch]) -> list[RobotRLError | None]:
        """Store new rows, and evict the oldest segments if the store is too large.

        Returns:
            For each batch None, or the error that refused it. On a full disk some of its rows may
            be stored nevertheless; they are skipped when sent again.

        Raises:
            StoreError: The disk failed, and the store accepts no rows until it is reopened. Or
                the catalogue cannot be written, which is retried with the next rows.
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
        # Keep what this commit has touched until the next, so that a learner may see it.
        touched = list(self._changed.values())
        try:
            self._put_episodes()
        except StoreFull as full:  # readers would not see the rows: they count when sent again
            return [error or full for error in results]
        if self._capacity is not None:
            self._evict(self._capacity, touched)
        return results

    def annotate(self, new: Annotations) -> int:
        """Store annotations durably; return how many were new. Stored ones are skipped.

        Raises:
            StoreError: They cannot be written.
            AnnotationRefused: A row is absent, or a version is stored with another value. No
                annotation was written.
        """
        there = np.zeros(len(new.sequences), np.bool_)
        for segment in self._segments.get(new.session, []):
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

        ``environment_steps`` counts all steps ever stored, so it never decreases. ``rows`` and
        ``episodes`` are counted as present or ``evicted``.
        """
        stored, evicted = self._stored, self._evicted
        return {
            "rows": stored["rows"],
            "episodes": stored["episodes"],
            "environment_steps": {name: stored[name] + evicted[name] for name in SOURCE_NAMES},
            "evicted": {name: evicted[name] for name in ("rows", "episodes")},
        }

    def changes(self, question: GetChanges) -> tuple[Changes, list[Frame]]:
        """Return the data that a replica lacks; see `GetChanges`."""
        catalogue, first = self._catalogue, question.next_episode
        token = f"{catalogue.made}-{self._run}-{self._commits}"
        answer = Changes(
            request=question.request, token=token, store=self.identity, catalogue=catalogue.made
        )
        if question.token == token:
            return answer, []
        new = catalogue.episodes(first, PART_EPISODES)
        known = [e for i in question.open if i < first and (e := catalogue.episode(i)) is not None]
        values = catalogue.annotations_after(question.last_annotation, PART_ANNOTATIONS)
        more = len(new) == PART_EPISODES or len(values) == PART_ANNOTATIONS
        segments = [(*s.key, s.first, s.rows) for s in self._all_segments()]
        answer = msgspec.structs.replace(
            answer,
            token="" if more else token,
            schema=None if self._schema is None else self._schema.to_json(),
            more=more,
            evicted=dict(self._evicted),
            written=catalogue.annotation_counts(),
        )
        encoded = msgspec.json.encode([*known, *new]), msgspec.json.encode(values)
        return answer, [*encoded, np.array(segments, np.int64).reshape(-1, 4).tobytes()]

    def rows(self, question: GetRows) -> memoryview:
        """Return rows that a replica requests, as many as fit in a message.

        Raises:
            NotEnoughData: They are missing; for example, evicted.
        """
        there = self._segments.get(question.place, [])
        segment = next((s for s in there if s.first == question.first), None)
        rows = None if segment is None else segment.view(self.identity, self.schema.dtype)
        start = question.start - question.first
        if rows is None or not 0 <= start < len(rows):
            raise not_there(f"row {question.start} of session {question.place}")
        most = max(PART_BYTES // rows.itemsize, 1)
        return rows[start : start + most].view(np.uint8).data

    def check_in_place(self) -> None:
        """Raise `StoreError` if the folder is no longer at its path."""
        if not is_in_place(self.path / LOCK, self._lock_file.fileno()):
            raise StoreError(
                f"the store {self.path} was moved, removed or replaced while it was served",
                hint="put it back, and start the replay server again; rows that are not"
                " acknowledged wait at their actors",
            )

    def close(self) -> None:
        """Release the store; unsynced data is flushed, best effort."""
        for segment in self._all_segments():
            with suppress(OSError):
                segment.sync()
            segment.close()
        with suppress(StoreError):
            self._put_episodes()
        self._catalogue.close()
        self._lock_file.close()

    # Incoming rows.

    def _append(self, batch: RowBatch) -> None:
        message, rows = batch
        key, before = message.place, self.session(message.place)
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
                "the session is closed: its actor has started a later one",
                got=key,
                hint="let only one process write as this actor",
            )
        facts = [self._flags.read(row) for row in rows]
        after, episodes = before.after(key, facts, message.episodes, self._next_episode)
        if self._capacity is not None:
            self._check_capacity(self._capacity, next(iter(episodes.values())), len(rows))
        begins = {e.first_sequence - at: e for e in episodes.values() if e.first_sequence >= at}
        done, failure = self._put(key, rows, begins)
        if done < len(rows):  # the stored rows are skipped when sent again
            facts = facts[:done]
            after, episodes = before.after(key, facts, message.episodes, self._next_episode)
        for record in episodes.values():
            self._count(record, before.episode)
            if record.sealed or record.identifier >= self._next_episode:
                self._changed[record.identifier] = record
        self.sessions[key] = after
        self._next_episode = max([self._next_episode - 1, *episodes]) + 1
        if failure is not None:
            error = write_error(failure, self.path)
            raise (error if isinstance(error, StoreFull) else self._failed(failure)) from failure

    def _check_capacity(self, capacity: int, first: EpisodeRecord, rows: int) -> None:
        """Check that eviction can make room for `rows` rows that start with episode `first`."""
        new, there = rows if first.is_demonstration else 0, self._stored["demonstration_rows"]
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
        """Append rows to the files of a session; return how many, and the error that stopped it.

        `begins` maps indices in `rows` to the episodes that start there.
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
        """Return the segment for the next rows; a new episode may start another one."""
        segments = self._segments.setdefault(key, [])
        last = segments[-1] if segments else None
        if last is not None and last.rows == 0:  # the server was killed after creating the file
            last.begins = begins
        if last is not None and (begins is None or not last.is_full(begins, self._capacity)):
            return last
        assert begins is not None
        if last is not None:
            self._sync()  # which skips closed segments
            last.close()
        about = {
            "store": self.identity,
            "session": list(key),
            "first": begins.first_sequence,
            "created_ns": time.time_ns(),
            # For rebuilding the catalogue:
            "schema": self.schema.to_json(),
            "metadata": dict(self._catalogue.metadata),
            "owner": self.sessions[key].owner,
            "evicted": self._evicted,
        }
        new = WrittenSegment.of(
            self.path, key, begins.first_sequence, row_bytes=self._row_bytes, begins=begins
        )
        new.create(about, durable=self._durable)
        segments.append(new)
        return new

    def _sync(self) -> None:
        """Wait for the disk if configured."""
        unsynced, self._unsynced = self._unsynced, []
        try:
            for segment in unsynced:
                segment.sync()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        """Accept no more rows: the content of the files is unknown now."""
        self._failure = error
        return StoreError(
            f"the disk of the store {self.path} failed: the server takes no more rows",
            got=error,
            hint="see that it is sound and can be written, and start the replay server again",
        )

    # Sessions, episodes and their totals.

    def _use(self, schema: RowSchema) -> None:
        self._schema, self._flags = schema, RowFlags(schema)
        self._row_bytes = schema.dtype.itemsize

    def _latest(self, actor: int) -> SessionKey | None:
        """Return the session that an actor started last."""
        return max((key for key in self.sessions if key[0] == actor), default=None)

    def _find(self, key: SessionKey) -> StoredSession | None:
        """Return a session, from the catalogue if it is closed; None if it never started."""
        if key in self.sessions:
            return self.sessions[key]
        session = self._catalogue.sessions(key).get(key)
        if session is not None:
            session.closed = True
            ends = [segment.end for segment in self._segments.get(key, [])]
            session.next_sequence = max([session.next_sequence, *ends])
        return session

    def _close_session(self, key: SessionKey) -> None:
        """Close a session for good, and cut short its open episode."""
        session = self.sessions[key]
        segments = self._segments.get(key, [])
        for segment in segments:
            segment.close()
        if session.episode is not None:
            rows = segments[-1].view(self.identity, self.schema.dtype)
            record = session.episode.cut_short(self._flags.read_all(rows[-1:])[0])
            self._count(record, session.episode)
            self._changed[record.identifier] = record
        del self.sessions[key]
        with suppress(StoreFull):  # the next commit writes it
            self._put_episodes()

    def _count(self, record: EpisodeRecord, before: EpisodeRecord | None = None) -> None:
        """Count an episode, replacing its previous count if it has one."""
        self._stored.update(record.totals())
        if before is not None and before.identifier == record.identifier:
            self._stored.subtract(before.totals())

    def _put_episodes(self) -> None:
        """Write the new and the completed episodes; retry a failed write at the next commit."""
        if self._changed:
            self._catalogue.put_episodes(self._changed.values())
            self._changed.clear()

    def _all_segments(self) -> list[WrittenSegment]:
        return list(itertools.chain(*self._segments.values()))

    def _evict(self, capacity_rows: int, touched: Sequence[EpisodeRecord]) -> None:
        """Evict the oldest segments until the rows fit the capacity.

        Segments with demonstrations, an open episode or a just touched one stay.
        """
        if self._stored["rows"] <= capacity_rows:
            return
        still_open = [s.episode for s in self.sessions.values() if s.episode is not None]
        kept = [(e.session_key, e.first_sequence) for e in (*still_open, *touched)]
        candidates = [
            (segment.begins.identifier, segment)
            for segment in self._all_segments()
            if segment.begins is not None
            and segment.rows
            and not segment.of_demonstrations
            and not any(k == segment.key and segment.first <= at < segment.end for k, at in kept)
        ]
        for _, oldest in sorted(candidates, key=itemgetter(0)):
            place, gone = (oldest.key, oldest.first, oldest.end), Counter[str]()
            for record in self._catalogue.episodes_of_session(*place):
                gone.update(record.totals())
            try:
                self._catalogue.evict(*place, self._evicted + gone)
            except StoreFull:
                return  # until the disk has room
            self._stored.subtract(gone)
            self._evicted += gone
            oldest.close()
            self._segments[oldest.key].remove(oldest)
            oldest.remove()  # processes that mapped it can still read it
            if self._stored["rows"] <= capacity_rows:
                return

    # Recovery when the store is opened. After a kill the catalogue may lack the latest episodes,
    # whose rows exist; a rebuilt one lacks all of them. Both are handled alike.

    def _recover(self) -> None:
        created = dict.fromkeys(self.sessions, 0)
        for segment in segments_of(self.path):
            made = self._adopt(segment)
            created[segment.key] = created.get(segment.key) or made
        for key in sorted(self.sessions, key=lambda key: (created[key], key)):
            self._reconcile(key)
        self._put_episodes()
        for record in self._catalogue.episodes():
            if record.sealed:
                self._count(record)
        for session in self.sessions.values():
            if session.episode is not None:
                self._count(session.episode)
        for key in list(self.sessions):
            if key != self._latest(key[0]):
                self._close_session(key)

    def _adopt(self, segment: Segment) -> int:
        """Register an existing segment; return when it was made, ns of the system clock."""
        known = self.sessions.get(segment.key)
        evicted = known.next_sequence if known is not None else 0
        if segment.first < evicted and not self._catalogue.episodes_of_session(
            segment.key, segment.first, segment.first + 1
        ):
            segment.remove()  # the server was killed between evicting it and removing it
            return 0
        try:
            with closing(segment.open(self.identity)) as file:
                about, rows, row_bytes = file.about, file.rows, file.row_bytes
        except FileDamaged:
            if not is_blank(segment.path):
                raise
            segment.remove()  # killed while creating it
            return 0
        if "owner" not in about:
            raise StoreError(
                f"{self.path} is a replica, which cannot be served",
                hint="serve the store that it is a copy of",
            )
        if self._schema is None:
            self._use(RowSchema.from_json(about["schema"]))
            self._catalogue.set_schema(self.schema, about["metadata"])
        if row_bytes != self._row_bytes:
            raise StoreError(
                f"{segment.path} has rows of another size than the store",
                got=row_bytes,
                expected=self._row_bytes,
                hint="move it out of the store's folder",
            )
        if known is None:
            evicted_before = Counter[str](about["evicted"])
            if evicted_before["rows"] > self._evicted["rows"]:  # the catalogue is rebuilt
                self._evicted = evicted_before
                self._catalogue.set_evicted(evicted_before)
            self._catalogue.add_session(segment.key, about["owner"])
            self.sessions[segment.key] = StoredSession(about["owner"])
        written = WrittenSegment(segment.key, segment.first, segment.path, row_bytes, rows)
        self._segments.setdefault(segment.key, []).append(written)
        return int(about["created_ns"])

    def _reconcile(self, key: SessionKey) -> None:
        """Determine a session's state, and the episodes that the catalogue lacks."""
        segments, state = self._segments.get(key, []), self.sessions[key]
        end = max(segments[-1].end if segments else 0, state.next_sequence)
        episodes = self._catalogue.episodes_of_session(key)
        for last in episodes[-1:]:
            if last.sealed:
                state.next_sequence = max(state.next_sequence, last.end)
            else:
                state.next_sequence, state.episode = last.first_sequence, last.restarted()
        if end < state.next_sequence or (state.episode and end == state.next_sequence):
            raise lacks_rows(self.path, f"session {key}", end, state.next_sequence)
        ends = [*(following.first for following in segments[1:]), end]
        for written, behind in zip(segments, ends, strict=False):
            known = [e for e in episodes if written.first <= e.first_sequence < behind]
            if written.end > state.next_sequence:
                state, found = self._read_on(written, state)
                known += found
            # An open episode is known to have had one row.
            known_end = max((e.end if e.sealed else e.first_sequence + 1 for e in known), default=0)
            if known_end > written.end:
                raise lacks_rows(self.path, written.path.name, written.end, known_end)
            written.begins = next(iter(known), None)
        self.sessions[key] = state

    def _read_on(
        self, segment: WrittenSegment, state: StoredSession
    ) -> tuple[StoredSession, list[EpisodeRecord]]:
        """Return the session's state after a segment, and the new episodes in it."""
        if state.episode is not None and state.episode.first_sequence < segment.first:
            # The end of that episode was lost with the end of its file.
            self._changed[state.episode.identifier] = state.episode.cut_short(None)
            state = StoredSession(state.owner)
        state.next_sequence = max(state.next_sequence, segment.first)
        rows = segment.view(self.identity, self.schema.dtype)
        try:
            facts = self._flags.read_all(rows[state.next_sequence - segment.first :])
            state, found = state.after(segment.key, facts, segment.metadata(), self._next_episode)
        except RowRefused as error:
            raise FileDamaged(
                f"{segment.path} has rows that cannot be rows of a store",
                got=error,
                hint="move it away",
            ) from error
        self._changed |= found
        self._next_episode = max([self._next_episode - 1, *found]) + 1
        return state, list(found.values())


def rebuild_catalogue(path: Path) -> str:
    """Rebuild the catalogue of a store from its row files, and return what was found.

    Annotations exist only in the catalogue: they are copied as far as the present one is readable.
    The old file stays next to the new one.

    Raises:
        StoreError: There are no rows, or rows of several stores, or they are damaged; or a server
            is writing the store.
    """
    if not is_store(path):  # locking would create the folder
        raise _not_of_one_store(path, 0)
    with lock_store(path) as lock:  # to the end: no server may start on a partial store
        identities = set[str]()
        for segment in segments_of(path):
            if not is_blank(segment.path):  # a kill cut off its creation; the writer removes it
                with closing(RowFile.open(segment.path)) as file:
                    identities.add(file.about["store"])
        if len(identities) != 1:
            raise _not_of_one_store(path, len(identities))
        old, kept = path / FILE, path / f"{FILE}.before"
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{old}{suffix}").replace(f"{kept}{suffix}")
        with closing(Catalogue(path, write=True, identity=identities.pop())) as made:
            annotations = made.take_annotations(kept) if kept.exists() else 0
        with closing(StoreWriter(path, lock=lock)) as writer:
            episodes = writer.statistics()["episodes"]
    return f"rebuilt the catalogue: {episodes} episodes; {annotations} annotations were kept"


def _not_of_one_store(path: Path, stores: int) -> StoreError:
    return StoreError(
        f"no catalogue can be made from the rows in {path}",
        got=f"rows of {stores} stores",
        expected="rows of one",
        hint="move the files of other stores out of its folder" if stores else None,
    )
