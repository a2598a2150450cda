"""Windows: which rows a sample covers, and what it returns. `SampleSpec` configures sampling.

Pure arithmetic on the scalars of rows, without a store. A window that starts at row t covers
m <= n steps: it stops at the episode's end, and its next observation is row t + m. A window of the
policy also stops when an operator takes over. Rewards after the take-over are not part of the
return of the policy's action: they would make an action look better the more often it has to be
rescued. Termination gives discount 0; truncation bootstraps from the stored last observation. In an
episode that was cut short the last row serves as the last observation, unless it is terminated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import (
    LAST_COMMAND,
    SOURCE_DEMONSTRATION,
    SOURCE_INTERVENTION,
    SOURCE_POLICY,
    Array,
)
from robot_rl.replay import ReplayError

Batch = dict[str, Array]

MAXIMUM_BATCH_SIZE = 1 << 16
MAXIMUM_STEPS = 512
NEXT, CHUNK = "next/", "chunk/"
_OBSERVED = ("state/", "images/", "points/", "features/")


def is_observation(name: str) -> bool:
    """Whether a field is an observation, and so has a history."""
    return name.startswith(_OBSERVED) or name in (LAST_COMMAND, "instruction")


def _at_every_state(name: str) -> bool:
    """Whether a field is also present in an episode's last row."""
    return is_observation(name) or name == "base_action"


@dataclass(frozen=True)
class SampleSpec:
    """Configuration of mini-batches.

    A window starts at a row s = row t of an episode that has an action. It covers the m ≤ `n_step`
    steps up to the episode's end or, for an action of the policy, up to an operator's take-over;
    s' is row t + m. A batch has these arrays; B = `batch_size`, n = `observation_steps`,
    H = `chunk_steps`:
    ====================  ==============  ======================================================
    ``<field>``           (B, *shape)     row t. Observations are (B, n, *shape) if n > 0: rows
                                          t - n + 1 … t, padded with the episode's first row
    ``next/<field>``      as above        the same for row t + m
    ``reward``            float32 (B,)    Σ γ^j r_{t+j} over j < m, γ = `discount`
    ``discount``          float32 (B,)    γ^m; 0 if the last step terminated
    ``steps``             int16 (B,)      m
    ``source``            uint8 (B,)      who acted at s: 0 demonstration, 1 policy, 2 operator
    ``chunk/<field>``     (B, H, *shape)  rows t … t + H - 1; from the episode's end or a take-over
                                          on, the last of these rows repeated
    ``chunk/valid``       bool (B, H)     false for repeated rows. For `ChunkPolicy.loss` these
                                          are "action" and "valid"
    ``next/chunk/…``      (B, H, …)       the same for rows t + m … for fields that every state
                                          has, as ``base_action``; includes an episode's last row
    ``return``            float32 (B,)    Σ γ^j r_{t+j} to the episode's end or a take-over
    ``return/valid``      bool (B,)       whether it ended by termination: otherwise more may follow
    ====================  ==============  ======================================================

    Attributes:
        fields: Fields to return at s.
        batch_size: B, at most 65536.
        n_step: Most steps of a window, at most 512.
        discount: γ per step.
        demonstration_share: Fraction of slots for demonstrations, in [0, 1]. Strictly between 0 and
            1, a kind that has no data yet is replaced by the other.
        intervention_share: Fraction of slots for operators' interventions only. None reserves no
            slots, but draws them with the demonstrations too, as in HIL-SERL.
        next_fields: Fields to return at s'; None uses the `fields` that every state has:
            observations, ``base_action`` and ``last_command``.
        observation_steps: n, length of the history; 0 adds no history axis.
        chunk_fields: Fields to return for each step of a chunk.
        chunk_steps: H; None uses `n_step`.
        returns: Whether to return Monte-Carlo returns; then only ended episodes are drawn.
        policy_versions: Lowest and highest policy version at the first step of actors' windows.
        rewards: Annotation whose latest version gives the rewards; it need not exist yet. Labels
            (``reward``) replace the rewards of labelled rows, and a label of success ends its
            episode. Any other annotation is the only reward: rows without it are not drawn.
        capacity_rows: The store's ``replay.capacity_rows``. Only the latest 7/8 of that many rows
            are drawn from, so that batches do not depend on the progress of eviction.

    Raises:
        ReplayError: A number is out of range, or a name is given twice.
    """

    fields: tuple[str, ...]
    batch_size: int = 256
    n_step: int = 1
    discount: float = 0.99
    demonstration_share: float = 0.5
    intervention_share: float | None = None
    next_fields: tuple[str, ...] | None = None
    observation_steps: int = 0
    chunk_fields: tuple[str, ...] = ()
    chunk_steps: int | None = None
    returns: bool = False
    policy_versions: tuple[int, int] | None = None
    rewards: str | None = None
    capacity_rows: int | None = None

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "batch_size": (1, MAXIMUM_BATCH_SIZE),
            "n_step": (1, MAXIMUM_STEPS),
            "chunk_steps": (1, MAXIMUM_STEPS),
            "observation_steps": (0, MAXIMUM_STEPS),
            "discount": (0, 1),
            "capacity_rows": (1, 2**62),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ReplayError(f"{name} is out of range", got=value, expected=f"{low} to {high}")
        low, high = self.policy_versions or (0, 0)
        if low > high:
            problem = "policy_versions is no range"
            raise ReplayError(problem, got=(low, high), expected="lowest, highest")
        for names in (self.fields, self.next_fields or (), self.chunk_fields):
            if len(set(names)) < len(names):
                problem = "names to sample are given twice"
                raise ReplayError(problem, got=names, expected="each name once")

    @property
    def horizon(self) -> int:
        """H; 0 without chunk fields."""
        return (self.chunk_steps or self.n_step) if self.chunk_fields else 0

    @property
    def next_chunk_fields(self) -> tuple[str, ...]:
        """Chunk fields that are also returned from s' on."""
        return tuple(filter(_at_every_state, self.chunk_fields))

    @property
    def sides(self) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
        """For s and for s': the arrays' prefix, the fields, and the chunk fields."""
        following = self.next_fields
        if following is None:
            following = tuple(filter(_at_every_state, self.fields))
        return ("", self.fields, self.chunk_fields), (NEXT, following, self.next_chunk_fields)


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
# Per row of an episode: the online transitions that must be visible for the row to be visible, and
# its number among all rows of actors.
_COUNTED = np.dtype([*SCALARS.descr, ("needed", np.int64), ("number", np.int64)])
WINDOW = np.dtype(
    [
        ("address", np.int64),
        ("steps", np.int16),
        ("ahead", np.int16),  # rows from here to the next observation
        ("before", np.int32),  # rows of the episode before it
        ("chunk", np.int16),  # valid rows of the chunk from here, and from the next observation
        ("next_chunk", np.int16),
        ("reward", np.float32),
        ("discount", np.float32),
        ("return", np.float32),
        ("ended", np.bool_),  # whether the return ends by termination
        ("source", np.uint8),
        ("needed", np.int64),
        ("row", np.int64),
    ]
)

Records = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]  # of addresses, as [first, end)

UNKNOWN = np.float32(np.nan)  # the reward of a row without the annotation that gives rewards

LABELS = "reward"
"""Name of the annotation that labels stored episodes with success or failure."""


class DataKind(IntEnum):
    """Kind of data of a window, and of a slot of a batch."""

    DEMONSTRATION = 0
    INTERVENTION = 1
    ONLINE = 2  # the policy, and interventions again


class WindowPool:
    """The complete windows of one kind, in order of completion.

    A window's ``needed`` is the number of online transitions that must be visible for all its rows
    to be visible; ``row`` is the number of its first row among all rows of actors. Both are
    non-decreasing along the pool, so the visible windows are contiguous.
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
        """Return how many windows have all rows within the first `online_transitions`."""
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
    """Further rows of an episode."""

    episode: int  # its identifier, increasing in order of start
    address: int  # of the first of these rows
    scalars: Records  # their scalars, shape (rows,), dtype `SCALARS`; may be empty
    of_actor: bool = True  # False: of a demonstration
    complete: bool = False  # no more rows will come
    cut: bool = False  # closed without its ``is_last`` row


class FinishedEpisode(NamedTuple):
    """A complete episode with at least one step."""

    first: int  # address of its first row
    steps: int  # rows that have an action
    last: int  # address of the final observation, or of the row before if it is missing
    needed: int  # online transitions that must be visible for the episode to be
    row: int  # number of its first row among all rows of actors
    of_actor: bool


class _Tail:
    """The end of an open episode: rows whose windows are not complete yet."""

    def __init__(self, first: int, of_actor: bool) -> None:
        self.first, self.of_actor = first, of_actor  # address of the episode's first row
        self.rows = self.steps = self.done = 0  # rows added, online steps, rows before the tail
        self.needed = self.row = 0  # as in `FinishedEpisode`
        self.counted = np.empty(0, _COUNTED)
        self.held = np.empty(0, SCALARS)  # an end whose last row is missing


class WindowIndex:
    """Turns rows, episode by episode as they arrive, into windows.

    Windows with an `UNKNOWN` reward are left out. Evicted steps stay counted, even if they were
    evicted before they were read, so the counts do not depend on the time of reading.
    `relabel` changes the scalars of consecutive rows from an address on, in place.

    Attributes:
        finished: The complete episodes, by identifier.
        online_transitions: Online steps so far, including rows evicted before they were read.
        online_rows: Rows of actors' episodes so far, likewise.
        demonstration_rows: Rows of demonstrations so far, which are never evicted.
    """

    def __init__(
        self, spec: SampleSpec, relabel: Callable[[int, Records], None] | None = None
    ) -> None:
        self._spec, self._relabel = spec, relabel
        self.pools = {kind: WindowPool() for kind in DataKind}
        self.online_transitions = self.online_rows = self.demonstration_rows = 0
        self.finished: dict[int, FinishedEpisode] = {}
        self._open: dict[int, _Tail] = {}
        self._ended: dict[int, tuple[int, int]] = {}  # actors' rows and steps, by first address
        self._evicted = (0, 0)

    def visible_episodes(
        self, online_transitions: int, oldest_row: int, *, of_actors: bool
    ) -> list[tuple[int, FinishedEpisode]]:
        """Return the ended episodes, in order of start; see `Sampler.episodes`.

        An incomplete episode hides all later ones.
        """
        still_open = (e for e, tail in self._open.items() if tail.of_actor is of_actors)
        first_open = min(still_open, default=1 << 62)
        found: list[tuple[int, FinishedEpisode]] = []
        for number, episode in sorted(self.finished.items()):
            if episode.of_actor is not of_actors:
                continue
            if episode.needed > online_transitions or number > first_open:
                break
            if not of_actors or episode.row >= oldest_row:
                found.append((number, episode))
        return found

    def forget(self, gone: Ranges) -> None:
        """Drop the windows and the finished episodes that start in these ranges."""
        for pool in self.pools.values():
            pool.forget(gone)
        firsts = np.array([episode.first for episode in self.finished.values()], np.int64)
        kept = ~_inside(firsts, gone)
        self.finished = dict(itertools.compress(self.finished.items(), kept))

    def add(self, news: News) -> None:
        """Add further rows of an episode.

        A terminated or truncated last row waits until its ``is_last`` row arrives. Windows
        completed by a cut become visible with the next online step, whenever the cut is noticed,
        so visibility does not depend on the time of reading.
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
            self._emit(tail)
        without_last = news.cut and self._cut(tail)
        if news.complete:
            steps = tail.rows - (not without_last)
            if steps > 0:
                last = tail.first + tail.rows - 1
                facts = tail.first, steps, last, tail.needed, tail.row, tail.of_actor
                self.finished[episode] = FinishedEpisode(*facts)
            del self._open[episode]
            if news.of_actor:
                self._ended[tail.first] = tail.rows, tail.steps

    def note_evicted(self, rows: int, steps: int, gone: Ranges) -> None:
        """Count data evicted before it was read: rows of actors so far, steps, and ranges."""
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
        if not tail.rows:
            tail.row = self.online_rows - len(scalars) + 1
        tail.rows += len(scalars)
        tail.steps += int(online.sum())
        self.online_transitions += int(online.sum())
        tail.counted = np.concatenate((tail.counted, counted))

    def _cut(self, tail: _Tail) -> bool:
        """Complete the windows of an episode that was cut short; return whether its end is whole.

        A whole end has no final observation.
        """
        whole = len(tail.held) > 0 and bool(tail.held[0]["terminated"])
        last = tail.held.copy()
        if not whole:
            last["is_last"] = True
        self._extend(tail, last)
        if whole:
            # The missing next row is never bootstrapped from: the row before stands in for it.
            tail.counted = np.concatenate((tail.counted, tail.counted[-1:]))
            tail.counted["is_last"][-1] = True
        elif len(tail.counted):
            tail.counted["is_last"][-1] = True
            if tail.counted["source"][-1] != SOURCE_DEMONSTRATION:
                tail.counted["needed"][-1] = self.online_transitions + 1
        self._emit(tail, without_last=whole)
        return whole

    def _emit(self, tail: _Tail, *, without_last: bool = False) -> None:
        """Move the complete windows from an episode's tail into the pools."""
        rows = tail.counted
        tail.needed = int(rows["needed"].max(initial=tail.needed))
        windows, done = make_windows(rows, rows["needed"], self._spec)
        at = windows["address"]
        windows["ahead"] = windows["steps"]
        if without_last:
            windows["ahead"] -= at + windows["steps"] == len(rows) - 1
        windows["row"] = rows["number"][at]
        windows["before"] = tail.done + at
        versions = rows["policy_version"][at]
        windows["address"] += tail.first + tail.done
        demonstration = windows["source"] == SOURCE_DEMONSTRATION
        usable = ~np.isnan(windows["reward"]) & ~np.isnan(windows["return"])
        if self._spec.policy_versions is not None:
            low, high = self._spec.policy_versions
            usable &= demonstration | ((versions >= low) & (versions <= high))
        intervention = windows["source"] == SOURCE_INTERVENTION
        self.pools[DataKind.DEMONSTRATION].extend(windows[usable & demonstration])
        self.pools[DataKind.INTERVENTION].extend(windows[usable & intervention])
        self.pools[DataKind.ONLINE].extend(windows[usable & ~demonstration])
        tail.done += done
        tail.counted = rows[done:].copy()  # a copy, so that the finished rows are freed


def make_windows(scalars: Records, needed: Integers, spec: SampleSpec) -> tuple[Records, int]:
    """Compute the complete windows of consecutive rows.

    The n-step return is sum of discount^j r_{t+j} over j < m, and the discount of the next
    state's value discount^m (1 - terminated), as in Sutton and Barto, "Reinforcement Learning",
    eq. 7.1, cut at the episode's end and, for an action of the policy, at a take-over.

    Args:
        scalars: Shape (rows,), with the fields of `SCALARS`.
        needed: Shape (rows,), the online transitions that must be visible for each row.
        spec: Which windows to make.

    Returns:
        The windows, ``address`` counted from the first row, and the number of leading rows that
        are finished: either the start of a complete window or ``is_last``.
    """
    count, horizon = len(scalars), spec.horizon
    rows = np.arange(count)
    last_rows = np.flatnonzero(scalars["is_last"])
    # Placeholder for an end that has not arrived: such windows use all their steps.
    never = count + 2 * (spec.n_step + horizon)
    ends = np.append(last_rows, never)[np.searchsorted(last_rows, rows)]
    take_overs = _take_overs(scalars["source"], never)
    stops = np.minimum(ends, take_overs)
    steps = np.minimum(spec.n_step, stops - rows)
    chunk = np.minimum(horizon, stops - rows)
    following = rows + steps
    # From the next observation on, an episode's last row counts, as it has the base's proposal.
    known = np.minimum(following, count - 1)
    reach = np.minimum(ends + 1, take_overs)[known]
    next_chunk = np.minimum(horizon if spec.next_chunk_fields else 0, reach - following)
    last = np.maximum(following, rows + chunk - 1)
    last = np.maximum(last, following + next_chunk - 1)
    if spec.returns:
        last = np.maximum(last, ends)
    # Windows stay in order: a complete one waits for those before it.
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
    """Discounted reward sums of rows index … stop - 1 of complete episodes."""
    rewards = scalars["reward"].astype(np.float64).tolist()
    ended, following = scalars["is_last"].tolist(), 0.0
    whole = np.zeros(len(scalars))
    for row in range(len(scalars) - 1, -1, -1):
        following = 0.0 if ended[row] else rewards[row] + discount * following
        whole[row] = following
    # A return cut by a take-over lacks the rewards after it.
    rest: Records = whole[index] - discount ** (stop - index).astype(float) * whole[stop]
    return rest


def _inside(addresses: Integers, ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Whether addresses lie in non-overlapping ranges."""
    if not ranges:
        return np.zeros(len(addresses), np.bool_)
    firsts, ends = np.array(sorted(ranges)).T
    at = np.searchsorted(firsts, addresses, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (addresses < ends[at])
    return inside


def _take_overs(sources: npt.NDArray[np.uint8], never: int) -> Integers:
    """For each row of the policy, the next operator take-over; `never` for all others."""
    rows = np.arange(len(sources))
    policy = sources == SOURCE_POLICY
    taken = np.flatnonzero(policy[:-1] & (sources[1:] == SOURCE_INTERVENTION)) + 1
    following = np.append(taken, never)[np.searchsorted(taken, rows, side="right")]
    return np.where(policy, following, never)
