"""Critics that never ask what an action would do which nobody has tried: implicit Q-learning.

Kostrikov et al. 2022, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.networks import CriticEnsemble, move_towards
from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import Generative, GenerativeSettings, Seen
from robot_rl.learning.algorithms.training import adam, step


class ImplicitQ(Generative):
    """Beside the arguments of `Generative` it takes the `expectile` ω of V; subclasses say more."""

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        expectile: float,
        seed: int,
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        check_settings(expectile=(expectile, 0.5, 1))
        self._expectile = expectile
        width = base.encoder.features
        self.value = CriticEnsemble(width, settings.critic_hidden, 1, self._generator)
        self._value_optimizer = adam((self.value.parameters(), settings.critic_rate))

    def advantage(self, features: Tensor, executed: Tensor) -> Tensor:
        """A(s, a) = min Q'(s, a) - V(s), (B,), of executed actions (B, E, d), as shares."""
        q = self.values(self.target_critics, features, executed).amin(0)
        advantage: Tensor = q - self.value(features)[0]
        return advantage

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """V by expectile regression on Q' (eq. 5), then Q on y = r + γ^m V(s') (eq. 6), then Q'."""
        settings = self.settings
        error = self.advantage(seen.features, seen.executed)  # of V alone: Q' takes no gradient
        weight = torch.where(error < 0, 1 - self._expectile, self._expectile)
        value_loss = (weight * error.square()).mean()
        step(self._value_optimizer, value_loss)
        with torch.no_grad():
            following = self._low + self._width * self.value(seen.following)[0]
            target = self.tensor(batch["reward"]) + self.tensor(batch["discount"]) * following
            target = (target - self._low) / self._width
            if settings.value_range is not None:
                target = target.clamp(0, 1)
        predicted = self.values(self.critics, seen.features, seen.executed)
        loss = (predicted - target).square().mean(1).sum()
        step(self._critic_optimizer, loss)
        move_towards(self.target_critics, self.critics, settings.target_rate)
        mean = self._low + self._width * predicted.detach().mean()
        return {"critic_loss": loss.detach(), "value_loss": value_loss.detach(), "q_mean": mean}

    def _modules(self) -> dict[str, nn.Module]:
        return {**super()._modules(), "value": self.value}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {**super()._optimizers(), "value": self._value_optimizer}
