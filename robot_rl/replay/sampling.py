"""What a learner samples with, wherever the store is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
from msgspec import Meta

from robot_rl.replay.batches import Batch
from robot_rl.replay.sampler import ReplaySampler
from robot_rl.wire.messages import Name, Natural

MAXIMUM_BATCH_SIZE = 1 << 16
MAXIMUM_N_STEP = 128
MAXIMUM_FIELDS = 256

Share = Annotated[float, Meta(ge=0, le=1)]
Names = Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=MAXIMUM_FIELDS)]


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
    """What is drawn from a table; `ReplaySampler` explains each. The bounds hold on the wire."""

    table: Name
    fields: Names
    batch_size: Annotated[int, Meta(ge=0, le=MAXIMUM_BATCH_SIZE)]
    n_step: Annotated[int, Meta(ge=0, le=MAXIMUM_N_STEP)]
    discount: Share
    demonstration_share: Share
    intervention_share: Share | None = None
    capacity_rows: Natural | None = None
    rewards: Name | None = None
    annotations: Names = ()
    chunk_fields: Names = ()

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
