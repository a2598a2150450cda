"""`dsrl` and `dsrl_plain`: steer the frozen clone through the initial noise of its plans.

Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning",
arXiv 2506.15799. An actor chooses the latent w of each plan, which the clone's deterministic
process turns into a chunk. The two variants differ in how latents are valued.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policies.columns import PLAN
from policies.critics import CriticEnsemble
from policies.gaussian import GaussianTanh
from policies.improved import FallbackPolicy
from policies.networks import seeded, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.extras.zoo.latent import LATENT, LatentPolicy
from robot_rl.learning.algorithms.actor_critic import SoftActor, TemperatureSettings
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import Generative, GenerativeSettings, critic_input
from robot_rl.learning.algorithms.training import adam, step


@dataclass(frozen=True)
class Steering(TemperatureSettings):
    """Settings of the actor that chooses latents. Its entropy is in units of `limit`."""

    limit: float  # maximum magnitude m of a latent column
    hidden: Sequence[int]  # hidden widths of the actor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, limit=0)


@dataclass(frozen=True)
class SteeringSettings(GenerativeSettings):
    """Settings of both variants."""

    steering: Steering


class Steered(Generative):
    """The actor shared by both variants.

    Plans use `learning_steps` transitions, both here and in deployment, so that a latent maps to
    one chunk. The clone's weights are frozen. The critics evaluate executed actions, or `judged`
    columns instead.
    """

    settings: SteeringSettings

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: SteeringSettings,
        seed: int,
        judged: int | None = None,
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.steering = steering = settings.steering
        self.columns = base.horizon * base.action_dimension
        self.critics = self.chunk_critics(judged)
        actor = GaussianTanh(
            base.encoder.features,
            self.columns,
            steering.hidden,
            generator=seeded(seed + 1),
            layer_norm=True,
            zero_last_layer=True,
            initial_log_std=0.0,
        )
        self.actor = SoftActor(actor, settings.actor_rate, steering)
        self.latent = LatentPolicy(self.fast, actor, steering.limit)
        self.modules["actor"], self.optimizers["actor"] = self.actor, self.actor.optimizer

    def chosen(self, features: Tensor) -> Tensor:
        """Sample the actor's latents (B, H · d) for encoded observations (B, F)."""
        return self.steering.limit * self.actor.learned.action(features, self._generator)

    def acting_policy(self) -> Policy:
        """Return the clone with latents from the learning actor."""
        return self._steered_by(self.actor.learned)

    def policy(self) -> Policy:
        """Return the clone with mean latents from the averaged actor."""
        return self._steered_by(self.actor.average)

    def reset_actor(self) -> None:
        """See `Correction`."""
        self.actor.reset()

    def _steered_by(self, actor: GaussianTanh) -> Policy:
        parts = copy.deepcopy((self.fast, actor))
        return FallbackPolicy(LatentPolicy(*parts, self.steering.limit), self._base)


class DSRL(Steered):
    """`dsrl`, the noise-aliased variant: distils critics of latents from critics of actions.

    The action critics learn from every row, whether the policy or a person acted.
    """

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: SteeringSettings, seed: int
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.latent_critics = CriticEnsemble(
            base.encoder.features + self.columns,
            settings.critic_hidden,
            settings.critic_heads,
            self._generator,
        )
        self._latent_optimizer = adam((self.latent_critics.parameters(), settings.critic_rate))
        self.modules["latent_critics"] = self.latent_critics
        self.optimizers["latent"] = self._latent_optimizer

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update Q^A on actions, Q^W on Q^A and, when due, the actor on Q^W."""
        seen, critics, limit = self.begin_update(batch), self.critics, self.steering.limit
        features, executed = seen.features, self.settings.executed_steps

        # Q^A(s, a) on Σ γ^j r + γ^m Q^A'(s', π(s', w')), with w' from the actor.
        with torch.no_grad():
            following = self.latent.chunks(seen.next_features, self.chosen(seen.next_features))
            heads = critics.target_heads(self._generator)
            inputs = critic_input(seen.next_features, following[:, :executed])
            value = critics.target(inputs, heads).amin(0)
            target = critics.backup(seen.reward, seen.discount, value)
        metrics = critics.learn(critic_input(features, seen.executed), target)

        # Q^W(s, w) on Q^A(s, π(s, w)) with w ~ N(0, 1), within ±m.
        with torch.no_grad():
            latent = standard_normal((len(features), self.columns), features, self._generator)
            latent = latent.clamp(-limit, limit)
            chunks = self.latent.chunks(features, latent)
            target = critics(critic_input(features, chunks[:, :executed])).mean(0)
        predicted = self.latent_critics(torch.cat([features, latent], -1))
        loss = (predicted - target).square().mean(1).sum()
        step(self._latent_optimizer, loss)
        metrics["latent_loss"] = loss.detach()
        if self.turn is None:
            return metrics

        # The actor on −Q^W(s, w) + α log π(w|s), and α.
        self.latent_critics.requires_grad_(False)
        metrics |= self.actor.learn(
            features,
            lambda drawn: self.latent_critics(torch.cat([features, limit * drawn], -1)),
            self._generator,
        )
        self.latent_critics.requires_grad_(True)
        self.actor.follow(self.settings.average_rate)
        return metrics


class PlainDSRL(Steered):
    """`dsrl_plain`: the critics evaluate only latents chosen by the actor.

    They learn from the rows in which a plan of the actor starts. Demonstrations, operator actions
    and plain actions of the clone have no latent, so they are not used.

    Raises:
        AlgorithmError: A return does not cover exactly a plan's actions, or the schedule includes
            demonstrations or recorded episodes.
    """

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: SteeringSettings, seed: int
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
        columns = base.horizon * base.action_dimension
        super().__init__(base, schedule, settings, seed, judged=columns)
        self.required = replace(self.required, fields=(*self.required.fields, PLAN + LATENT))

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Soft actor-critic on latents: Q(s, w) on Σ γ^j r + γ^m Q'(s', w'), w' from the actor."""
        seen, critics, limit = self.begin_update(batch), self.critics, self.steering.limit
        latent, metrics = self.tensor(batch[PLAN + LATENT]), {}
        began = (self.tensor(batch["source"]) == SOURCE_POLICY) & (latent != 0).any(-1)
        if began.any():
            following = seen.next_features[began]
            with torch.no_grad():
                heads = critics.target_heads(self._generator)
                inputs = torch.cat([following, self.chosen(following)], -1)
                value = critics.target(inputs, heads).amin(0)
                target = critics.backup(seen.reward[began], seen.discount[began], value)
            metrics = critics.learn(torch.cat([seen.features, latent], -1)[began], target)
        if self.turn is None:
            return metrics
        metrics |= self.actor.learn(
            seen.features,
            lambda drawn: critics(torch.cat([seen.features, limit * drawn], -1)),
            self._generator,
        )
        self.actor.follow(self.settings.average_rate)
        return metrics
