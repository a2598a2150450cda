"""Windows: which rows are starts of an n-step transition, and what it returns.

Pure arithmetic on the scalars of rows, without a store. A window that starts at row t covers
m <= n steps: it stops at the episode's end, and its next observation is row t + m. Termination
gives discount 0; truncation bootstraps from the stored last observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_DEMONSTRATION

SCALARS = np.dtype(
    [
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("is_last", np.bool_),
        ("source", np.uint8),
    ]
)
WINDOW = np.dtype(
    [
        ("session", np.int32),
        ("sequence", np.int64),
        ("steps", np.int16),
        ("reward", np.float32),
        ("discount", np.float32),
        ("source", np.uint8),
        ("needed", np.int64),
    ]
)

Records = npt.NDArray[Any]


class WindowPool:
    """A growing array of complete windows, in the order in which they became complete.

    ``needed`` of a window is how many online transitions must be visible for all its rows to be;
    it never decreases along the pool, so what is visible is a prefix.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._windows = np.empty(1024, WINDOW)
        self._size = 0

    @property
    def windows(self) -> Records:
        """All windows, a view of dtype `WINDOW`."""
        return self._windows[: self._size]

    def extend(self, windows: Records) -> None:
        """Add windows, making ``needed`` non-decreasing."""
        end = self._size + len(windows)
        if end > len(self._windows):
            grown = np.empty(max(end, 2 * len(self._windows)), WINDOW)
            grown[: self._size] = self.windows
            self._windows = grown
        self._windows[self._size : end] = windows
        if len(windows):
            needed = self._windows["needed"]
            start = max(self._size - 1, 0)
            needed[start:end] = np.maximum.accumulate(needed[start:end])
        self._size = end

    def visible(self, online_transitions: int) -> int:
        """Return how many windows have all rows among the first so many online transitions."""
        return int(np.searchsorted(self.windows["needed"], online_transitions, side="right"))


@dataclass
class _Tail:
    """The end of a session: rows whose windows were not complete yet."""

    first_sequence: int
    scalars: Records
    needed: npt.NDArray[np.int64]


class WindowIndex:
    """Turns rows, session by session as they arrive, into windows.

    Args:
        n_step: Most steps of a window.
        discount: Per step.

    Attributes:
        demonstrations: Windows that start at a row of source demo.
        online: Windows of policy and intervention rows.
        online_transitions: Online rows with an action so far.
    """

    def __init__(self, n_step: int, discount: float) -> None:
        """Start empty."""
        self.n_step, self.discount = n_step, discount
        self.demonstrations, self.online = WindowPool(), WindowPool()
        self.online_transitions = 0
        self._tails: dict[int, _Tail] = {}

    def next_sequence(self, session: int) -> int:
        """Return the sequence of the row that `add` expects next of a session."""
        tail = self._tails.get(session)
        return 0 if tail is None else tail.first_sequence + len(tail.scalars)

    def add(self, session: int, scalars: Records) -> int:
        """Take in the rows that follow in a session.

        A last row that ended its episode is left for later if its ``is_last`` row is not there.

        Args:
            session: Number of the session, any small integer.
            scalars: Shape (rows,), dtype `SCALARS`.

        Returns:
            How many rows were taken in.
        """
        taken = complete_rows(scalars)
        scalars = scalars[:taken]
        if taken == 0:
            return 0
        tail = self._tails.get(session)
        online = ~scalars["is_last"] & (scalars["source"] != SOURCE_DEMONSTRATION)
        needed = self.online_transitions + np.cumsum(online)
        needed[scalars["source"] == SOURCE_DEMONSTRATION] = 0
        self.online_transitions += int(online.sum())
        first = 0
        if tail is not None:
            first = tail.first_sequence
            scalars = np.concatenate((tail.scalars, scalars))
            needed = np.concatenate((tail.needed, needed))
        windows, done = make_windows(scalars, needed, self.n_step, self.discount)
        windows["session"] = session
        windows["sequence"] += first
        demonstration = windows["source"] == SOURCE_DEMONSTRATION
        self.demonstrations.extend(windows[demonstration])
        self.online.extend(windows[~demonstration])
        self._tails[session] = _Tail(first + done, scalars[done:].copy(), needed[done:].copy())
        return taken


def complete_rows(scalars: Records) -> int:
    """Return how many leading rows can be used: all, but an end that lacks its last observation."""
    count = len(scalars)
    if count:
        last = scalars[count - 1]
        if (last["terminated"] or last["truncated"]) and not last["is_last"]:
            return count - 1
    return count


def make_windows(
    scalars: Records, needed: npt.NDArray[np.int64], n_step: int, discount: float
) -> tuple[Records, int]:
    """Work out the complete windows of consecutive rows of one session.

    The n-step return is sum of discount^j r_{t+j} over j < m, and the discount of the next
    state's value discount^m (1 - terminated), as in Sutton and Barto, "Reinforcement Learning",
    eq. 7.1, cut at the episode's end.

    Args:
        scalars: Shape (rows,), dtype `SCALARS`.
        needed: Shape (rows,), the online transitions that must be visible for each row.
        n_step: Most steps of a window.
        discount: Per step.

    Returns:
        The windows, ``sequence`` counted from the first row, and how many leading rows are done
        with: either the start of a complete window or ``is_last``.
    """
    count = len(scalars)
    rows = np.arange(count)
    last_rows = np.flatnonzero(scalars["is_last"])
    # Row count + n_step stands for an end that is not there yet: such windows take n steps.
    ends = np.append(last_rows, count + n_step)[np.searchsorted(last_rows, rows)]
    steps = np.minimum(n_step, ends - rows)
    following = rows + steps
    start = (steps > 0) & (following < count)
    index = rows[start]
    windows = np.zeros(len(index), WINDOW)
    windows["sequence"] = index
    windows["steps"] = steps[start]
    windows["source"] = scalars["source"][index]
    windows["needed"] = np.maximum(needed[index], needed[following[start]])
    rewards = scalars["reward"].astype(np.float64)
    total = np.zeros(len(index))
    for step in range(n_step):
        inside = step < windows["steps"]
        at = np.minimum(index + step, count - 1)
        total += np.where(inside, discount**step * rewards[at], 0.0)
    windows["reward"] = total
    terminated = scalars["terminated"][following[start] - 1]
    windows["discount"] = np.where(terminated, 0.0, discount ** windows["steps"].astype(float))
    # Windows become complete in order, so what is left is a tail.
    waiting = (steps > 0) & (following >= count)
    done = int(np.argmax(waiting)) if waiting.any() else count
    return windows, done
