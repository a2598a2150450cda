"""The files of rows of all sessions, for the store's one writer: appending, and who goes first."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from robot_rl.processes.files import flush_to_disk, locked
from robot_rl.replay.errors import CapacityRefused, StoreError, StoreFull, StoreInUse
from robot_rl.replay.records import EpisodeRecord, SessionKey
from robot_rl.replay.row_file import RowFile, disk_is_full, no_room
from robot_rl.replay.segments import Segment

SEGMENT_BYTES = 256 << 20
# A segment takes at most so much of the capacity: by so much less may be kept.
_CAPACITY_PARTS = 16


@dataclass(frozen=True)
class Capacity:
    """How much a store keeps; None stands for no limit.

    When it holds more, its oldest segments go, whole; those of demonstrations never, nor one in
    which an episode is open.

    Attributes:
        rows: Most rows, of all tables together.
        bytes: Most bytes of them.
    """

    rows: int | None = None
    bytes: int | None = None

    def check(self) -> None:
        """Check the numbers.

        Raises:
            CapacityRefused: One is out of range.
        """
        for name, value in (("capacity_rows", self.rows), ("capacity_bytes", self.bytes)):
            if value is not None and (type(value) is not int or value < 1):
                raise CapacityRefused(
                    f"{name} is out of range", got=value, expected="a whole number >= 1, or null"
                )


NO_LIMIT = Capacity()


@dataclass
class WrittenSegment:
    """A segment, and how far it is written.

    Attributes:
        segment: Where it is.
        row_bytes: Of one row.
        rows: How many it has.
        of_demonstrations: Whether its episodes are.
        oldest: Identifier of its first episode.
    """

    segment: Segment
    row_bytes: int
    rows: int = 0
    of_demonstrations: bool = False
    oldest: int = 0
    _file: RowFile | None = None
    _facts: io.FileIO | None = None

    @property
    def end(self) -> int:
        """Sequence behind its last row."""
        return self.segment.first + self.rows

    def append(
        self, identity: str, rows: Sequence[memoryview], begins: EpisodeRecord | None
    ) -> int:
        """Append rows of one episode; return how many the disk took.

        Args:
            identity: The store's.
            rows: The packed rows.
            begins: The episode, if it begins with them.

        Raises:
            OSError: It took none, and why.
        """
        if self._file is None or self._facts is None:
            self._file = self.segment.open(identity, write=True)
            self._facts = io.FileIO(self.segment.episodes_path, "a")
        if begins is not None and begins.metadata:
            facts = [begins.first_sequence, dict(begins.metadata)]
            # A line that was cut off ends with the next one's begin.
            self._facts.write(b"\n" + json.dumps(facts).encode())
        written = self._file.append(rows)
        self.rows += written
        return written

    def sync(self) -> None:
        """Wait until its rows and episodes are on the disk."""
        for opened in (self._facts, self._file):
            if opened is not None:
                os.fdatasync(opened.fileno())

    def close(self) -> None:
        """Close its files."""
        for opened in (self._facts, self._file):
            if opened is not None:
                opened.close()
        self._file = self._facts = None


class SessionFiles:
    """The segments of a store, by session.

    Args:
        store: Folder of the store.
        identity: The store's.
        capacity: How much is to be kept, which bounds the size of a segment.
        durable: Whether a new file is to be on the disk before it is used.
        describe: Says of a session what the header of its files tells, for whoever rebuilds the
            catalogue: table, schema, metadata, owner and evicted totals.
    """

    def __init__(
        self,
        store: Path,
        identity: str,
        capacity: Capacity,
        *,
        durable: bool,
        describe: Callable[[SessionKey], Mapping[str, object]],
    ) -> None:
        """Know no segment yet; see the class."""
        self._store, self._identity, self._durable = store, identity, durable
        self._describe = describe
        self._segments: dict[SessionKey, list[WrittenSegment]] = {}
        self._touched: list[WrittenSegment] = []
        self._most_bytes = min(SEGMENT_BYTES, (capacity.bytes or 1 << 62) // _CAPACITY_PARTS)
        self._most_rows = (capacity.rows or 1 << 62) // _CAPACITY_PARTS

    def add(self, segment: WrittenSegment) -> None:
        """Take a segment that is there already; those of a session in order."""
        self._segments.setdefault(segment.segment.key, []).append(segment)

    def of_session(self, key: SessionKey) -> list[WrittenSegment]:
        """Return the segments of a session in order."""
        return self._segments.get(key, [])

    def append(
        self,
        key: SessionKey,
        rows: Sequence[memoryview],
        begins: EpisodeRecord | None,
    ) -> int:
        """Append rows of one episode to the segment that is its place; return how many it took.

        Raises:
            OSError: It took none, and why.
        """
        segments = self._segments.setdefault(key, [])
        if not segments or (begins is not None and self._is_full(segments[-1], begins)):
            assert begins is not None
            segments.append(self._begin(key, len(rows[0]), begins))
        last = segments[-1]
        if self._durable and last not in self._touched:
            self._touched.append(last)
        return last.append(self._identity, rows, begins)

    def sync(self) -> None:
        """Wait until all that was appended is on the disk, where that was asked for.

        Raises:
            OSError: The disk failed.
        """
        touched, self._touched = self._touched, []
        for segment in touched:
            segment.sync()

    def rows_from(
        self, key: SessionKey, sequence: int, dtype: npt.DTypeLike
    ) -> npt.NDArray[np.void]:
        """Map the rows of a session from a sequence on, to the end of the segment that has it."""
        (found,) = (s for s in self._segments[key] if s.segment.first <= sequence < s.end)
        return found.segment.rows(self._identity, dtype)[sequence - found.segment.first :]

    def has_rows(self, key: SessionKey, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell which sequences of a session are there."""
        there = np.zeros(len(sequences), np.bool_)
        for segment in self._segments.get(key, []):
            there |= (sequences >= segment.segment.first) & (sequences < segment.end)
        return there

    def oldest(self, kept_episodes: Collection[EpisodeRecord]) -> WrittenSegment | None:
        """Return the segment that goes next, None where none may.

        Args:
            kept_episodes: Episodes whose segments stay.
        """
        kept = {(e.session_key, e.first_sequence) for e in kept_episodes}
        candidates = [
            segment
            for key, segments in self._segments.items()
            for segment in segments
            if segment.rows
            and not segment.of_demonstrations
            and not any(k == key and segment.segment.first <= at < segment.end for k, at in kept)
        ]
        return min(candidates, key=lambda segment: segment.oldest, default=None)

    def remove(self, segment: WrittenSegment) -> None:
        """Remove a segment; who has mapped it goes on reading."""
        segment.close()
        self._segments[segment.segment.key].remove(segment)
        segment.segment.remove()

    def close_session(self, key: SessionKey) -> None:
        """Close the files of a session to which nothing is added any more."""
        for segment in self._segments.get(key, []):
            segment.close()

    def close(self) -> None:
        """Close all files; what was not forced to the disk is, best effort."""
        for segments in self._segments.values():
            for segment in segments:
                with suppress(OSError):
                    segment.sync()
                segment.close()

    def _is_full(self, last: WrittenSegment, begins: EpisodeRecord) -> bool:
        """Whether an episode must begin a further segment."""
        return (
            last.of_demonstrations != begins.is_demonstration
            or last.rows * last.row_bytes >= self._most_bytes
            or last.rows >= self._most_rows
        )

    def _begin(self, key: SessionKey, row_bytes: int, begins: EpisodeRecord) -> WrittenSegment:
        self.close_session(key)
        segment = Segment.of(self._store, key, begins.first_sequence)
        about = {
            "store": self._identity,
            "session": list(key),
            "first": begins.first_sequence,
            "created_ns": time.time_ns(),
            **self._describe(key),
        }
        segment.path.parent.mkdir(exist_ok=True)
        RowFile.create(segment.path, about, row_bytes).close()
        if self._durable:
            flush_to_disk(segment.path)
            flush_to_disk(segment.path.parent)
        return WrittenSegment(
            segment,
            row_bytes,
            of_demonstrations=begins.is_demonstration,
            oldest=begins.identifier,
        )


def write_error(error: OSError, store: Path) -> StoreError:
    """Say what a failed write to a store means: a full disk is `StoreFull`."""
    if not disk_is_full(error):
        return StoreError(
            f"the store {store} cannot be written",
            got=error,
            hint="see that the folder can be written, and that its disk is sound",
        )
    return no_room(StoreFull, store, "free some space; nothing that was acknowledged is lost")


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
        raise StoreError(
            f"the store {path} cannot be opened", got=error, hint="see that it can be written"
        ) from error
    if not locked(file.fileno()):
        file.close()
        raise StoreInUse(
            f"another replay server is writing the store {path}",
            hint="stop it, or give this server another folder",
        )
    return file
