"""The catalogue of a store: one small SQLite file beside the rows.

It knows tables, sessions, episodes and annotations. All of it but the annotations is in the row
files too, and can be made anew from them. Readers use it while the server writes (WAL).

An annotation is a float32 under a row's place, a name (for example of a relabelled reward) and the
version of the model that made it. A stored version never changes; a newer version is another value
beside it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import RowSchema
from robot_rl.errors import did_you_mean
from robot_rl.processes.files import locked
from robot_rl.replay import AnnotationRefused, StoreError
from robot_rl.replay.records import Annotations, EpisodeRecord, Session, SessionKey, TableInfo
from robot_rl.replay.row_file import rebuilding, write_error

FILE = "catalogue.sqlite"
LOCK = "server.lock"
VERSION = 2
_BUSY_SECONDS = 30.0
_LITTLE_ROOM_BYTES = 1 << 20
_TABLES = """
CREATE TABLE about (identity TEXT);
CREATE TABLE tables (identifier INTEGER PRIMARY KEY, name TEXT UNIQUE, schema TEXT, metadata JSON,
    evicted JSON);
CREATE TABLE sessions ("table" INTEGER, actor INTEGER, session INTEGER, owner TEXT,
    evicted INTEGER DEFAULT 0, PRIMARY KEY ("table", actor, session)) WITHOUT ROWID;
CREATE TABLE episodes (identifier INTEGER PRIMARY KEY AUTOINCREMENT, "table" INTEGER,
    actor INTEGER, session INTEGER, first_sequence INTEGER, rows INTEGER, steps STEPS, sealed FLAG,
    cut FLAG, source TEXT, success FLAG, metadata JSON);
CREATE INDEX episodes_of_session ON episodes ("table", actor, session, first_sequence);
CREATE TABLE annotation_names (identifier INTEGER PRIMARY KEY, "table" INTEGER, name TEXT,
    written INTEGER DEFAULT 0, UNIQUE ("table", name));
CREATE TABLE annotations (name INTEGER, actor INTEGER, session INTEGER, sequence INTEGER,
    version INTEGER, value REAL, PRIMARY KEY (name, actor, session, sequence, version))
    WITHOUT ROWID;
"""
_SESSION = '"table" = ? AND actor = ? AND session = ?'
_STRETCH = f"{_SESSION} AND first_sequence >= ? AND first_sequence < ?"

for _kind in (dict, tuple, Counter):
    sqlite3.register_adapter(_kind, json.dumps)
sqlite3.register_converter("JSON", json.loads)
sqlite3.register_converter("STEPS", lambda text: tuple(json.loads(text)))
sqlite3.register_converter("FLAG", lambda text: text == b"1")


class NewestValues(NamedTuple):
    """Which of n rows have an annotation, bool (n,); its version, int64; its value, float32."""

    valid: npt.NDArray[np.bool_]
    versions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class Catalogue:
    """The open catalogue of a store, which has the `identity` of all its copies.

    With `write` it is created where absent, else it is only read. With `durable` what was written
    is on the disk when a call returns. With `still` nothing is written beside it either, as SQLite
    does for readers; then what comes later may not be seen.

    Raises:
        StoreError: There is no store, it is damaged, or of another version. So do all calls where
            SQLite fails; `StoreFull` where the disk has no room.
    """

    def __init__(
        self,
        store: Path,
        *,
        write: bool = False,
        durable: bool = False,
        identity: str | None = None,
        still: bool = False,
    ) -> None:
        self.path = store / FILE
        self._opened = contextlib.ExitStack()
        with_rows = _has_rows(store) and identity is None
        # A new catalogue over rows would be another store's, which knows none of them.
        if not self.path.is_file() and (with_rows or not write):
            raise _absent(store)
        with self._errors():
            self._connection = sqlite3.connect(
                self._opened.enter_context(_unserved(self.path)) if still else self.path,
                _BUSY_SECONDS,
                detect_types=sqlite3.PARSE_DECLTYPES,
                isolation_level=None,
                check_same_thread=False,
                uri=still,
            )
            self._opened.callback(self._connection.close)
        try:
            if write:
                self.read("PRAGMA journal_mode = WAL")
                self.read(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            else:
                self.read("PRAGMA query_only = ON")
            if write and not self.read("SELECT 1 FROM sqlite_master"):
                if with_rows:
                    raise _absent(store)
                with self.transaction() as execute:
                    for statement in _TABLES.split(";"):
                        execute(statement)
                    execute("INSERT INTO about VALUES (?)", (identity or secrets.token_hex(16),))
                    execute(f"PRAGMA user_version = {VERSION}")
            ((version,),) = self.read("PRAGMA user_version")
            if version != VERSION:
                raise StoreError(
                    f"the store {store} is of another version",
                    got=version,
                    expected=VERSION,
                    hint="export it with the robot_rl that wrote it; if it is damaged instead, make"
                    f" it anew from the rows: {rebuilding(store)}",
                )
            ((self.identity,),) = self.read("SELECT identity FROM about")
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Any]:
        """Run statements together: all or none is done, and a read sees one moment."""
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with self._errors():
            return self._connection.execute(statement, values).fetchall()

    def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        ((version,),) = self.read("PRAGMA data_version")
        return int(version)

    def tables(self) -> dict[str, TableInfo]:
        """Return the tables by name."""
        rows = self.read("SELECT identifier, name, schema, metadata FROM tables ORDER BY 1")
        return {
            name: TableInfo(number, name, RowSchema.from_json(schema), metadata)
            for number, name, schema, metadata in rows
        }

    def table(self, name: str | None) -> TableInfo:
        """Return one table; None stands for the only one, else it raises `StoreError`."""
        tables, store = self.tables(), self.path.parent
        if name is None and len(tables) == 1:
            return next(iter(tables.values()))
        if name is None:
            raise StoreError(
                f"the store {store} has {len(tables) or 'no'} tables",
                got=", ".join(sorted(tables)) or None,
                expected="one",
                hint="name one of them with table=NAME" if tables else None,
            )
        if name not in tables:
            raise StoreError(
                f"the store {store} has no such table",
                got=name,
                expected=sorted(tables),
                hint=did_you_mean(name, tables),
            )
        return tables[name]

    def add_table(self, info: TableInfo, evicted: Counter[str]) -> None:
        """Put a table, and the totals of what was evicted from it."""
        values = (info.identifier, info.name, info.schema.to_json(), dict(info.metadata), evicted)
        with self.transaction() as execute:
            execute("INSERT INTO tables VALUES (?,?,?,?,?)", values)

    def sessions(self, only: SessionKey | None = None) -> dict[SessionKey, Session]:
        """Return all sessions, or only one, as they stand behind what was evicted of them."""
        where = "" if only is None else f" WHERE {_SESSION}"
        rows = self.read(f"SELECT * FROM sessions{where}", *(only or ()))
        return {row[:3]: Session(*row[3:]) for row in rows}

    def add_session(self, key: SessionKey, owner: str) -> None:
        """Put a session."""
        with self.transaction() as execute:
            execute("INSERT INTO sessions VALUES (?,?,?,?,0)", (*key, owner))

    def episodes(self, table: int, first: int = 0) -> list[EpisodeRecord]:
        """Return the episodes of a table from an identifier on, in the order of beginning.

        What is said of an open one beside its place and metadata is of the past; its rows know.
        """
        return self._episodes('"table" = ? AND identifier >= ? ORDER BY 1', table, first)

    def episode(self, identifier: int) -> EpisodeRecord | None:
        """Return one episode, None if it is not there any more."""
        return next(iter(self._episodes("identifier = ?", identifier)), None)

    def episodes_of_session(
        self, key: SessionKey, first: int = 0, end: int = 2**63 - 1
    ) -> list[EpisodeRecord]:
        """Return the episodes of a session that begin in a range of sequences, in order."""
        return self._episodes(f"{_STRETCH} ORDER BY first_sequence", *key, first, end)

    def next_episode(self) -> int:
        """Return an identifier above those of all episodes that there ever were."""
        ((newest,),) = self.read("SELECT max(seq) FROM sqlite_sequence")
        return 0 if newest is None else newest + 1

    def put_episodes(self, records: Iterable[EpisodeRecord]) -> None:
        """Put episodes, or what they have become."""
        statement = f"INSERT OR REPLACE INTO episodes VALUES ({'?,' * 11}?)"
        with self.transaction() as execute:
            for record in records:
                execute(statement, msgspec.structs.astuple(record))

    def evicted(self, table: int) -> Counter[str]:
        """Return the totals of what was evicted from a table."""
        ((evicted,),) = self.read("SELECT evicted FROM tables WHERE identifier = ?", table)
        return Counter(evicted)

    def evict(self, key: SessionKey, first: int, end: int, total: Counter[str]) -> None:
        """Forget the episodes of a segment, rows `first` to `end`, and their annotations.

        What was evicted of the table is then in `total`.
        """
        with self.transaction() as execute:
            execute(f"DELETE FROM episodes WHERE {_STRETCH}", (*key, first, end))
            execute(
                "DELETE FROM annotations WHERE name IN"
                ' (SELECT identifier FROM annotation_names WHERE "table" = ?)'
                " AND actor = ? AND session = ? AND sequence >= ? AND sequence < ?",
                (*key, first, end),
            )
            execute(f"UPDATE sessions SET evicted = max(evicted, ?) WHERE {_SESSION}", (end, *key))
            execute("UPDATE tables SET evicted = ? WHERE identifier = ?", (total, key[0]))

    def annotation_counts(self, table: int) -> dict[str, int]:
        """Return the values ever written of each annotation of a table, by its name."""
        names = self.read('SELECT name, written FROM annotation_names WHERE "table" = ?', table)
        return dict(names)

    def newest_values(self, name: str, key: SessionKey, first: int, rows: int) -> NewestValues:
        """Read the newest version of an annotation of so many rows from a sequence on."""
        valid, versions = np.zeros(rows, np.bool_), np.zeros(rows, np.int64)
        values = np.zeros(rows, np.float32)
        for at, version, value in self.read(
            "SELECT sequence - ?, max(version), value FROM annotations JOIN annotation_names AS n"
            ' ON annotations.name = n.identifier WHERE n.name = ? AND "table" = ? AND actor = ?'
            " AND session = ? AND sequence >= ? AND sequence < ? GROUP BY sequence",
            *(first, name, *key, first, first + rows),
        ):
            valid[at], versions[at], values[at] = True, version, value
        return NewestValues(valid, versions, values)

    def annotate(self, new: Annotations) -> int:
        """Put annotations of rows that are there; see `StoreWriter.annotate`."""
        where = "name = ? AND actor = ? AND session = ? AND sequence = ? AND version = ?"
        (table, *place), count = new.session, 0
        name = (table, new.name)
        with self.transaction() as execute:
            execute('INSERT OR IGNORE INTO annotation_names ("table", name) VALUES (?,?)', name)
            ((number,),) = execute(
                'SELECT identifier FROM annotation_names WHERE "table" = ? AND name = ?', name
            )
            for at, value in zip(new.sequences.tolist(), new.values.tolist(), strict=True):
                row = (number, *place, at, new.version, value)
                if execute("INSERT OR IGNORE INTO annotations VALUES (?,?,?,?,?,?)", row).rowcount:
                    count += 1
                elif not execute(
                    f"SELECT 1 FROM annotations WHERE {where} AND value = ?", row
                ).fetchone():
                    raise AnnotationRefused(
                        f"version {new.version} of the annotation {new.name!r} has another value",
                        got=f"row {at}",
                        hint="a version never changes: store corrected values under a newer one",
                    )
            execute(
                "UPDATE annotation_names SET written = written + ? WHERE identifier = ?",
                (count, number),
            )
        return count

    def take_annotations(self, old: Path) -> int:
        """Copy the annotations of another catalogue, as far as it can be read; return how many."""
        with contextlib.suppress(sqlite3.Error, StoreError):  # then it says 0
            self._connection.execute("ATTACH ? AS old", (str(old),))
            with self.transaction() as execute:
                execute("INSERT INTO annotation_names SELECT * FROM old.annotation_names")
                copied = execute("INSERT INTO annotations SELECT * FROM old.annotations")
                return int(copied.rowcount)
        return 0

    def close(self) -> None:
        """Release the file."""
        self._opened.close()

    def _episodes(self, where: str, *values: object) -> list[EpisodeRecord]:
        rows = self.read(f"SELECT * FROM episodes WHERE {where}", *values)
        return [EpisodeRecord(*row) for row in rows]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            store, code = self.path.parent, getattr(error, "sqlite_errorcode", 0) & 0xFF
            full = code == sqlite3.SQLITE_FULL
            if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and store.is_dir():
                found = os.statvfs(store)
                few = found.f_bavail * found.f_frsize < _LITTLE_ROOM_BYTES
                full = few or (found.f_files > 0 and found.f_favail == 0)
            if full:
                raise write_error(OSError(errno.ENOSPC, str(error)), store) from error
            hint = "see that the folder can be read and written"
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
                hint = f"make it anew from the rows: {rebuilding(store)}"
            problem = f"the catalogue of the store {store} cannot be used"
            raise StoreError(problem, got=error, hint=hint) from error


@contextlib.contextmanager
def _unserved(path: Path) -> Iterator[str]:
    """Give SQLite a catalogue that nobody writes so that it writes nothing there itself."""
    log = path.with_name(f"{path.name}-wal")
    if is_served(path.parent):  # who writes has made all that a reader needs
        yield f"{path.absolute().as_uri()}?mode=ro"
    elif not log.exists() or not log.stat().st_size:
        yield f"{path.absolute().as_uri()}?immutable=1"
    else:  # what a killed server has written last is there alone; to read it SQLite moves it
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            for file in (path, log):
                shutil.copyfile(file, Path(folder) / file.name)
            yield (Path(folder) / path.name).as_uri()


def is_served(store: Path) -> bool:
    """Return whether a server writes a store now."""
    try:
        with (store / LOCK).open("rb") as file:
            return not locked(file.fileno())
    except FileNotFoundError:
        return False


def is_store(path: Path) -> bool:
    """Return whether a folder is a store, also one without its catalogue."""
    return (path / FILE).exists() or _has_rows(path)


def _has_rows(store: Path) -> bool:
    return any((store / "rows").glob("*.rows"))


def _absent(store: Path) -> StoreError:
    if _has_rows(store):
        return StoreError(
            f"the store {store} has rows and no catalogue",
            expected=FILE,
            hint=f"put it back, or make it anew: {rebuilding(store)}",
        )
    return StoreError(
        f"there is no replay store in {store}",
        expected=f"a folder with {FILE}",
        hint="start the replay server on this folder first",
    )
