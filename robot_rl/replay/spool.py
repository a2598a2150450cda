"""Buffer for an actor's rows until the server has committed them: a row file used as a ring.

A row is copied into the mapped file and counts as soon as the row counter moves past it. That takes
no system call, and a kill -9 loses at most the row being copied. A later process finds the
unacknowledged rows and the session they belong to.

    counters    sequence of the oldest row, of the next row, of slot 0; episodes so far
    room        a checksum for each slot; metadata of the latest episodes
    rows        sequence q lies in slot (q - sequence of slot 0) % slots
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import asdict

from robot_rl.data.schema import RowSchema, SchemaMismatch
from robot_rl.processes.files import is_in_place, locked
from robot_rl.replay import FileDamaged, RowRefused, SpoolError
from robot_rl.replay.episode_records import MAXIMUM_EPISODE_METADATA
from robot_rl.replay.protocol import Open, Opened
from robot_rl.replay.row_file import COUNTERS, RowFile, is_blank
from robot_rl.wire import WireError
from robot_rl.wire.messages import Frame, json_text

EPISODES = 512  # whose metadata fit
_EPISODE = np.dtype(
    [
        ("sequence", "<u8"),
        ("size", "<u4"),
        ("checksum", "<u4"),
        ("text", f"V{MAXIMUM_EPISODE_METADATA}"),
    ]
)
_DESCRIPTION_BYTES = 1 << 17  # of the session, with its schema
_FIRST, _END, _BASE, _EPISODES = range(4)
# Above 5 KB zlib releases the GIL, and the control loop would have to wait to get it back.
_CHECKSUM_STEP = 4096


class Spool:
    """Unacknowledged rows of one session, with consecutive sequences.

    One thread pushes; another reads and acknowledges. Callers share a lock over all calls, but
    the result of `rows_from` may be read without it until those rows are acknowledged. The file
    and its folder are created if absent; the file is removed if it is empty on close. Without a
    path the rows are in memory, and end with the process.

    Attributes:
        opening: Request that opened the session, and reopens it after a break.
        opened: The session, None before the first one.
        left: The session, if an earlier process left rows of it here; until another starts.
        first: Sequence of the oldest row.
        end: Sequence of the next row.

    Raises:
        SpoolError: Another process has the file open; it is not a spool file, or a row in it is
            damaged; it cannot be made or written.
    """

    def __init__(self, path: Path | None, size_bytes: int) -> None:
        self.place = "memory" if path is None else f"the spool {path}"
        self.opening: Open | None = None
        self.opened: Opened | None = None
        self.left: Opened | None = None
        self.first = self.end = 0
        self._size_bytes = size_bytes
        self._unmap()
        self._file = None if path is None else _open_locked(path)
        try:
            if self._file is not None and not is_blank(self._file.path):
                self._recover(self._file)
        except BaseException:
            self._release()
            raise

    def begin(self, opening: Open, opened: Opened) -> None:
        """Start another session in the empty spool; raises `SpoolError`."""
        assert self.first == self.end
        self.left = None
        row_bytes = _row_bytes(opening)
        check_size(self._size_bytes, rows=1, row_bytes=row_bytes)
        slots = (self._size_bytes - size_for(0, row_bytes)) // (row_bytes + 4)
        about = {"opening": asdict(opening), "opened": asdict(opened)}
        self._unmap()
        if self._file is None:
            header = mmap.PAGESIZE + _room(slots)
            data = memoryview(mmap.mmap(-1, header + slots * row_bytes))
        else:
            try:
                self._file.format(about, row_bytes, _room(slots), slots)
                data, header = self._file.map_all(), self._file.header_bytes
            except OSError as error:
                size = f"it takes {self._size_bytes} bytes; replay.spool_bytes makes it smaller"
                hint = f"free some space: {size}"
                raise SpoolError(f"{self.place} cannot be made", got=error, hint=hint) from error
        self._take(data, header, row_bytes, slots)
        self.opening, self.opened = opening, opened
        self.first = self.end = opened.next_sequence
        self._counters[_FIRST] = self._counters[_END] = self._counters[_BASE] = self.first

    def has_room(self, rows: int, *, begins: bool) -> bool:
        """Return whether `rows` rows of one episode fit, with its metadata if it begins."""
        fits = self.end - self.first + rows <= self._slots
        return fits and not (begins and len(self._facts) >= EPISODES)

    def push(self, row: Frame, episode: bytes) -> int:
        """Add a packed row for which there is room, and return its sequence.

        `episode` is the JSON metadata of an episode that starts with this row, else empty.
        """
        sequence = self.end
        if self.first == sequence:
            # Restart at slot 0: rewriting the same few pages also saves disk writes. The spool is
            # empty, so no row moves.
            self._counters[_BASE] = sequence
        slot = self._slot(sequence)
        self._rows[slot * self.row_bytes : (slot + 1) * self.row_bytes] = row
        if self._file is not None:  # memory ends with this process: it is never read by another
            self._checksums[slot] = _checksum(row)
        if episode:
            number = int(self._counters[_EPISODES])
            entry = self._entries[number % EPISODES]
            entry["sequence"], entry["size"] = sequence, len(episode)
            entry["checksum"], entry["text"] = _checksum(episode), episode
            self._counters[_EPISODES] = number + 1
            self._facts[sequence] = episode
        self.end = sequence + 1
        self._counters[_END] = self.end
        return sequence

    def rows_from(
        self, sequence: int, rows: int, size: int
    ) -> tuple[int, list[Frame], dict[int, bytes]]:
        """Return up to `rows` rows from `sequence` on, at most `size` bytes or else one row.

        Returns:
            Their number, their bytes, and metadata of the episodes that start there, by sequence.
        """
        end = min(self.end, sequence + min(rows, max(size // self.row_bytes, 1)))
        episodes = {s: text for s, text in self._facts.items() if sequence <= s < end}
        frames: list[Frame] = []
        at = sequence
        while at < end:
            slot = self._slot(at)
            count = min(end - at, self._slots - slot)
            frames.append(self._rows[slot * self.row_bytes : (slot + count) * self.row_bytes])
            at += count
        return at - sequence, frames, episodes

    def acknowledge(self, following: int) -> bool:
        """Drop the rows below `following`; return whether there were any."""
        if following <= self.first:
            return False
        self.first = following
        self._counters[_FIRST] = following
        for sequence in [s for s in self._facts if s < following]:
            del self._facts[sequence]
        return True

    def check_in_place(self) -> None:
        """Raise `SpoolError` if the file is no longer at its path."""
        if self._file is not None and not is_in_place(self._file.path, self._file.fileno()):
            raise SpoolError(
                f"{self.place} was moved, removed or replaced while it was used",
                got=f"{self.end - self.first} rows in it",
                hint="put it back, and start again",
            )

    def close(self) -> None:
        """Release the spool; raises `SpoolError` if remaining rows cannot be flushed to disk."""
        try:
            if self._file is not None and self.first == self.end:
                self._file.path.unlink(missing_ok=True)
            elif self._file is not None:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            raise SpoolError(f"{self.place} cannot be written", got=error) from error
        finally:
            self._release()

    def _slot(self, sequence: int) -> int:
        return (sequence - int(self._counters[_BASE])) % self._slots

    def _take(self, data: memoryview, rows: int, row_bytes: int, slots: int) -> None:
        """Use mapped memory, whose rows start at byte `rows`, the end of the room."""
        room, entries = rows - _room(slots), rows - _room(slots) + _room(0)
        self._counters = np.frombuffer(data[COUNTERS], "<u8")
        self._entries = np.frombuffer(data[room:entries], _EPISODE)
        self._checksums = np.frombuffer(data[entries : entries + 4 * slots], "<u4")
        self._rows = data[rows : rows + slots * row_bytes]
        self.row_bytes, self._slots = row_bytes, slots
        self._facts: dict[int, bytes] = {}

    def _recover(self, file: RowFile) -> None:
        """Find the unacknowledged rows and verify that all are intact."""
        try:
            file.read_header()
            opening = msgspec.convert(file.about["opening"], Open)
            opened = msgspec.convert(file.about["opened"], Opened)
            row_bytes = _row_bytes(opening)
        except (FileDamaged, KeyError, msgspec.ValidationError, SchemaMismatch) as error:
            raise self._damaged(error) from error
        size, header = os.fstat(file.fileno()).st_size, file.header_bytes
        slots, rest = divmod(size - header, row_bytes)
        if slots < 1 or rest or _room(slots) + COUNTERS.stop > header:
            raise self._damaged(f"{size} bytes: another length than it was made with")
        self._take(file.map_all(), header, row_bytes, slots)
        self.first, self.end = int(self._counters[_FIRST]), int(self._counters[_END])
        if not self._counters[_BASE] <= self.first <= self.end <= self.first + slots:
            raise self._damaged(f"rows {self.first} to {self.end}")
        for sequence in range(self.first, self.end):
            slot = self._slot(sequence)
            row = self._rows[slot * row_bytes : (slot + 1) * row_bytes]
            if _checksum(row) != self._checksums[slot]:
                whole = f"{sequence - self.first} rows before it are whole"
                raise self._damaged(f"row {sequence} has another checksum; {whole}")
        newest = int(self._counters[_EPISODES])
        for number in range(max(newest - EPISODES, 0), newest):
            entry = self._entries[number % EPISODES]
            if self.first <= entry["sequence"] < self.end:
                text = entry["text"].tobytes()[: entry["size"]]
                if _checksum(text) != entry["checksum"]:
                    raise self._damaged(f"the metadata of the episode at row {entry['sequence']}")
                self._facts[int(entry["sequence"])] = text
        if self.end > self.first:
            self.opening = opening
            self.left = self.opened = opened

    def _damaged(self, what: object) -> SpoolError:
        return SpoolError(
            f"{self.place} is damaged or no spool",
            got=what,
            hint="nothing of it was sent or changed; to go on without the rows in it, move it away",
        )

    def _unmap(self) -> None:
        """Release the memory; it is unmapped with the last view of a row in it."""
        empty = np.empty(0, "<u8")
        self._counters, self._entries, self._checksums = empty, empty, empty
        self._rows = memoryview(b"")
        self._slots = self.row_bytes = 0
        self._facts = {}

    def _release(self) -> None:
        self._unmap()
        if self._file is not None:
            self._file.close()
            self._file = None


def _room(slots: int) -> int:
    return _EPISODE.itemsize * EPISODES + 4 * slots


def _row_bytes(opening: Open) -> int:
    return RowSchema.from_json(opening.schema).dtype.itemsize


def size_for(rows: int, row_bytes: int) -> int:
    """Return the size of a spool with room for `rows` rows of one episode."""
    return _DESCRIPTION_BYTES + mmap.PAGESIZE + _room(rows) + rows * row_bytes


def check_size(size_bytes: int, *, rows: int, row_bytes: int) -> None:
    """Raise `SpoolError` if a spool of this size cannot hold an episode of T + 1 rows."""
    needed = size_for(rows, row_bytes)
    if size_bytes < needed:
        raise SpoolError(
            f"the spool has no room for one episode of {rows} rows of {row_bytes} bytes",
            got=f"{size_bytes} bytes",
            expected=f">= {needed} bytes",
            hint=f"set replay.spool_bytes={needed} or more",
        )


def metadata_bytes(episode: Mapping[str, object] | None) -> bytes:
    """Return an episode's metadata as stored in a spool; raises `RowRefused`."""
    if not episode:
        return b""
    try:
        return json_text(episode, MAXIMUM_EPISODE_METADATA)
    except WireError as error:
        raise RowRefused("episode metadata cannot be sent", got=error) from error


def _open_locked(path: Path) -> RowFile:
    """Open and lock the file; the system unlocks it when the process ends for any reason."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolError(f"the spool {path} cannot be opened", got=error) from error
        file = RowFile(path, descriptor)
        if not locked(descriptor):
            file.close()
            raise SpoolError(
                f"another process uses the spool {path}", hint="stop it, or wait until it has ended"
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return file
        file.close()  # its owner removed it, empty, between opening and locking


def _checksum(data: Frame) -> int:
    checksum, view = 0, memoryview(data)
    for at in range(0, len(view), _CHECKSUM_STEP):
        checksum = zlib.crc32(view[at : at + _CHECKSUM_STEP], checksum)
    return checksum
