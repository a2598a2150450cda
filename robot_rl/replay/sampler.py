"""What a learner draws mini-batches with, wherever the rows are, and draws them ahead with."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, cast

import numpy as np

from robot_rl.replay.errors import ClientFailed, ReplayError, StoreReplaced
from robot_rl.replay.sample_spec import Batch, Layout, SampleSpec, allocate, checked


class Visible(NamedTuple):
    """What a sampler draws from since its last refresh, in numbers.

    Attributes:
        available: Online environment steps that the store had then, visible or not.
        demonstrations: Windows of demonstrations.
        online: Windows of actors, those of interventions included.
        interventions: Windows of interventions.
        left: With the order "episodes", those that are still to be given; else 0.
    """

    available: int = 0
    demonstrations: int = 0
    online: int = 0
    interventions: int = 0
    left: int = 0


class Sampler(ABC):
    """Draws the mini-batches that a `SampleSpec` describes: here, or from a server.

    What is visible depends on the number of steps that `refresh` was given alone, as long as one
    actor writes at a time and the store has one table; with `capacity_rows` the rows by which the
    learner is behind and the longest episode must fit into an eighth of them. Kinds of data are
    interleaved, so that every contiguous part of a batch keeps the shares. Not safe for use from
    several threads at a time.

    Attributes:
        spec: What is drawn.
        rng: Where all randomness comes from.
        visible: What it is drawn from.
    """

    def __init__(self, spec: SampleSpec, rng: np.random.Generator) -> None:
        """See the class."""
        self.spec, self.rng = spec, rng
        self.visible = Visible()
        self.layout: Layout = {}
        self._identity = ""  # of the store
        self._steps: int | None = None  # visible ones, as `refresh` was told; None for all
        self._limit = 0  # and in numbers
        self._given = (-1, 0)  # in order: the episode that was given last, and windows of it

    @abstractmethod
    def transitions_available(self) -> int:
        """Look at the store and return its number of online environment steps.

        Evicted steps count: the number never decreases. The last step of an ended episode counts
        once its ``is_last`` row is there.
        """

    @abstractmethod
    def refresh(self, environment_steps: int | None = None) -> None:
        """Make exactly the first `environment_steps` online steps visible; None means all.

        "First" is the order of rows for one actor, and the order of arrival for several; what is
        complete because an episode was cut short comes with the step after. Demonstrations are
        always all visible. Evicted rows and those beyond the capacity are left out.

        Raises:
            NotEnoughData: The store holds fewer; wait for `transitions_available` first.
        """

    @abstractmethod
    def _fill(self, count: int, batch: Batch) -> None:
        """Draw `count` batches into arrays (count * B, ...)."""

    @abstractmethod
    def close(self) -> None:
        """Release the store or the connection."""

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch.

        Args:
            out: Arrays to fill, from `allocate`; new ones by default.

        Raises:
            NotEnoughData: Nothing to draw from is visible, or each episode was given.
        """
        batch = self.allocate() if out is None else checked(out, self.layout, self._lead())
        self._fill(1, batch)
        return batch

    def sample_many(self, count: int, out: Batch | None = None) -> Batch:
        """Draw `count` batches at once, shapes (count, B, ...), as so many calls of `sample` do.

        Raises:
            NotEnoughData: As `sample`.
        """
        lead = self._lead(count)
        batch = self.allocate(count) if out is None else checked(out, self.layout, lead)
        self._fill(count, {n: array.reshape(-1, *array.shape[2:]) for n, array in batch.items()})
        return batch

    def allocate(self, count: int | None = None) -> Batch:
        """Return arrays for a batch, or for `count` batches with a leading axis."""
        return allocate(self.layout, self._lead(count))

    def state_dict(self) -> dict[str, object]:
        """Return the random stream's state, what is visible and what was given, JSON-able."""
        return {
            "rng": cast("dict[str, object]", self.rng.bit_generator.state),
            "environment_steps": self._steps,
            "given": list(self._given),
            "store": self._identity,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken, of this sampler or of one across the network.

        Raises:
            ReplayError: The state is not one of this kind of generator.
            StoreReplaced: It belongs to another store.
            NotEnoughData: The store has lost the steps that were visible then.
        """
        try:
            steps, store = state["environment_steps"], state["store"]
            episode, windows = cast("list[int]", state["given"])
            given = int(episode), int(windows)
            if not -1 <= given[0] < 2**63 or not 0 <= given[1] < 2**63:
                raise ValueError(f"given is {given}")
            if steps is not None and (type(steps) is not int or steps < 0):
                raise ValueError(f"environment_steps is {steps!r}")
            self.rng.bit_generator.state = cast("dict[str, Any]", state["rng"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ReplayError("this is not the state of a sampler", got=repr(error)) from error
        if store != self._identity:
            raise StoreReplaced(
                "this is another store than the one that was learned from",
                got=self._identity,
                expected=store,
                hint="put that store back, or begin a new run",
            )
        self._given = given
        self.refresh(steps)

    def _lead(self, count: int | None = None) -> tuple[int, ...]:
        return (self.spec.batch_size,) if count is None else (count, self.spec.batch_size)


class Prefetcher:
    """Draws a given number of batches ahead, in the sampler's random order.

    The number is given up front, so that nothing is drawn across a refresh: call `start`, then
    `next` exactly so many times, then refresh the sampler, and so on.

    Args:
        sampler: Used by the thread alone between `start` and the last `next`.
        depth: Most batches that are ready and waiting.
        batches_per_draw: 1 gives batches as `Sampler.sample` does, k > 1 as
            `Sampler.sample_many(k)`.
    """

    def __init__(self, sampler: Sampler, *, depth: int = 2, batches_per_draw: int = 1) -> None:
        """Start the thread; it waits for `start`."""
        if depth < 1 or batches_per_draw < 1:
            raise ReplayError(
                "the prefetcher needs room", got=(depth, batches_per_draw), expected=">= 1 each"
            )
        self._sampler = sampler
        self._many = None if batches_per_draw == 1 else batches_per_draw
        # One set of arrays in the caller's hands, the others ready or being filled.
        self._free: queue.Queue[Batch | None] = queue.Queue()
        for _ in range(depth + 1):
            self._free.put(sampler.allocate(self._many))
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue()
        self._orders: queue.Queue[int | None] = queue.Queue()
        self._outstanding = 0
        self._held: Batch | None = None
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-prefetch", daemon=True)
        self._thread.start()

    def start(self, draws: int) -> None:
        """Begin to draw so many batches.

        Raises:
            ReplayError: Batches of the last `start` have not been taken, the number is negative,
                or the thread is gone.
        """
        self._check()
        if draws < 0:
            raise ReplayError("the number of draws is negative", got=draws, expected=">= 0")
        if self._outstanding:
            raise ReplayError(
                "the prefetcher still holds batches of the last start", got=self._outstanding
            )
        self._outstanding = draws
        self._orders.put(draws)

    def next(self) -> Batch:
        """Return the next batch; its arrays are valid until the next call.

        Raises:
            ReplayError: No batch was ordered, or what the thread failed of.
        """
        self._check()
        if self._outstanding == 0:
            raise ReplayError("no batch was ordered", hint="call start(draws) first")
        if self._held is not None:
            self._free.put(self._held)
            self._held = None
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._failure = item
            self._check()
        assert isinstance(item, dict)
        self._held = item
        self._outstanding -= 1
        return item

    def close(self) -> None:
        """End the thread; batches not taken are dropped."""
        self._stop.set()
        self._orders.put(None)
        self._free.put(None)
        self._thread.join()
        self._failure = self._failure or ReplayError("the prefetcher is closed")

    def __enter__(self) -> Self:
        """Return the prefetcher."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread."""
        self.close()

    def _check(self) -> None:
        if isinstance(self._failure, ReplayError):
            raise self._failure
        if self._failure is not None:
            raise ClientFailed(
                "the prefetching thread has died", got=repr(self._failure)
            ) from self._failure

    def _run(self) -> None:
        try:
            while (draws := self._orders.get()) is not None and not self._stop.is_set():
                for _ in range(draws):
                    batch = self._free.get()
                    if batch is None or self._stop.is_set():
                        return
                    if self._many is None:
                        self._sampler.sample(batch)
                    else:
                        self._sampler.sample_many(self._many, batch)
                    self._ready.put(batch)
        except BaseException as failure:
            self._ready.put(failure)
