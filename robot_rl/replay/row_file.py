"""Row files: rows of one fixed size after a header. Used for store segments and actors' spools.

    0     magic, version, bytes before the rows, bytes of a row, length and checksum of the
          description
    32    counters, for a spool
    64    the description: JSON, padded to whole pages
    ...   room that the owner requested, then the rows

Numbers are little-endian. A segment grows at its end, and its length gives the number of rows; a
partly written row does not count. A spool has its full size from the start.
``numpy.memmap(file, schema.dtype, offset=header_bytes)`` maps the rows.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.errors import in_shell
from robot_rl.processes.files import why_not_written
from robot_rl.replay import FileDamaged, StoreError, StoreFull

VERSION = 3
COUNTERS = slice(32, 64)
_MAGIC = b"RRLROWS\0"
_HEAD = struct.Struct("<8sIIIII")  # magic, version, header, row, description, checksum
_DESCRIPTION_AT = 64
_BUFFERS_PER_CALL = 512

Buffer = bytes | memoryview


class RowFile:
    """An open row file, from `open`; `about` describes its rows."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.about: dict[str, Any] = {}
        self.header_bytes = self.row_bytes = 0

    @classmethod
    def create(cls, path: Path, about: Mapping[str, object], row_bytes: int) -> None:
        """Create an empty segment, or redo an interrupted creation; raises `OSError`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with closing(cls(path, descriptor)) as file:
            if os.pread(descriptor, len(_MAGIC), 0) == _MAGIC:
                raise FileExistsError(f"{path} exists")
            file.format(about, row_bytes)

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> RowFile:
        """Open an existing file. Opening it for writing cuts off a torn last row.

        Raises:
            FileNotFoundError: There is none.
            FileDamaged: It is not a row file, or its header is damaged.
            OSError: It cannot be read.
        """
        flags = os.O_RDWR if write else os.O_RDONLY
        file = cls(path, os.open(path, flags | os.O_CLOEXEC))
        try:
            file.read_header()
            if write:
                os.ftruncate(file._descriptor, file._size_of(file.rows))
        except BaseException:
            file.close()
            raise
        return file

    @property
    def rows(self) -> int:
        """Number of whole rows in its present length."""
        size = os.fstat(self._descriptor).st_size
        return max(size - self.header_bytes, 0) // self.row_bytes

    def append(self, rows: Sequence[Buffer]) -> int:
        """Write rows at the end, and return how many are whole.

        A number below ``len(rows)`` means that the disk is full; a torn row is cut off. Whole rows
        stay, because a reader may have seen them.

        Raises:
            OSError: Not even one row could be written.
        """
        before = self.rows
        end = at = self._size_of(before)
        try:
            for start in range(0, len(rows), _BUFFERS_PER_CALL):
                part = rows[start : start + _BUFFERS_PER_CALL]
                written = os.pwritev(self._descriptor, part, at)
                at += written
                if written < sum(len(row) for row in part):
                    break
        except OSError:
            if at - end < self.row_bytes:
                os.ftruncate(self._descriptor, end)
                raise
        done = (at - end) // self.row_bytes
        if done < len(rows):
            os.ftruncate(self._descriptor, self._size_of(before + done))
        return done

    def view(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Map the present rows, read-only, shape (rows,); the map outlives this object."""
        rows = self.rows
        if rows == 0:
            return np.empty(0, dtype)
        mapped = mmap.mmap(self._descriptor, self._size_of(rows), access=mmap.ACCESS_READ)
        return np.ndarray(rows, dtype, mapped, self.header_bytes)

    def map_all(self) -> memoryview:
        """Map the whole file for reading and writing, with each of its pages in memory."""
        size = os.fstat(self._descriptor).st_size
        mapped = mmap.mmap(self._descriptor, size)
        pages = np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE]
        pages |= 0  # touch each page with a write that changes nothing
        return memoryview(mapped)

    def format(
        self, about: Mapping[str, object], row_bytes: int, room: int = 0, rows: int = 0
    ) -> None:
        """Rewrite the file; it is valid once it has its magic, which is written last.

        Leaves `room` bytes between description and rows. Disk space for `rows` rows is allocated
        at once: on a disk that fills up later, SIGBUS would kill a process writing to the map.

        Raises:
            OSError: The disk has no room for it, or it cannot be written.
        """
        text = json.dumps(dict(about)).encode()
        header = -(-(_DESCRIPTION_AT + len(text) + room) // mmap.PAGESIZE) * mmap.PAGESIZE
        head = _HEAD.pack(bytes(8), VERSION, header, row_bytes, len(text), zlib.crc32(text))
        page = head.ljust(_DESCRIPTION_AT, b"\0") + text
        os.ftruncate(self._descriptor, 0)
        try:
            if rows:
                os.posix_fallocate(self._descriptor, 0, header + rows * row_bytes)
            if os.pwrite(self._descriptor, page, 0) < len(page):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not rows:
                os.ftruncate(self._descriptor, header)
            os.pwrite(self._descriptor, _MAGIC, 0)
        except OSError:
            os.ftruncate(self._descriptor, 0)
            raise
        self.about, self.header_bytes, self.row_bytes = dict(about), header, row_bytes

    def read_header(self) -> None:
        """Read the header; raises `FileDamaged`."""
        head = os.pread(self._descriptor, _HEAD.size, 0)
        if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
            raise self.damaged("another kind of file")
        _, version, header, row_bytes, length, checksum = _HEAD.unpack(head)
        if version != VERSION:
            raise self.damaged(f"version {version}, where this program has {VERSION}")
        text = os.pread(self._descriptor, length, _DESCRIPTION_AT)
        if len(text) != length or zlib.crc32(text) != checksum or not row_bytes:
            raise self.damaged("a header that was changed or cut")
        self.about, self.header_bytes, self.row_bytes = json.loads(text), header, row_bytes

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def damaged(self, what: str) -> FileDamaged:
        """Return the error for a damaged file."""
        return FileDamaged(f"{self.path} is damaged, or no row file of robot_rl", got=what)

    def close(self) -> None:
        """Release the file; maps stay valid as long as they are used."""
        if self._descriptor >= 0:
            # A map keeps the file open, and that would keep the lock.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def _size_of(self, rows: int) -> int:
        return self.header_bytes + rows * self.row_bytes


def is_blank(path: Path) -> bool:
    """Return whether a file is new, or its creation was cut off before its magic."""
    with path.open("rb") as file:
        return not any(file.read(len(_MAGIC)))


def rebuilding(store: Path) -> str:
    """The command that rebuilds a store's catalogue from its rows."""
    return in_shell("robot-rl", "inspect", store, "rebuild=true")


def write_error(error: OSError, store: Path) -> StoreError:
    """Convert a failed write to a store into a `StoreError`."""
    problem, got, hint, passes = why_not_written(error, store)
    if passes:
        problem, hint = f"{problem}: {store} cannot be written", f"{hint}; nothing that was"
        return StoreFull(problem, got=got, hint=f"{hint} acknowledged is lost")
    return StoreError(f"the store {store} cannot be written: {problem}", got=got, hint=hint)
