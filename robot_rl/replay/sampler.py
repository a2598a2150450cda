"""What a learner draws mini-batches with, wherever the rows are, and draws them ahead with."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from robot_rl.data.schema import LAST_COMMAND, Array
from robot_rl.replay import ReplayError, StoreReplaced

Batch = dict[str, Array]
# For each array its dtype and the shape of one item.
Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

MAXIMUM_BATCH_SIZE = 1 << 16
MAXIMUM_STEPS = 512
NEXT, CHUNK = "next/", "chunk/"
_OBSERVED = ("state/", "images/", "points/", "features/")


def is_observation(name: str) -> bool:
    """Whether a field was seen, so that it has a history."""
    return name.startswith(_OBSERVED) or name in (LAST_COMMAND, "instruction")


def size_of(layout: Layout) -> int:
    """Bytes of one item of each array together."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())


def _at_every_state(name: str) -> bool:
    """Whether a field is there at an episode's last row too."""
    return is_observation(name) or name == "base_action"


@dataclass(frozen=True)
class SampleSpec:
    """What mini-batches are made of, on this machine and across the network.

    A window begins at a row s = row t of an episode that has an action. It covers the m ≤ `n_step`
    steps up to the episode's end, or for an action of the policy up to where an operator takes
    over; s' is row t + m. A batch has these arrays; B = `batch_size`, n = `observation_steps`,
    H = `chunk_steps`:

    ====================  ==============  ======================================================
    ``<field>``           (B, *shape)     row t. Observations are (B, n, *shape) if n > 0: rows
                                          t - n + 1 … t, before the episode its first row again
    ``next/<field>``      as above        the same of row t + m
    ``reward``            float32 (B,)    Σ γ^j r_{t+j} over j < m, γ = `discount`
    ``discount``          float32 (B,)    γ^m; 0 where the last step terminated
    ``steps``             int16 (B,)      m
    ``source``            uint8 (B,)      who acted at s: 0 demonstration, 1 policy, 2 operator
    ``chunk/<field>``     (B, H, *shape)  rows t … t + H - 1; from the episode's end or a take-over
                                          on the last of these rows again
    ``chunk/valid``       bool (B, H)     false where it is repeated. For `ChunkPolicy.loss` these
                                          are "action" and "valid"
    ``next/chunk/…``      (B, H, …)       the same of rows t + m … for fields that every state has,
                                          as ``base_action``; here an episode's last row counts
    ``return``            float32 (B,)    Σ γ^j r_{t+j} to the episode's end or a take-over
    ``return/valid``      bool (B,)       whether it ended by termination: else more may follow
    ``drawn``             bool (B,)       with `order` "episodes": false where no window was left,
                                          and the last one is repeated
    ====================  ==============  ======================================================

    Attributes:
        fields: Fields to give at s.
        batch_size: B, at most 65536.
        n_step: Most steps of a window, at most 512.
        discount: γ per step.
        demonstration_share: Share of slots for demonstrations, in [0, 1]; strictly between, a kind
            that has no data yet is replaced by the other.
        intervention_share: Share of slots for operators' interventions alone. None gives them none
            of their own, but draws them with the demonstrations too, as in HIL-SERL.
        next_fields: Fields to give at s'; None takes those of `fields` that every state has:
            observations, ``base_action`` and ``last_command``.
        observation_steps: n, length of the history; 0 gives no axis for it.
        chunk_fields: Fields to give for each step of a chunk.
        chunk_steps: H; None takes `n_step`.
        returns: Whether to give Monte-Carlo returns; only episodes that have ended are drawn then.
        policy_versions: Lowest and highest version of the policy in whose steps a window of an
            actor may begin.
        rewards: Annotation whose newest version gives the rewards; it need not exist yet. Labels
            (``reward``) replace those of the rows that have one, and a label of success ends its
            episode; any other is the only reward, and rows without it are not drawn.
        capacity_rows: The store's ``replay.capacity_rows``. The newest 7/8 of so many rows are
            drawn from, so that what is drawn does not depend on how far the server has evicted.
        order: "random" draws windows uniformly, each kind from its slots. "episodes" gives each
            episode that has ended once from its start, in the order in which they began, window
            after window: actors' episodes, or with `demonstration_share` 1 the demonstrations.

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
    order: Literal["random", "episodes"] = "random"

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
        if self.in_order and self.demonstration_share not in (0, 1):
            raise ReplayError(
                "episodes in order are demonstrations or actors' own",
                got=f"demonstration_share {self.demonstration_share}",
                expected="0 or 1",
            )

    @property
    def in_order(self) -> bool:
        """Whether each episode is given once."""
        return self.order == "episodes"

    @property
    def horizon(self) -> int:
        """H, 0 where no field is wanted of a chunk."""
        return (self.chunk_steps or self.n_step) if self.chunk_fields else 0

    @property
    def next_chunk_fields(self) -> tuple[str, ...]:
        """Fields of a chunk that are given from s' on too."""
        return tuple(filter(_at_every_state, self.chunk_fields))

    @property
    def sides(self) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
        """For s and for s': the prefix of the arrays, the fields, and those of a chunk."""
        following = self.next_fields
        if following is None:
            following = tuple(filter(_at_every_state, self.fields))
        return ("", self.fields, self.chunk_fields), (NEXT, following, self.next_chunk_fields)


class Visible(NamedTuple):
    """What a sampler draws from since its last refresh: numbers of windows, but for the first."""

    available: int = 0  # online environment steps that the store had then, visible or not
    demonstrations: int = 0
    online: int = 0  # of actors, those of interventions included
    interventions: int = 0
    left: int = 0  # with the order "episodes", those that are still to be given


class Sampler(ABC):
    """Draws the mini-batches that a `SampleSpec` describes: here, or from a server.

    What is visible depends on the number of steps that `refresh` was given alone, as long as one
    actor writes at a time and the store has one table; with `capacity_rows` the rows by which the
    learner is behind and the longest episode must fit into an eighth of them. Kinds of data are
    interleaved, so that every contiguous part of a batch keeps the shares. Not safe for use from
    several threads at a time.
    """

    def __init__(self, spec: SampleSpec, rng: np.random.Generator) -> None:
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
    def _fill(self, batch: Batch) -> None:
        """Draw a batch."""

    @abstractmethod
    def close(self) -> None:
        """Release the store or the connection."""

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch into `out`, from `allocate`, or into new arrays.

        Raises:
            NotEnoughData: Nothing to draw from is visible, or each episode was given.
        """
        batch = self.allocate() if out is None else out
        self._fill(batch)
        return batch

    def allocate(self) -> Batch:
        """Return arrays for a batch."""
        size = self.spec.batch_size
        return {name: np.empty((size, *shape), kind) for name, (kind, shape) in self.layout.items()}

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
            episode, windows = map(int, cast("list[int]", state["given"]))
            if not -1 <= episode < 2**63 or not 0 <= windows < 2**63:
                raise ValueError(f"given is {episode}, {windows}")
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
        self._given = episode, windows
        self.refresh(steps)


class Prefetcher:
    """Draws a given number of batches, each while the one before it is used, in a thread.

    The number is given up front, so that nothing is drawn across a refresh: call `start`, then
    `next` exactly so many times, then refresh the sampler, and so on. The `sampler` is used by the
    thread alone between `start` and the last `next`.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._thread = ThreadPoolExecutor(1, "replay-prefetch")
        self._left = 0  # to be ordered
        self._drawing: Future[Batch] | None = None
        # One set of arrays in the caller's hands, the other being filled.
        self._arrays = itertools.cycle([sampler.allocate(), sampler.allocate()])

    def start(self, draws: int) -> None:
        """Begin to draw so many batches, once those of the last `start` are taken."""
        if self.ordered:
            raise ReplayError(
                "the prefetcher still holds batches of the last start", got=self._left + 1
            )
        self._left = draws
        self._order()

    @property
    def ordered(self) -> bool:
        """Whether there are batches of the last order to take."""
        return self._drawing is not None

    def next(self) -> Batch:
        """Return the next batch; its arrays are valid until the next call.

        What the sampler raises for a batch makes the rest of the order void: the random stream then
        stands before that batch, so that who orders the rest again gets what was to come.

        Raises:
            ReplayError: No batch was ordered, or none can be drawn.
            ServerUnreachable: The sampler's server does not answer.
        """
        drawing, self._drawing = self._drawing, None
        if drawing is None:
            raise ReplayError("no batch was ordered", hint="call start(draws) first")
        batch = drawing.result()
        self._order()
        return batch

    def close(self) -> None:
        """End the thread; batches not taken are dropped."""
        self._thread.shutdown(cancel_futures=True)

    def _order(self) -> None:
        if self._left:
            self._left -= 1
            self._drawing = self._thread.submit(self._sampler.sample, next(self._arrays))
