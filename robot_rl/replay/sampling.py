"""What a learner samples with, wherever the store is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from robot_rl.replay.batches import Batch
from robot_rl.replay.errors import WireError
from robot_rl.replay.sampler import ReplaySampler
from robot_rl.replay.wire import Message

MAXIMUM_BATCH_SIZE = 1 << 16
MAXIMUM_N_STEP = 128
MAXIMUM_FIELDS = 256


class Sampler(Protocol):
    """Draws mini-batches: `ReplaySampler` from the memory map, `RemoteSampler` from a server."""

    @property
    def demonstration_transitions(self) -> int:
        """Windows of demonstrations that `sample` draws from."""

    @property
    def online_transitions(self) -> int:
        """Online windows that `sample` draws from, those of interventions included."""

    @property
    def intervention_transitions(self) -> int:
        """Windows of interventions that `sample` draws from."""

    def transitions_available(self) -> int:
        """Look at the store and return its number of online environment steps."""

    def refresh(self, environment_steps: int | None = None) -> None:
        """Make exactly the first `environment_steps` online steps visible; None means all."""

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch."""

    def sample_many(self, count: int, out: Batch | None = None) -> Batch:
        """Draw `count` batches at once, shapes (count, B, ...)."""

    def allocate(self, count: int | None = None) -> Batch:
        """Return arrays for a batch, or for `count` batches with a leading axis."""

    def state_dict(self) -> dict[str, object]:
        """Return the state of the random stream and what is visible, JSON-able."""

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""

    def close(self) -> None:
        """Release the store or the connection."""


@dataclass(frozen=True)
class SamplerOptions:
    """What is drawn from a table; `ReplaySampler` explains each."""

    table: str
    fields: tuple[str, ...]
    batch_size: int
    n_step: int
    discount: float
    demonstration_share: float
    intervention_share: float | None = None
    capacity_rows: int | None = None
    rewards: str | None = None
    annotations: tuple[str, ...] = ()
    chunk_fields: tuple[str, ...] = ()

    def open(self, store: Path, rng: np.random.Generator) -> ReplaySampler:
        """Open a sampler of a store.

        Raises:
            StoreError: No such store or table.
            ReplayError: Unknown field, or a number out of range.
        """
        return ReplaySampler(
            store,
            self.table,
            self.fields,
            batch_size=self.batch_size,
            n_step=self.n_step,
            discount=self.discount,
            demonstration_share=self.demonstration_share,
            rng=rng,
            intervention_share=self.intervention_share,
            capacity_rows=self.capacity_rows,
            rewards=self.rewards,
            annotations=self.annotations,
            chunk_fields=self.chunk_fields,
        )

    def to_header(self) -> dict[str, object]:
        """Return the header entries that `from_message` reads."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """Read the options that a client asks for.

        Raises:
            WireError: One is absent, of a wrong type or beyond its limit.
        """
        header = message.header
        return cls(
            message.text("table", 64),
            _names(message, "fields"),
            message.integer("batch_size", MAXIMUM_BATCH_SIZE + 1),
            message.integer("n_step", MAXIMUM_N_STEP + 1),
            message.number("discount", 1.0),
            message.number("demonstration_share", 1.0),
            None
            if header.get("intervention_share") is None
            else message.number("intervention_share", 1.0),
            None if header.get("capacity_rows") is None else message.integer("capacity_rows"),
            None if header.get("rewards") is None else message.text("rewards", 64),
            _names(message, "annotations"),
            _names(message, "chunk_fields"),
        )


def _names(message: Message, entry: str) -> tuple[str, ...]:
    names = message.header.get(entry, [])
    if (
        not isinstance(names, list)
        or len(names) > MAXIMUM_FIELDS
        or not all(isinstance(name, str) and len(name) <= 256 for name in names)
    ):
        raise WireError(
            f"the {entry} to sample are not a list of names",
            got=repr(names)[:200],
            expected=f"up to {MAXIMUM_FIELDS} names",
        )
    return tuple(names)
