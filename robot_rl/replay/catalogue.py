"""The catalogue of a store: one small SQLite file next to the rows.

It has the schema, sessions, episodes and annotations. All but the annotations is also in the row
files, and can be rebuilt from them. Readers use it while the server writes (WAL). Its values are
validated against their types on reading.

An annotation is a float32 keyed by a row, a name (for example of a relabelled reward) and the
version of the model that made it. A stored version never changes; a newer version is stored as a
separate value.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import RowSchema
from robot_rl.processes.files import check_links, locked
from robot_rl.replay import AnnotationRefused, StoreError
from robot_rl.replay.episode_records import Count, EpisodeRecord, SessionKey, StoredSession
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.row_file import rebuilding, write_error

FILE = "catalogue.sqlite"
LOCK = "server.lock"
VERSION = 3
_BUSY_SECONDS = 30.0
_LITTLE_ROOM_BYTES = 1 << 20
# Errors of the converters and types for a value that is not valid in a catalogue.
_FORGED = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
_TABLES = """
CREATE TABLE about (identity TEXT, made TEXT, schema TEXT, metadata JSON, evicted JSON);
CREATE TABLE sessions (actor INTEGER, session INTEGER, owner TEXT, evicted INTEGER DEFAULT 0,
    PRIMARY KEY (actor, session)) WITHOUT ROWID;
CREATE TABLE episodes (identifier INTEGER PRIMARY KEY AUTOINCREMENT, actor INTEGER,
    session INTEGER, first_sequence INTEGER, rows INTEGER, steps STEPS, sealed FLAG, cut FLAG,
    source TEXT, success FLAG, metadata JSON);
CREATE INDEX episodes_of_session ON episodes (actor, session, first_sequence);
CREATE TABLE annotation_names (identifier INTEGER PRIMARY KEY, name TEXT UNIQUE,
    written INTEGER DEFAULT 0);
CREATE TABLE annotations (number INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, actor INTEGER,
    session INTEGER, sequence INTEGER, version INTEGER, value REAL,
    UNIQUE (actor, session, sequence, name, version));
"""
_SESSION = "actor = ? AND session = ?"
_STRETCH = f"{_SESSION} AND first_sequence >= ? AND first_sequence < ?"
_ROWS = f"{_SESSION} AND sequence >= ? AND sequence < ?"
_EPISODE = GenericAlias(tuple, tuple(f.type for f in msgspec.structs.fields(EpisodeRecord)))

for _kind in (dict, tuple, Counter):
    sqlite3.register_adapter(_kind, json.dumps)
sqlite3.register_converter("JSON", json.loads)
sqlite3.register_converter("STEPS", json.loads)
sqlite3.register_converter("FLAG", lambda text: text == b"1")


class _About(NamedTuple):
    identity: str
    made: str
    schema: str | None
    metadata: dict[str, Any]
    evicted: dict[str, Count]


class NewestValues(NamedTuple):
    """For n rows: whether each has an annotation, bool (n,); version, int64; value, float32."""

    valid: npt.NDArray[np.bool_]
    versions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class WrittenValue(NamedTuple):
    """A value of an annotation. Numbers increase in the order of writing."""

    number: Count
    name: str
    actor: Count
    session: Count
    sequence: Count
    version: Count
    value: float


class Catalogue:
    """The open catalogue of a store.

    With `write` it is created if absent; otherwise it is read-only. With `durable` a call returns
    once its changes are on the disk. With `still` no auxiliary files are written next to it, which
    SQLite does even for readers; later changes may then be missed.

    Attributes:
        identity: Name of the store and its copies.
        made: Name of this catalogue and its copies; a rebuilt one gets a new name.

    Raises:
        StoreError: There is no store, it is damaged, or of another version; or a link in it leads
            out of it. All methods raise it too if SQLite fails or the catalogue has an invalid
            value; `StoreFull` if the disk has no room.
    """

    def __init__(
        self,
        store: Path,
        *,
        write: bool = False,
        durable: bool = False,
        identity: str | None = None,
        made: str | None = None,
        still: bool = False,
    ) -> None:
        check_links(store, StoreError)
        self.path = store / FILE
        with_rows = _has_rows(store) and identity is None
        # A new catalogue over existing rows would be another store's, and know none of them.
        if not self.path.is_file() and (with_rows or not write):
            raise _absent(store)
        self._opened = contextlib.ExitStack()
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
                self._write("PRAGMA journal_mode = WAL")
                self._write(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            else:
                self._write("PRAGMA query_only = ON")
            if write and not self._read(tuple[int], "SELECT 1 FROM sqlite_master"):
                if with_rows:
                    raise _absent(store)
                names = identity or secrets.token_hex(16), made or secrets.token_hex(8)
                with self.transaction() as execute:
                    for statement in _TABLES.split(";"):
                        execute(statement)
                    execute("INSERT INTO about VALUES (?,?,NULL,'{}','{}')", names)
                    execute(f"PRAGMA user_version = {VERSION}")
            (version,) = self._one(tuple[int], "PRAGMA user_version")
            if version != VERSION:
                raise StoreError(
                    f"the store {store} is of another version",
                    got=version,
                    expected=VERSION,
                    hint="export it with the robot_rl that wrote it; if it is damaged instead,"
                    f" rebuild it from the rows: {rebuilding(store)}",
                )
            self.identity, self.made = self._about[:2]
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Any]:
        """Run statements atomically; reads see one consistent state."""
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        return int(self._one(tuple[int], "PRAGMA data_version")[0])

    @property
    def schema(self) -> RowSchema | None:
        """Schema of the rows; None before the first session."""
        text = self._about.schema
        return None if text is None else RowSchema.from_json(text)

    @property
    def metadata(self) -> Mapping[str, object]:
        """Facts about the recording, for example ``{"simulated": True}``."""
        return self._about.metadata

    def set_schema(self, schema: RowSchema, metadata: Mapping[str, object]) -> None:
        """Set the schema and the metadata, once."""
        values = schema.to_json(), dict(metadata)
        self._write("UPDATE about SET schema = ?, metadata = ?", *values)

    def evicted(self) -> Counter[str]:
        """Return the totals of the evicted rows."""
        return Counter(self._about.evicted)

    def set_evicted(self, total: Counter[str]) -> None:
        """Set the totals of the evicted rows."""
        self._write("UPDATE about SET evicted = ?", total)

    def sessions(self, only: SessionKey | None = None) -> dict[SessionKey, StoredSession]:
        """Return all sessions, or only one, in their state after the evicted rows."""
        where = "" if only is None else f" WHERE {_SESSION}"
        rows = self._read(
            tuple[Count, Count, str, Count], f"SELECT * FROM sessions{where}", *(only or ())
        )
        return {row[:2]: StoredSession(*row[2:]) for row in rows}

    def add_session(self, key: SessionKey, owner: str) -> None:
        """Add a session."""
        self._write("INSERT INTO sessions VALUES (?,?,?,0)", *key, owner)

    def episodes(self, first: int = 0, most: int = -1) -> list[EpisodeRecord]:
        """Return at most `most` episodes (-1: all) from an identifier on, in order of start.

        For an open episode only its position and metadata are valid; its rows have the rest.
        """
        return self._episodes("identifier >= ? ORDER BY 1 LIMIT ?", first, most)

    def episode(self, identifier: int) -> EpisodeRecord | None:
        """Return one episode, None if it no longer exists."""
        return next(iter(self._episodes("identifier = ?", identifier)), None)

    def open_episodes(self) -> list[EpisodeRecord]:
        """Return the episodes that are not sealed."""
        return self._episodes("NOT sealed ORDER BY 1")

    def episodes_of_session(
        self, key: SessionKey, first: int = 0, end: int = 2**63 - 1
    ) -> list[EpisodeRecord]:
        """Return a session's episodes that start in a range of sequences, in order."""
        return self._episodes(f"{_STRETCH} ORDER BY first_sequence", *key, first, end)

    def next_episode(self) -> int:
        """Return an identifier above all episodes that ever existed."""
        number = self._last_number("episodes")
        return 0 if number is None else number + 1

    def put_episodes(self, records: Iterable[EpisodeRecord]) -> None:
        """Add or update episodes."""
        with self.transaction() as execute:
            _put_episodes(execute, records)

    def evict(self, key: SessionKey, first: int, end: int, total: Counter[str]) -> None:
        """Drop the episodes of a segment, rows `first` to `end`, and their annotations.

        `total` is the new evicted total.
        """
        with self.transaction() as execute:
            _forget(execute, key, first, end)
            execute(f"UPDATE sessions SET evicted = max(evicted, ?) WHERE {_SESSION}", (end, *key))
            execute("UPDATE about SET evicted = ?", (total,))

    def annotation_counts(self) -> dict[str, int]:
        """Return the number of values ever written, by annotation name."""
        return dict(self._read(tuple[str, Count], "SELECT name, written FROM annotation_names"))

    def annotations_after(self, number: int, most: int) -> list[WrittenValue]:
        """Return at most `most` values written after the given number, in order."""
        return self._read(
            WrittenValue,
            "SELECT number, n.name, actor, session, sequence, version, value FROM annotations"
            " JOIN annotation_names AS n ON annotations.name = n.identifier"
            " WHERE number > ? ORDER BY number LIMIT ?",
            *(number, most),
        )

    def last_annotation(self) -> int:
        """Return the number of the last value written, even if it was evicted."""
        return self._last_number("annotations") or 0

    def newest_values(self, name: str, key: SessionKey, first: int, rows: int) -> NewestValues:
        """Read the latest version of an annotation for `rows` rows from sequence `first` on."""
        valid, versions = np.zeros(rows, np.bool_), np.zeros(rows, np.int64)
        values = np.zeros(rows, np.float32)
        for at, version, value in self._read(
            tuple[Count, int, float],
            "SELECT sequence - ?, max(version), value FROM annotations JOIN annotation_names AS n"
            f" ON annotations.name = n.identifier WHERE n.name = ? AND {_ROWS} GROUP BY sequence",
            *(first, name, *key, first, first + rows),
        ):
            valid[at], versions[at], values[at] = True, version, value
        return NewestValues(valid, versions, values)

    def annotate(self, new: Annotations) -> int:
        """Add annotations of existing rows; see `StoreWriter.annotate`."""
        count = 0
        with self.transaction() as execute:
            number = _number_of(execute, new.name)
            for at, value in zip(new.sequences.tolist(), new.values.tolist(), strict=True):
                row = (number, *new.session, at, new.version, value)
                columns = "name, actor, session, sequence, version, value"
                put = f"INSERT OR IGNORE INTO annotations ({columns}) VALUES (?,?,?,?,?,?)"
                same = f"({columns}) = (?,?,?,?,?,?)"
                if execute(put, row).rowcount:
                    count += 1
                elif not execute(f"SELECT 1 FROM annotations WHERE {same}", row).fetchone():
                    raise AnnotationRefused(
                        f"version {new.version} of the annotation {new.name!r} has another value",
                        got=f"row {at}",
                        hint="a version never changes: store corrected values under a newer one",
                    )
            written = "UPDATE annotation_names SET written = written + ? WHERE identifier = ?"
            execute(written, (count, number))
        return count

    def follow(
        self,
        episodes: Iterable[EpisodeRecord],
        values: Iterable[WrittenValue],
        gone: Iterable[tuple[SessionKey, int, int]],
        evicted: Mapping[str, int],
        written: Mapping[str, int],
    ) -> None:
        """Add new data from the store's catalogue to a copy, in one transaction.

        `gone` has session, first sequence and the sequence after the last; `written` counts the
        values of each annotation.
        """
        with self.transaction() as execute:
            _put_episodes(execute, episodes)
            for value in values:
                row = (value.number, _number_of(execute, value.name), *value[2:])
                execute("INSERT OR REPLACE INTO annotations VALUES (?,?,?,?,?,?,?)", row)
            for stretch in gone:
                _forget(execute, *stretch)
            for name, count in written.items():
                number = _number_of(execute, name)
                execute(
                    "UPDATE annotation_names SET written = ? WHERE identifier = ?", (count, number)
                )
            execute("UPDATE about SET evicted = ?", (dict(evicted),))

    def take_annotations(self, old: Path) -> int:
        """Copy another catalogue's annotations, as far as it is readable; return how many."""
        with contextlib.suppress(sqlite3.Error, StoreError):  # then it returns 0
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
        rows = self._read(_EPISODE, f"SELECT * FROM episodes WHERE {where}", *values)
        return [EpisodeRecord(*row) for row in rows]

    def _read(self, row: Any, statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement, each of the type `row`, such as ``tuple[int, str]``."""
        with self._errors():
            try:
                found = self._connection.execute(statement, values).fetchall()
                return [msgspec.convert(each, row) for each in found]
            except (*_FORGED, msgspec.MsgspecError) as error:
                raise self._unusable(error) from error

    def _one(self, row: Any, statement: str) -> Any:
        found = self._read(row, statement)
        if len(found) != 1:
            raise self._unusable(f"{len(found)} rows of {statement!r}")
        return found[0]

    def _last_number(self, table: str) -> int | None:
        """Return the highest number ever used in a table."""
        newest = f"SELECT max(seq) FROM sqlite_sequence WHERE name = '{table}'"
        number: int | None = self._one(tuple[Count | None], newest)[0]
        return number

    @property
    def _about(self) -> _About:
        about: _About = self._one(_About, "SELECT * FROM about")
        return about

    def _write(self, statement: str, *values: object) -> None:
        """Run one statement as its own transaction."""
        with self._errors():
            self._connection.execute(statement, values).fetchall()

    def _unusable(self, found: object, hint: str | None = None) -> StoreError:
        store = self.path.parent
        problem = f"the catalogue of the store {store} cannot be used"
        hint = hint or f"rebuild it from the rows: {rebuilding(store)}"
        return StoreError(problem, got=found, hint=hint)

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
            damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
            hint = None if damaged else "see that the folder can be read and written"
            raise self._unusable(error, hint) from error


def _put_episodes(execute: Any, records: Iterable[EpisodeRecord]) -> None:
    for record in records:
        values: Sequence[object] = msgspec.structs.astuple(record)
        execute(f"INSERT OR REPLACE INTO episodes VALUES ({'?,' * 10}?)", values)


def _forget(execute: Any, key: SessionKey, first: int, end: int) -> None:
    execute(f"DELETE FROM episodes WHERE {_STRETCH}", (*key, first, end))
    execute(f"DELETE FROM annotations WHERE {_ROWS}", (*key, first, end))


def _number_of(execute: Any, name: str) -> int:
    """The number of an annotation's name, which is added if it is new."""
    execute("INSERT OR IGNORE INTO annotation_names (name) VALUES (?)", (name,))
    statement = "SELECT identifier FROM annotation_names WHERE name = ?"
    return int(execute(statement, (name,)).fetchone()[0])


@contextlib.contextmanager
def _unserved(path: Path) -> Iterator[str]:
    """Yield a URI with which SQLite reads a catalogue without writing files next to it."""
    log = path.with_name(f"{path.name}-wal")
    if is_served(path.parent):  # the writer has made all files that a reader needs
        yield f"{path.absolute().as_uri()}?mode=ro"
    elif not log.exists() or not log.stat().st_size:
        yield f"{path.absolute().as_uri()}?immutable=1"
    else:  # a killed server's last writes are only in the log; SQLite moves it to read it
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            for file in (path, log):
                shutil.copyfile(file, Path(folder) / file.name)
            yield (Path(folder) / path.name).as_uri()


def schema_of(catalogue: Catalogue) -> RowSchema:
    """Return the schema of a store's rows; raises `StoreError` before the first session."""
    schema = catalogue.schema
    if schema is None:
        raise StoreError(
            f"no session has been started in the store {catalogue.path.parent}",
            hint="let an actor, or an import, put rows into it first",
        )
    return schema


def is_served(store: Path) -> bool:
    """Return whether a server is writing a store now."""
    try:
        with (store / LOCK).open("rb") as file:
            return not locked(file.fileno())
    except FileNotFoundError:
        return False


def is_store(path: Path) -> bool:
    """Return whether a folder is a store, even without its catalogue."""
    return (path / FILE).exists() or _has_rows(path)


def _has_rows(store: Path) -> bool:
    return any((store / "rows").glob("*.rows"))


def _absent(store: Path) -> StoreError:
    if _has_rows(store):
        return StoreError(
            f"the store {store} has rows and no catalogue",
            expected=FILE,
            hint=f"put it back, or rebuild it: {rebuilding(store)}",
        )
    return StoreError(
        f"there is no replay store in {store}",
        expected=f"a folder with {FILE}",
        hint="start the replay server on this folder first",
    )
