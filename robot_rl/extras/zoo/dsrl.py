"""The frozen clone is steered by the noise that its plans begin with: `dsrl` and `dsrl_plain`.

Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning",
arXiv 2506.15799. An actor chooses the latent w of each plan, of which the clone's deterministic
process makes a chunk. The forms differ in who says what a latent is worth.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policies.columns import LATENT
from policies.critics import CriticEnsemble
from policies.gaussian import GaussianTanh
from policies.improved import ImprovedPolicy
from policies.latent import LatentPolicy
from policies.networks import seeded, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, Schedule, check_settings
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


class Steered(Generative):
    """Soft actor-critic on latents. Beside the arguments of `Generative` it takes `steering`.

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
        self._steering = steering
        actor = GaussianTanh(
            base.encoder.features,
            self._latent_columns,
            steering.hidden,
            generator=seeded(seed + 1),
            layer_norm=True,
            zero_last_layer=True,
            initial_log_std=0.0,
        )
        self.actor = SoftActor(actor, settings.actor_rate, steering)
        self._latent = LatentPolicy(self._fast, actor, steering.limit)
        self.modules |= {"actor": self.actor}
        self.optimizers["actor"] = self.actor.optimizer

    @abstractmethod
    def latent_values(self, inputs: Tensor) -> Tensor:
        """Values (E, B) of features and latents (B, F + H · d), whose gradient reaches only these.

        They are shares of the critics' range.
        """

    @property
    def _latent_columns(self) -> int:
        return self._base.horizon * self._base.action_dimension

    def chosen(self, features: Tensor) -> Tensor:
        """Latents (B, H · d) that the actor draws for encoded observations (B, F)."""
        return self._steering.limit * self.actor.learned.action(features, self._generator)

    def next_chunks(self, features: Tensor) -> Tensor:
        """What the clone does at latents that the actor draws."""
        return self._latent.chunks(features, self.chosen(features))

    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update the actor on −Q(s, w) + α log π(w|s), and α."""

        def value(drawn: Tensor) -> Tensor:  # (E, B) of the actor's outputs
            return self.latent_values(torch.cat([seen.features, self._steering.limit * drawn], -1))

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


class DSRL(Steered):
    """`dsrl`, the noise-aliased form: critics of latents are distilled from critics of actions.

    Those learn from every row, whoever acted in it.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        steering: Steering,
        seed: int,
    ) -> None:
        super().__init__(base, schedule, settings, steering, seed)
        self.latent_critics = CriticEnsemble(
            base.encoder.features + self._latent_columns,
            settings.critic_hidden,
            settings.critic_heads,
            self._generator,
        )
        self._latent_optimizer = adam((self.latent_critics.parameters(), settings.critic_rate))
        self.modules["latent_critics"] = self.latent_critics
        self.optimizers["latent"] = self._latent_optimizer

    def latent_values(self, inputs: Tensor) -> Tensor:
        """See `Steered`: of the distilled critics."""
        return judged_alone(self.latent_critics, inputs)

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update Q^A on actions, then Q^W(s, w) on Q^A(s, π(s, w)) at w ~ N(0, 1), within ±m."""
        metrics = super()._update_critics(batch, seen)
        with torch.no_grad():
            shape = len(seen.features), self._latent_columns
            latent = standard_normal(shape, seen.features, self._generator)
            latent = latent.clamp(-self._steering.limit, self._steering.limit)
            chunks = self._latent.chunks(seen.features, latent)
            executed = chunks[:, : self.settings.executed_steps]
            target = self.critics(judged(seen.features, executed)).mean(0)
        predicted = self.latent_critics(torch.cat([seen.features, latent], -1))
        loss = (predicted - target).square().mean(1).sum()
        step(self._latent_optimizer, loss)
        return metrics | {"latent_loss": loss.detach()}


class PlainDSRL(Steered):
    """`dsrl_plain`: the critics judge the latents that the actor has chosen, and nothing else.

    They learn from the rows in which a plan of the actor begins. Demonstrations, an operator's
    actions and what the clone does alone have no latent, so that nothing is learned from them.

    Raises:
        AlgorithmError: A return covers other steps than a plan's actions; or it should learn from
            demonstrations, or from what was recorded before.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        steering: Steering,
        seed: int,
    ) -> None:
        for name, expected, why in (
            ("n_step", settings.executed_steps, "a latent's return is that of its plan"),
            ("demonstration_share", 0.0, "demonstrations have no latent to learn from"),
            ("offline_updates", 0, "what was recorded has no latent to learn from"),
        ):
            if (value := getattr(schedule, name)) != expected:
                raise AlgorithmError(
                    why,
                    got=f"algorithm.schedule.{name}={value}",
                    expected=f"{expected:g}",
                    hint="leave it out, or choose algorithm=dsrl",
                )
        super().__init__(base, schedule, settings, steering, seed)
        self.required = replace(self.required, fields=(*self.required.fields, LATENT))

    def _judged_columns(self) -> int:
        return self._latent_columns

    def latent_values(self, inputs: Tensor) -> Tensor:
        """See `Steered`."""
        values: Tensor = self.critics(inputs)
        return values

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Update Q(s, w) on Σ γ^j r + γ^m Q'(s', w'), w' of the actor: soft actor-critic."""
        latent = self.tensor(batch[LATENT])
        began = (self.tensor(batch["source"]) == SOURCE_POLICY) & (latent != 0).any(-1)
        if not began.any():
            return {}
        judged_here = torch.cat([seen.features, latent], -1)[began]
        following, discount = seen.following[began], self.tensor(batch["discount"])[began]
        with torch.no_grad():
            heads = self.critics.heads(self._generator)
            judged_next = torch.cat([following, self.chosen(following)], -1)
            backup = self.critics.backup(self.tensor(batch["reward"])[began], discount)
            target = self.critics.target_of(self.critics.target.outputs(judged_next, heads), backup)
        return self.critics.learn(judged_here, target)
