"""What a client's threads share: rows not yet acknowledged, and requests not yet answered."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from robot_rl.errors import RobotRLError
from robot_rl.replay.errors import ClientFailed
from robot_rl.replay.wire import Kind, Message

Spooled = tuple[bytes, Mapping[str, object] | None]


class Spool:
    """Rows in memory that the server has not acknowledged yet, with consecutive sequences.

    Args:
        maximum_rows: Most rows it holds.
        maximum_bytes: Most bytes it holds.
    """

    def __init__(self, maximum_rows: int, maximum_bytes: int) -> None:
        """Start empty at sequence 0."""
        self.maximum_rows, self.maximum_bytes = maximum_rows, maximum_bytes
        self.first = 0
        self._rows: deque[Spooled] = deque()
        self._size = 0

    @property
    def end(self) -> int:
        """Sequence of the next row."""
        return self.first + len(self._rows)

    def restart(self, sequence: int) -> None:
        """Begin another session at `sequence`; the spool must be empty."""
        self.first = sequence

    def has_room(self, rows: int, row_size: int) -> bool:
        """Return whether so many more rows fit."""
        size = self._size + rows * row_size
        return len(self._rows) + rows <= self.maximum_rows and size <= self.maximum_bytes

    def push(self, row: bytes, episode: Mapping[str, object] | None) -> int:
        """Add a row and return its sequence."""
        self._rows.append((row, episode))
        self._size += len(row)
        return self.end - 1

    def rows_from(self, sequence: int, count: int) -> list[Spooled]:
        """Return up to `count` rows from `sequence` on."""
        start = sequence - self.first
        return list(islice(self._rows, start, start + count))

    def acknowledge(self, following: int) -> bool:
        """Forget the rows below `following`; return whether there were any."""
        count = following - self.first
        for _ in range(count):
            self._size -= len(self._rows.popleft()[0])
        self.first += max(count, 0)
        return count > 0


@dataclass
class Request:
    """One question to the server.

    Attributes:
        kind: Its message kind.
        header: Without the request number, which the link adds.
        payload: Raw frames.
        wait: Seconds that the server may hold its answer back.
        answer: The answer or the error, once there.
        sent_at: Steady time at which it was last sent, None before.
    """

    kind: Kind
    header: Mapping[str, object]
    payload: Sequence[bytes] = ()
    wait: float = 0.0
    answer: Message | RobotRLError | None = None
    sent_at: float | None = None


@dataclass(frozen=True)
class OpenSession:
    """The session that the client writes.

    Attributes:
        table: Number of its table.
        actor: Number of the actor.
        number: Number of the session.
        owner: Token with which it can be gone on with.
        next_sequence: Rows that it had when it was opened.
        in_episode: Whether an episode was open then.
        ended: Whether only that episode's row with ``is_last`` was missing.
        header: What opens it again after a break.
    """

    table: int
    actor: int
    number: int
    owner: str
    next_sequence: int
    in_episode: bool
    ended: bool
    header: Mapping[str, object]


class Outbox:
    """The shared state and its lock; a write to its pipe wakes the link.

    Attributes:
        condition: Guards everything here; notified on every change that a caller may wait for.
        failure: What ended the link.
        problem: Why rows are not getting through at the moment.
    """

    def __init__(self, spool: Spool) -> None:
        """Start without session, requests or failure."""
        self.condition = threading.Condition()
        self.spool = spool
        self.session: OpenSession | None = None
        self.requests: dict[int, Request] = {}
        self.failure: BaseException | None = None
        self.problem: RobotRLError | None = None
        self.closing = False
        self._awake = False
        self.wake_read, self._wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)

    def wake(self) -> None:
        """Wake the link. Call with the condition held."""
        if not self._awake and not self.closing:
            self._awake = True
            os.write(self._wake_write, b"\0")

    def clear_wake(self) -> None:
        """Take note of a wake-up, before looking at what changed."""
        with self.condition:
            if self._awake:
                os.read(self.wake_read, 1)
                self._awake = False

    def finish(self) -> None:
        """Ask the link to end. Call with the condition held."""
        self.wake()
        self.closing = True

    def fail(self, failure: BaseException) -> None:
        """Record what ended the link and wake every waiting caller."""
        with self.condition:
            self.failure = failure
            self.condition.notify_all()

    def check(self) -> None:
        """Raise what ended the link. Call with the condition held.

        Raises:
            RobotRLError: What the server answered.
            ClientFailed: The thread died of something else.
        """
        if isinstance(self.failure, RobotRLError):
            raise self.failure
        if self.failure is not None:
            raise ClientFailed(
                "the replay client's thread has died", got=repr(self.failure)
            ) from self.failure

    def release(self) -> None:
        """Close the pipe."""
        os.close(self.wake_read)
        os.close(self._wake_write)
