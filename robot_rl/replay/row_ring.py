"""Rows one after the other in a memory that is used in a circle."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from robot_rl.wire.messages import Frame


class Stretch(NamedTuple):
    """Rows of one size that lie one after the other, so that they can be sent uncopied.

    Attributes:
        data: Their bytes, and those of the gap between each two.
        rows: How many.
        episode: JSON of the metadata of the episode that the last row begins, if it does.
    """

    data: Frame
    rows: int
    episode: bytes

    def row_bytes(self, gap: int) -> int:
        """Return the size of one row, with so many bytes between two."""
        return (len(self.data) + gap) // self.rows - gap


class _Place(NamedTuple):
    """Where a row lies: its record's position, the row's own, and the sizes of row and metadata."""

    record: int
    row: int
    size: int
    episode: int


class RowRing:
    """Records in a circle, each of a head, a row and the metadata of the episode it begins.

    Positions count on from lap to lap; they meet the memory modulo its size.

    Args:
        data: The memory.
        gap: Bytes of the head of a record, which lies between two rows.

    Attributes:
        tail: Position of the oldest record.
        head: Position behind the newest one.
    """

    def __init__(self, data: memoryview, gap: int = 0) -> None:
        """Start empty at position 0."""
        self._data, self._gap = data, gap
        self.tail = self.head = 0
        self._places: deque[_Place] = deque()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._places)

    @property
    def free(self) -> int:
        """Bytes that are not in use."""
        return len(self._data) - (self.head - self.tail)

    def put(self, head: bytes, parts: Sequence[Frame], episode: bytes) -> None:
        """Add a record for which there is room; one that cannot be copied counts for nothing."""
        start = end = self._write(self.head, head)
        for part in parts:
            end = self._write(end, part)
        after = self._write(end, episode)
        self._places.append(_Place(self.head, start, end - start, after - end))
        self.head = after

    def found(self, row_bytes: int, episode_bytes: int) -> None:
        """Take note of a record that is there already, behind the newest one."""
        row = self.head + self._gap
        self._places.append(_Place(self.head, row, row_bytes, episode_bytes))
        self.head = row + row_bytes + episode_bytes

    def forget(self, count: int) -> None:
        """Give up the oldest records."""
        for _ in range(count):
            self._places.popleft()
        self.tail = self._places[0].record if self._places else self.head

    def rewind(self) -> None:
        """Go on at the begin of the memory; there must be no record.

        With a server that keeps up, the same few pages are then written again and again.
        """
        self.tail = self.head = self.next_lap(self.head)

    def next_lap(self, position: int) -> int:
        """Return the next position, or this one, that is at the begin of the memory."""
        capacity = len(self._data)
        return -(-position // capacity) * capacity

    def stretches(self, start: int, rows: int, size: int) -> list[Stretch]:
        """Return rows from number `start` on.

        Args:
            start: Counted from the oldest.
            rows: Most rows.
            size: Most bytes of rows, unless the first one alone is larger.
        """
        found: list[Stretch] = []
        index, stop = start, min(start + rows, len(self._places))
        while index < stop and (size >= self._places[index].size or not found):
            first = last = self._places[index]
            begin = index
            while True:
                index, size = index + 1, size - last.size
                if index == stop or not self._follows(self._places[index], last, size):
                    break
                last = self._places[index]
            end = last.row + last.size
            metadata = bytes(self.read(end, last.episode)) if last.episode else b""
            found.append(Stretch(self.read(first.row, end - first.row), index - begin, metadata))
        return found

    def read(self, position: int, size: int) -> Frame:
        """View `size` bytes; only those around the end of the memory are copied."""
        at = position % len(self._data)
        room = len(self._data) - at
        if size <= room:
            return self._data[at : at + size]
        return bytes(self._data[at:]) + bytes(self._data[: size - room])

    def release(self) -> None:
        """Let go of the memory."""
        self._data = memoryview(b"")

    def _write(self, position: int, data: Frame) -> int:
        """Copy to the ring, around its end if need be, and return the position after it."""
        ring = self._data
        at = position % len(ring)
        room = len(ring) - at
        if len(data) <= room:
            ring[at : at + len(data)] = data
        else:
            ring[at:] = data[:room]
            ring[: len(data) - room] = data[room:]
        return position + len(data)

    def _follows(self, place: _Place, before: _Place, size: int) -> bool:
        """Whether a row of at most `size` bytes follows, without a break, the one before it."""
        capacity = len(self._data)
        return (
            place.size == before.size <= size
            and not before.episode
            and before.row % capacity + (place.row - before.row) + place.size <= capacity
        )
