"""Row files: rows of one fixed size behind a header. The store's segments and an actor's spool.

    0     magic, version, bytes of all that precedes the rows, bytes of a row, length and checksum
          of the description
    32    counters, for a spool
    64    the description: JSON, padded to whole pages
    ...   room that the owner asked for, then the rows

Numbers are little-endian. A segment grows at its end, and its length says how many rows it has;
a row that was cut off in writing is no row. A spool has all its room from the beginning.
``numpy.memmap(file, schema.dtype, offset=header_bytes)`` shows the rows.
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
    """An open row file, made with `create` or `open`: `about` says what its rows are."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.about: dict[str, Any] = {}
        self.header_bytes = self.row_bytes = 0

    @classmethod
    def create(cls, path: Path, about: Mapping[str, object], row_bytes: int) -> None:
        """Make an empty segment, or make one again whose making was cut off; raises `OSError`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with closing(cls(path, descriptor)) as file:
            if os.pread(descriptor, len(_MAGIC), 0) == _MAGIC:
                raise FileExistsError(f"{path} exists")
            file.format(about, row_bytes)

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> RowFile:
        """Open a file that was made before. Where it is opened to write, a torn last row is cut.

        Raises:
            FileNotFoundError: There is none.
            FileDamaged: It is no row file, or its header is not as it was written.
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
        """How many rows fit into its present length."""
        size = os.fstat(self._descriptor).st_size
        return max(size - self.header_bytes, 0) // self.row_bytes

    def append(self, rows: Sequence[Buffer]) -> int:
        """Write rows at the end, and return how many are whole.

        Fewer than were given mean that the disk took no more; the rest of a torn row is cut off.
        Rows that are whole stay, because a reader may have seen them.

        Raises:
            OSError: Not one could be written, and why.
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
        """Map the rows that are there now, read-only, shape (rows,); it outlives this object."""
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
        pages |= 0  # a store that changes nothing, in each page
        return memoryview(mapped)

    def format(
        self, about: Mapping[str, object], row_bytes: int, room: int = 0, rows: int = 0
    ) -> None:
        """Make the file again; it counts once it has its magic, which is written last.

        Between description and rows there are `room` bytes. For so many rows the disk gives its
        room at once: one that fills up later would end who writes to the map, by SIGBUS.

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
        """Read what the rows are; raises `FileDamaged`."""
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
        """Return the descriptor."""
        return self._descriptor

    def damaged(self, what: str) -> FileDamaged:
        """Make the error for a file that cannot be trusted."""
        return FileDamaged(f"{self.path} is damaged, or no row file of robot_rl", got=what)

    def close(self) -> None:
        """Release the file; what was mapped stays mapped as long as it is looked at."""
        if self._descriptor >= 0:
            # A map keeps the file open, and so it would keep a lock.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def _size_of(self, rows: int) -> int:
        return self.header_bytes + rows * self.row_bytes


def is_blank(path: Path) -> bool:
    """Return whether a file is new, or its making was cut off before its magic."""
    with path.open("rb") as file:
        return not any(file.read(len(_MAGIC)))


def rebuilding(store: Path) -> str:
    """The command that makes the catalogue of a store from its rows."""
    return in_shell("robot-rl", "inspect", store, "rebuild=true")


def write_error(error: OSError, store: Path) -> StoreError:
    """Say what a failed write to a store means."""
    problem, got, hint, passes = why_not_written(error, store)
    if passes:
        problem, hint = f"{problem}: {store} cannot be written", f"{hint}; nothing that was"
        return StoreFull(problem, got=got, hint=f"{hint} acknowledged is lost")
    return StoreError(f"the store {store} cannot be written: {problem}", got=got, hint=hint)
