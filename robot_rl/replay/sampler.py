"""The learner's mini-batch sampler, and a prefetcher for it.

The rows are on this machine: memory maps of a store or of its replica, or datasets in memory. A
sampler keeps a small record of every window in memory (50 bytes each) and copies rows when a batch
is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from robot_rl.errors import did_you_mean
from robot_rl.replay import NotEnoughData, ReplayError, StoreReplaced
from robot_rl.replay.row_sources import EpisodeRows, StoreRows
from robot_rl.replay.windows import (
    CHUNK,
    LABELS,
    SCALARS,
    UNKNOWN,
    WINDOW,
    Batch,
    DataKind,
    Integers,
    Records,
    SampleSpec,
    WindowIndex,
    is_observation,
)

# The dtype and the shape of one item, for each array.
Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


class Visible(NamedTuple):
    """Data visible to a sampler since its last refresh: window counts, except for the first."""

    available: int = 0  # online environment steps in the store at that time, visible or not
    demonstrations: int = 0
    online: int = 0  # of actors, interventions included
    interventions: int = 0


class Sampler:
    """Draws the mini-batches that a `SampleSpec` describes from rows. Closing it closes the rows.

    What is visible depends only on the number of steps given to `refresh`, as long as one actor
    writes at a time. With `capacity_rows`, the learner's lag in rows plus the longest episode must
    fit into an eighth of them. Kinds of data are interleaved, so that every contiguous part of a
    batch keeps their fractions. Not thread-safe.

    Raises:
        ReplayError: Unknown field, or a fraction out of range.
    """

    def __init__(
        self, rows: StoreRows | EpisodeRows, spec: SampleSpec, rng: np.random.Generator
    ) -> None:
        self.spec, self.rng = spec, rng
        with ExitStack() as failed:
            failed.callback(rows.close)
            self._rows = rows
            apart = spec.intervention_share
            self._quotas = Quotas(spec.batch_size, spec.demonstration_share, apart or 0.0)
            self.layout = _layout(spec, rows.dtype)
            self._spans = dict.fromkeys(DataKind, range(0))
            self._begin_index()
            self.refresh(None)
            failed.pop_all()

    def transitions_available(self) -> int:
        """Read new rows and return the total number of online environment steps.

        Evicted steps count: the number never decreases. The last step of an ended episode counts
        once its ``is_last`` row is there.

        Raises:
            ServerUnreachable: The server of a remote store does not answer.
        """
        news = self._rows.look()
        evicted = self._rows.evicted
        steps = evicted["policy"] + evicted["intervention"]
        self._index.note_evicted(evicted["rows"], steps, self._rows.gone())
        for item in news:
            self._index.add(item)
        return self._index.online_transitions

    def refresh(self, environment_steps: int | None = None) -> None:
        """Make exactly the first `environment_steps` online steps visible; None means all.

        "First" means row order for one actor, and order of arrival for several. Data completed
        because an episode was cut short comes with the step after. Demonstrations are always all
        visible. Evicted rows and rows beyond the capacity are left out. If there are newer
        rewards, all rows are read again.

        Raises:
            NotEnoughData: There are fewer; wait for `transitions_available` first.
            ServerUnreachable: The server of a remote store does not answer.
        """
        available = self.transitions_available()
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
        self._steps = environment_steps
        # Rows that arrive later stay invisible until the next refresh.
        self._limit = available if environment_steps is None else environment_steps
        if gone := self._rows.gone():
            self._index.forget(gone)
            self._rows.forget_gone()
        pools = self._index.pools
        ends = {kind: pool.visible(self._limit) for kind, pool in pools.items()}
        self._oldest = 0
        if self.spec.capacity_rows is not None and ends[DataKind.ONLINE]:
            newest = int(pools[DataKind.ONLINE].windows["row"][ends[DataKind.ONLINE] - 1])
            kept = self.spec.capacity_rows - self.spec.capacity_rows // 8
            self._oldest = newest + 1 - max(kept - self._index.demonstration_rows, 1)
        for kind, pool in pools.items():
            start = 0 if kind is DataKind.DEMONSTRATION else pool.begun_before(self._oldest)
            self._spans[kind] = range(start, ends[kind])
        demonstrations, interventions, online = map(len, self._spans.values())
        self.visible = Visible(available, demonstrations, online, interventions)

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch into `out`, from `allocate`, or into new arrays.

        Raises:
            NotEnoughData: No data is visible.
        """
        batch = self.allocate() if out is None else out
        self._fill(batch, self._draw())
        return batch

    def every_window(self) -> Batch:
        """Return each visible window once, in order, as one batch: demonstrations first."""
        kinds = DataKind.DEMONSTRATION, DataKind.ONLINE
        pools, spans = self._index.pools, self._spans
        windows = np.concatenate(
            [pools[kind].windows[spans[kind].start : spans[kind].stop] for kind in kinds]
        )
        batch = self.allocate(len(windows))
        self._fill(batch, windows)
        return batch

    def episodes(
        self, fields: Sequence[str], after: int = -1, *, demonstrations: bool = False
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the visible episodes that have ended, in order of start.

        An episode that has not ended, or is only partly visible, hides all later ones. Yields
        episodes of actors, or the `demonstrations`.

        Args:
            fields: Columns of the rows.
            after: Identifier of the episode after which to start.
            demonstrations: Whether to yield demonstrations instead of actors' episodes.

        Yields:
            The identifier, and columns of T + 1 rows: the fields, and ``reward`` and ``terminated``
            as the spec defines them; an unknown reward is NaN.
        """
        found = self._index.visible_episodes(
            self._limit, self._oldest, of_actors=not demonstrations
        )
        dtype = self._rows.dtype
        judged = SCALARS.names if self.spec.rewards is not None else None
        names = {*fields, *(judged or ("reward", "terminated"))}
        for number, episode in found:
            if number <= after:
                continue
            at = np.append(np.arange(episode.first, episode.first + episode.steps), episode.last)
            columns = {
                n: np.empty((len(at), *dtype[n].shape), dtype[n].base)
                for n in dtype.names or ()
                if n in names
            }
            self._rows.take(at, columns)
            if self.spec.rewards is not None:
                scalars = np.empty(len(at), SCALARS)
                for name in SCALARS.names or ():
                    scalars[name] = columns[name]
                whole = episode.last == episode.first + episode.steps
                rows = scalars if whole else scalars[:-1]
                self._relabel(episode.first, rows)
                columns["reward"], columns["terminated"] = scalars["reward"], scalars["terminated"]
            yield number, {name: columns[name] for name in (*fields, "reward", "terminated")}

    def allocate(self, size: int | None = None) -> Batch:
        """Return arrays for a batch, or for one of `size` windows."""
        size = self.spec.batch_size if size is None else size
        return {name: np.empty((size, *shape), kind) for name, (kind, shape) in self.layout.items()}

    def state_dict(self) -> dict[str, object]:
        """Return the random stream's state and the visible amounts, JSON-able."""
        return {
            "rng": cast("dict[str, object]", self.rng.bit_generator.state),
            "environment_steps": self._steps,
            "store": self._rows.identity,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Resume from a `state_dict`.

        Raises:
            ReplayError: The state is not one of this kind of generator.
            StoreReplaced: It belongs to another store.
            NotEnoughData: The store has lost the steps that were visible then.
        """
        try:
            steps, store = state["environment_steps"], state["store"]
            if steps is not None and (type(steps) is not int or steps < 0):
                raise ValueError(f"environment_steps is {steps!r}")
            self.rng.bit_generator.state = cast("dict[str, Any]", state["rng"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ReplayError("this is not the state of a sampler", got=repr(error)) from error
        if store != self._rows.identity:
            raise StoreReplaced(
                "this is another store than the one that was learned from",
                got=self._rows.identity,
                expected=store,
                hint="put that store back, or begin a new run",
            )
        self.refresh(steps)

    def close(self) -> None:
        """Release the rows."""
        self._rows.close()

    def _rewards_there(self) -> int:
        """Return how many values of the reward annotation have been written so far."""
        return 0 if self.spec.rewards is None else self._rows.annotation_count(self.spec.rewards)

    def _begin_index(self) -> None:
        """Forget all windows; the next look reads all rows again."""
        self._rows.rewind()
        self._rewards_seen = self._rewards_there()
        relabel = None if self.spec.rewards is None else self._relabel
        self._index = WindowIndex(self.spec, relabel)

    def _relabel(self, address: int, scalars: Records) -> None:
        """Write the rewards that the spec selects into the scalars of consecutive rows."""
        name = self.spec.rewards
        assert name is not None
        if name != LABELS:
            scalars["reward"] = UNKNOWN
        if self._rewards_seen:
            valid, _, values = self._rows.annotated(name, address, len(scalars))
            scalars["reward"][valid] = values[valid]
            if name == LABELS:
                end_at_success(scalars, valid)

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

    def _fill(self, batch: Batch, windows: Records) -> None:
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


def _layout(spec: SampleSpec, row: np.dtype[Any]) -> Layout:
    """Compute the arrays of a batch."""
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
    return layout


def _column(
    row: np.dtype[Any], name: str, lead: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    names = row.names or ()
    if name not in names:
        raise ReplayError(
            "the rows have no such field",
            got=name,
            expected=sorted(names),
            hint=did_you_mean(name, names),
        )
    return row[name].base, (*lead, *row[name].shape)


# Substitutes for a kind that has no data yet, if they have a fraction themselves.
_REPLACEMENTS = DataKind.DEMONSTRATION, DataKind.ONLINE


class Quotas:
    """Assigns each slot of a batch its kind, interleaved.

    Every contiguous part of a batch keeps the fraction of demonstrations to within one row, and
    the other fractions to within two.

    Raises:
        ReplayError: A fraction is out of range.
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
            NotEnoughData: No other kind can replace it.
        """
        kinds = self._kinds
        for kind in DataKind:
            slots = self._kinds == kind
            if available[kind] or not slots.any():
                continue
            usable = [k for k in _REPLACEMENTS if self._shares[k] > 0 and available[k]]
            if not usable:
                raise NotEnoughData(
                    "there is nothing to sample from",
                    got={k.name.lower(): count for k, count in available.items()},
                    expected=f"data of kind {kind.name.lower()}, or of one that replaces it",
                    hint="if it was evicted, raise replay.capacity_rows",
                )
            kinds = np.where(slots, np.uint8(usable[0]), kinds)
        return kinds


def _every(count: int, share: float) -> npt.NDArray[np.bool_]:
    """Spread a fraction evenly over `count` slots, shape (count,)."""
    steps: npt.NDArray[np.float64] = np.diff(np.floor(np.arange(count + 1) * share + 1e-9))
    return steps.astype(np.bool_)


def end_at_success(scalars: Records, labelled: npt.NDArray[np.bool_]) -> None:
    """Terminate episodes labelled as a success at their last action.

    A success label given during an episode terminates it. One given later does the same: nothing is
    bootstrapped beyond the time limit. Labels of other actions, and of failure, end no episode.

    Args:
        scalars: Shape (rows,), dtype `SCALARS`, consecutive rows; changed in place.
        labelled: Shape (rows,), whether a row's reward is a label.
    """
    succeeded = labelled[:-1] & (scalars["reward"][:-1] == 1.0)
    ended = np.flatnonzero(succeeded & scalars["is_last"][1:])
    scalars["terminated"][ended] = True
    scalars["truncated"][ended] = False


class Prefetcher:
    """Draws each batch in a thread while the previous one is used."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._thread = ThreadPoolExecutor(1, "replay-prefetch")
        # One set of arrays is with the caller, the other is being filled.
        self._arrays = itertools.cycle([sampler.allocate(), sampler.allocate()])

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield `count` batches; the arrays of each are valid until the next.

        No further batch is prefetched, so no draw spans a refresh. Until the last one is yielded,
        only the thread may use the sampler.

        Raises:
            NotEnoughData: No data is visible.
        """
        drawing = self._draw() if count else None
        try:
            while drawing is not None:
                batch, count = drawing.result(), count - 1
                drawing = self._draw() if count else None
                yield batch
        finally:
            if drawing is not None:
                wait([drawing])

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _draw(self) -> Future[Batch]:
        return self._thread.submit(self._sampler.sample, next(self._arrays))
