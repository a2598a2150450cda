"""Opening LMDB: one environment per folder and process, shared and counted.

LMDB forbids opening a folder twice in a process, yet a learner may hold a sampler and a reader,
and a test a server and a sampler.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import lmdb

from robot_rl.replay.errors import StoreError, StoreFull, StoreInUse

ROWS, EPISODES, TABLES, WEIGHTS = b"rows", b"episodes", b"tables", b"weights"
EVICTED, ANNOTATIONS, ANNOTATION_FIELDS = b"evicted", b"annotations", b"annotation_fields"
ABOUT = b"about"
_FIRST_DATABASES = (ROWS, EPISODES, TABLES, WEIGHTS)
_LATER_DATABASES = (EVICTED, ANNOTATIONS, ANNOTATION_FIELDS, ABOUT)
DATABASES = _FIRST_DATABASES + _LATER_DATABASES
# LMDB needs pages to delete too. A list of all pages of the file takes 1/512 of it.
_LEAST_SLACK_BYTES, _SLACK_SHARE = 4 << 20, 1 / 256


@dataclass
class Environment:
    """An open LMDB folder with its sub-databases. Release it with `release`.

    The sub-databases `EVICTED`, `ANNOTATIONS`, `ANNOTATION_FIELDS` and `ABOUT` are absent from a
    store that no server of this version has opened yet.

    Attributes:
        limit_bytes: What the sub-databases may take together, for `check_limit`.
    """

    path: Path
    handle: lmdb.Environment
    writable: bool
    databases: dict[bytes, lmdb._Database] = field(default_factory=dict)
    users: int = 1
    limit_bytes: int = 0

    def used_bytes(self, txn: lmdb.Transaction[bytes], names: Collection[bytes] = DATABASES) -> int:
        """Return what sub-databases take of the file, pages that are free not counted."""
        size = 0
        for name in names:
            found = txn.stat(self.databases[name])
            pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
            size += pages * found["psize"]
        return size

    def check_limit(self, txn: lmdb.Transaction[bytes]) -> None:
        """Check that what a transaction has put leaves the slack of the file to eviction.

        Raises:
            lmdb.MapFullError: It does not.
        """
        used = self.used_bytes(txn)
        if used > self.limit_bytes:
            raise lmdb.MapFullError(f"{used} of {self.limit_bytes} bytes")

    def begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction.

        Raises:
            StoreError: LMDB cannot begin one.
        """
        try:
            return self.handle.begin(write=write)
        except lmdb.Error as error:
            raise store_error(error, self.path) from error

    def begin_buffers(self) -> lmdb.Transaction[memoryview]:
        """Begin a read whose values are views of the memory map, valid until it ends.

        Raises:
            StoreError: LMDB cannot begin one, for example because all reader slots are taken.
        """
        try:
            return self.handle.begin(buffers=True)
        except lmdb.Error as error:
            raise store_error(error, self.path) from error

    def release(self) -> None:
        """Give the environment back; the last user closes it."""
        with _lock:
            self.users -= 1
            if self.users == 0:
                del _open[self.path]
                self.handle.close()


_lock = threading.Lock()
_open: dict[Path, Environment] = {}


def lock_store(path: Path) -> IO[bytes]:
    """Take the lock of a store's only writer.

    The system frees it when the process ends, however it ends.

    Raises:
        StoreInUse: Another process has it.
        StoreError: The folder cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / "server.lock").open("wb")
    except OSError as error:
        raise store_error(error, path) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StoreInUse(
            f"another replay server is writing the store {path}",
            hint="stop it, or give this server another folder",
        ) from error
    return file


def open_for_writing(path: Path, *, map_size_bytes: int, durable: bool) -> Environment:
    """Open or create a store for its only writer.

    Args:
        path: Folder of the store.
        map_size_bytes: Limit of what is in the file; it grows as rows come, so a large limit
            costs nothing. The file itself may become larger by the slack in which eviction works
            when the limit is reached: 1/256 of it, at least 4 MiB.
        durable: Whether each commit reaches the disk. Without it a commit survives the end of
            any process, but a power cut may damage the file. LMDB's write-through map is not
            used in either case: a full disk would kill the process instead of raising.

    Raises:
        StoreInUse: This process has the store open already.
        StoreError: The folder cannot be opened as a store.
    """
    path = path.resolve()
    with _lock:
        if path in _open:
            raise StoreInUse(f"the store {path} is already open in this process")
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = lmdb.open(
                str(path),
                map_size=_map_size(path, map_size_bytes),
                max_dbs=len(DATABASES),
                sync=durable,
                metasync=durable,
                readahead=False,
            )
            databases = {name: handle.open_db(name) for name in DATABASES}
        except (lmdb.Error, OSError) as error:
            raise store_error(error, path) from error
        environment = Environment(path, handle, True, databases, limit_bytes=map_size_bytes)
        _open[path] = environment
        return environment


def open_for_reading(path: Path) -> Environment:
    """Open an existing store for reading, or share the one that is open in this process.

    Raises:
        StoreError: There is no store in the folder, or it cannot be read.
    """
    path = path.resolve()
    with _lock:
        if path in _open:
            _open[path].users += 1
            return _open[path]
        if not (path / "data.mdb").is_file():
            raise StoreError(
                f"there is no replay store in {path}",
                expected="a folder with data.mdb",
                hint="start the replay server on this folder first",
            )
        try:
            # map_size 0 takes over the writer's limit, so that the file can grow under us.
            handle = lmdb.open(
                str(path), map_size=0, max_dbs=len(DATABASES), readonly=True, readahead=False
            )
            databases = _existing_databases(handle)
        except (lmdb.Error, OSError) as error:
            raise store_error(error, path) from error
        environment = Environment(path, handle, False, databases)
        _open[path] = environment
        return environment


def _map_size(path: Path, limit_bytes: int) -> int:
    """Return the limit with slack; a file that is larger already has slack too."""
    file = path / "data.mdb"
    present = file.stat().st_size if file.exists() else 0
    size = max(limit_bytes, present) + max(_LEAST_SLACK_BYTES, int(_SLACK_SHARE * limit_bytes))
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _existing_databases(handle: lmdb.Environment) -> dict[bytes, lmdb._Database]:
    """Open the sub-databases for reading; a store that an older server wrote lacks later ones."""
    databases = {name: handle.open_db(name, create=False) for name in _FIRST_DATABASES}
    for name in _LATER_DATABASES:
        with contextlib.suppress(lmdb.NotFoundError):
            databases[name] = handle.open_db(name, create=False)
    return databases


def store_error(error: Exception, path: Path) -> StoreError:
    """Turn an error of LMDB or of the system into one that says what to do."""
    text = str(error)
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"the store {path} has reached its size limit",
            got=text,
            hint="restart the replay server with a larger map_size_bytes, or with a capacity_bytes"
            " of at most 0.8 of it, so that the oldest episodes make room",
        )
    if isinstance(error, lmdb.MapResizedError):
        # Remapping here would pull the map from under another thread's open transaction.
        return StoreError(
            f"the store {path} was reopened by its server with a larger map_size_bytes",
            hint="start this process again",
        )
    if "No space left" in text or "Disk quota" in text or "File too large" in text:
        return StoreFull(
            f"the disk under the store {path} is full",
            got=text,
            hint="free space; the clients send again what is not acknowledged",
        )
    return StoreError(f"the store {path} cannot be used", got=text)
