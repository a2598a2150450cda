"""Mini-batches straight from rows on this machine: a store's memory maps, or datasets in memory.

A sampler keeps a small record of every window in memory (58 bytes each) and copies rows when a
batch is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.errors import did_you_mean
from robot_rl.replay import NotEnoughData, ReplayError
from robot_rl.replay.row_sources import EpisodeRows, TableRows
from robot_rl.replay.sampler import (
    CHUNK,
    Batch,
    Layout,
    Sampler,
    SampleSpec,
    Visible,
    is_observation,
)
from robot_rl.replay.windows import (
    LABELS,
    UNKNOWN,
    WINDOW,
    DataKind,
    Integers,
    Records,
    WindowIndex,
)


def _layout(spec: SampleSpec, row: np.dtype[Any]) -> Layout:
    """Work out the arrays of a batch."""
    flag, number = (np.dtype(np.bool_), ()), (np.dtype(np.float32), ())
    layout: Layout = {
        "reward": number,
        "discount": number,
        "steps": (np.dtype(np.int16), ()),
        "source": (np.dtype(np.uint8), ()),
    }
    for name in layout.keys() & {*spec.fields, *(spec.next_fields or ())}:
        raise ReplayError(
            f"the field {name!r} is in every batch already", hint="leave it out of fields"
        )
    history = (spec.observation_steps,) if spec.observation_steps else ()
    for prefix, names, chunked in spec.sides:
        for name in names:
            layout[prefix + name] = _column(row, name, history if is_observation(name) else ())
        for name in chunked:
            layout[prefix + CHUNK + name] = _column(row, name, (spec.horizon,))
        if chunked:
            layout[prefix + CHUNK + "valid"] = flag[0], (spec.horizon,)
    if spec.returns:
        layout |= {"return": number, "return/valid": flag}
    if spec.in_order:
        layout["drawn"] = flag
    return layout


def _column(
    row: np.dtype[Any], name: str, lead: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    names = row.names or ()
    if name not in names:
        raise ReplayError(
            "the table has no such field",
            got=name,
            expected=sorted(names),
            hint=did_you_mean(name, names),
        )
    return row[name].base, (*lead, *row[name].shape)


# What stands in for a kind that has no data yet, if it has a share itself.
_REPLACEMENTS = DataKind.DEMONSTRATION, DataKind.ONLINE


class Quotas:
    """Gives each slot of a batch its kind, interleaved.

    Every contiguous part of a batch keeps the share of demonstrations to within one row, and
    those of the others to within two.

    Raises:
        ReplayError: A share is out of range.
    """

    def __init__(
        self, batch_size: int, demonstration_share: float, intervention_share: float
    ) -> None:
        online = 1.0 - demonstration_share - intervention_share
        shares = demonstration_share, intervention_share
        if not all(0 <= share <= 1 for share in shares) or online < -1e-9:
            raise ReplayError(
                "the shares of demonstrations and interventions are out of range",
                got=f"{demonstration_share} and {intervention_share}",
                expected="each in [0, 1], and at most 1 together",
            )
        kinds = np.full(batch_size, DataKind.ONLINE, np.uint8)
        kinds[_every(batch_size, demonstration_share)] = DataKind.DEMONSTRATION
        others = np.flatnonzero(kinds == DataKind.ONLINE)
        if intervention_share > 0:
            part = min(intervention_share / (1.0 - demonstration_share), 1.0)
            kinds[others[_every(len(others), part)]] = DataKind.INTERVENTION
        self._kinds = kinds
        self._shares = dict(zip(DataKind, (*shares, max(online, 0.0)), strict=True))

    def kinds(self, available: Mapping[DataKind, int]) -> npt.NDArray[np.uint8]:
        """Return the kind of each slot, shape (batch_size,).

        A kind that has no windows `available` is replaced by another.

        Raises:
            NotEnoughData: There is nothing to replace it.
        """
        kinds = self._kinds
        for kind in DataKind:
            wanted = self._kinds == kind
            if available[kind] or not wanted.any():
                continue
            usable = [k for k in _REPLACEMENTS if self._shares[k] > 0 and available[k]]
            if not usable:
                raise NotEnoughData(
                    "there is nothing to sample from",
                    got={k.name.lower(): count for k, count in available.items()},
                    expected=f"data of kind {kind.name.lower()}, or of one that replaces it",
                    hint="if it was evicted, raise replay.capacity_rows",
                )
            kinds = np.where(wanted, np.uint8(usable[0]), kinds)
        return kinds


def _every(count: int, share: float) -> npt.NDArray[np.bool_]:
    """Spread a share evenly over so many slots, shape (count,)."""
    steps: npt.NDArray[np.float64] = np.diff(np.floor(np.arange(count + 1) * share + 1e-9))
    return steps.astype(np.bool_)


class ReplaySampler(Sampler):
    """Draws from the rows of a table, or of datasets, which are closed with the sampler.

    Raises:
        ReplayError: Unknown field, or a share out of range.
    """

    def __init__(
        self, rows: TableRows | EpisodeRows, spec: SampleSpec, rng: np.random.Generator
    ) -> None:
        super().__init__(spec, rng)
        with ExitStack() as failed:
            failed.callback(rows.close)
            self._rows, self._identity = rows, rows.identity
            apart = spec.intervention_share
            self._quotas = Quotas(spec.batch_size, spec.demonstration_share, apart or 0.0)
            self.layout = _layout(spec, rows.dtype)
            self._spans = dict.fromkeys(DataKind, range(0))
            self._queue = np.empty(0, WINDOW)
            self._begin_index()
            self.refresh(None)
            failed.pop_all()

    def transitions_available(self) -> int:
        """See `Sampler`."""
        news = self._rows.look()
        evicted = self._rows.evicted
        steps = evicted["policy"] + evicted["intervention"]
        self._index.note_evicted(evicted["rows"], steps, self._rows.gone())
        for item in news:
            self._index.add(item)
        return self._index.online_transitions

    def refresh(self, environment_steps: int | None = None) -> None:
        """See `Sampler`. Newer rewards are looked for; then the whole table is read again."""
        if self._rewards_there() != self._rewards_seen:
            self._begin_index()
        available = self.transitions_available()
        if environment_steps is not None and environment_steps > available:
            raise NotEnoughData(
                "the store holds fewer online steps than asked for",
                got=available,
                expected=environment_steps,
                hint="wait for those that are on their way; if the store is another than before,"
                " put the former back from a copy, or begin a new run",
            )
        self._steps, self._available = environment_steps, available
        # What arrives later stays invisible until the next refresh.
        self._limit = available if environment_steps is None else environment_steps
        self._show()

    def close(self) -> None:
        """See `Sampler`."""
        self._rows.close()

    def _rewards_there(self) -> int:
        """Return how many values of the annotation that gives the rewards were written so far."""
        return 0 if self.spec.rewards is None else self._rows.annotation_count(self.spec.rewards)

    def _begin_index(self) -> None:
        """Forget all windows; the next look reads all rows again."""
        self._rows.rewind()
        self._rewards_seen, name = self._rewards_there(), self.spec.rewards

        def relabel(address: int, scalars: Records) -> None:
            assert name is not None
            if name != LABELS:
                scalars["reward"] = UNKNOWN
            if self._rewards_seen:
                valid, _, values = self._rows.annotated(name, address, len(scalars))
                scalars["reward"][valid] = values[valid]
                if name == LABELS:
                    end_at_success(scalars, valid)

        self._index = WindowIndex(self.spec, None if name is None else relabel)

    def _show(self) -> None:
        """Forget what is evicted and find the windows to draw from."""
        pools, gone = self._index.pools, self._rows.gone()
        if gone:
            for pool in pools.values():
                pool.forget(gone)
            self._rows.forget_gone()
        ends = {kind: pool.visible(self._limit) for kind, pool in pools.items()}
        oldest = 0
        if self.spec.capacity_rows is not None and ends[DataKind.ONLINE]:
            newest = int(pools[DataKind.ONLINE].windows["row"][ends[DataKind.ONLINE] - 1])
            kept = self.spec.capacity_rows - self.spec.capacity_rows // 8
            oldest = newest + 1 - max(kept - self._index.demonstration_rows, 1)
        for kind, pool in pools.items():
            start = 0 if kind is DataKind.DEMONSTRATION else pool.begun_before(oldest)
            self._spans[kind] = range(start, ends[kind])
        if self.spec.in_order:
            self._line_up()
        self._count()

    def _count(self) -> None:
        demonstrations, interventions, online = map(len, self._spans.values())
        counts = demonstrations, online, interventions, len(self._queue)
        self.visible = Visible(self._available, *counts)

    def _line_up(self) -> None:
        """Queue the windows of the episodes that have not been given yet."""
        shown = bool(self.spec.demonstration_share)
        kind = DataKind.DEMONSTRATION if shown else DataKind.ONLINE
        windows = self._index.pools[kind].windows
        start, end = self._spans[kind].start, self._spans[kind].stop
        # An episode that is not there as a whole holds those that began after it back.
        held = self._index.first_open(of_actor=not shown)
        held = windows["episode"][end:].min(initial=held)
        queue = windows[start:end]
        queue = queue[queue["episode"] < held]
        queue = queue[np.argsort(queue["episode"], kind="stable")]
        episode, given = self._given
        begin = int(np.searchsorted(queue["episode"], episode))
        if begin < len(queue) and queue["episode"][begin] == episode:
            begin += given
        self._queue = queue[begin:].copy()

    def _draw(self) -> Records:
        together = self.spec.intervention_share is None
        available = {kind: len(span) for kind, span in self._spans.items()}
        if together:
            available[DataKind.DEMONSTRATION] += available[DataKind.INTERVENTION]
        kinds = self._quotas.kinds(available)
        windows = np.empty(len(kinds), WINDOW)
        for kind in DataKind:
            places = np.flatnonzero(kinds == kind)
            if not len(places):
                continue
            sources = [kind]
            if kind is DataKind.DEMONSTRATION and together:
                sources.append(DataKind.INTERVENTION)
            counts = [len(self._spans[source]) for source in sources]
            chosen = self.rng.integers(0, sum(counts), len(places))
            for source, count in zip(sources, counts, strict=True):
                here = (chosen >= 0) & (chosen < count)
                pool = self._index.pools[source].windows
                windows[places[here]] = pool[self._spans[source].start + chosen[here]]
                chosen -= count
        return windows

    def _next_in_order(self) -> tuple[Records, int]:
        """Take the next windows of the queue, shape (B,), and how many were left of them."""
        left = min(self.spec.batch_size, len(self._queue))
        if not left:
            raise NotEnoughData(
                "each episode that is visible and has ended was given",
                hint="refresh when there are more",
            )
        windows = self._queue[np.minimum(np.arange(self.spec.batch_size), left - 1)]
        self._queue = self._queue[left:]
        episode = int(windows["episode"][-1])
        of_it = int((windows["episode"][:left] == episode).sum())
        self._given = episode, of_it + (self._given[1] if self._given[0] == episode else 0)
        self._count()
        return windows, left

    def _fill(self, batch: Batch) -> None:
        if self.spec.in_order:
            windows, left = self._next_in_order()
            batch["drawn"][...] = np.arange(len(windows)) < left
        else:
            windows = self._draw()
        for name in ("reward", "discount", "steps", "source"):
            batch[name][...] = windows[name]
        if self.spec.returns:
            batch["return"][...], batch["return/valid"][...] = windows["return"], windows["ended"]
        spec, steps = self.spec, np.arange(self.spec.horizon)
        history = np.arange(1 - spec.observation_steps, 1)
        places = (0, windows["chunk"]), (windows["ahead"], windows["next_chunk"])
        for (ahead, length), (prefix, names, chunked) in zip(places, spec.sides, strict=True):
            at, before = windows["address"] + ahead, windows["before"] + ahead
            seen = [name for name in names if spec.observation_steps and is_observation(name)]
            if seen:
                earlier = np.maximum(history, -before[:, None])
                self._take(at[:, None] + earlier, {name: batch[prefix + name] for name in seen})
            others = {name: batch[prefix + name] for name in names if name not in seen}
            self._take(at[:, None], others)
            if chunked:
                later = np.minimum(steps, length[:, None] - 1)
                chunks = {name: batch[prefix + CHUNK + name] for name in chunked}
                self._take(at[:, None] + later, chunks)
                batch[prefix + CHUNK + "valid"][...] = steps < length[:, None]

    def _take(self, addresses: Integers, out: Batch) -> None:
        row = self._rows.dtype
        flat = {name: array.reshape(-1, *row[name].shape) for name, array in out.items()}
        self._rows.take(addresses.reshape(-1), flat)


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
