"""The actor of soft actor-critic with its temperature (Haarnoja et al. 2018, arXiv 1812.05905)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.gaussian import GaussianTanh
from policies.networks import move_towards
from robot_rl.learning.algorithms.base import check_settings
from robot_rl.learning.algorithms.training import adam, step


@dataclass(frozen=True)
class TemperatureSettings:
    """Settings of the temperature α."""

    initial_temperature: float  # α at the start
    target_entropy: float  # entropy per action column that it aims at
    temperature_rate: float  # Adam step size of the temperature

    def __post_init__(self) -> None:
        check_settings(self, temperature_rate=(0, 1), initial_temperature=1e-9)


class SoftActor(nn.Module):
    """An actor that learns at an Adam step size of `rate`, and its average, which is deployed."""

    def __init__(self, actor: GaussianTanh, rate: float, settings: TemperatureSettings) -> None:
        super().__init__()
        self.learned = actor
        self.average = copy.deepcopy(actor).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(settings.initial_temperature).log())
        self.optimizer = adam(
            (actor.parameters(), rate), ([self.log_temperature], settings.temperature_rate)
        )
        self._target_entropy = settings.target_entropy
        self._first = {name: value.clone() for name, value in self.state_dict().items()}

    def begin_again(self) -> None:
        """Act as at first."""
        self.load_state_dict(self._first)
        self.optimizer.state.clear()

    def learn(
        self,
        features: Tensor,
        value: Callable[[Tensor], Tensor],
        generator: torch.Generator,
        added: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Make one update on features (B, F), and give its metrics.

        `value` gives values (E, B) of the actor's outputs (B, d). `added` is added to the loss.
        """
        temperature = self.log_temperature.detach().exp()
        squashed, log_prob = self.learned.sample(features, generator)
        # mean (α log π(a|s) − mean_e Q_e(s, a)): SAC, eq. 7, with the mean of all heads as in RLPD.
        loss = (temperature * log_prob - value(squashed).mean(0)).mean()
        if added is not None:
            loss = loss + added
        target_entropy = self._target_entropy * self.learned.action_dimension
        # − log α · mean (log π(a|s) + target entropy): SAC, eq. 18, in log α.
        dual = -(self.log_temperature * (log_prob.detach() + target_entropy).mean())
        step(self.optimizer, loss + dual)  # they share no gradient
        return {
            "actor_loss": loss.detach(),
            "temperature": temperature,
            "entropy": -log_prob.detach().mean(),
        }

    def follow(self, rate: float) -> None:
        """Move the average by `rate` towards the actor."""
        move_towards(self.average, self.learned, rate)
