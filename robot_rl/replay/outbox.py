"""What a client's threads share: rows not yet acknowledged, and requests not yet answered."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from robot_rl.errors import RobotRLError
from robot_rl.replay.errors import ClientFailed
from robot_rl.replay.sessions import OpenSession
from robot_rl.replay.spool import Spool
from robot_rl.wire.errors import KeysRefused, ServerUnreachable, WireError
from robot_rl.wire.messages import Frame, Numbered, Payload

_Answer = TypeVar("_Answer", bound=Numbered)


@dataclass
class Request:
    """One question to the server.

    Attributes:
        message: Without the request number, which the link adds.
        payload: Raw frames.
        wait: Seconds that the answer may take while the connection stands.
        answer: The answer with its payload, or the error, once there.
        sent_at: Steady time at which it was last sent, None before.
    """

    message: Numbered
    payload: Sequence[Frame] = ()
    wait: float = 0.0
    answer: tuple[Numbered, Payload] | RobotRLError | None = None
    sent_at: float | None = None


class Outbox:
    """The shared state and its lock; a write to its pipe wakes the link.

    Rows that an earlier process left in the spool are the first to be sent.

    Attributes:
        condition: Guards everything here; notified on every change that a caller may wait for.
        spool: The rows.
        session: Whose rows these are; None before the first session.
        requests: By number.
        failure: What ended the link.
        problem: Why rows are not getting through at the moment.
    """

    def __init__(self, spool: Spool) -> None:
        """Start without requests or failure."""
        self.condition = threading.Condition()
        self.spool = spool
        self.session: OpenSession | None = spool.left
        self.requests: dict[int, Request] = {}
        self._next_request = 1
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
        self.condition.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Record what ended the link and wake every waiting caller."""
        with self.condition:
            self.failure = failure
            self._say_what_waits(failure)
            self.condition.notify_all()

    def _say_what_waits(self, failure: BaseException) -> None:
        """Add to the server's answer where the rows are that it does not take."""
        if self.spool.left is not None and isinstance(failure, RobotRLError):
            failure.args = (
                f"{failure}; {self.spool.end - self.spool.first} rows of an earlier process stay"
                f" in {self.spool.place}; next: serve the store that they are for, or, to go on"
                " without them, move the file away",
            )

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

    def wait_for(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until something is so; return whether it is after at most `timeout` seconds.

        The wait ends early when the client is closed.

        Raises:
            RobotRLError: What ended the link; see `check`.
        """
        with self.condition:
            if not done():
                self.wake()
            self.condition.wait_for(
                lambda: done() or self.failure is not None or self.closing, timeout
            )
            self.check()
            return done()

    def ask(
        self, request: Request, expected: type[_Answer], timeout: float
    ) -> tuple[_Answer, Payload]:
        """Hand a request to the link and wait for its answer, which is of the kind `expected`.

        Raises:
            KeysRefused: The server and this client do not accept each other's keys.
            ServerUnreachable: No answer within `timeout` seconds, or before the client was closed.
            RobotRLError: What the server answered.
        """
        with self.condition:
            self.check()
            number = self._next_request
            self._next_request += 1
            self.requests[number] = request
            self.wake()
        try:
            self.wait_for(lambda: request.answer is not None or self._is_refused(), timeout)
        finally:
            with self.condition:
                self.requests.pop(number, None)
        if request.answer is None:
            if self._is_refused():
                raise KeysRefused(str(self.problem)) from self.problem
            if self.closing:
                raise ServerUnreachable("the replay client was closed before the answer came")
            raise ServerUnreachable(
                f"the replay server did not answer within {timeout:g} s",
                got=self.problem,
                hint="see that the replay server runs",
            )
        if isinstance(request.answer, RobotRLError):
            raise request.answer
        answer, payload = request.answer
        if not isinstance(answer, expected):
            raise WireError(
                "the server has answered something else",
                got=type(answer).__name__,
                expected=expected.__name__,
            )
        return answer, payload

    def _is_refused(self) -> bool:
        return isinstance(self.problem, KeysRefused)

    def release(self) -> None:
        """Close the pipe and the spool.

        Raises:
            SpoolError: The rows that are left cannot be written to the disk.
        """
        os.close(self.wake_read)
        os.close(self._wake_write)
        self.spool.close()
