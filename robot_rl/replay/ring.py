"""Rows in a ring file: a spool that outlives its process, however that ends.

A row is copied into the mapped file and counts from the moment at which the header's head is
moved past it: no system call, and a kill -9 loses at most the row that is being copied. A later
process finds the rows that were not acknowledged, and whose they are.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from itertools import islice
from pathlib import Path

from robot_rl.replay.errors import SpoolTooSmall
from robot_rl.replay.ring_file import HEAD, HEADER_BYTES, TAIL, RingFile
from robot_rl.replay.spool import MAXIMUM_EPISODE_METADATA, OpenSession, Spooled

DEFAULT_SPOOL_BYTES = 64 << 20

_FIELDS = struct.Struct("=QII")  # sequence, bytes of the row, bytes of its episode's metadata
_RECORD = struct.Struct("=QIII")  # these and their checksum
# Above 5 KB zlib lets go of the interpreter, and the control loop would have to wait for it.
_CHECKSUM_STEP = 4096


class RingSpool:
    """Rows in a preallocated, memory-mapped file; see `robot_rl.replay.spool.Spool`.

    The file is removed when it is closed with no row in it.

    Args:
        path: The file; made with its folder where absent. One with rows keeps its size until
            these are acknowledged.
        size_bytes: Its size.

    Raises:
        SpoolTooSmall: The size leaves no room for rows.
        SpoolInUse: Another process has the file open.
        SpoolDamaged: It is no spool file, or a row in it is not as it was written.
        SpoolError: It cannot be made or written; the disk has no room for it.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Open or make the file, and find what an earlier process left in it."""
        check_size(size_bytes, rows=1, row_bytes=0)
        self.place = f"the spool {path}"
        self.first = self.end = 0
        self.left: OpenSession | None = None
        self._size_bytes = size_bytes
        self._file = RingFile(path, size_bytes)
        # Positions count on from lap to lap; they meet the file modulo its capacity.
        self._starts: deque[int] = deque()
        self._tail, self._head = self._file.counters[TAIL], self._file.counters[HEAD]
        try:
            self._recover()
        except BaseException:
            self._file.close(remove=False)
            raise

    def begin(self, session: OpenSession) -> None:
        """See `Spool`."""
        assert not self._starts
        self.left = None
        if self._file.size_bytes != self._size_bytes:
            self._file.format(self._size_bytes)
            self._tail = self._head = 0
        self._file.write_session(session.to_bytes())
        self.first = self.end = session.next_sequence

    def has_room(self, rows: int, size: int) -> bool:
        """See `Spool`."""
        free = len(self._file.data) - (self._head - self._tail)
        return rows * _RECORD.size + size <= free

    def push(self, row: bytes, episode: bytes) -> int:
        """See `Spool`."""
        if not self._starts:
            self._rewind()
        fields = (self.end, len(row), len(episode))
        position = self._write(self._head, _RECORD.pack(*fields, _checksum(fields, row, episode)))
        position = self._write(self._write(position, row), episode)
        self._starts.append(self._head)
        self._head = self._file.counters[HEAD] = position
        self.end += 1
        return self.end - 1

    def rows_from(self, sequence: int, count: int) -> list[Spooled]:
        """See `Spool`."""
        start = sequence - self.first
        rows: list[Spooled] = []
        for position in islice(self._starts, start, start + count):
            fields = _RECORD.unpack(self._read(position, _RECORD.size))
            rows.append(self._contents(position, *fields[1:3]))
        return rows

    def acknowledge(self, following: int) -> bool:
        """See `Spool`."""
        count = max(following - self.first, 0)
        for _ in range(count):
            self._starts.popleft()
        self.first += count
        self._tail = self._starts[0] if self._starts else self._head
        self._file.counters[TAIL] = self._tail
        if not self._starts:
            self.left = None
        return count > 0

    def close(self) -> None:
        """See `Spool`.

        Raises:
            SpoolError: The rows that are left cannot be written to the disk.
        """
        self._file.close(remove=not self._starts)

    def _rewind(self) -> None:
        """Go on at the begin of the file.

        With a server that keeps up, the same few pages are then written again and again, and the
        disk is spared the rest. Until the next row moves the head, the file's tail is ahead of it.
        """
        self._tail = self._head = self._next_lap(self._head)
        self._file.counters[TAIL] = self._tail

    def _next_lap(self, position: int) -> int:
        capacity = len(self._file.data)
        return -(-position // capacity) * capacity

    def _write(self, position: int, data: bytes) -> int:
        """Copy into the ring, around its end if need be, and return the position after it."""
        ring = self._file.data
        at = position % len(ring)
        room = len(ring) - at
        if len(data) <= room:
            ring[at : at + len(data)] = data
        else:
            ring[at:] = data[:room]
            ring[: len(data) - room] = data[room:]
        return position + len(data)

    def _read(self, position: int, size: int) -> memoryview | bytes:
        """View `size` bytes; only those around the end of the ring are copied."""
        ring = self._file.data
        at = position % len(ring)
        room = len(ring) - at
        if size <= room:
            return ring[at : at + size]
        return bytes(ring[at:]) + bytes(ring[: size - room])

    def _contents(self, position: int, row_bytes: int, episode_bytes: int) -> Spooled:
        row_at = position + _RECORD.size
        return self._read(row_at, row_bytes), bytes(self._read(row_at + row_bytes, episode_bytes))

    def _recover(self) -> None:
        """Find the rows between tail and head, all of which must be as they were written."""
        used = self._head - self._tail
        if used <= 0:
            if self._tail not in (self._head, self._next_lap(self._head)):
                raise self._file.damaged(f"tail {self._tail}, head {self._head}")
            return
        if used > len(self._file.data):
            raise self._file.damaged(f"{used} bytes in use of {len(self._file.data)}")
        position = self._tail
        while position < self._head:
            sequence, following = self._check_record(position)
            if self._starts and sequence != self.end:
                raise self._file.damaged(f"row {sequence} follows row {self.end - 1}")
            self._starts.append(position)
            position, self.end = following, sequence + 1
        self.first = self.end - len(self._starts)
        self.left = OpenSession.from_bytes(self._file.read_session())

    def _check_record(self, position: int) -> tuple[int, int]:
        """Check a record and return its sequence and where the next one begins."""
        whole = f"{len(self._starts)} rows before it are whole"
        if self._head - position < _RECORD.size:
            raise self._file.damaged(f"a row is cut short; {whole}")
        sequence, row_bytes, episode_bytes, checksum = _RECORD.unpack(
            self._read(position, _RECORD.size)
        )
        following = position + _RECORD.size + row_bytes + episode_bytes
        if following > self._head:
            raise self._file.damaged(f"row {sequence} is cut short; {whole}")
        row, episode = self._contents(position, row_bytes, episode_bytes)
        if _checksum((sequence, row_bytes, episode_bytes), row, episode) != checksum:
            raise self._file.damaged(f"row {sequence} has another checksum; {whole}")
        return sequence, following


def size_for(rows: int, row_bytes: int) -> int:
    """Return the size of a ring file with room for so many rows of one episode."""
    return HEADER_BYTES + MAXIMUM_EPISODE_METADATA + rows * (_RECORD.size + row_bytes)


def check_size(size_bytes: int, *, rows: int, row_bytes: int) -> None:
    """Check that a ring file of this size can hold a whole episode of T + 1 rows.

    Raises:
        SpoolTooSmall: It cannot; says how large it must be.
    """
    needed = size_for(rows, row_bytes)
    if size_bytes < needed:
        raise SpoolTooSmall(
            f"the spool has no room for one episode of {rows} rows of {row_bytes} bytes",
            got=f"{size_bytes} bytes",
            expected=f">= {needed} bytes",
            hint=f"set replay.spool_bytes={needed} or more",
        )


def _checksum(fields: tuple[int, int, int], row: bytes | memoryview, episode: bytes) -> int:
    checksum = zlib.crc32(_FIELDS.pack(*fields))
    for part in (row, episode):
        view = memoryview(part)
        for at in range(0, len(view), _CHECKSUM_STEP):
            checksum = zlib.crc32(view[at : at + _CHECKSUM_STEP], checksum)
    return checksum
