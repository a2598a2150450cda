"""`dsrl`: the frozen clone is steered by the noise that its plans begin with, noise-aliased.

Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning",
arXiv 2506.15799, their DSRL-NA. Critics of actions learn from every row; critics of latents are
distilled from them. The plain form, soft actor-critic on latents alone, would need the latent of
each row: demonstrations have none, and replay does not keep those of the actor.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.critics import CriticEnsemble
from policies.gaussian import GaussianTanh
from policies.improved import ImprovedPolicy
from policies.latent import LatentPolicy
from policies.networks import move_towards, seeded, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import Generative, GenerativeSettings, Seen
from robot_rl.learning.algorithms.training import adam, step


@dataclass(frozen=True)
class Steering:
    """Settings of the actor that chooses latents."""

    limit: float  # largest column m of a latent
    hidden: Sequence[int]  # hidden widths of the actor
    initial_temperature: float  # α at the start
    target_entropy: float  # entropy per column, in units of m, that the temperature aims at
    temperature_rate: float  # Adam step size of the temperature

    def __post_init__(self) -> None:
        """Check the range of values, and name the setting in an `AlgorithmError`."""
        check_settings(
            limit=(self.limit, 0, math.inf),
            initial_temperature=(self.initial_temperature, 1e-9, math.inf),
            temperature_rate=(self.temperature_rate, 0, 1),
        )


class DSRL(Generative):
    """Beside the arguments of `Generative` it takes `steering`.

    Plans take `learning_steps` transitions, here and where they act: one latent must mean one
    chunk. The weights of the clone stay as they are.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        steering: Steering,
        seed: int,
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        columns = base.horizon * base.action_dimension
        self._steering, features = steering, base.encoder.features
        self.actor = GaussianTanh(
            features,
            columns,
            steering.hidden,
            generator=seeded(seed + 1),
            layer_norm=True,
            zero_last_layer=True,
            initial_log_std=0.0,
        )
        self._first_actor = copy.deepcopy(self.actor.state_dict())
        self.average_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self._latent = LatentPolicy(self._fast, self.actor, steering.limit)
        hidden, heads = settings.critic_hidden, settings.critic_heads
        self.latent_critics = CriticEnsemble(features + columns, hidden, heads, self._generator)
        self._latent_optimizer = adam((self.latent_critics.parameters(), settings.critic_rate))
        self.log_temperature = torch.tensor(steering.initial_temperature).log().requires_grad_()
        self._actor_optimizer = adam(
            (self.actor.parameters(), settings.actor_rate),
            ([self.log_temperature], steering.temperature_rate),
        )

    def next_chunks(self, features: Tensor) -> Tensor:
        """What the clone does at latents that the actor draws."""
        latent = self._steering.limit * self.actor.action(features, self._generator)
        return self._latent.chunks(features, latent)

    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update the actor on −Q^W(s, w) + α log π(w|s), and α: SAC on latents."""
        temperature = self.log_temperature.detach().exp()
        drawn, log_prob = self.actor.sample(seen.features, self._generator)
        self.latent_critics.requires_grad_(False)
        values = self.latent_critics(torch.cat([seen.features, self._steering.limit * drawn], -1))
        self.latent_critics.requires_grad_(True)
        loss = (temperature * log_prob - values.mean(0)).mean()
        wanted = self._steering.target_entropy * self.actor.action_dimension
        dual = -(self.log_temperature * (log_prob.detach() + wanted).mean())
        step(self._actor_optimizer, loss + dual)  # they share no gradient
        move_towards(self.average_actor, self.actor, self.settings.average_rate)
        return {
            "actor_loss": loss.detach(),
            "temperature": temperature,
            "entropy": -log_prob.detach().mean(),
        }

    def acting_policy(self) -> Policy:
        """The clone at latents of the actor as it learns."""
        return self._steered_by(self.actor)

    def policy(self) -> Policy:
        """The clone at the mean latents of the averaged actor."""
        return self._steered_by(self.average_actor)

    def begin_again(self) -> None:
        """See `Correction`."""
        for actor in (self.actor, self.average_actor):
            actor.load_state_dict(self._first_actor)
        with torch.no_grad():
            self.log_temperature.fill_(math.log(self._steering.initial_temperature))
        self._actor_optimizer.state.clear()

    def _steered_by(self, actor: GaussianTanh) -> Policy:
        parts = copy.deepcopy((self._fast, actor))
        return ImprovedPolicy(LatentPolicy(*parts, self._steering.limit), self._base)

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update Q^A on actions, then Q^W(s, w) on Q^A(s, π(s, w)) at w ~ N(0, 1), within ±m."""
        metrics = super()._update_critics(batch, seen)
        with torch.no_grad():
            shape = len(seen.features), self.actor.action_dimension
            latent = standard_normal(shape, seen.features, self._generator)
            latent = latent.clamp(-self._steering.limit, self._steering.limit)
            chunks = self._latent.chunks(seen.features, latent)
            executed = chunks[:, : self.settings.executed_steps]
            target = self.values(self.critics, seen.features, executed).mean(0)
        predicted = self.latent_critics(torch.cat([seen.features, latent], -1))
        loss = (predicted - target).square().mean(1).sum()
        step(self._latent_optimizer, loss)
        return metrics | {"latent_loss": loss.detach()}

    def _modules(self) -> dict[str, nn.Module]:
        return {
            **super()._modules(),
            "actor": self.actor,
            "average_actor": self.average_actor,
            "latent_critics": self.latent_critics,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {**super()._optimizers(), "latent": self._latent_optimizer}

    def _numbers(self) -> dict[str, Tensor]:
        return {"log_temperature": self.log_temperature}
