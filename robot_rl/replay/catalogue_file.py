"""The SQLite file of a catalogue, whose values are only believed where they have their types."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from robot_rl.processes.files import locked
from robot_rl.replay import StoreError
from robot_rl.replay.row_file import rebuilding, write_error

FILE = "catalogue.sqlite"
LOCK = "server.lock"
_BUSY_SECONDS = 30.0
_LITTLE_ROOM_BYTES = 1 << 20
# What a value brings about that no catalogue has: the converters' errors, and those of types.
_FORGED = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)

for _kind in (dict, tuple, Counter):
    sqlite3.register_adapter(_kind, json.dumps)
sqlite3.register_converter("JSON", json.loads)
sqlite3.register_converter("STEPS", json.loads)
sqlite3.register_converter("FLAG", lambda text: text == b"1")


class CatalogueFile:
    """An open catalogue, at `path`; `still` as for `Catalogue`.

    Raises:
        StoreError: SQLite fails, or there is what cannot be in a catalogue; so with all calls.
            `StoreFull` where the disk has no room.
    """

    def __init__(self, path: Path, *, still: bool) -> None:
        self.path = path
        self._opened = contextlib.ExitStack()
        with self._errors():
            self._connection = sqlite3.connect(
                self._opened.enter_context(_unserved(path)) if still else path,
                _BUSY_SECONDS,
                detect_types=sqlite3.PARSE_DECLTYPES,
                isolation_level=None,
                check_same_thread=False,
                uri=still,
            )
            self._opened.callback(self._connection.close)

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

    def read(self, row: Any, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, each of the type `row`, such as ``tuple[int, str]``."""
        with self._errors():
            try:
                found = self._connection.execute(statement, values).fetchall()
                return [msgspec.convert(each, row) for each in found]
            except (*_FORGED, msgspec.MsgspecError) as error:
                raise self.unusable(error) from error

    def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        (version,) = self.one(tuple[int], "PRAGMA data_version")
        return int(version)

    def one(self, row: Any, statement: str, *values: object) -> tuple[Any, ...]:
        """Return the only row of a statement."""
        found = self.read(row, statement, *values)
        if len(found) != 1:
            raise self.unusable(f"{len(found)} rows of {statement!r}")
        return found[0]

    def set(self, pragma: str) -> None:
        """Run a statement that sets how SQLite works."""
        with self._errors():
            self._connection.execute(pragma).fetchall()

    def unusable(self, found: object, hint: str | None = None) -> StoreError:
        """Make the error for what was `found` in it, by default with how it is made again."""
        store = self.path.parent
        problem = f"the catalogue of the store {store} cannot be used"
        hint = hint or f"make it anew from the rows: {rebuilding(store)}"
        return StoreError(problem, got=found, hint=hint)

    def close(self) -> None:
        """Release the file."""
        self._opened.close()

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
            raise self.unusable(error, hint) from error


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
