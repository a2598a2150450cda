"""`dsrl`: the frozen clone is steered by the noise that its plans begin with, noise-aliased.

Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning",
arXiv 2506.15799, their DSRL-NA. Critics of actions learn from every row; critics of latents are
distilled from them. The plain form, soft actor-critic on latents alone, would need the latent of
each row: demonstrations have none, and replay does not keep those of the actor.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.critics import CriticEnsemble
from policies.gaussian import GaussianTanh
from policies.improved import ImprovedPolicy
from policies.latent import LatentPolicy
from policies.networks import seeded, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.critics import judged_alone
from robot_rl.learning.algorithms.generative import (
    Generative,
    GenerativeSettings,
    Seen,
    judged,
)
from robot_rl.learning.algorithms.soft_actor import SoftActor, TemperatureSettings
from robot_rl.learning.algorithms.training import adam, step


@dataclass(frozen=True)
class Steering(TemperatureSettings):
    """Settings of the actor that chooses latents; its entropy is in units of `limit`."""

    limit: float  # largest column m of a latent
    hidden: Sequence[int]  # hidden widths of the actor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, limit=0)


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
        actor = GaussianTanh(
            features,
            columns,
            steering.hidden,
            generator=seeded(seed + 1),
            layer_norm=True,
            zero_last_layer=True,
            initial_log_std=0.0,
        )
        self.actor = SoftActor(actor, settings.actor_rate, steering)
        self._latent = LatentPolicy(self._fast, actor, steering.limit)
        hidden, heads = settings.critic_hidden, settings.critic_heads
        self.latent_critics = CriticEnsemble(features + columns, hidden, heads, self._generator)
        self._latent_optimizer = adam((self.latent_critics.parameters(), settings.critic_rate))
        self.modules |= {"actor": self.actor, "latent_critics": self.latent_critics}
        self.optimizers["actor"] = self.actor.optimizer
        self.optimizers["latent"] = self._latent_optimizer

    def next_chunks(self, features: Tensor) -> Tensor:
        """What the clone does at latents that the actor draws."""
        latent = self._steering.limit * self.actor.learned.action(features, self._generator)
        return self._latent.chunks(features, latent)

    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update the actor on −Q^W(s, w) + α log π(w|s), and α: SAC on latents."""

        def value(drawn: Tensor) -> Tensor:  # Q^W (E, B) of the actor's outputs
            seen_latents = torch.cat([seen.features, self._steering.limit * drawn], -1)
            return judged_alone(self.latent_critics, seen_latents)

        metrics = self.actor.learn(seen.features, value, self._generator)
        self.actor.follow(self.settings.average_rate)
        return metrics

    def acting_policy(self) -> Policy:
        """The clone at latents of the actor as it learns."""
        return self._steered_by(self.actor.learned)

    def policy(self) -> Policy:
        """The clone at the mean latents of the averaged actor."""
        return self._steered_by(self.actor.average)

    def begin_again(self) -> None:
        """See `Correction`."""
        self.actor.begin_again()

    def _steered_by(self, actor: GaussianTanh) -> Policy:
        parts = copy.deepcopy((self._fast, actor))
        return ImprovedPolicy(LatentPolicy(*parts, self._steering.limit), self._base)

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update Q^A on actions, then Q^W(s, w) on Q^A(s, π(s, w)) at w ~ N(0, 1), within ±m."""
        metrics = super()._update_critics(batch, seen)
        with torch.no_grad():
            shape = len(seen.features), self.actor.learned.action_dimension
            latent = standard_normal(shape, seen.features, self._generator)
            latent = latent.clamp(-self._steering.limit, self._steering.limit)
            chunks = self._latent.chunks(seen.features, latent)
            executed = chunks[:, : self.settings.executed_steps]
            target = self.critics(judged(seen.features, executed)).mean(0)
        predicted = self.latent_critics(torch.cat([seen.features, latent], -1))
        loss = (predicted - target).square().mean(1).sum()
        step(self._latent_optimizer, loss)
        return metrics | {"latent_loss": loss.detach()}
