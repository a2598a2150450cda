"""The file under a ring spool: preallocated, mapped, locked, with a header that survives kill -9.

    0      magic, version, capacity, bytes and checksum of the session, tail, head: native uint64
    64     the session, JSON
    65536  `capacity` bytes of records, used as a ring

A new file and a row count from the last store of their making, that of the magic and of the
head: one aligned uint64, which a kill cannot cut in half. The session is written while there are
no rows, and read only if there are.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np

from robot_rl.replay.errors import SpoolDamaged, SpoolError, SpoolInUse

HEADER_BYTES = 1 << 16
VERSION = 1
_MAGIC = int.from_bytes(b"RRLSPOOL", sys.byteorder)
_MAGIC_AT, _VERSION_AT, _CAPACITY_AT, _SESSION_BYTES_AT, _SESSION_SUM_AT = range(5)
TAIL, HEAD = 5, 6
_SESSION_START = 64
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RingFile:
    """An open spool file; another process cannot open it meanwhile.

    Args:
        path: The file; made with its folder where absent.
        size_bytes: Its size if it is made.

    Attributes:
        path: The file.
        counters: Native uint64; the owner stores to `TAIL` and `HEAD`.
        data: The bytes of the ring.

    Raises:
        SpoolInUse: Another process has the file open.
        SpoolDamaged: It is no spool file, or one that was cut or written by something else.
        SpoolError: It cannot be made or written; the disk has no room for it.
    """

    counters: memoryview
    data: memoryview

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Open or make the file; see the class."""
        self.path = path
        self._descriptor = _open_locked(path)
        self._map: mmap.mmap | None = None
        try:
            if self._is_blank():
                self.format(size_bytes)
            else:
                self._open_existing()
        except BaseException:
            self._release()
            raise

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return HEADER_BYTES + len(self.data)

    def format(self, size_bytes: int) -> None:
        """Make the file anew, empty and with room on the disk for all of it.

        Raises:
            SpoolError: The disk has no room for it, or it cannot be written.
        """
        self._unmap()
        try:
            os.ftruncate(self._descriptor, 0)
            self._map_file(size_bytes)
        except SpoolError:
            os.ftruncate(self._descriptor, 0)
            raise
        self.counters[_VERSION_AT] = VERSION
        self.counters[_CAPACITY_AT] = len(self.data)
        self.counters[_MAGIC_AT] = _MAGIC

    def read_session(self) -> bytes:
        """Return what `write_session` wrote.

        Raises:
            SpoolDamaged: It was changed since, or never written.
        """
        assert self._map is not None
        size = self.counters[_SESSION_BYTES_AT]
        data = self._map[_SESSION_START : min(_SESSION_START + size, HEADER_BYTES)]
        if not data or len(data) != size or zlib.crc32(data) != self.counters[_SESSION_SUM_AT]:
            raise self.damaged("the session in its header is absent or changed")
        return data

    def write_session(self, data: bytes) -> None:
        """Note whose rows follow.

        Raises:
            SpoolError: It is too large.
        """
        assert self._map is not None
        if len(data) > HEADER_BYTES - _SESSION_START:
            raise SpoolError(
                "the schema and metadata of the session are too large for a spool",
                got=f"{len(data)} bytes",
                expected=f"<= {HEADER_BYTES - _SESSION_START} bytes",
            )
        self._map[_SESSION_START : _SESSION_START + len(data)] = data
        self.counters[_SESSION_SUM_AT] = zlib.crc32(data)
        self.counters[_SESSION_BYTES_AT] = len(data)

    def damaged(self, what: str) -> SpoolDamaged:
        """Make the error for a file that cannot be trusted."""
        return SpoolDamaged(
            f"the spool {self.path} is damaged or no spool",
            got=what,
            hint="nothing of it was sent or changed; to go on without the rows in it, move it away",
        )

    def close(self, *, remove: bool) -> None:
        """Release the file; a second call does nothing.

        Args:
            remove: Whether there is nothing in it that is worth keeping.

        Raises:
            SpoolError: What it holds cannot be written to the disk.
        """
        if self._descriptor < 0:
            return
        try:
            if remove:
                self.path.unlink(missing_ok=True)
            elif self._map is not None:
                self._map.flush()
        except OSError as error:
            raise SpoolError(f"the spool {self.path} cannot be written", got=error) from error
        finally:
            self._release()

    def _is_blank(self) -> bool:
        """Return whether the file is new, or one whose making was cut off before its magic."""
        header = os.pread(self._descriptor, HEADER_BYTES, 0)
        return not any(header[:8]) and not any(header[24:])

    def _open_existing(self) -> None:
        size = os.fstat(self._descriptor).st_size
        header = os.pread(self._descriptor, HEADER_BYTES, 0)
        if len(header) < HEADER_BYTES:
            raise self.damaged(f"{size} bytes, less than a header")
        found = memoryview(header)[:_SESSION_START].cast("Q")
        if found[_MAGIC_AT] != _MAGIC:
            raise self.damaged("another kind of file")
        if found[_VERSION_AT] != VERSION:
            raise self.damaged(f"version {found[_VERSION_AT]}, where this program has {VERSION}")
        if found[_CAPACITY_AT] != size - HEADER_BYTES:
            made = HEADER_BYTES + found[_CAPACITY_AT]
            raise self.damaged(f"{size} bytes, where it had {made} when it was made")
        self._map_file(size)

    def _map_file(self, size_bytes: int) -> None:
        """Map the file, with all of its blocks on the disk and all of its pages in memory.

        A disk that fills up later would otherwise end, by SIGBUS, a process that writes to the map.
        """
        try:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
            self._map = mmap.mmap(self._descriptor, size_bytes)
        except OSError as error:
            raise self._not_made(error, size_bytes) from error
        pages = np.frombuffer(self._map, np.uint8)[:: mmap.PAGESIZE]
        pages |= 0  # a store that changes nothing, in each page
        whole = memoryview(self._map)
        self.counters = whole[:_SESSION_START].cast("Q")
        self.data = whole[HEADER_BYTES:]

    def _not_made(self, error: OSError, size_bytes: int) -> SpoolError:
        if error.errno not in _DISK_FULL:
            return SpoolError(f"the spool {self.path} cannot be written", got=error)
        return SpoolError(
            f"the disk has no room for the spool {self.path}",
            got=f"{shutil.disk_usage(self.path.parent).free} bytes free",
            expected=f"{size_bytes} bytes",
            hint="free some space, or make the spool smaller with replay.spool_bytes",
        )

    def _unmap(self) -> None:
        """Let go of the map; it ends with the last view of a row in it."""
        if self._map is not None:
            self.counters, self.data = memoryview(b""), memoryview(b"")
            self._map = None

    def _release(self) -> None:
        self._unmap()
        # The map keeps the file open, and with it the lock, as long as there is a view of it.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = -1


def _open_locked(path: Path) -> int:
    """Open and lock the file; the system unlocks it when the process ends, however it ends."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolError(f"the spool {path} cannot be opened", got=error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise SpoolInUse(
                f"another process uses the spool {path}", hint="stop it, or wait until it has ended"
            ) from error
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # its owner removed it, empty, between opening and locking


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
