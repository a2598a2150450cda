"""Windows: which rows are starts of an n-step transition, and what it returns.

Pure arithmetic on the scalars of rows, without a store. A window that starts at row t covers
m <= n steps: it stops at the episode's end, and its next observation is row t + m. One of the
policy's stops where an operator takes over as well: what they reach is no return of the policy's
action, which would look the better the more often it has to be rescued. Termination gives
discount 0; truncation bootstraps from the stored last observation. In an episode that was cut
short the last row serves as the last observation, unless it is terminated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_INTERVENTION, SOURCE_POLICY

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
        ("ahead", np.int16),  # rows from here to the next observation
        ("reward", np.float32),
        ("discount", np.float32),
        ("source", np.uint8),
        ("needed", np.int64),
        ("row", np.int64),
    ]
)

STRETCH = np.dtype([("session", np.int32), ("first", np.int64), ("end", np.int64)])

Records = npt.NDArray[Any]

# The reward of a row that the wanted reward says nothing of.
UNKNOWN = np.float32(np.nan)

LABELS = "reward"
"""Name of the annotation that says of stored episodes whether they have succeeded."""


def place_codes(session: npt.ArrayLike, sequence: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Pack places of rows into one integer each, in the order of (session, sequence).

    One integer sorts faster than a pair; a session of 2^40 rows would last a millennium.
    """
    return (np.asarray(session, np.int64) << 40) | np.asarray(sequence, np.int64)


class WindowPool:
    """The complete windows of one kind, in the order in which they became complete.

    ``needed`` of a window is how many online transitions must be visible for all its rows to be,
    ``row`` the number of its first row among all rows of actors. Neither decreases along the pool,
    so what is visible is one stretch of it. What is forgotten makes room for what comes.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._windows = np.empty(1024, WINDOW)
        self._start = self._end = 0

    @property
    def windows(self) -> Records:
        """All windows, a view of dtype `WINDOW`."""
        return self._windows[self._start : self._end]

    def extend(self, windows: Records) -> None:
        """Add windows, making ``needed`` and ``row`` non-decreasing."""
        self._make_room(len(windows))
        end = self._end + len(windows)
        self._windows[self._end : end] = windows
        if len(windows):
            start = max(self._end - 1, self._start)
            for name in ("needed", "row"):
                values = self._windows[name]
                values[start:end] = np.maximum.accumulate(values[start:end])
        self._end = end

    def visible(self, online_transitions: int) -> int:
        """Return how many windows have all rows among the first so many online transitions."""
        return int(np.searchsorted(self.windows["needed"], online_transitions, side="right"))

    def begun_before(self, row: int) -> int:
        """Return how many windows start at a row with a smaller number."""
        return int(np.searchsorted(self.windows["row"], row, side="left"))

    def forget(self, stretches: Records) -> None:
        """Drop the windows that start in stretches of sessions.

        Args:
            stretches: Shape (n,), dtype `STRETCH`, none overlapping.
        """
        windows = self.windows
        order = np.sort(place_codes(stretches["session"], stretches["first"]))
        ends = np.sort(place_codes(stretches["session"], stretches["end"]))
        codes = place_codes(windows["session"], windows["sequence"])
        at = np.searchsorted(order, codes, side="right") - 1
        kept = windows[(at < 0) | (codes >= ends[at])]
        # Evicted windows are old, so that those that stay are near the end already.
        self._start = self._end - len(kept)
        self._windows[self._start : self._end] = kept

    def _make_room(self, count: int) -> None:
        live = self._end - self._start
        if self._end + count <= len(self._windows):
            return
        size = len(self._windows)
        if live + count > size // 2:
            size = 2 * (live + count)
        moved = np.empty(size, WINDOW)
        moved[:live] = self.windows
        self._windows, self._start, self._end = moved, 0, live


@dataclass
class _Tail:
    """The end of a session: rows whose windows were not complete yet."""

    first_sequence: int
    scalars: Records
    needed: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, first_sequence: int) -> _Tail:
        none = np.empty(0, np.int64)
        return cls(first_sequence, np.empty(0, SCALARS), none, none)

    def without(self, count: int) -> _Tail:
        """Return the tail after so many rows, without a view of what is gone."""
        parts = (part[count:].copy() for part in (self.scalars, self.needed, self.rows))
        return _Tail(self.first_sequence + count, *parts)


class WindowIndex:
    """Turns rows, session by session as they arrive, into windows.

    A window with a reward that is `UNKNOWN` is none.

    Args:
        n_step: Most steps of a window.
        discount: Per step.

    Attributes:
        demonstrations: Windows that start at a row of source demo.
        online: Windows of policy and intervention rows.
        interventions: Those of intervention rows once more.
        online_transitions: Online steps so far, those of rows that were never seen included.
        online_rows: Rows of actors' episodes so far, likewise.
    """

    def __init__(self, n_step: int, discount: float) -> None:
        """Start empty."""
        self.n_step, self.discount = n_step, discount
        self.demonstrations, self.online = WindowPool(), WindowPool()
        self.interventions = WindowPool()
        self.online_transitions = self.online_rows = 0
        self._tails: dict[int, _Tail] = {}

    @property
    def pools(self) -> tuple[WindowPool, WindowPool, WindowPool]:
        """Demonstrations, interventions and online windows: the order of `DataKind`."""
        return self.demonstrations, self.interventions, self.online

    def next_sequence(self, session: int) -> int:
        """Return the sequence of the row that `add` expects next of a session."""
        tail = self._tails.get(session)
        return 0 if tail is None else tail.first_sequence + len(tail.scalars)

    def begin(self, session: int, sequence: int) -> None:
        """Begin an episode; rows before it that were not added have been evicted."""
        self._tails[session] = _Tail.empty(sequence)

    def add(self, session: int, scalars: Records, *, of_actor: bool = True) -> int:
        """Take in the rows that follow in a session.

        A last row that ended its episode is left for later if its ``is_last`` row is not there.

        Args:
            session: Number of the session, any small integer.
            scalars: Shape (rows,), dtype `SCALARS`.
            of_actor: Whether they count among the rows of actors; else they are demonstrations'.

        Returns:
            How many rows were taken in.
        """
        taken = complete_rows(scalars)
        if taken:
            self._extend_tail(session, scalars[:taken], of_actor)
            self._emit(session)
        return taken

    def cut(self, session: int, scalars: Records, *, of_actor: bool = True) -> None:
        """Complete the windows of an episode that was cut short, and forget the session.

        What becomes complete thereby is visible with the next online step, whenever the cut is
        noticed, so that what is visible does not depend on the time of looking.

        Args:
            session: As in `add`.
            scalars: Its last row, shape (1,), if `add` has left that for later; else shape (0,).
            of_actor: As in `add`.
        """
        whole = len(scalars) > 0 and bool(scalars[0]["terminated"])
        last = scalars.copy()
        if not whole:
            last["is_last"] = True
        self._extend_tail(session, last, of_actor)
        tail = self._tails[session]
        if whole:
            # Nothing bootstraps from the row that would follow: the row before stands in for it.
            ahead = np.zeros(1, SCALARS)
            ahead["is_last"] = True
            tail.scalars = np.concatenate((tail.scalars, ahead))
            tail.needed = np.append(tail.needed, tail.needed[-1])
            tail.rows = np.append(tail.rows, tail.rows[-1])
        elif len(tail.scalars):
            tail.scalars["is_last"][-1] = True
            if tail.scalars["source"][-1] != SOURCE_DEMONSTRATION:
                tail.needed[-1] = self.online_transitions + 1
        self._emit(session, without_last=whole)
        del self._tails[session]

    def _extend_tail(self, session: int, scalars: Records, of_actor: bool) -> None:
        demonstration = scalars["source"] == SOURCE_DEMONSTRATION
        online = ~scalars["is_last"] & ~demonstration
        needed = self.online_transitions + np.cumsum(online)
        needed[demonstration] = 0
        self.online_transitions += int(online.sum())
        rows = np.full(len(scalars), self.online_rows)
        if of_actor:
            rows += np.arange(1, len(scalars) + 1)
            self.online_rows += len(scalars)
        tail = self._tails.setdefault(session, _Tail.empty(0))
        tail.scalars = np.concatenate((tail.scalars, scalars))
        tail.needed = np.concatenate((tail.needed, needed))
        tail.rows = np.concatenate((tail.rows, rows))

    def _emit(self, session: int, *, without_last: bool = False) -> None:
        """Move the windows that are complete from a session's tail into the pools."""
        tail = self._tails[session]
        windows, done = make_windows(tail.scalars, tail.needed, self.n_step, self.discount)
        windows["ahead"] = windows["steps"]
        if without_last:
            windows["ahead"] -= windows["sequence"] + windows["steps"] == len(tail.scalars) - 1
        windows["row"] = tail.rows[windows["sequence"]]
        windows["session"] = session
        windows["sequence"] += tail.first_sequence
        windows = windows[~np.isnan(windows["reward"])]
        demonstration = windows["source"] == SOURCE_DEMONSTRATION
        self.demonstrations.extend(windows[demonstration])
        self.online.extend(windows[~demonstration])
        self.interventions.extend(windows[windows["source"] == SOURCE_INTERVENTION])
        self._tails[session] = tail.without(done)


def end_at_success(scalars: Records, labelled: npt.NDArray[np.bool_]) -> None:
    """Let episodes that somebody says have succeeded terminate with their last action.

    Whoever says it before the episode's end terminates it: said later it means the same, and what
    would have come after the time limit counts for nothing. Labels of other actions, and of
    failure, end nothing.

    Args:
        scalars: Shape (rows,), dtype `SCALARS`, consecutive rows; changed in place.
        labelled: Shape (rows,), whether a row's reward is a label.
    """
    succeeded = labelled[:-1] & (scalars["reward"][:-1] == 1.0)
    ended = np.flatnonzero(succeeded & scalars["is_last"][1:])
    scalars["terminated"][ended] = True
    scalars["truncated"][ended] = False


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
    eq. 7.1, cut at the episode's end and, for an action of the policy, at a take-over.

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
    ends = np.minimum(ends, _take_overs(scalars["source"], count + n_step))
    steps = np.minimum(n_step, ends - rows)
    following = rows + steps
    # Windows come in order: one that is complete waits for those before it.
    waiting = (steps > 0) & (following >= count)
    done = int(np.argmax(waiting)) if waiting.any() else count
    start = (steps > 0) & (rows < done)
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
    return windows, done


def _take_overs(sources: npt.NDArray[np.uint8], never: int) -> npt.NDArray[np.int64]:
    """For each row of the policy where an operator takes over next; `never` for all others."""
    rows = np.arange(len(sources))
    policy = sources == SOURCE_POLICY
    taken = np.flatnonzero(policy[:-1] & (sources[1:] == SOURCE_INTERVENTION)) + 1
    following = np.append(taken, never)[np.searchsorted(taken, rows, side="right")]
    return np.where(policy, following, never)
