"""The catalogue of a store: one small SQLite file beside the rows.

It knows tables, sessions, episodes and annotations. All of it but the annotations is in the row
files too, and can be made anew from them. Readers use it while the server writes (WAL).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from robot_rl.data.schema import RowSchema
from robot_rl.replay.errors import StoreError, StoreFull
from robot_rl.replay.records import EpisodeRecord, SessionKey, TableCounts, TableInfo

FILE = "catalogue.sqlite"
VERSION = 1
_BUSY_SECONDS = 30.0
_LITTLE_ROOM_BYTES = 1 << 20
_OLD_FILE = "data.mdb"
_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tables (identifier INTEGER PRIMARY KEY, name TEXT UNIQUE, schema TEXT, metadata TEXT,
    evicted TEXT);
CREATE TABLE sessions ("table" INTEGER, actor INTEGER, session INTEGER, owner TEXT,
    PRIMARY KEY ("table", actor, session)) WITHOUT ROWID;
CREATE TABLE evicted (number INTEGER PRIMARY KEY, "table" INTEGER, actor INTEGER, session INTEGER,
    first INTEGER, "end" INTEGER);
CREATE TABLE episodes (identifier INTEGER PRIMARY KEY, "table" INTEGER, actor INTEGER,
    session INTEGER, first_sequence INTEGER, rows INTEGER, demonstrated INTEGER, chosen INTEGER,
    corrected INTEGER, sealed INTEGER, cut INTEGER, source TEXT, success INTEGER, metadata TEXT);
CREATE INDEX open_episodes ON episodes (sealed) WHERE sealed = 0;
CREATE INDEX episodes_of_session ON episodes ("table", actor, session, first_sequence);
CREATE TABLE annotation_fields (identifier INTEGER PRIMARY KEY, "table" INTEGER, name TEXT,
    dtype TEXT, shape TEXT, written INTEGER, UNIQUE ("table", name));
CREATE TABLE annotations (field INTEGER, actor INTEGER, session INTEGER, sequence INTEGER,
    version INTEGER, value BLOB, PRIMARY KEY (field, actor, session, sequence, version))
    WITHOUT ROWID;
"""
_EPISODE = "INSERT OR REPLACE INTO episodes VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


@dataclass(frozen=True)
class SessionRecord:
    """A session that was begun.

    Attributes:
        key: Table, actor and session.
        owner: Token of the one writer that may add rows.
    """

    key: SessionKey
    owner: str


class EvictedSegment(NamedTuple):
    """A segment that is no more: a number that increases, its session, and its sequences."""

    number: int
    key: SessionKey
    first: int
    end: int


class Catalogue:
    """The open catalogue of a store.

    Args:
        store: Folder of the store.
        write: Whether to create it where absent, and to write it. Else it is only read.
        durable: Whether what was written is on the disk when a call returns.
        identity: The store's, where its catalogue is made anew.

    Attributes:
        identity: Name of this store and its copies.
        connection: For the statements on annotations.

    Raises:
        StoreError: There is no store, it is damaged, or of another version.
    """

    def __init__(
        self,
        store: Path,
        *,
        write: bool = False,
        durable: bool = False,
        identity: str | None = None,
    ) -> None:
        """Open or create it; see the class."""
        self.path, self._given_identity = store / FILE, identity
        if not self.path.is_file() and (not write or (identity is None and _has_rows(store))):
            raise _absent(store)
        if (store / _OLD_FILE).exists():
            raise _old(store)
        with self._errors():
            self.connection = sqlite3.connect(
                self.path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._errors():
                self._prepare(write=write, durable=durable)
        except BaseException:
            self.connection.close()
            raise

    @contextlib.contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Run statements together; all or nothing of them is done, and a read sees one moment.

        Raises:
            StoreFull: The disk has no room.
            StoreError: SQLite failed.
        """
        with self._errors():
            self.connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT.

        Raises:
            StoreError: SQLite failed.
        """
        with self._errors():
            return self.connection.execute(statement, values).fetchall()

    def tables(self) -> dict[str, TableInfo]:
        """Return the tables by name."""
        rows = self.read("SELECT identifier, name, schema, metadata FROM tables ORDER BY 1")
        return {
            name: TableInfo(identifier, name, RowSchema.from_json(schema), json.loads(metadata))
            for identifier, name, schema, metadata in rows
        }

    def add_table(self, info: TableInfo, evicted: TableCounts | None = None) -> None:
        """Put a table, and the totals of what was evicted from it."""
        values = (info.identifier, info.name, info.schema.to_json(), json.dumps(info.metadata))
        with self.transaction() as connection:
            gone = (evicted or TableCounts()).to_json()
            connection.execute("INSERT INTO tables VALUES (?,?,?,?,?)", (*values, gone))

    def sessions(self, table: int) -> list[SessionRecord]:
        """Return the sessions of a table, in the order of actor and session."""
        statement = 'SELECT * FROM sessions WHERE "table" = ? ORDER BY actor, session'
        return [SessionRecord(row[:3], row[3]) for row in self.read(statement, table)]

    def add_session(self, record: SessionRecord) -> None:
        """Put a session; one that is there stays as it is."""
        with self.transaction() as connection:
            values = (*record.key, record.owner)
            connection.execute("INSERT OR IGNORE INTO sessions VALUES (?,?,?,?)", values)

    def episodes(self, table: int, first: int = 0) -> list[EpisodeRecord]:
        """Return the episodes of a table from an identifier on, in the order of beginning.

        What is said of an open one beside its place and metadata is of the past; its rows know.
        """
        return self._episodes('"table" = ? AND identifier >= ?', table, first)

    def open_episodes(self, table: int) -> list[EpisodeRecord]:
        """Return the episodes of a table that are not sealed."""
        return self._episodes('"table" = ? AND sealed = 0', table)

    def episode(self, identifier: int) -> EpisodeRecord | None:
        """Return one episode, None if it is not there any more."""
        return next(iter(self._episodes("identifier = ?", identifier)), None)

    def episodes_of_session(self, key: SessionKey, first: int, end: int) -> list[EpisodeRecord]:
        """Return the episodes of a session that begin in a range of sequences."""
        where = (
            '"table" = ? AND actor = ? AND session = ? AND first_sequence >= ?'
            " AND first_sequence < ?"
        )
        return self._episodes(where, *key, first, end)

    def last_episode(self, session: SessionKey) -> EpisodeRecord | None:
        """Return the newest episode of a session."""
        where = '"table" = ? AND actor = ? AND session = ? ORDER BY first_sequence DESC LIMIT 1'
        return next(iter(self._episodes(where, *session)), None)

    def next_episode(self) -> int:
        """Return an identifier above those of all episodes that there ever were."""
        known = self.read(
            "SELECT max(identifier) FROM episodes"
            " UNION SELECT value FROM about WHERE name = 'last_episode'"
        )
        return 1 + max((number for (number,) in known if number is not None), default=-1)

    def put_episodes(self, records: Iterable[EpisodeRecord]) -> None:
        """Put episodes, or what they have become."""
        with self.transaction() as connection:
            connection.executemany(_EPISODE, map(_values, records))

    def evicted(self, table: int) -> TableCounts:
        """Return the totals of what was evicted from a table."""
        found = self.read("SELECT evicted FROM tables WHERE identifier = ?", table)
        return TableCounts.from_json(found[0][0]) if found else TableCounts()

    def evicted_segments(self, table: int, after: int = 0) -> list[EvictedSegment]:
        """Return the segments that were evicted from a table, those above a number."""
        rows = self.read('SELECT * FROM evicted WHERE "table" = ? AND number > ?', table, after)
        return [EvictedSegment(row[0], row[1:4], row[4], row[5]) for row in rows]

    def evict(self, session: SessionKey, first: int, end: int, total: TableCounts) -> None:
        """Forget the episodes of a segment, and their annotations.

        Args:
            session: Table, actor and session.
            first: Sequence of its first row.
            end: Behind its last.
            total: What was evicted of the table, this segment included.
        """
        table, actor, number = session
        with self.transaction() as connection:
            newest = connection.execute("SELECT max(identifier) FROM episodes").fetchone()[0]
            connection.execute(
                'DELETE FROM episodes WHERE "table" = ? AND actor = ? AND session = ?'
                " AND first_sequence >= ? AND first_sequence < ?",
                (*session, first, end),
            )
            connection.execute(
                "DELETE FROM annotations WHERE field IN"
                ' (SELECT identifier FROM annotation_fields WHERE "table" = ?)'
                " AND actor = ? AND session = ? AND sequence >= ? AND sequence < ?",
                (table, actor, number, first, end),
            )
            connection.execute(
                'INSERT INTO evicted ("table", actor, session, first, "end") VALUES (?,?,?,?,?)',
                (*session, first, end),
            )
            connection.execute(
                "UPDATE tables SET evicted = ? WHERE identifier = ?", (total.to_json(), table)
            )
            connection.execute(
                "INSERT INTO about VALUES ('last_episode', ?1) ON CONFLICT (name)"
                " DO UPDATE SET value = max(value, ?1)",
                (newest,),
            )

    def close(self) -> None:
        """Release the file."""
        self.connection.close()

    def _prepare(self, *, write: bool, durable: bool) -> None:
        execute = self.connection.execute
        if write:
            execute("PRAGMA journal_mode = WAL")
            execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        else:
            execute("PRAGMA query_only = ON")
        if write and not self.read("SELECT 1 FROM sqlite_master WHERE name = 'about'"):
            # A new catalogue over rows would be another store's, which knows none of them.
            if self._given_identity is None and _has_rows(self.path.parent):
                raise _absent(self.path.parent)
            identity = self._given_identity or secrets.token_hex(16)
            with self.transaction():
                for statement in _TABLES.split(";"):
                    execute(statement)
                execute("INSERT INTO about VALUES ('version', ?)", (VERSION,))
                execute("INSERT INTO about VALUES ('identity', ?)", (identity,))
        about = dict(self.read("SELECT name, value FROM about"))
        if about.get("version") != VERSION:
            raise StoreError(
                f"the store {self.path.parent} is of another version",
                got=about.get("version"),
                expected=VERSION,
                hint="export it with the robot_rl that wrote it",
            )
        self.identity = str(about["identity"])

    def _episodes(self, where: str, *values: object) -> list[EpisodeRecord]:
        order = "" if "ORDER" in where else " ORDER BY identifier"
        rows = self.read(f"SELECT * FROM episodes WHERE {where}{order}", *values)
        return [_record(*row) for row in rows]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        free = shutil.disk_usage(self.path.parent).free
        full = code == sqlite3.SQLITE_FULL
        if full or (code == sqlite3.SQLITE_IOERR and free < _LITTLE_ROOM_BYTES):
            return StoreFull(
                f"the disk is full: the store {self.path.parent} cannot be written",
                got=f"{free} bytes free",
                hint="free some space; nothing that was acknowledged is lost",
            )
        hint = "see that the folder can be read and written"
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            hint = f"make it anew from the rows: robot-rl inspect {self.path.parent} rebuild=true"
        return StoreError(
            f"the catalogue of the store {self.path.parent} cannot be used", got=error, hint=hint
        )


def is_store(path: Path) -> bool:
    """Return whether a folder is a store, also one without its catalogue or of an older version."""
    return any((path / name).exists() for name in (FILE, _OLD_FILE)) or _has_rows(path)


def _has_rows(store: Path) -> bool:
    return any((store / "rows").glob("*.rows"))


def _record(
    identifier: int,
    table: int,
    actor: int,
    session: int,
    first: int,
    rows: int,
    demonstrated: int,
    chosen: int,
    corrected: int,
    sealed: int,
    cut: int,
    source: str,
    success: int,
    metadata: str,
) -> EpisodeRecord:
    return EpisodeRecord(
        identifier,
        table,
        actor,
        session,
        first,
        rows,
        (demonstrated, chosen, corrected),
        bool(sealed),
        bool(cut),
        source,
        bool(success),
        json.loads(metadata),
    )


def _values(record: EpisodeRecord) -> tuple[object, ...]:
    return (
        record.identifier,
        *record.session_key,
        record.first_sequence,
        record.rows,
        *record.steps,
        record.sealed,
        record.cut,
        record.source,
        record.success,
        json.dumps(dict(record.metadata)),
    )


def _absent(store: Path) -> StoreError:
    if (store / _OLD_FILE).exists():
        return _old(store)
    if _has_rows(store):
        return StoreError(
            f"the store {store} has rows and no catalogue",
            expected=FILE,
            hint="put it back, or make it anew from the rows:"
            f" robot-rl inspect {store} rebuild=true",
        )
    return StoreError(
        f"there is no replay store in {store}",
        expected=f"a folder with {FILE}",
        hint="start the replay server on this folder first",
    )


def _old(store: Path) -> StoreError:
    return StoreError(
        f"the store {store} was written by an older robot_rl",
        got=_OLD_FILE,
        expected=FILE,
        hint="export it with that version, and import the dataset into a new store",
    )
