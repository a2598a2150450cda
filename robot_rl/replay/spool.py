"""Where rows wait until the server has committed them: what every spool does, and one in memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from robot_rl.replay.errors import RowRefused
from robot_rl.replay.row_ring import RowRing, Stretch
from robot_rl.wire.errors import WireError
from robot_rl.wire.messages import MAXIMUM_EPISODE_METADATA, Frame, json_text


@dataclass(frozen=True)
class OpenSession:
    """The session that a client writes.

    Attributes:
        table: Number of its table.
        actor: Number of the actor.
        number: Number of the session.
        owner: Token with which it can be gone on with.
        next_sequence: Rows that it had when it was opened.
        in_episode: Whether an episode was open then.
        ended: Whether only that episode's row with ``is_last`` was missing.
        header: What opens it again after a break.
        store: Identity of the store that it is in; empty where an older server did not tell.
    """

    table: int
    actor: int
    number: int
    owner: str
    next_sequence: int
    in_episode: bool
    ended: bool
    header: Mapping[str, object]
    store: str = ""

    def to_bytes(self) -> bytes:
        """Serialise as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> OpenSession:
        """Read what `to_bytes` wrote."""
        return cls(**json.loads(data))


class Spool(Protocol):
    """Unacknowledged rows of one session, with consecutive sequences.

    One thread pushes; another reads and acknowledges. Callers share a lock over all calls, but
    what `rows_from` returned may be read without it until those rows are acknowledged.

    Attributes:
        first: Sequence of the oldest row.
        end: Sequence of the next row.
        gap: Bytes between two rows of a stretch.
        place: Where the rows are, for messages.
        left: The session whose rows an earlier process left here; None without any.
    """

    first: int
    end: int
    gap: int
    place: str
    left: OpenSession | None

    def begin(self, session: OpenSession) -> None:
        """Begin another session; the spool must be empty."""

    def has_room(self, rows: int, size: int) -> bool:
        """Return whether so many more rows fit, with `size` bytes of rows and metadata in all."""

    def push(self, parts: Sequence[Frame], episode: bytes) -> int:
        """Add a row for which there is room, given in parts, and return its sequence."""

    def rows_from(self, sequence: int, rows: int, size: int) -> list[Stretch]:
        """Return up to so many rows from `sequence` on, with at most `size` bytes or only one."""

    def acknowledge(self, following: int) -> bool:
        """Forget the rows below `following`; return whether there were any."""

    def close(self) -> None:
        """Release what the spool holds; a second call does nothing."""


class MemorySpool:
    """Rows in memory: they end with the process.

    Args:
        maximum_rows: Most rows it holds.
        maximum_bytes: Most bytes it holds; memory is taken when it is needed for the first time.
    """

    gap = 0
    place = "memory"
    left: OpenSession | None = None

    def __init__(self, maximum_rows: int, maximum_bytes: int) -> None:
        """Start empty at sequence 0."""
        self.maximum_rows = maximum_rows
        self.first = self.end = 0
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._ring = RowRing(memoryview(mmap.mmap(-1, maximum_bytes, private)))

    def begin(self, session: OpenSession) -> None:
        """See `Spool`."""
        self.first = self.end = session.next_sequence

    def has_room(self, rows: int, size: int) -> bool:
        """See `Spool`."""
        return size <= self._ring.free and len(self._ring) + rows <= self.maximum_rows

    def push(self, parts: Sequence[Frame], episode: bytes) -> int:
        """See `Spool`."""
        if not len(self._ring):
            self._ring.rewind()
        self._ring.put(b"", parts, episode)
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
        return count > 0

    def close(self) -> None:
        """See `Spool`."""
        self._ring.release()


def metadata_bytes(episode: Mapping[str, object] | None) -> bytes:
    """Return an episode's metadata as they wait in a spool; nothing for none.

    Raises:
        RowRefused: They are not JSON, or too large.
    """
    if not episode:
        return b""
    try:
        return json_text(episode, MAXIMUM_EPISODE_METADATA)
    except WireError as error:
        raise RowRefused("episode metadata cannot be sent", got=error) from error
