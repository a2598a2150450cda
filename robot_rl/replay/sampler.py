"""Mini-batches for the learner, straight from the store's memory map.

The sampler keeps a small record of every window in memory (41 bytes each) and copies
observations from the map when a batch is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from robot_rl.replay.annotations import AnnotationField
from robot_rl.replay.batch_layout import NEXT, WINDOW_FIELDS, BatchLayout
from robot_rl.replay.batches import Batch
from robot_rl.replay.environment import open_for_reading
from robot_rl.replay.errors import NotEnoughData, ReplayError
from robot_rl.replay.follower import TableFollower
from robot_rl.replay.gather import RowGather
from robot_rl.replay.quotas import DataKind, Quotas
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.windows import WINDOW, Records, WindowIndex

_REDRAWS = 16


class ReplaySampler:
    """Draws uniform n-step transitions with fixed shares of demonstrations and interventions.

    A batch of B holds: every requested field at s under its name, (B, *shape); observation fields
    and ``base_action`` at the next state under ``next/<name>``; ``reward`` float32 (B,), the sum
    of discount^j r_{t+j} over the m <= n steps of the window; ``discount`` float32 (B,),
    discount^m, 0 where terminated; ``steps`` int16 (B,), m; ``source`` uint8 (B,); the fields that
    are wanted of every step under ``chunk/<name>``, (B, n, *shape), rows t to t + m - 1 and zeros
    after them; every requested annotation under ``annotation/<name>``, (B, *shape), with
    ``annotation/<name>/valid``, bool (B,), and both at the next state under ``next/``.

    Interventions are online steps like any other, and besides that they are drawn with the
    demonstrations, in proportion, as in HIL-SERL; or in slots of their own if they have a share.
    Kinds are interleaved, so that every contiguous part of a batch keeps the shares. A row that
    was evicted since the last `refresh` is replaced by another of its kind. Not safe for use from
    several threads at a time.

    With `capacity_rows` the newest 7/8 of so many rows are drawn from, demonstrations included.
    What is visible then depends on the number of steps alone, and not on how far the server has
    evicted, as long as one actor writes at a time, the store has one table, and the rows by which
    the learner is behind and the longest episode fit into the other 1/8. Without it everything
    that is stored is visible.

    Args:
        store_path: Folder of the store.
        table: Name of the table.
        fields: Fields of the schema to give at s.
        batch_size: B.
        n_step: Most steps of a window.
        discount: Per step.
        demonstration_share: In [0, 1]; strictly between, the kind that has no data yet is
            replaced by the other.
        rng: Where all randomness comes from.
        intervention_share: Share of slots for interventions alone, in [0, 1 -
            demonstration_share]; None gives them no slots of their own, but a place among the
            demonstrations.
        capacity_rows: The store's ``replay.capacity_rows``.
        rewards: Name of the annotation whose newest version gives the rewards; it need not exist
            yet. Labels (`reward`) replace the reward of each row that has one; any other is the
            only reward, and rows without it are not drawn. Newer ones are looked for at `refresh`,
            which then reads the scalars of the whole table again: about 5 s per million rows.
        annotations: Names of annotations to give as columns.
        chunk_fields: Fields of the schema to give for every step of a window, for example
            ``action`` for a critic of chunks with n = `n_step` actions.

    Raises:
        StoreError: No such store, table or annotation.
        ReplayError: Unknown field, one that is named twice, or a number out of range.
    """

    def __init__(
        self,
        store_path: Path,
        table: str,
        fields: Sequence[str],
        *,
        batch_size: int,
        n_step: int,
        discount: float,
        demonstration_share: float,
        rng: np.random.Generator,
        intervention_share: float | None = None,
        capacity_rows: int | None = None,
        rewards: str | None = None,
        annotations: Sequence[str] = (),
        chunk_fields: Sequence[str] = (),
    ) -> None:
        """Open the store and index what it holds; see the class."""
        _check_numbers(batch_size, n_step, discount, capacity_rows)
        self._quotas = Quotas(batch_size, demonstration_share, intervention_share or 0.0)
        self._interventions_apart = intervention_share is not None
        self._reader = StoreReader(store_path)
        self._environment = open_for_reading(store_path)
        self._n_step, self._discount = n_step, discount
        self._capacity_rows, self._rewards = capacity_rows, rewards
        self._visible: int | None = None
        self._limit = 0
        self._spans = dict.fromkeys(DataKind, (0, 0))
        self.batch_size, self.rng = batch_size, rng
        with ExitStack() as failed:
            failed.callback(self.close)
            self._info = self._reader.table(table)
            self.schema = self._info.schema
            known = self._reader.annotation_fields(table)
            self._layout = BatchLayout(
                self.schema, fields, known, annotations, batch_size, chunk_fields, n_step
            )
            identifier = self._info.identifier
            self._gather = RowGather(self._environment, identifier, self.schema, self._layout)
            self._begin_index(self._rewards_field())
            self.refresh(None)
            failed.pop_all()

    @property
    def demonstration_transitions(self) -> int:
        """Windows of demonstrations that `sample` draws from."""
        return _length(self._spans[DataKind.DEMONSTRATION])

    @property
    def online_transitions(self) -> int:
        """Online windows that `sample` draws from, those of interventions included."""
        return _length(self._spans[DataKind.ONLINE])

    @property
    def intervention_transitions(self) -> int:
        """Windows of interventions that `sample` draws from."""
        return _length(self._spans[DataKind.INTERVENTION])

    def transitions_available(self) -> int:
        """Look at the store and return its number of online environment steps.

        Evicted steps count: the number never decreases. The last step of an ended episode counts
        once its ``is_last`` row is there.
        """
        self._follower.read()
        return self._index.online_transitions

    def refresh(self, environment_steps: int | None = None) -> None:
        """Make exactly the first `environment_steps` online steps visible; None means all.

        "First" is the order of (session, sequence) for one actor, and the order of arrival for
        several; what is complete because an episode was cut short comes with the step after.
        Demonstrations are always all visible. Of actors' rows, evicted ones and those beyond the
        capacity are left out.

        Raises:
            NotEnoughData: The store holds fewer; wait for `transitions_available` first.
        """
        field = self._rewards_field()
        if field is not None and field.written != self._rewards_written:
            self._begin_index(field)
        available = self.transitions_available()
        if environment_steps is not None and environment_steps > available:
            raise NotEnoughData(
                "the store holds fewer online steps than asked for",
                got=available,
                expected=environment_steps,
                hint="wait for those that are on their way; if the store is another than before,"
                " put the former back from a copy, or begin a new run",
            )
        self._visible = environment_steps
        # What arrives later stays invisible until the next refresh.
        self._limit = available if environment_steps is None else environment_steps
        self._show()

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch.

        Args:
            out: Arrays to fill, from `allocate`; new ones by default.

        Raises:
            NotEnoughData: Nothing to draw from is visible.
        """
        batch = self._layout.allocate() if out is None else self._layout.checked(out)
        self._fill(1, batch)
        return batch

    def sample_many(self, count: int, out: Batch | None = None) -> Batch:
        """Draw `count` batches at once, shapes (count, B, ...).

        The same random stream as `count` calls of `sample`.

        Raises:
            NotEnoughData: Nothing to draw from is visible.
        """
        layout = self._layout
        batch = layout.allocate(count) if out is None else layout.checked(out, count)
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()}
        self._fill(count, flat)
        return batch

    def allocate(self, count: int | None = None) -> Batch:
        """Return arrays for a batch, or for `count` batches with a leading axis."""
        return self._layout.allocate(count)

    def state_dict(self) -> dict[str, object]:
        """Return the state of the random stream and what is visible, JSON-able."""
        return {
            "rng": cast("dict[str, object]", self.rng.bit_generator.state),
            "environment_steps": self._visible,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            ReplayError: The state is not one of this kind of generator.
            NotEnoughData: The store has lost the steps that were visible then.
        """
        try:
            self.rng.bit_generator.state = cast("dict[str, Any]", state["rng"])
            steps = state["environment_steps"]
            if steps is not None and (not isinstance(steps, int) or steps < 0):
                raise ValueError(f"environment_steps is {steps!r}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ReplayError("this is not the state of a sampler", got=repr(error)) from error
        self.refresh(steps)

    def close(self) -> None:
        """Release the store."""
        self._reader.close()
        self._environment.release()

    def _rewards_field(self) -> AnnotationField | None:
        """Return the annotation that gives the rewards, None while no row has it.

        Raises:
            ReplayError: It is no scalar.
        """
        if self._rewards is None:
            return None
        field = self._reader.annotation_fields(self._info.name).get(self._rewards)
        if field is not None and (field.shape != () or np.dtype(field.dtype).kind != "f"):
            raise ReplayError(
                f"the annotation {field.name!r} cannot stand for rewards",
                got=f"{field.dtype} {field.shape}",
                expected="a float without axes",
            )
        return field

    def _begin_index(self, field: AnnotationField | None) -> None:
        """Forget all windows; the next look at the store reads the whole table."""
        self._rewards_written = 0 if field is None else field.written
        self._index = WindowIndex(self._n_step, self._discount)
        self._follower = TableFollower(
            self._environment,
            self._info.identifier,
            self.schema,
            self._index,
            self._rewards,
            field,
        )

    def _show(self) -> None:
        """Forget what is evicted and find the windows to draw from."""
        self._follower.forget_evicted()
        pools = dict(zip(DataKind, self._index.pools, strict=True))
        ends = {kind: pool.visible(self._limit) for kind, pool in pools.items()}
        oldest = 0
        if self._capacity_rows is not None and ends[DataKind.ONLINE]:
            newest = int(pools[DataKind.ONLINE].windows["row"][ends[DataKind.ONLINE] - 1])
            kept = self._capacity_rows - self._capacity_rows // 8
            oldest = newest + 1 - max(kept - self._follower.demonstration_rows, 1)
        for kind, pool in pools.items():
            start = 0 if kind is DataKind.DEMONSTRATION else pool.begun_before(oldest)
            self._spans[kind] = (min(start, ends[kind]), ends[kind])

    def _kinds(self) -> npt.NDArray[np.uint8]:
        """Return the kind of each slot of a batch, shape (B,).

        Raises:
            NotEnoughData: Nothing to draw from is visible.
        """
        available = {kind: _length(span) for kind, span in self._spans.items()}
        if not self._interventions_apart:
            available[DataKind.DEMONSTRATION] += available[DataKind.INTERVENTION]
        return self._quotas.kinds(available)

    def _draw(self, kinds: npt.NDArray[np.uint8]) -> Records:
        """Draw one window of each of the kinds, shape (len(kinds),)."""
        windows = np.empty(len(kinds), WINDOW)
        for kind in DataKind:
            places = np.flatnonzero(kinds == kind)
            if not len(places):
                continue
            sources = [kind]
            if kind is DataKind.DEMONSTRATION and not self._interventions_apart:
                sources.append(DataKind.INTERVENTION)
            counts = [_length(self._spans[source]) for source in sources]
            chosen = self.rng.integers(0, sum(counts), len(places))
            for source, count in zip(sources, counts, strict=True):
                here = (chosen >= 0) & (chosen < count)
                pool = self._index.pools[source].windows
                windows[places[here]] = pool[self._spans[source][0] + chosen[here]]
                chosen -= count
        return windows

    def _fill(self, count: int, batch: Batch) -> None:
        """Draw so many batches and copy them to where they go."""
        kinds = self._kinds()
        windows = np.concatenate([self._draw(kinds) for _ in range(count)])
        following = {
            name.removeprefix(NEXT): array for name, array in batch.items() if name.startswith(NEXT)
        }
        for _ in range(_REDRAWS):
            absent = self._gather.fill(windows, self._follower.sessions, batch, following)
            if not len(absent):
                break
            self._follower.read()
            self._show()
            windows[absent] = self._draw(self._kinds()[absent % self.batch_size])
        else:
            raise NotEnoughData(
                "rows are evicted faster than they can be drawn",
                hint="raise replay.capacity_rows or capacity_bytes",
            )
        for name in WINDOW_FIELDS:
            batch[name][...] = windows[name]


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _check_numbers(
    batch_size: int, n_step: int, discount: float, capacity_rows: int | None
) -> None:
    for name, value, valid, expected in (
        ("batch_size", batch_size, batch_size >= 1, ">= 1"),
        ("n_step", n_step, 1 <= n_step < 2**15, "1 to 32767"),
        ("discount", discount, 0 <= discount <= 1, "in [0, 1]"),
        ("capacity_rows", capacity_rows, capacity_rows is None or capacity_rows >= 1, ">= 1"),
    ):
        if not valid:
            raise ReplayError(f"{name} is out of range", got=value, expected=expected)
