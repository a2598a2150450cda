"""The one way to wait for something to come true: never in a control loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")
# A wait for another process is reported after this time, if it is also so many times the longest
# wait before.
QUIET_SECONDS, _UNUSUAL = 60.0, 3.0


def wait_until(reached: Callable[[], _Found], timeout_s: float, *, every_s: float = 0.02) -> _Found:
    """Ask again and again until the answer is true; returns the last one.

    It is asked at least once; that is false in a condition only where the time has run out. What
    `reached` raises ends the waiting. Times are of the steady clock [s].
    """
    deadline = time.monotonic() + timeout_s
    while True:
        overdue = time.monotonic() > deadline
        answer = reached()
        if answer or overdue:
            return answer
        time.sleep(every_s)


class QuietWait:
    """Says once what is waited for, when that takes long: also longer than it usually does here."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began: float | None = None
        self._said, self._longest = False, 0.0

    def goes_on(self, what: str) -> None:
        """Called again and again while `what` is waited for."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        waited = now - self._began
        if not self._said and waited > max(QUIET_SECONDS, _UNUSUAL * self._longest):
            self._said = True
            self._say(f"waiting for {what}")

    def ends(self) -> None:
        """Called when it has come, so that the next wait is measured by this one."""
        if self._began is not None:
            self._longest = max(self._longest, time.monotonic() - self._began)
        self._began, self._said = None, False
