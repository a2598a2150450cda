"""`rlpd`: train a tanh-Gaussian actor off-policy, with half of each batch from demonstrations.

Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", arXiv 2302.02948.
The defaults differ from the paper: n-step returns, no entropy in the target, 6 critic
heads, targets clamped to `value_range`, and evaluation of an averaged actor. docs/policies.md
explains why. `algorithm=rlpd_pretrained` and `algorithm=sac` are this class with other settings.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from policies.gaussian import GaussianPolicy, GaussianTanh
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


class RLPD(Training):
    """The actor chooses the action itself. The cloned policy `base` only collects the warm-up.

    `seed` seeds weights and draws. The actor controls all action columns, or `columns` of them.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: ActorCriticSettings,
        seed: int,
        columns: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.schedule, self.settings = schedule, settings
        self.encoder = single_step_encoder(base)
        width = base.action_dimension if columns is None else columns
        actor = GaussianTanh(
            self.encoder.features,
            width,
            settings.actor_hidden,
            generator=seeded(seed + 1),
            layer_norm=settings.actor_layer_norm,
            initial_log_std=settings.initial_log_std,
        )
        self.actor = SoftActor(actor, settings.actor_rate, settings)
        self.critics = Critics(self.encoder.features + width, settings, self._generator)
        self.modules = {"actor": self.actor, "critics": self.critics}
        self.optimizers = {"critic": self.critics.optimizer, "actor": self.actor.optimizer}
        self.beside = [self.encoder]
        self.required = schedule.sampling([*self.encoder.keys, "action"])

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics and, when due, actor and temperature (algorithm 1).

        Raises:
            AlgorithmError: The batch lacks a required field.
        """
        check_batch(batch, self.required)
        self.updates += 1
        settings, draws = self.settings, self._generator
        actor, critics = self.actor, self.critics
        names = ("action", "reward", "discount")
        action, reward, discount = (self.tensor(batch[name]) for name in names)
        state, next_state = encoded(self.encoder, batch)

        # y = Σ γ^j r + γ^m min_e Q'_e(s', a') over a random subset of heads, a' ~ π(s'). With
        # `entropy_in_target`, minus α log π(a'|s') (SAC, eq. 3).
        with torch.no_grad():
            entropy = None
            if settings.entropy_in_target:
                next_action, log_prob = actor.learned.sample(next_state, draws)
                entropy = -actor.log_temperature.exp() * log_prob
            else:
                next_action = actor.learned.action(next_state, draws)
            heads = critics.target_heads(draws)
            value = critics.target(torch.cat([next_state, next_action], -1), heads).amin(0)
            target = critics.backup(reward, discount, value, entropy)
        metrics = critics.learn(torch.cat([state, action], -1), target)
        return metrics | self.update_actor(state, action, batch["source"])

    def update_actor(
        self, state: Tensor, action: Tensor, source: npt.NDArray[Any]
    ) -> dict[str, Tensor]:
        """Update the actor at encoded states (B, F), when due. Returns its metrics.

        `action` (B, d) is the action that `source` (B,) took there.
        """
        settings, actor, critics = self.settings, self.actor, self.critics
        done = self.updates - self.schedule.critic_only_updates
        if done <= 0 and settings.imitation_pretraining:
            loss = imitation_loss(actor.learned.mean(state), action, source)
            step(actor.optimizer, loss)
            actor.follow(PRETRAINING_AVERAGE_RATE)
            return {"imitation_loss": loss.detach()}
        if done <= 0 or self.updates % settings.actor_every:
            return {}
        # λ · imitation, where λ decays as in DAPG (Rajeswaran et al. 2018), but linearly.
        weight = falling(settings.imitation_weight, settings.imitation_updates, done)
        imitation = None
        if weight > 0.0:
            imitation = weight * imitation_loss(actor.learned.mean(state), action, source)
        metrics = actor.learn(
            state,
            lambda chosen: critics(torch.cat([state, chosen], -1)),
            self._generator,
            imitation,
        )
        actor.follow(settings.average_rate)
        return metrics

    def acting_policy(self) -> Policy:
        """Return the policy with the learning actor. Its average would delay exploration."""
        return GaussianPolicy(*copy.deepcopy((self.encoder, self.actor.learned)))

    def policy(self) -> Policy:
        """Return the policy with the averaged actor."""
        return GaussianPolicy(*copy.deepcopy((self.encoder, self.actor.average)))
