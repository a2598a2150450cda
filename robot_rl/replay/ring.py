"""Rows in a ring file: a spool that outlives its process, however that ends.

A row is copied into the mapped file and counts from the moment at which the header's head is
moved past it: no system call, and a kill -9 loses at most the row that is being copied. A later
process finds the rows that were not acknowledged, and whose they are.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from robot_rl.replay.errors import SpoolTooSmall
from robot_rl.replay.ring_file import HEAD, HEADER_BYTES, TAIL, RingFile
from robot_rl.replay.row_ring import RowRing, Stretch
from robot_rl.replay.spool import OpenSession
from robot_rl.wire.messages import MAXIMUM_EPISODE_METADATA, Frame

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

    gap = _RECORD.size

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Open or make the file, and find what an earlier process left in it."""
        check_size(size_bytes, rows=1, row_bytes=0)
        self.place = f"the spool {path}"
        self.first = self.end = 0
        self.left: OpenSession | None = None
        self._size_bytes = size_bytes
        self._file = RingFile(path, size_bytes)
        self._ring = RowRing(self._file.data, self.gap)
        try:
            self._recover()
        except BaseException:
            self._release(remove=False)
            raise

    def begin(self, session: OpenSession) -> None:
        """See `Spool`."""
        assert not len(self._ring)
        self.left = None
        if self._file.size_bytes != self._size_bytes:
            self._ring.release()
            self._file.format(self._size_bytes)
            self._ring = RowRing(self._file.data, self.gap)
        self._file.write_session(session.to_bytes())
        self.first = self.end = session.next_sequence

    def has_room(self, rows: int, size: int) -> bool:
        """See `Spool`."""
        return rows * self.gap + size <= self._ring.free

    def push(self, parts: Sequence[Frame], episode: bytes) -> int:
        """See `Spool`."""
        if not len(self._ring):
            # Spares the disk too. Until the next row moves the head, the tail is ahead of it.
            self._ring.rewind()
            self._file.counters[TAIL] = self._ring.tail
        fields = (self.end, sum(map(len, parts)), len(episode))
        checksum = _checksum(fields, [*parts, episode])
        self._ring.put(_RECORD.pack(*fields, checksum), parts, episode)
        self._file.counters[HEAD] = self._ring.head
        self.end += 1
        return self.end - 1

    def rows_from(self, sequence: int, rows: int, size: int) -> list[Stretch]:
        """See `Spool`."""
        return self._ring.stretches(sequence - self.first, rows, size)

    def acknowledge(self, following: int) -> bool:
        """See `Spool`."""
        count = max(following - self.first, 0)
        self._ring.forget(count)
        self.first += count
        self._file.counters[TAIL] = self._ring.tail
        if not len(self._ring):
            self.left = None
        return count > 0

    def close(self) -> None:
        """See `Spool`.

        Raises:
            SpoolError: The rows that are left cannot be written to the disk.
        """
        self._release(remove=not len(self._ring))

    def _release(self, *, remove: bool) -> None:
        self._ring.release()
        self._file.close(remove=remove)

    def _recover(self) -> None:
        """Find the rows between tail and head, all of which must be as they were written."""
        ring = self._ring
        ring.tail, head = self._file.counters[TAIL], self._file.counters[HEAD]
        ring.head = ring.tail
        used = head - ring.tail
        if used <= 0:
            if ring.tail not in (head, ring.next_lap(head)):
                raise self._file.damaged(f"tail {ring.tail}, head {head}")
            return
        if used > len(self._file.data):
            raise self._file.damaged(f"{used} bytes in use of {len(self._file.data)}")
        while ring.head < head:
            sequence, sizes = self._check_record(ring.head, head)
            if len(ring) and sequence != self.end:
                raise self._file.damaged(f"row {sequence} follows row {self.end - 1}")
            ring.found(*sizes)
            self.end = sequence + 1
        self.first = self.end - len(ring)
        self.left = OpenSession.from_bytes(self._file.read_session())

    def _check_record(self, position: int, head: int) -> tuple[int, tuple[int, int]]:
        """Check a record and return its sequence and the bytes of row and metadata."""
        whole = f"{len(self._ring)} rows before it are whole"
        if head - position < _RECORD.size:
            raise self._file.damaged(f"a row is cut short; {whole}")
        sequence, row_bytes, episode_bytes, checksum = _RECORD.unpack(
            self._ring.read(position, _RECORD.size)
        )
        size = row_bytes + episode_bytes
        if position + _RECORD.size + size > head:
            raise self._file.damaged(f"row {sequence} is cut short; {whole}")
        contents = self._ring.read(position + _RECORD.size, size)
        if _checksum((sequence, row_bytes, episode_bytes), [contents]) != checksum:
            raise self._file.damaged(f"row {sequence} has another checksum; {whole}")
        return sequence, (row_bytes, episode_bytes)


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


def _checksum(fields: tuple[int, int, int], parts: Sequence[Frame]) -> int:
    checksum = zlib.crc32(_FIELDS.pack(*fields))
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _CHECKSUM_STEP):
            checksum = zlib.crc32(view[at : at + _CHECKSUM_STEP], checksum)
    return checksum
