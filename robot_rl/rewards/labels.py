"""Labels that arrive after the end of an episode; they annotate its stored rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.replay import AnnotationRefused, StoreFull
from robot_rl.replay.address import ReplayAddress
from robot_rl.replay.protocol import Annotations, Opened
from robot_rl.replay.windows import LABELS
from robot_rl.wire import ServerUnreachable

_PATIENCE_SECONDS = 30.0
_RETRY_SECONDS = 0.2
_PASSING = (AnnotationRefused, ServerUnreachable, StoreFull)  # rows may still be on their way


@dataclass(eq=False)
class LateLabels:
    """Annotates the last episode of an actor, without blocking its loop.

    A label becomes the annotation `reward` of the episode's rows: 1 at the last action of a
    success, which ends the episode just like a timely label; else 0. Learning uses the latest
    annotation with `reward.annotation=reward`.
    """

    place: ReplayAddress  # address of the server; each label opens its own connection
    session: Opened  # the actor's
    note: Callable[[str], None]  # called when a label is lost

    def __post_init__(self) -> None:
        self._first = self._last = self.session.next_sequence
        self._threads: list[threading.Thread] = []

    def note_row(self, sequence: int, *, begins: bool) -> None:
        """Record a sent row, and whether an episode starts with it."""
        self._first = sequence if begins else self._first
        self._last = sequence

    def tell(self, success: bool) -> None:
        """Submit a label for the last episode; never blocks."""
        rows = np.arange(self._first, self._last + 1)
        thread = threading.Thread(
            target=self._store, args=(rows, success), name="late-label", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait until all labels are stored or have failed."""
        for thread in self._threads:
            thread.join()

    def _store(self, rows: npt.NDArray[np.int64], success: bool) -> None:
        rewards = np.zeros(len(rows), np.float32)
        rewards[-2:-1] = float(success)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with self.place.client() as client:
                    # A later label has a larger version, from any source.
                    place, now = self.session.place, time.time_ns()
                    client.annotate(Annotations(place, LABELS, now, rows, rewards))
                return
            except RobotRLError as problem:
                if time.monotonic() > deadline or not isinstance(problem, _PASSING):
                    self.note(f"a label of the last episode is lost: {problem}")
                    return
            time.sleep(_RETRY_SECONDS)
