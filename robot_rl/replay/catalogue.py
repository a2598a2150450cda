"""The catalogue of a store: one small SQLite file beside the rows.

It knows tables, sessions, episodes and annotations. All of it but the annotations is in the row
files too, and can be made anew from them. Readers use it while the server writes (WAL).

An annotation is a float32 under a row's place, a name (for example of a relabelled reward) and the
version of the model that made it. A stored version never changes; a newer version is another value
beside it.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import RowSchema
from robot_rl.errors import did_you_mean
from robot_rl.processes.files import check_links
from robot_rl.replay import AnnotationRefused, StoreError
from robot_rl.replay.catalogue_file import FILE, CatalogueFile
from robot_rl.replay.episode_records import (
    Annotations,
    Count,
    EpisodeRecord,
    Session,
    SessionKey,
    TableInfo,
)
from robot_rl.replay.row_file import rebuilding

VERSION = 2
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

_JSON = dict[str, Any]
_EPISODE = GenericAlias(tuple, tuple(f.type for f in msgspec.structs.fields(EpisodeRecord)))
_UNKNOWN_TABLE = """
SELECT "table" FROM (SELECT "table" FROM sessions UNION SELECT "table" FROM episodes)
    WHERE "table" IS NULL OR "table" NOT IN (SELECT identifier FROM tables)
"""


class NewestValues(NamedTuple):
    """Which of n rows have an annotation, bool (n,); its version, int64; its value, float32."""

    valid: npt.NDArray[np.bool_]
    versions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class Catalogue(CatalogueFile):
    """The open catalogue of a store, which has the `identity` of all its copies.

    With `write` it is created where absent, else it is only read. With `durable` what was written
    is on the disk when a call returns. With `still` nothing is written beside it either, as SQLite
    does for readers; then what comes later may not be seen.

    Raises:
        StoreError: There is no store, it is damaged, or of another version; or a link in it leads
            out of it. So do all calls where SQLite fails, or the catalogue has what it cannot have;
            `StoreFull` where the disk has no room.
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
        check_links(store, StoreError)
        with_rows = _has_rows(store) and identity is None
        # A new catalogue over rows would be another store's, which knows none of them.
        if not (store / FILE).is_file() and (with_rows or not write):
            raise _absent(store)
        super().__init__(store / FILE, still=still)
        try:
            if write:
                self.set("PRAGMA journal_mode = WAL")
                self.set(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            else:
                self.set("PRAGMA query_only = ON")
            if write and not self.read(tuple[int], "SELECT 1 FROM sqlite_master"):
                if with_rows:
                    raise _absent(store)
                with self.transaction() as execute:
                    for statement in _TABLES.split(";"):
                        execute(statement)
                    execute("INSERT INTO about VALUES (?)", (identity or secrets.token_hex(16),))
                    execute(f"PRAGMA user_version = {VERSION}")
            (version,) = self.one(tuple[int], "PRAGMA user_version")
            if version != VERSION:
                raise StoreError(
                    f"the store {store} is of another version",
                    got=version,
                    expected=VERSION,
                    hint="export it with the robot_rl that wrote it; if it is damaged instead, make"
                    f" it anew from the rows: {rebuilding(store)}",
                )
            (self.identity,) = self.one(tuple[str], "SELECT identity FROM about")
            if unknown := self.read(tuple[Any], _UNKNOWN_TABLE):
                raise self.unusable(f"sessions or episodes of the table {unknown[0][0]}, unknown")
        except BaseException:
            self.close()
            raise

    def tables(self) -> dict[str, TableInfo]:
        """Return the tables by name."""
        statement = "SELECT identifier, name, schema, metadata FROM tables ORDER BY 1"
        rows = self.read(tuple[Count, str, str, _JSON], statement)
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
        types = tuple[Count, Count, Count, str, Count]
        rows = self.read(types, f"SELECT * FROM sessions{where}", *(only or ()))
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
        (newest,) = self.one(tuple[Count | None], "SELECT max(seq) FROM sqlite_sequence")
        return 0 if newest is None else newest + 1

    def put_episodes(self, records: Iterable[EpisodeRecord]) -> None:
        """Put episodes, or what they have become."""
        statement = f"INSERT OR REPLACE INTO episodes VALUES ({'?,' * 11}?)"
        with self.transaction() as execute:
            for record in records:
                execute(statement, msgspec.structs.astuple(record))

    def evicted(self, table: int) -> Counter[str]:
        """Return the totals of what was evicted from a table."""
        statement = "SELECT evicted FROM tables WHERE identifier = ?"
        (evicted,) = self.one(tuple[dict[str, Count]], statement, table)
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
        statement = 'SELECT name, written FROM annotation_names WHERE "table" = ?'
        return dict(self.read(tuple[str, Count], statement, table))

    def newest_values(self, name: str, key: SessionKey, first: int, rows: int) -> NewestValues:
        """Read the newest version of an annotation of so many rows from a sequence on."""
        valid, versions = np.zeros(rows, np.bool_), np.zeros(rows, np.int64)
        values = np.zeros(rows, np.float32)
        for at, version, value in self.read(
            tuple[Count, int, float],
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

    def _episodes(self, where: str, *values: object) -> list[EpisodeRecord]:
        rows = self.read(_EPISODE, f"SELECT * FROM episodes WHERE {where}", *values)
        return [EpisodeRecord(*row) for row in rows]


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
