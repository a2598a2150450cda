"""The one way to wait for something to come true: never in a control loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")
QUIET_SECONDS = 10.0  # and then who waits for another process says so


def wait_until(reached: Callable[[], _Found], timeout_s: float, *, every_s: float = 0.02) -> _Found:
    """Ask again and again until the answer is true; it is asked at least once.

    Args:
        reached: What is asked; what it raises ends the waiting.
        timeout_s: How long, on the steady clock [s].
        every_s: Pause between two questions [s].

    Returns:
        The last answer: false in a condition only where the time has run out.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        overdue = time.monotonic() > deadline
        answer = reached()
        if answer or overdue:
            return answer
        time.sleep(every_s)


class QuietWait:
    """Says once what is waited for, when that takes long.

    Args:
        say: Told it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since, self._told = time.monotonic(), False

    def goes_on(self, what: str) -> None:
        """Called again and again while `what` is waited for."""
        if not self._told and time.monotonic() - self._since > QUIET_SECONDS:
            self._told = True
            self._say(f"waiting for {what}")
