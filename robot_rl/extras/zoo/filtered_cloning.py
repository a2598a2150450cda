"""`filtered_cloning`: clone the policy again from its own and demonstrated successes.

The baseline for any improvement: imitate only successful episodes, as in RWR with a reward of 0 and
1 (Peters and Schaal 2007) or the filtered behaviour cloning of Chen et al. 2021 (arXiv 2106.01345,
"%BC").
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from policies.policy import ChunkPolicy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.base import Batch, Schedule
from robot_rl.learning.algorithms.generative import Generative, GenerativeSettings
from robot_rl.learning.algorithms.training import step


class FilteredCloning(Generative):
    """A policy episode counts as success if it terminated with a positive return from the row on.

    Steps before an operator took over do not count as success. There are no critics.
    """

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: GenerativeSettings, seed: int
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.required = replace(self.required, returns=True)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Clone the chunks of demonstrations, interventions and successful episodes."""
        seen = self.begin_update(batch)
        succeeded = batch["return/valid"] & (batch["return"] > 0)
        chosen = self.tensor(succeeded | (batch["source"] != SOURCE_POLICY))
        metrics = {"imitated": chosen.float().mean()}
        if self.turn is None:
            return metrics
        loss = self.cloning_loss(batch, seen.features, chosen)
        step(self.optimizer, loss)
        self.follow()
        return metrics | {"actor_loss": loss.detach()}
