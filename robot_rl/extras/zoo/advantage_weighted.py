"""`advantage_weighted`: clone the policy again from all actions, weighted by advantage.

Policy extraction as in IQL (Kostrikov et al. 2021, arXiv 2110.06169, eq. 7), which is the one of
AWR (Peng et al. 2019, arXiv 1910.00177). The denoising loss replaces − log π, as in EDP (Kang et
al. 2023, arXiv 2305.20081).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.extras.zoo.implicit_q import ImplicitQ, ImplicitSettings
from robot_rl.learning.algorithms.base import Batch, check_settings

_LARGEST = 100.0  # maximum weight


@dataclass(frozen=True)
class WeightingSettings(ImplicitSettings):
    """Settings of the advantage weights."""

    temperature: float  # inverse temperature β; advantages are normalised to the range of returns

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, temperature=0)


class AdvantageWeighted(ImplicitQ):
    """Clones executed chunks, each weighted by the exponential of its advantage."""

    settings: WeightingSettings

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics, then clone the executed chunks, weighted by min(exp(β A), 100)."""
        seen = self.begin_update(batch)
        metrics = self.update_critics(seen)
        if self.turn is None:
            return metrics
        with torch.no_grad():
            advantage = self.advantage(seen.features, seen.executed)
            weight = (self.settings.temperature * advantage).exp().clamp(max=_LARGEST)
        loss = self.cloning_loss(batch, seen.features, weight)
        self.step_imitating(batch, seen.features, loss)
        found = {"actor_loss": loss.detach(), "weight": weight.mean(), "edge": advantage.std()}
        return metrics | found
