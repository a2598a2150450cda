"""Opening a store to write it: what its files hold, and what its catalogue lacks of that.

After a kill the catalogue may lack the newest episodes, whose rows are there; without a catalogue
it lacks all of them. Both are the same work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from robot_rl.data.schema import RowSchema
from robot_rl.replay.catalogue import Catalogue, SessionRecord
from robot_rl.replay.errors import FileDamaged, RowRefused, StoreError
from robot_rl.replay.records import (
    EpisodeRecord,
    RowFlags,
    SessionKey,
    TableCounts,
    TableInfo,
)
from robot_rl.replay.row_file import is_blank
from robot_rl.replay.segments import Segment, Segments, facts_of
from robot_rl.replay.session_files import SessionFiles, WrittenSegment
from robot_rl.replay.sessions import Session, plan_rows


@dataclass
class Table:
    """A table, and what is in it.

    Attributes:
        info: What it is.
        flags: Where its rows have their flags.
        counts: Totals of what is stored.
        evicted: Totals of what was evicted.
    """

    info: TableInfo
    flags: RowFlags
    counts: TableCounts = field(default_factory=TableCounts)
    evicted: TableCounts = field(default_factory=TableCounts)


@dataclass
class StoreState:
    """Where a store stands.

    Attributes:
        tables: By number.
        sessions: By table, actor and session.
        changed: Episodes that the catalogue has yet to learn of, by identifier.
        next_episode: Identifier of the next episode that begins.
    """

    tables: dict[int, Table] = field(default_factory=dict)
    sessions: dict[SessionKey, Session] = field(default_factory=dict)
    changed: dict[int, EpisodeRecord] = field(default_factory=dict)
    next_episode: int = 0

    def latest(self, table: int, actor: int) -> SessionKey | None:
        """Return the session that an actor began last in a table."""
        return max((key for key in self.sessions if key[:2] == (table, actor)), default=None)


class Recovery:
    """Brings a store's state up to what its files hold.

    Args:
        path: Folder of the store.
        catalogue: Its catalogue, open for writing.
        files: Filled with the segments.
        state: Filled.
    """

    def __init__(
        self, path: Path, catalogue: Catalogue, files: SessionFiles, state: StoreState
    ) -> None:
        """See the class."""
        self._path, self._catalogue, self._files, self._state = path, catalogue, files, state

    def run(self) -> None:
        """Find out what is there.

        Raises:
            StoreError: A file is damaged, or the catalogue knows rows that are not there.
        """
        state, catalogue = self._state, self._catalogue
        state.next_episode = catalogue.next_episode()
        for info in catalogue.tables().values():
            evicted = catalogue.evicted(info.identifier)
            state.tables[info.identifier] = Table(info, RowFlags.of(info.schema), evicted=evicted)
            for session in catalogue.sessions(info.identifier):
                state.sessions[session.key] = Session(session.owner)
        gone = [e for table in state.tables for e in catalogue.evicted_segments(table)]
        names = {(e.key, e.first) for e in gone}
        created: dict[SessionKey, int] = {}
        for segment in Segments(self._path):
            if (segment.key, segment.first) in names:
                segment.remove()  # evicted, but not removed any more
                continue
            made = self._adopt(segment)
            created.setdefault(segment.key, made)
        for key in sorted(state.sessions, key=lambda key: (created.get(key, 0), key)):
            evicted_end = max((e.end for e in gone if e.key == key), default=0)
            self._reconcile(key, evicted_end)
        catalogue.put_episodes(state.changed.values())
        state.changed.clear()
        for identifier, table in state.tables.items():
            for record in catalogue.episodes(identifier):
                still_open = state.sessions[record.session_key].episode
                table.counts.add(record if record.sealed else still_open or record)

    def _adopt(self, segment: Segment) -> int:
        """Take a segment to what is there; return when it was made, ns of the system clock."""
        try:
            file = segment.open(self._catalogue.identity)
        except FileDamaged:
            if not is_blank(segment.path):
                raise
            segment.remove()  # killed while it was made
            return 0
        about, rows, row_bytes = file.about, file.rows, file.row_bytes
        file.close()
        tables, sessions, number = self._state.tables, self._state.sessions, segment.key[0]
        if number not in tables:
            schema = RowSchema.from_json(about["schema"])
            info = TableInfo(number, about["table"], schema, about["metadata"])
            evicted = TableCounts.from_json(about["evicted"])
            self._catalogue.add_table(info, evicted)
            tables[number] = Table(info, RowFlags.of(schema), evicted=evicted)
        if row_bytes != tables[number].flags.size:
            raise StoreError(
                f"{segment.path} has rows of another size than its table",
                got=row_bytes,
                expected=tables[number].flags.size,
                hint="move it out of the store's folder",
            )
        if segment.key not in sessions:
            self._catalogue.add_session(SessionRecord(segment.key, about["owner"]))
            sessions[segment.key] = Session(about["owner"])
        self._files.add(WrittenSegment(segment, row_bytes, rows))
        return int(about["created_ns"])

    def _reconcile(self, key: SessionKey, evicted: int) -> None:
        """Find where a session stands, and the episodes that the catalogue does not know.

        Args:
            key: The session.
            evicted: Sequence behind its newest evicted row.
        """
        segments = self._files.of_session(key)
        last = self._catalogue.last_episode(key)
        state = replace(self._state.sessions[key], next_sequence=evicted)
        if last is not None and last.sealed:
            state.next_sequence = max(evicted, last.first_sequence + last.rows)
        elif last is not None:
            begun = last.without_rows()
            state = replace(state, next_sequence=last.first_sequence, episode=begun)
        end = max(segments[-1].end if segments else 0, evicted)
        if end < state.next_sequence or (state.episode and end == state.next_sequence):
            raise self._lacks_rows(f"session {key}", end, state.next_sequence)
        for written in segments:
            if written.end > state.next_sequence:
                state = self._read_on(written, state)
            place = (key, written.segment.first, written.end)
            known = self._catalogue.episodes_of_session(*place)
            known += [e for e in self._state.changed.values() if _begins_in(e, *place)]
            first = min(known, key=lambda e: e.first_sequence, default=None)
            known_end = max((e.first_sequence + e.rows for e in known if e.sealed), default=0)
            if known_end > written.end:
                raise self._lacks_rows(str(written.segment.path), written.end, known_end)
            if first is not None:
                written.of_demonstrations, written.oldest = first.is_demonstration, first.identifier
        self._state.sessions[key] = state

    def _read_on(self, written: WrittenSegment, state: Session) -> Session:
        """Return where a session stands behind a segment, whose new episodes are noted."""
        key = written.segment.key
        table = self._state.tables[key[0]]
        first = written.segment.first
        if state.episode is not None and state.episode.first_sequence < first:
            # The end of that episode was lost with the end of its file.
            record = state.episode.cut_short(None)
            self._state.changed[record.identifier] = record
            state = Session(state.owner, first)
        state.next_sequence = max(state.next_sequence, first)
        rows = self._files.rows_from(key, state.next_sequence, table.info.schema.dtype)
        metadata = written.segment.metadata()
        try:
            facts = facts_of(rows, table.flags)
            plan = plan_rows(key, state, facts, metadata, self._state.next_episode)
        except RowRefused as error:
            raise FileDamaged(
                f"{written.segment.path} has rows that are none", got=error, hint="move it away"
            ) from error
        self._state.changed |= plan.episodes
        self._state.next_episode = plan.next_episode
        return plan.after

    def _lacks_rows(self, place: str, got: int, expected: int) -> StoreError:
        return StoreError(
            f"the store {self._path} has fewer rows than its catalogue knows",
            got=f"row {got} of {place}",
            expected=f"row {expected}",
            hint=f"see what is there: robot-rl inspect {self._path} rebuild=true",
        )


def _begins_in(episode: EpisodeRecord, key: SessionKey, first: int, end: int) -> bool:
    return episode.session_key == key and first <= episode.first_sequence < end
