"""Which sessions were begun, by whom, and where each of them stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import lmdb

from robot_rl.replay.environment import EPISODES, ROWS, TABLES, Environment
from robot_rl.replay.errors import SessionTaken, StoreError
from robot_rl.replay.records import (
    EPISODE_KEY,
    ROW_KEY,
    SEQUENCE_LIMIT,
    SESSION_KEY,
    SESSION_LIMIT,
    EpisodeRecord,
    RowFlags,
    SessionKey,
)
from robot_rl.replay.sessions import Session, read_facts


@dataclass(frozen=True)
class SessionRecord:
    """What the store keeps of a session beside its rows.

    Attributes:
        owner: Token of the one writer that may add rows.
        evicted_before: Sequence behind its newest evicted row, 0 if none was.
    """

    owner: str
    evicted_before: int = 0

    def to_bytes(self) -> bytes:
        """Serialise for the store; the session's numbers are the key."""
        return json.dumps(asdict(self)).encode()


def read_session(
    txn: lmdb.Transaction[bytes], database: lmdb._Database, key: SessionKey
) -> SessionRecord | None:
    """Return the record of a session, None if nobody has begun it."""
    value = txn.get(SESSION_KEY.pack(*key), db=database)
    return None if value is None else SessionRecord(**json.loads(value))


def latest_session(
    txn: lmdb.Transaction[bytes], database: lmdb._Database, table: int, actor: int
) -> SessionKey | None:
    """Return the session that an actor began last in a table."""
    with txn.cursor(database) as cursor:
        found = cursor.set_range(SESSION_KEY.pack(table, actor, SESSION_LIMIT))
        if not (cursor.prev() if found else cursor.last()):
            return None
        key = cursor.key()
        if len(key) != SESSION_KEY.size or SESSION_KEY.unpack(key)[:2] != (table, actor):
            return None
        return table, actor, SESSION_KEY.unpack(key)[2]


class SessionBook:
    """The sessions of a store, for its one writer.

    Args:
        environment: The open store.
        flags: Offsets of the flags in packed rows, by table; shared with the caller.
    """

    def __init__(self, environment: Environment, flags: dict[int, RowFlags]) -> None:
        """Know nothing yet: states are read from the store when they are asked for."""
        self._environment, self._flags = environment, flags
        self._states: dict[SessionKey, Session] = {}

    def state(self, key: SessionKey) -> Session:
        """Return where a begun session stands.

        Raises:
            SessionTaken: Nobody has begun it.
            StoreError: The store contradicts itself.
        """
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._recover(key)
        return state

    def open(
        self, table: int, actor: int, session: int | None, owner: str
    ) -> tuple[SessionKey, tuple[EpisodeRecord, EpisodeRecord] | None]:
        """Begin a session and close the one before it, or go on with one of the same owner.

        Args:
            table: Number of the table.
            actor: Number of the actor.
            session: Number of the session, or None for the actor's next one.
            owner: Token that only this writer of the session knows.

        Returns:
            The session, and the episode that was cut short for it, as it was and as it is.

        Raises:
            SessionTaken: The session has another owner, or newer sessions exist already.
        """
        tables = self._environment.databases[TABLES]
        with self._environment.begin() as txn:
            latest = latest_session(txn, tables, table, actor)
            number = -1 if latest is None else latest[2]
            if session is None:
                before = None if latest is None else read_session(txn, tables, latest)
                session = number if before is not None and before.owner == owner else number + 1
            key = (table, actor, session)
            known = read_session(txn, tables, key)
        if known is not None and known.owner != owner:
            raise SessionTaken(
                f"session {session} of actor {actor} was begun by another writer",
                hint="open a new session, or pass the owner token that the session began with",
            )
        if known is not None:
            return key, None
        if session < number:
            raise SessionTaken(
                f"actor {actor} has begun a later session already",
                got=session,
                expected=f"> {number}, so that sessions are in order of time",
            )
        return key, self._begin(key, owner, latest)

    def cut_orphans(
        self, episodes: Sequence[EpisodeRecord]
    ) -> list[tuple[EpisodeRecord, EpisodeRecord]]:
        """Cut short what older servers left open in sessions that had ended.

        Args:
            episodes: All open episodes.

        Returns:
            Those that were cut short, as they were and as they are.
        """
        orphans = [e for e in episodes if self.state(e.session_key).closed]
        if not orphans:
            return []
        with self._environment.begin(write=True) as txn:
            return [(e, self._cut_short(txn, e)) for e in orphans]

    def update(self, states: dict[SessionKey, Session]) -> None:
        """Take note of where sessions stand after a commit."""
        self._states.update(states)

    def _begin(
        self, key: SessionKey, owner: str, before: SessionKey | None
    ) -> tuple[EpisodeRecord, EpisodeRecord] | None:
        """Put a session's record and close the session before it, in one commit."""
        closing = None if before is None else self.state(before)
        cut = None
        with self._environment.begin(write=True) as txn:
            record = SessionRecord(owner).to_bytes()
            txn.put(SESSION_KEY.pack(*key), record, db=self._environment.databases[TABLES])
            if closing is not None and closing.episode is not None:
                cut = (closing.episode, self._cut_short(txn, closing.episode))
        if before is not None and closing is not None:
            self._states[before] = Session(closing.owner, closing.next_sequence, closed=True)
        return cut

    def _cut_short(self, txn: lmdb.Transaction[bytes], episode: EpisodeRecord) -> EpisodeRecord:
        """Close an open episode for ever; its rows stay as they are."""
        last = ROW_KEY.pack(*episode.session_key, episode.first_sequence + episode.rows - 1)
        row = txn.get(last, db=self._environment.databases[ROWS])
        if row is None:
            raise StoreError("an episode lacks its last row", got=last)
        facts = read_facts(row, self._flags[episode.table])
        record = episode.cut_short(facts.source if facts.terminated else None)
        key = EPISODE_KEY.pack(record.identifier)
        txn.put(key, record.to_bytes(), db=self._environment.databases[EPISODES])
        return record

    def _recover(self, key: SessionKey) -> Session:
        """Find the end of a session that was written before this process started."""
        databases = self._environment.databases
        with self._environment.begin() as txn:
            record = read_session(txn, databases[TABLES], key)
            if record is None:
                raise SessionTaken("the session was never opened", got=key)
            closed = latest_session(txn, databases[TABLES], *key[:2]) != key
            last = _last_row(txn, databases[ROWS], key)
            if last is None:
                return Session(record.owner, record.evicted_before, closed=closed)
            sequence, row = last
            facts = read_facts(row, self._flags[key[0]])
            if facts.is_last or closed:
                following = max(sequence + 1, record.evicted_before)
                return Session(record.owner, following, closed=closed)
            with txn.cursor(databases[EPISODES]) as cursor:
                for identifier, value in cursor.iterprev():
                    episode = EpisodeRecord.from_bytes(identifier, value)
                    if episode.session_key == key:
                        ended_by = facts.source if facts.ended else None
                        return Session(record.owner, sequence + 1, episode, ended_by)
        raise StoreError("a session has rows but no episode", got=key)


def _last_row(
    txn: lmdb.Transaction[bytes], database: lmdb._Database, key: SessionKey
) -> tuple[int, bytes] | None:
    """Return sequence and bytes of a session's last stored row."""
    with txn.cursor(database) as cursor:
        found = cursor.set_range(ROW_KEY.pack(*key, SEQUENCE_LIMIT))
        if not (cursor.prev() if found else cursor.last()):
            return None
        *prefix, sequence = ROW_KEY.unpack(cursor.key())
        return (sequence, cursor.value()) if tuple(prefix) == key else None
