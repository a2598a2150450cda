"""What a learner draws: `SampleSpec`, and the arrays of a batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from robot_rl.data.schema import LAST_COMMAND, Array
from robot_rl.errors import did_you_mean
from robot_rl.replay.annotations import AnnotationField
from robot_rl.replay.errors import ReplayError, StoreError

Batch = dict[str, Array]
# For each array its dtype and the shape of one item.
Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

NEXT, CHUNK, ANNOTATION, VALID = "next/", "chunk/", "annotation/", "/valid"
CHUNK_VALID = "chunk/valid"
WINDOW_FIELDS = ("reward", "discount", "steps", "source")
MAXIMUM_BATCH_SIZE = 1 << 16
MAXIMUM_STEPS = 512
MAXIMUM_NAMES = 256
_OBSERVED = ("state/", "images/", "depth/", "points/", "features/")


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
    ``annotation/<name>`` (B, *shape)     with ``annotation/<name>/valid`` bool (B,); both of row
                                          t + m too, under ``next/``
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
        annotations: Annotations to give.
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
    annotations: tuple[str, ...] = ()
    capacity_rows: int | None = None
    order: Literal["random", "episodes"] = "random"

    def __post_init__(self) -> None:
        """Check numbers and names; the table's schema is not known here."""
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
        if not -(2**62) < low <= high < 2**62:
            raise ReplayError(
                "policy_versions is no range", got=(low, high), expected="lowest, highest"
            )
        for names in (self.fields, self.next_fields or (), self.chunk_fields, self.annotations):
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            if twice:
                raise ReplayError(
                    "names to sample are given twice", got=twice, expected="each name once"
                )
            if len(names) > MAXIMUM_NAMES:
                raise ReplayError(
                    "too many fields to sample", got=len(names), expected=f"<= {MAXIMUM_NAMES}"
                )
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
        return tuple(name for name in self.chunk_fields if _at_every_state(name))


def is_observation(name: str) -> bool:
    """Whether a field was seen, so that it has a history."""
    return name.startswith(_OBSERVED) or name in (LAST_COMMAND, "instruction")


def _at_every_state(name: str) -> bool:
    return is_observation(name) or name == "base_action"


class BatchLayout:
    """The arrays of a batch, with the rows that each is made of.

    Args:
        spec: What is wanted.
        row: The structured dtype of a row of the table.
        known: The table's annotations.

    Attributes:
        arrays: Dtype and shape of each array, without the leading B.
        fields: Names of the fields at s and at s'.
        chunks: Names of the fields of a chunk from s on, and from s' on.
        annotations: Those that are given.

    Raises:
        ReplayError: The table has no such field.
        StoreError: No row has such an annotation.
    """

    def __init__(
        self, spec: SampleSpec, row: np.dtype[Any], known: Mapping[str, AnnotationField]
    ) -> None:
        """Look the names up; see the class."""
        following = spec.next_fields
        if following is None:
            following = tuple(name for name in spec.fields if _at_every_state(name))
        self.fields = (spec.fields, following)
        self.chunks = (spec.chunk_fields, spec.next_chunk_fields)
        self.annotations = [_annotation(known, name) for name in spec.annotations]
        self.arrays: Layout = {
            "reward": (np.dtype(np.float32), ()),
            "discount": (np.dtype(np.float32), ()),
            "steps": (np.dtype(np.int16), ()),
            "source": (np.dtype(np.uint8), ()),
        }
        flag = (np.dtype(np.bool_), ())
        history = (spec.observation_steps,) if spec.observation_steps else ()
        for prefix, names in zip(("", NEXT), self.fields, strict=True):
            for name in names:
                if name in WINDOW_FIELDS:
                    raise ReplayError(
                        f"the field {name!r} is in every batch already",
                        hint="leave it out of fields",
                    )
                dtype, shape = _column(row, name)
                lead = history if is_observation(name) else ()
                self.arrays[prefix + name] = dtype, (*lead, *shape)
        for prefix, names in zip((CHUNK, NEXT + CHUNK), self.chunks, strict=True):
            for name in names:
                dtype, shape = _column(row, name)
                self.arrays[prefix + name] = dtype, (spec.horizon, *shape)
            if names:
                self.arrays[prefix + "valid"] = flag[0], (spec.horizon,)
        if spec.returns:
            self.arrays |= {"return": (np.dtype(np.float32), ()), "return/valid": flag}
        for field in self.annotations:
            for name in (ANNOTATION + field.name, NEXT + ANNOTATION + field.name):
                self.arrays |= {name: (np.dtype(field.dtype), field.shape), name + VALID: flag}
        if spec.in_order:
            self.arrays["drawn"] = flag


def allocate(layout: Layout, lead: tuple[int, ...]) -> Batch:
    """Return arrays of shape (*lead, *shape)."""
    return {name: np.empty((*lead, *shape), dtype) for name, (dtype, shape) in layout.items()}


def size_of(layout: Layout) -> int:
    """Bytes of one item of each array together."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())


def checked(out: Batch, layout: Layout, lead: tuple[int, ...]) -> Batch:
    """Return `out` if it is what `allocate` makes; bytes are copied into it unseen.

    Raises:
        ReplayError: An array is absent, or of another shape or dtype.
    """
    for name, (dtype, shape) in layout.items():
        array = out.get(name)
        if (
            array is None
            or array.shape != (*lead, *shape)
            or array.dtype != dtype
            or not array.flags.c_contiguous
        ):
            raise ReplayError(
                f"out[{name!r}] cannot take this batch",
                got=None if array is None else f"{array.dtype} {array.shape}",
                expected=f"{dtype} {(*lead, *shape)}, contiguous",
                hint="take it from allocate()",
            )
    return out


def _column(row: np.dtype[Any], name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    names = row.names or ()
    if name not in names:
        raise ReplayError(
            "the table has no such field",
            got=name,
            expected=sorted(names),
            hint=did_you_mean(name, names),
        )
    return row[name].base, row[name].shape


def _annotation(known: Mapping[str, AnnotationField], name: str) -> AnnotationField:
    if name not in known:
        raise StoreError(
            "no row of the table has such an annotation",
            got=name,
            expected=sorted(known),
            hint=did_you_mean(name, known),
        )
    return known[name]
