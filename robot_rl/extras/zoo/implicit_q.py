"""Implicit Q-learning: critics that never evaluate untried actions.

Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169,
applied to chunks of executed actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.critics import CriticEnsemble
from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.base import Schedule, check_settings
from robot_rl.learning.algorithms.generative import (
    Encoded,
    Generative,
    GenerativeSettings,
    critic_input,
)
from robot_rl.learning.algorithms.training import adam, step


@dataclass(frozen=True)
class ImplicitSettings(GenerativeSettings):
    """Settings of algorithms with implicit critics."""

    expectile: float  # ω of V

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, expectile=(0.5, 1))


class ImplicitQ(Generative):
    """The critics. Subclasses define how the policy learns from them."""

    settings: ImplicitSettings

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: ImplicitSettings, seed: int
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.critics = self.chunk_critics()
        width = base.encoder.features
        self.value = CriticEnsemble(width, settings.critic_hidden, 1, self._generator)
        self._value_optimizer = adam((self.value.parameters(), settings.critic_rate))
        self.modules["value"], self.optimizers["value"] = self.value, self._value_optimizer

    def advantage(self, features: Tensor, executed: Tensor) -> Tensor:
        """A(s, a) = min Q'(s, a) - V(s), (B,), of executed actions (B, E, d), normalised."""
        q = self.critics.target(critic_input(features, executed)).amin(0)
        advantage: Tensor = q - self.value(features)[0]
        return advantage

    def update_critics(self, seen: Encoded) -> dict[str, Tensor]:
        """V by expectile regression on Q' (eq. 5), then Q on r + γ^m V(s') (eq. 6), then Q'."""
        error = self.advantage(seen.features, seen.executed)  # trains only V: no gradient to Q'
        loss = expectile_loss(error, self.settings.expectile)
        step(self._value_optimizer, loss)
        with torch.no_grad():
            following = self.value(seen.next_features)[0]
            target = self.critics.backup(seen.reward, seen.discount, following)
        metrics = self.critics.learn(critic_input(seen.features, seen.executed), target)
        return metrics | {"value_loss": loss.detach()}


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Mean |ω − 1(u < 0)| u² (eq. 5)."""
    weight = torch.where(error < 0, 1 - expectile, expectile)
    return (weight * error.square()).mean()
