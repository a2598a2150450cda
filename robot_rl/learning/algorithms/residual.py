"""`residual`: learn a per-step correction of the frozen policy's chunks, off-policy.

After ResFiT (Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning Policies",
arXiv 2509.19301), with soft actor-critic settings that learn within thousands of steps.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor

from policies.critics import prefers
from policies.gaussian import GaussianTanh
from policies.improved import ResidualPolicy
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.actor_critic import (
    PRETRAINING_AVERAGE_RATE,
    ActorCriticSettings,
    Critics,
    SoftActor,
    imitation_loss,
    single_step_encoder,
)
from robot_rl.learning.algorithms.base import Batch, Schedule
from robot_rl.learning.algorithms.training import Training, check_batch, encoded, falling, step

_COLUMNS = ("action", "reward", "discount", "base_action", "next/base_action")


class Residual(Training):
    """The actor corrects the base policy's proposal, which actor and critics observe.

    The correction is applied only if the critics prefer it to the proposal itself, as in IBRL (Hu
    et al. 2023, arXiv 2311.02198). Episodes on the robot show whether the combination beats the
    clone; see `robot_rl.learning.online_comparison`. `scale` is the maximum correction, in action
    units.
    """

    policy_class: ClassVar[type[ResidualPolicy]] = ResidualPolicy

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: ActorCriticSettings,
        seed: int,
        scale: float,
    ) -> None:
        super().__init__(seed)
        self.schedule, self.settings = schedule, settings
        self.encoder = single_step_encoder(base)
        width, seen = base.action_dimension, self.encoder.features + base.action_dimension
        actor = GaussianTanh(
            seen,
            width,
            settings.actor_hidden,
            generator=seeded(seed + 1),
            layer_norm=settings.actor_layer_norm,
            zero_last_layer=True,  # no correction at first
            initial_log_std=settings.initial_log_std,
        )
        self.actor = SoftActor(actor, settings.actor_rate, settings)
        self.critics = Critics(seen + width, settings, self._generator)
        self.modules = {"actor": self.actor, "critics": self.critics}
        self.optimizers = {"critic": self.critics.optimizer, "actor": self.actor.optimizer}
        self.beside = [self.encoder]
        self._policy = self.policy_class(self.encoder, actor, base, self.critics.target, scale)
        self.required = schedule.sampling([*self.encoder.keys, "base_action", "action"])

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics and, when due, actor and temperature.

        Raises:
            AlgorithmError: The batch lacks a required field.
        """
        check_batch(batch, self.required)
        self.updates += 1
        settings, draws = self.settings, self._generator
        actor, critics, combine = self.actor, self.critics, self._policy.combine
        action, reward, discount, base, next_base = (self.tensor(batch[n]) for n in _COLUMNS)
        features, next_features = encoded(self.encoder, batch)
        state = torch.cat([features, base], -1)
        next_state = torch.cat([next_features, next_base], -1)

        # y = Σ γ^j r + γ^m min_e Q'_e(s', a') over a random subset of heads. a' is the action that
        # would be executed: the base's proposal, or the corrected action if preferred to it (IBRL).
        with torch.no_grad():
            entropy = None
            if settings.entropy_in_target:
                correction, log_prob = actor.learned.sample(next_state, draws)
                entropy = -actor.log_temperature.exp() * log_prob
            else:
                correction = actor.learned.action(next_state, draws)
            heads = critics.target_heads(draws)
            corrected = critics.target(torch.cat([next_state, combine(next_base, correction)], -1))
            of_base = critics.target(torch.cat([next_state, next_base], -1))
            values = torch.where(prefers(corrected, of_base), corrected, of_base)
            value = (values if heads is None else values[heads]).amin(0)
            target = critics.backup(reward, discount, value, entropy)
        metrics = critics.learn(torch.cat([state, action], -1), target)

        done = self.updates - self.schedule.critic_only_updates
        if done <= 0 and settings.imitation_pretraining:
            mean = combine(base, actor.learned.mean(state))
            loss = imitation_loss(mean, action, batch["source"])
            step(actor.optimizer, loss)
            actor.follow(PRETRAINING_AVERAGE_RATE)
            return metrics | {"imitation_loss": loss.detach()}
        if done <= 0 or self.updates % settings.actor_every:
            return metrics
        # λ · imitation, where λ decays as in DAPG (Rajeswaran et al. 2018), but linearly.
        weight = falling(settings.imitation_weight, settings.imitation_updates, done)
        imitation = None
        if weight > 0.0:
            mean = combine(base, actor.learned.mean(state))
            imitation = weight * imitation_loss(mean, action, batch["source"])
        metrics |= actor.learn(
            state,
            lambda correction: critics(torch.cat([state, combine(base, correction)], -1)),
            draws,
            imitation,
        )
        actor.follow(settings.average_rate)
        return metrics

    def acting_policy(self) -> Policy:
        """Return the policy with the learning actor. Its average would delay exploration."""
        return self._corrected(self.actor.learned)

    def policy(self) -> Policy:
        """Return the policy with the averaged actor."""
        return self._corrected(self.actor.average)

    def reset_actor(self) -> None:
        """See `Correction`."""
        self.actor.reset()

    def _corrected(self, actor: GaussianTanh) -> Policy:
        parts = copy.deepcopy((self.encoder, actor))
        critics, mine = copy.deepcopy(self.critics.target), self._policy
        return self.policy_class(*parts, mine.base_policy, critics, mine.scale)
