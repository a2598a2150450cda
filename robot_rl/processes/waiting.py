"""Poll for a condition with a timeout. Do not use in a control loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")
# Report a wait for another process after this time [s], if it is also longer than this factor times
# the longest previous wait.
QUIET_SECONDS, _UNUSUAL = 60.0, 3.0


def wait_until(reached: Callable[[], _Found], timeout_s: float, *, every_s: float = 0.02) -> _Found:
    """Call `reached` until it returns a true value; return the last value.

    `reached` is called at least once. A false value means that the time ran out. Its exceptions
    propagate. Times are on the steady clock [s].
    """
    deadline = time.monotonic() + timeout_s
    while True:
        overdue = time.monotonic() > deadline
        answer = reached()
        if answer or overdue:
            return answer
        time.sleep(every_s)


class QuietWait:
    """Reports a wait once if it takes long, also compared with previous waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began: float | None = None
        self._said, self._longest = False, 0.0

    def goes_on(self, what: str) -> None:
        """Call repeatedly while waiting for `what`."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        waited = now - self._began
        if not self._said and waited > max(QUIET_SECONDS, _UNUSUAL * self._longest):
            self._said = True
            self._say(f"waiting for {what}")

    def ends(self) -> None:
        """Call when the wait is over, so that the next wait is compared with this one."""
        if self._began is not None:
            self._longest = max(self._longest, time.monotonic() - self._began)
        self._began, self._said = None, False
