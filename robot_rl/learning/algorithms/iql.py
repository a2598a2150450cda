"""Implicit Q-learning: values of what was done well, without asking what a policy would do.

Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169.
Of a chunk of executed actions, as the critics are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.critics import CriticEnsemble
from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import Generative, GenerativeSettings, Seen
from robot_rl.learning.algorithms.training import adam, step


@dataclass(frozen=True)
class ValueSettings:
    """Settings of the state value V."""

    expectile: float  # ω: 0.5 is the mean of what was done, 1 the best of it
    hidden: Sequence[int]  # hidden widths
    rate: float  # Adam step size

    def __post_init__(self) -> None:
        """Check the range of values, and name the setting in an `AlgorithmError`."""
        check_settings(expectile=(self.expectile, 0, 1), rate=(self.rate, 0, 1))


class ImplicitQ(Generative):
    """Learns V and Q on the data alone; a subclass says how the policy improves.

    Beside the arguments of `Generative` it takes `value`.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        value: ValueSettings,
        seed: int,
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self._expectile = value.expectile
        self.value = CriticEnsemble(base.encoder.features, value.hidden, 1, self._generator)
        self._value_optimizer = adam((self.value.parameters(), value.rate))

    def advantages(self, seen: Seen) -> Tensor:
        """min_e Q'_e(s, a) − V(s) of the executed actions (B,)."""
        lowest = self.values(self.target_critics, seen.features, seen.executed).amin(0)
        value: Tensor = self.value(seen.features)[0]
        return lowest - value

    def target(self, batch: Batch, seen: Seen) -> Tensor:
        """R + γ V(s') (eq. 6), over the steps of a window."""
        value: Tensor = self.value(seen.following)[0]
        return self.critics.value.encoded(self.backup(batch)(value))

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update V, then Q: algorithm 1."""
        loss = expectile_loss(self.advantages(seen), self._expectile)
        step(self._value_optimizer, loss)
        return super()._update_critics(batch, seen) | {"value_loss": loss.detach()}

    def _modules(self) -> dict[str, nn.Module]:
        return {**super()._modules(), "value": self.value}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {**super()._optimizers(), "value": self._value_optimizer}


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Mean |ω − 1(u < 0)| u² (eq. 5)."""
    weight = torch.where(error < 0, 1 - expectile, expectile)
    return (weight * error.square()).mean()


def bounded_exponential(advantage: Tensor, temperature: float, limit: float = 100.0) -> Tensor:
    """min(exp(β A), limit): the weights of advantage-weighted regression (eq. 7)."""
    return (temperature * advantage).clamp(max=math.log(limit)).exp()
