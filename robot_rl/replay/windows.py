"""Windows: which rows a sample covers, and what it returns. `SampleSpec` says what is wanted.

Pure arithmetic on the scalars of rows, without a store. A window that starts at row t covers
m <= n steps: it stops at the episode's end, and its next observation is row t + m. One of the
policy's stops where an operator takes over as well: what they reach is no return of the policy's
action, which would look the better the more often it has to be rescued. Termination gives
discount 0; truncation bootstraps from the stored last observation. In an episode that was cut
short the last row serves as the last observation, unless it is terminated.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_INTERVENTION, SOURCE_POLICY
from robot_rl.replay.sampler import SampleSpec

SCALARS = np.dtype(
    [
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("is_last", np.bool_),
        ("source", np.uint8),
        ("policy_version", np.int64),
    ]
)
# And of a row in its episode: the online transitions that must be visible for it to be, and its
# number among all rows of actors.
_COUNTED = np.dtype([*SCALARS.descr, ("needed", np.int64), ("number", np.int64)])
WINDOW = np.dtype(
    [
        ("address", np.int64),
        ("steps", np.int16),
        ("ahead", np.int16),  # rows from here to the next observation
        ("before", np.int32),  # rows of the episode that precede it
        ("chunk", np.int16),  # valid rows of the chunk from here on, and from the next observation
        ("next_chunk", np.int16),
        ("reward", np.float32),
        ("discount", np.float32),
        ("return", np.float32),
        ("ended", np.bool_),  # whether the return ends by termination
        ("source", np.uint8),
        ("episode", np.int64),
        ("needed", np.int64),
        ("row", np.int64),
    ]
)

Records = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]  # of addresses: the first, and the one behind the last

UNKNOWN = np.float32(np.nan)  # the reward of a row that the wanted reward says nothing of

LABELS = "reward"
"""Name of the annotation that says of stored episodes whether they have succeeded."""


class DataKind(IntEnum):
    """What a window is of, and a slot of a batch is drawn from."""

    DEMONSTRATION = 0
    INTERVENTION = 1
    ONLINE = 2  # the policy, or once more an intervention


class WindowPool:
    """The complete windows of one kind, in the order in which they became complete.

    ``needed`` of a window is how many online transitions must be visible for all its rows to be,
    ``row`` the number of its first row among all rows of actors. Neither decreases along the pool,
    so what is visible is one stretch of it.
    """

    def __init__(self) -> None:
        self._room = np.empty(1024, WINDOW)
        self._count = 0

    @property
    def windows(self) -> Records:
        """All windows, a view of dtype `WINDOW`."""
        return self._room[: self._count]

    def extend(self, windows: Records) -> None:
        """Add windows, making ``needed`` and ``row`` non-decreasing."""
        start, self._count = self._count, self._count + len(windows)
        if self._count > len(self._room):
            more = np.empty(self._count, WINDOW)
            self._room = np.concatenate((self._room[:start], more))
        self._room[start : self._count] = windows
        for name in ("needed", "row"):
            values = self._room[name][max(start - 1, 0) : self._count]
            values[:] = np.maximum.accumulate(values)

    def visible(self, online_transitions: int) -> int:
        """Return how many windows have all rows among the first so many online transitions."""
        return int(np.searchsorted(self.windows["needed"], online_transitions, side="right"))

    def begun_before(self, row: int) -> int:
        """Return how many windows start at a row with a smaller number."""
        return int(np.searchsorted(self.windows["row"], row, side="left"))

    def forget(self, gone: Ranges) -> None:
        """Drop the windows that start in these ranges."""
        kept = self.windows[~_inside(self.windows["address"], gone)]
        self._room[: len(kept)] = kept
        self._count = len(kept)


class News(NamedTuple):
    """Rows that follow in an episode."""

    episode: int  # its identifier, which increases in the order in which episodes began
    address: int  # of the first of these rows
    scalars: Records  # what they say, shape (rows,), dtype `SCALARS`; may be none
    of_actor: bool = True  # else they count as demonstrations' rows
    complete: bool = False  # nothing more will come
    cut: bool = False  # it was closed without its ``is_last`` row


class _Tail:
    """The end of an open episode: rows whose windows were not complete yet."""

    def __init__(self, first: int, of_actor: bool) -> None:
        self.first, self.of_actor = first, of_actor  # address of the episode's first row
        self.rows = self.steps = self.done = 0  # taken in, online steps, and rows before the tail
        self.counted = np.empty(0, _COUNTED)
        self.held = np.empty(0, SCALARS)  # an end without its last row


class WindowIndex:
    """Turns rows, episode by episode as they arrive, into windows.

    A window with a reward that is `UNKNOWN` is none. Evicted steps stay counted, also those that
    were evicted before they were seen: numbers of steps and rows are the same whenever one looks.
    `relabel` changes the scalars of consecutive rows from an address on, in place.

    Attributes:
        online_transitions: Online steps so far, those of rows that were never seen included.
        online_rows: Rows of actors' episodes so far, likewise.
        demonstration_rows: Rows of demonstrations so far, which are never evicted.
    """

    def __init__(
        self, spec: SampleSpec, relabel: Callable[[int, Records], None] | None = None
    ) -> None:
        self._spec, self._relabel = spec, relabel
        self.pools = {kind: WindowPool() for kind in DataKind}
        self.online_transitions = self.online_rows = self.demonstration_rows = 0
        self._open: dict[int, _Tail] = {}
        self._ended: dict[int, tuple[int, int]] = {}  # by first address: rows and steps of actors'
        self._evicted = (0, 0)

    def first_open(self, *, of_actor: bool) -> int:
        """Return the episode that began first of those that are not complete; 2^63 - 1 for none."""
        opened = (e for e, tail in self._open.items() if tail.of_actor is of_actor)
        return min(opened, default=2**63 - 1)

    def add(self, news: News) -> None:
        """Take in the rows that follow in an episode.

        A last row that ended its episode is left for later if its ``is_last`` row is not there.
        What becomes complete by a cut is visible with the next online step, whenever the cut is
        noticed, so that what is visible does not depend on the time of looking.
        """
        episode = news.episode
        tail = self._open.setdefault(episode, _Tail(news.address, news.of_actor))
        scalars = np.concatenate((tail.held, news.scalars))
        if self._relabel is not None and len(scalars):
            self._relabel(news.address - len(tail.held), scalars)
        # An end that lacks its last observation cannot be used yet.
        end = scalars[-1:]
        lacks_last = (end["terminated"] | end["truncated"]) & ~end["is_last"]
        taken = len(scalars) - int(lacks_last.sum())
        self._extend(tail, scalars[:taken])
        tail.held = scalars[taken:]
        if taken:
            self._emit(episode, tail)
        if news.cut:
            self._cut(episode, tail)
        if news.complete:
            del self._open[episode]
            if news.of_actor:
                self._ended[tail.first] = tail.rows, tail.steps

    def note_evicted(self, rows: int, steps: int, gone: Ranges) -> None:
        """Count what was evicted before it was seen: rows of actors so far, steps, and where."""
        new_rows, new_steps = rows - self._evicted[0], steps - self._evicted[1]
        if new_rows == 0:
            return
        self._evicted = rows, steps
        for episode, tail in list(self._open.items()):
            if any(first <= tail.first < end for first, end in gone):
                self._ended[tail.first] = tail.rows, tail.steps
                del self._open[episode]
        firsts = np.array(list(self._ended), np.int64)
        for first in firsts[_inside(firsts, gone)].tolist():
            seen_rows, seen_steps = self._ended.pop(first)
            new_rows -= seen_rows
            new_steps -= seen_steps
        self.online_rows += new_rows
        self.online_transitions += new_steps

    def _extend(self, tail: _Tail, scalars: Records) -> None:
        demonstration = scalars["source"] == SOURCE_DEMONSTRATION
        online = ~scalars["is_last"] & ~demonstration
        counted = np.empty(len(scalars), _COUNTED)
        counted[list(SCALARS.names or ())] = scalars
        counted["needed"] = np.where(demonstration, 0, self.online_transitions + np.cumsum(online))
        counted["number"] = self.online_rows
        if tail.of_actor:
            counted["number"] += np.arange(1, len(scalars) + 1)
            self.online_rows += len(scalars)
        else:
            self.demonstration_rows += len(scalars)
        tail.rows += len(scalars)
        tail.steps += int(online.sum())
        self.online_transitions += int(online.sum())
        tail.counted = np.concatenate((tail.counted, counted))

    def _cut(self, episode: int, tail: _Tail) -> None:
        """Complete the windows of an episode that was cut short."""
        whole = len(tail.held) > 0 and bool(tail.held[0]["terminated"])
        last = tail.held.copy()
        if not whole:
            last["is_last"] = True
        self._extend(tail, last)
        if whole:
            # Nothing bootstraps from the row that would follow: the row before stands in for it.
            tail.counted = np.concatenate((tail.counted, tail.counted[-1:]))
            tail.counted["is_last"][-1] = True
        elif len(tail.counted):
            tail.counted["is_last"][-1] = True
            if tail.counted["source"][-1] != SOURCE_DEMONSTRATION:
                tail.counted["needed"][-1] = self.online_transitions + 1
        self._emit(episode, tail, without_last=whole)

    def _emit(self, episode: int, tail: _Tail, *, without_last: bool = False) -> None:
        """Move the windows that are complete from an episode's tail into the pools."""
        rows = tail.counted
        windows, done = make_windows(rows, rows["needed"], self._spec)
        at = windows["address"]
        windows["ahead"] = windows["steps"]
        if without_last:
            windows["ahead"] -= at + windows["steps"] == len(rows) - 1
        windows["row"] = rows["number"][at]
        windows["episode"] = episode
        windows["before"] = tail.done + at
        versions = rows["policy_version"][at]
        windows["address"] += tail.first + tail.done
        demonstration = windows["source"] == SOURCE_DEMONSTRATION
        wanted = ~np.isnan(windows["reward"]) & ~np.isnan(windows["return"])
        if self._spec.policy_versions is not None:
            low, high = self._spec.policy_versions
            wanted &= demonstration | ((versions >= low) & (versions <= high))
        intervention = windows["source"] == SOURCE_INTERVENTION
        self.pools[DataKind.DEMONSTRATION].extend(windows[wanted & demonstration])
        self.pools[DataKind.INTERVENTION].extend(windows[wanted & intervention])
        self.pools[DataKind.ONLINE].extend(windows[wanted & ~demonstration])
        tail.done += done
        tail.counted = rows[done:].copy()  # without a view of what is gone


def make_windows(scalars: Records, needed: Integers, spec: SampleSpec) -> tuple[Records, int]:
    """Work out the complete windows of consecutive rows.

    The n-step return is sum of discount^j r_{t+j} over j < m, and the discount of the next
    state's value discount^m (1 - terminated), as in Sutton and Barto, "Reinforcement Learning",
    eq. 7.1, cut at the episode's end and, for an action of the policy, at a take-over.

    Args:
        scalars: Shape (rows,), with the fields of `SCALARS`.
        needed: Shape (rows,), the online transitions that must be visible for each row.
        spec: What windows are wanted.

    Returns:
        The windows, ``address`` counted from the first row, and how many leading rows are done
        with: either the start of a complete window or ``is_last``.
    """
    count, horizon = len(scalars), spec.horizon
    rows = np.arange(count)
    last_rows = np.flatnonzero(scalars["is_last"])
    # Stands for an end that is not there yet: such windows take all their steps.
    never = count + 2 * (spec.n_step + horizon)
    ends = np.append(last_rows, never)[np.searchsorted(last_rows, rows)]
    take_overs = _take_overs(scalars["source"], never)
    stops = np.minimum(ends, take_overs)
    steps = np.minimum(spec.n_step, stops - rows)
    chunk = np.minimum(horizon, stops - rows)
    following = rows + steps
    # From the next observation on, an episode's last row counts, as it has a base's proposal.
    known = np.minimum(following, count - 1)
    reach = np.minimum(ends + 1, take_overs)[known]
    next_chunk = np.minimum(horizon if spec.next_chunk_fields else 0, reach - following)
    last = np.maximum(following, rows + chunk - 1)
    last = np.maximum(last, following + next_chunk - 1)
    if spec.returns or spec.in_order:
        last = np.maximum(last, ends)
    # Windows come in order: one that is complete waits for those before it.
    waiting = (steps > 0) & (last >= count)
    done = int(np.argmax(waiting)) if waiting.any() else count
    index = rows[(steps > 0) & (rows < done)]
    windows = np.zeros(len(index), WINDOW)
    windows["address"] = index
    windows["steps"] = steps[index]
    windows["chunk"], windows["next_chunk"] = chunk[index], next_chunk[index]
    windows["source"] = scalars["source"][index]
    windows["needed"] = np.maximum(needed[index], needed[last[index]])
    rewards = scalars["reward"].astype(np.float64)
    total = np.zeros(len(index))
    for step in range(spec.n_step):
        inside = step < windows["steps"]
        at = np.minimum(index + step, count - 1)
        total += np.where(inside, spec.discount**step * rewards[at], 0.0)
    windows["reward"] = total
    terminated = scalars["terminated"][following[index] - 1]
    windows["discount"] = np.where(terminated, 0.0, spec.discount ** windows["steps"].astype(float))
    if spec.returns and len(index):
        stop = stops[index]
        windows["return"] = _returns(scalars, spec.discount, index, stop)
        windows["ended"] = scalars["terminated"][stop - 1]
    return windows, done


def scalars_of(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Copy the `SCALARS` of rows of a schema."""
    return rows[list(SCALARS.names or ())].astype(SCALARS)


def _returns(scalars: Records, discount: float, index: Integers, stop: Integers) -> Records:
    """Discounted sums of the rewards of rows index … stop - 1, whose episodes are complete."""
    rewards = scalars["reward"].astype(np.float64).tolist()
    ended, following = scalars["is_last"].tolist(), 0.0
    whole = np.zeros(len(scalars))
    for row in range(len(scalars) - 1, -1, -1):
        following = 0.0 if ended[row] else rewards[row] + discount * following
        whole[row] = following
    # A return that a take-over ends lacks what follows from there.
    rest: Records = whole[index] - discount ** (stop - index).astype(float) * whole[stop]
    return rest


def _inside(addresses: Integers, ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Whether addresses lie in ranges, none of which overlap."""
    if not ranges:
        return np.zeros(len(addresses), np.bool_)
    firsts, ends = np.array(sorted(ranges)).T
    at = np.searchsorted(firsts, addresses, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (addresses < ends[at])
    return inside


def _take_overs(sources: npt.NDArray[np.uint8], never: int) -> Integers:
    """For each row of the policy where an operator takes over next; `never` for all others."""
    rows = np.arange(len(sources))
    policy = sources == SOURCE_POLICY
    taken = np.flatnonzero(policy[:-1] & (sources[1:] == SOURCE_INTERVENTION)) + 1
    following = np.append(taken, never)[np.searchsorted(taken, rows, side="right")]
    return np.where(policy, following, never)
