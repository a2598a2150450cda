"""What a store holds, for its writer: brought up to its files, and evicted beyond its capacity.

After a kill the catalogue may lack the newest episodes, whose rows are there; without a catalogue
it lacks all of them. Both are the same work.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path

from robot_rl.data.schema import RowSchema
from robot_rl.replay import FileDamaged, RowRefused, StoreError, StoreFull
from robot_rl.replay.catalogue import FILE, Catalogue, is_store
from robot_rl.replay.episode_records import EpisodeRecord, RowFlags, Session, SessionKey
from robot_rl.replay.row_file import RowFile, is_blank
from robot_rl.replay.store_files import Segment, Segments, WrittenSegment, lacks_rows, lock_store


class StoreState:
    """Where a store stands; brought up to what its files hold.

    Attributes:
        schema: Of the rows, None before the first session; `flags` and `row_bytes` follow.
        sessions: Those that may go on, by actor and session.
        segments: Of each session, in order.
        changed: Episodes that the catalogue has yet to learn of, by identifier.
        stored: Totals of what it holds, open episodes included; `evicted`, of what it held.

    Raises:
        StoreError: A file is damaged, or the catalogue knows rows that are not there.
    """

    def __init__(self, path: Path, catalogue: Catalogue) -> None:
        self._path, self._catalogue = path, catalogue
        self.schema: RowSchema | None = None
        if (schema := catalogue.schema) is not None:
            self._use(schema)
        self.evicted, self.stored = catalogue.evicted(), Counter[str]()
        self.sessions = catalogue.sessions()
        self.segments: dict[SessionKey, list[WrittenSegment]] = {}
        self.changed: dict[int, EpisodeRecord] = {}
        self.next_episode = catalogue.next_episode()
        created = dict.fromkeys(self.sessions, 0)
        for segment in Segments(path):
            begun = self._adopt(segment)
            created[segment.key] = created.get(segment.key) or begun
        for key in sorted(self.sessions, key=lambda key: (created[key], key)):
            self._reconcile(key)
        self.put_episodes()
        for record in catalogue.episodes():
            if record.sealed:
                self.count(record)
        for session in self.sessions.values():
            if session.episode is not None:
                self.count(session.episode)
        for key in list(self.sessions):
            if key != self.latest(key[0]):
                self.close_session(key)

    def set_schema(self, schema: RowSchema, metadata: Mapping[str, object]) -> None:
        """Say what the rows are, before the first session."""
        self._use(schema)
        self._catalogue.set_schema(schema, metadata)

    def latest(self, actor: int) -> SessionKey | None:
        """Return the session that an actor began last."""
        return max((key for key in self.sessions if key[0] == actor), default=None)

    def count(self, record: EpisodeRecord, before: EpisodeRecord | None = None) -> None:
        """Count an episode; if it was counted already, in place of what it was before."""
        self.stored.update(record.totals())
        if before is not None and before.identifier == record.identifier:
            self.stored.subtract(before.totals())

    def put_episodes(self) -> None:
        """Put the episodes that have begun or are complete; if that fails, at the next commit."""
        if self.changed:
            self._catalogue.put_episodes(self.changed.values())
            self.changed.clear()

    def close_session(self, key: SessionKey) -> None:
        """Close a session for ever, and cut short the episode that is open there."""
        session = self.sessions[key]
        segments = self.segments.get(key, [])
        for segment in segments:
            segment.close()
        if session.episode is not None:
            rows = segments[-1].view(self._catalogue.identity, self._dtype)
            record = session.episode.cut_short(self.flags.read_all(rows[-1:])[0])
            self.count(record, session.episode)
            self.changed[record.identifier] = record
        del self.sessions[key]
        with suppress(StoreFull):  # it is put with the next commit
            self.put_episodes()

    def evict(self, capacity_rows: int, touched: Sequence[EpisodeRecord]) -> None:
        """Let the oldest segments go until there are no more rows than there may be.

        Those of demonstrations stay, and those with an open episode or one that was just touched.
        """
        if self.stored["rows"] <= capacity_rows:
            return
        still_open = [s.episode for s in self.sessions.values() if s.episode is not None]
        kept = [(e.session_key, e.first_sequence) for e in (*still_open, *touched)]
        candidates = [
            (segment.begins.identifier, segment)
            for segment in itertools.chain(*self.segments.values())
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
                self._catalogue.evict(*place, self.evicted + gone)
            except StoreFull:
                return  # until somebody has made room on the disk
            self.stored.subtract(gone)
            self.evicted += gone
            oldest.close()
            self.segments[oldest.key].remove(oldest)
            oldest.remove()  # who has mapped it goes on reading
            if self.stored["rows"] <= capacity_rows:
                return

    def _use(self, schema: RowSchema) -> None:
        self.flags, self._dtype = RowFlags(schema), schema.dtype
        self.schema, self.row_bytes = schema, schema.dtype.itemsize

    def _adopt(self, segment: Segment) -> int:
        """Take a segment to what is there; return when it was made, ns of the system clock."""
        known = self.sessions.get(segment.key)
        evicted = known.next_sequence if known is not None else 0
        if segment.first < evicted and not self._catalogue.episodes_of_session(
            segment.key, segment.first, segment.first + 1
        ):
            segment.remove()  # evicted, but not removed any more
            return 0
        try:
            with closing(segment.open(self._catalogue.identity)) as file:
                about, rows, row_bytes = file.about, file.rows, file.row_bytes
        except FileDamaged:
            if not is_blank(segment.path):
                raise
            segment.remove()  # killed while it was made
            return 0
        if "owner" not in about:
            raise StoreError(
                f"{self._path} is a replica, which nobody can serve",
                hint="serve the store that it is a copy of",
            )
        if self.schema is None:
            self.set_schema(RowSchema.from_json(about["schema"]), about["metadata"])
        if row_bytes != self.row_bytes:
            raise StoreError(
                f"{segment.path} has rows of another size than the store",
                got=row_bytes,
                expected=self.row_bytes,
                hint="move it out of the store's folder",
            )
        if known is None:
            evicted_before = Counter[str](about["evicted"])
            if evicted_before["rows"] > self.evicted["rows"]:  # the catalogue is rebuilt
                self.evicted = evicted_before
                self._catalogue.set_evicted(evicted_before)
            self._catalogue.add_session(segment.key, about["owner"])
            self.sessions[segment.key] = Session(about["owner"])
        written = WrittenSegment(segment.key, segment.first, segment.path, row_bytes, rows)
        self.segments.setdefault(segment.key, []).append(written)
        return int(about["created_ns"])

    def _reconcile(self, key: SessionKey) -> None:
        """Find where a session stands, and the episodes that the catalogue does not know."""
        segments, state = self.segments.get(key, []), self.sessions[key]
        end = max(segments[-1].end if segments else 0, state.next_sequence)
        episodes = self._catalogue.episodes_of_session(key)
        for last in episodes[-1:]:
            if last.sealed:
                state.next_sequence = max(state.next_sequence, last.end)
            else:
                state.next_sequence, state.episode = last.first_sequence, last.restarted()
        if end < state.next_sequence or (state.episode and end == state.next_sequence):
            raise lacks_rows(self._path, f"session {key}", end, state.next_sequence)
        ends = [*(following.first for following in segments[1:]), end]
        for written, behind in zip(segments, ends, strict=False):
            known = [e for e in episodes if written.first <= e.first_sequence < behind]
            if written.end > state.next_sequence:
                state, found = self._read_on(written, state)
                known += found
            # Of an open episode one row is known to have been there.
            known_end = max((e.end if e.sealed else e.first_sequence + 1 for e in known), default=0)
            if known_end > written.end:
                raise lacks_rows(self._path, written.path.name, written.end, known_end)
            written.begins = next(iter(known), None)
        self.sessions[key] = state

    def _read_on(
        self, segment: WrittenSegment, state: Session
    ) -> tuple[Session, list[EpisodeRecord]]:
        """Return where a session stands behind a segment, and the episodes that are new there."""
        if state.episode is not None and state.episode.first_sequence < segment.first:
            # The end of that episode was lost with the end of its file.
            self.changed[state.episode.identifier] = state.episode.cut_short(None)
            state = Session(state.owner)
        state.next_sequence = max(state.next_sequence, segment.first)
        rows = segment.view(self._catalogue.identity, self._dtype)
        try:
            facts = self.flags.read_all(rows[state.next_sequence - segment.first :])
            state, found = state.after(segment.key, facts, segment.metadata(), self.next_episode)
        except RowRefused as error:
            raise FileDamaged(
                f"{segment.path} has rows that are none", got=error, hint="move it away"
            ) from error
        self.changed |= found
        self.next_episode = max([self.next_episode - 1, *found]) + 1
        return state, list(found.values())


def rebuild_catalogue(path: Path) -> str:
    """Rebuild the catalogue of a store from its files of rows, and say what was found.

    What only the catalogue knows are the annotations: they are taken over as far as the present
    one can be read. That file stays beside the new one.

    Raises:
        StoreInUse: A server is writing the store.
        StoreError: There are no rows, or rows of several stores, or they are damaged.
    """
    if not is_store(path):  # whose folder the lock would make
        raise _not_of_one_store(path, 0)
    with lock_store(path):  # until all is done: no server starts on half a store
        identity = _identity_of_rows(path)
        old, kept = path / FILE, path / f"{FILE}.before"
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{old}{suffix}").replace(f"{kept}{suffix}")
        with closing(Catalogue(path, write=True, identity=identity)) as made:
            annotations = made.take_annotations(kept) if kept.exists() else 0
        with closing(Catalogue(path, write=True)) as made:  # without the old one beside it
            episodes = StoreState(path, made).stored["episodes"]
    return f"rebuilt the catalogue: {episodes} episodes; {annotations} annotations were kept"


def _identity_of_rows(path: Path) -> str:
    identities = set[str]()
    for segment in Segments(path):
        if not is_blank(segment.path):  # as one whose making a kill has cut off; the writer's to go
            with closing(RowFile.open(segment.path)) as file:
                identities.add(file.about["store"])
    if len(identities) != 1:
        raise _not_of_one_store(path, len(identities))
    return identities.pop()


def _not_of_one_store(path: Path, stores: int) -> StoreError:
    return StoreError(
        f"no catalogue can be made from the rows in {path}",
        got=f"rows of {stores} stores",
        expected="rows of one",
        hint="move the files of other stores out of its folder" if stores else None,
    )
