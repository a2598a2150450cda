"""The off-policy core that `rlpd` and `residual` share: soft actor-critic on an ensemble.

RLPD (Ball et al. 2023, arXiv 2302.02948, algorithm 1), which is SAC (Haarnoja et al. 2018, arXiv
1812.05905) with REDQ's targets (Chen et al. 2021, arXiv 2101.05982). Ours, for sparse rewards and
short episodes: no entropy in the target, targets limited to the range that the return can have,
n-step returns, and an average of the actor's weights for evaluation.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, Schedule
from robot_rl.learning.algorithms.critics import Critics, CriticSettings
from robot_rl.learning.algorithms.encoding import Encoding
from robot_rl.learning.algorithms.soft_actor import SoftActor, TemperatureSettings
from robot_rl.learning.algorithms.training import Training, check_batch, falling, step
from robot_rl.replay.windows import SampleSpec

# Rate of the actor's average while the actor is fitted to demonstrations. With an `average_rate` of
# 0.002 the 1,000 updates of that phase would leave 14 % of the random initial weights in the
# average; with this rate it is some 20 updates behind the actor.
_IMITATION_AVERAGE_RATE = 0.05


@dataclass(frozen=True)
class ActorCriticSettings(CriticSettings, TemperatureSettings):
    """Settings of the actor-critic core."""

    actor_hidden: Sequence[int]  # hidden widths of the actor
    actor_layer_norm: bool  # LayerNorm in the actor's hidden layers
    initial_log_std: float  # log standard deviation of the actor at the start
    entropy_in_target: bool  # whether the target has SAC's entropy term, and then no limits
    imitation_pretraining: bool  # train the actor on the demonstrations in the critic-only phase

    def __post_init__(self) -> None:
        super().__post_init__()
        TemperatureSettings.__post_init__(self)
        if self.critic_value != "scalar" and self.entropy_in_target:
            raise AlgorithmError(
                "values with entropy leave the range of returns, which a distribution is over",
                got=f"critic_value {self.critic_value} with entropy_in_target",
                hint="algorithm.settings.entropy_in_target=false, or critic_value=scalar",
            )


class ActorCritic(Training, ABC):
    """Soft actor-critic over encoded observations; a subclass says what the actor controls.

    `base` is the cloned policy. The seed is that of the weights and of all draws. The actor
    controls so many `columns` of the action, or all of them.

    Attributes:
        uses_base: Whether actor and critics see the base policy's proposal.
        starts_at_zero: Whether the actor's mean starts at 0 for every input.
    """

    uses_base: ClassVar[bool] = False
    starts_at_zero: ClassVar[bool] = False

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        schedule: Schedule,
        settings: ActorCriticSettings,
        seed: int,
        columns: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.schedule, self.settings = schedule, settings
        self.encoding, self.encoder = encoding, encoding.encoder
        width = base.action_dimension if columns is None else columns
        seen = self.encoder.features + (width if self.uses_base else 0)
        actor = GaussianTanh(
            seen,
            width,
            settings.actor_hidden,
            generator=seeded(seed + 1),
            layer_norm=settings.actor_layer_norm,
            zero_last_layer=self.starts_at_zero,
            initial_log_std=settings.initial_log_std,
        )
        self.actor = SoftActor(actor, settings.actor_rate, settings)
        self.critics = Critics(seen + width, settings, self._generator, encoding.parameters)
        self.modules = {"actor": self.actor, "critics": self.critics, **encoding.modules}
        self.optimizers = {"critic": self.critics.optimizer, "actor": self.actor.optimizer}
        self.beside = [self.encoder]
        observed = (*self.encoder.observed, *(["base_action"] if self.uses_base else []))
        self.required = SampleSpec(
            (*observed, "action"),
            batch_size=schedule.batch_size,
            n_step=schedule.n_step,
            discount=schedule.gamma,
            demonstration_share=schedule.demonstration_share,
        )

    @abstractmethod
    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The executed action (B, d) for the actor's output in (-1, 1) (B, d)."""

    @abstractmethod
    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh) -> Policy:
        """A policy around these copies."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update of the critics and, in its turn, of actor and temperature.

        Raises:
            AlgorithmError: The batch lacks a required field.
        """
        check_batch(batch, self.required)
        self.critics.check_range()
        self.updates += 1
        return self.learn(batch, *self.encoding.features(batch, self._generator))

    def learn(self, batch: Batch, features: Tensor, next_features: Tensor) -> dict[str, Tensor]:
        """Update on encoded observations (B, features); only the critics' loss trains the encoder.

        `features` have gradients where the encoder learns, `next_features` have none.
        """
        settings = self.settings
        base = next_base = None
        if self.uses_base:
            base, next_base = (self.tensor(batch[n]) for n in ("base_action", "next/base_action"))
        action = self.tensor(batch["action"])
        seen = Seen(_join(features, base), base)
        following = Seen(_join(next_features, next_base), next_base)
        with torch.no_grad():
            target = self._target(batch, following)
        metrics = self.critics.learn(
            _join(seen.features, action),
            target,
            lambda values: self.conservatism(batch, seen, following, values),
        )
        seen = Seen(seen.features.detach(), base)
        if self.updates > self.schedule.critic_only_updates:
            if self.updates % settings.actor_every == 0:
                metrics |= self._update_actor(batch, seen, action)
        elif settings.imitation_pretraining:
            loss = self._imitation_loss(batch, seen, action)
            step(self.actor.optimizer, loss)
            self._average(_IMITATION_AVERAGE_RATE)
            metrics["imitation_loss"] = loss.detach()
        return metrics

    def acting_policy(self) -> Policy:
        """The policy with the actor as it learns: with its average exploration comes later."""
        return self.policy_of(copy.deepcopy(self.encoder), copy.deepcopy(self.actor.learned))

    def policy(self) -> Policy:
        """The policy with the averaged actor, and the averaged image encoder where one learns."""
        encoder = copy.deepcopy(self.encoding.deployed)
        return self.policy_of(encoder, copy.deepcopy(self.actor.average))

    def next_outputs(self, following: Seen, action: Tensor, heads: Tensor | None) -> Tensor:
        """The outputs (H, B, outputs) of H target critics, or of all, at s'.

        The actor wants `action` (B, d) there.
        """
        return self.critics.target.outputs(_join(following.features, action), heads)

    def conservatism(
        self, batch: Batch, seen: Seen, following: Seen, values: Tensor
    ) -> Tensor | None:
        """What is added to the critics' loss at their values (E, B) of the batch's actions."""
        return None

    def _target(self, batch: Batch, following: Seen) -> Tensor:
        """What the critics shall tell; see `Critics.backup`.

        V is the least Q'_e(s', a') of a random subset of heads at the actor's own a' ~ π(s'), and
        with `entropy_in_target` − α log π(a'|s') (SAC, eq. 3).
        """
        entropy = None
        if self.settings.entropy_in_target:
            squashed, log_prob = self.actor.learned.sample(following.features, self._generator)
            entropy = -self.actor.log_temperature.exp() * log_prob
        else:
            squashed = self.actor.learned.action(following.features, self._generator)
        action = self.act(squashed, following.base)
        outputs = self.next_outputs(following, action, self.critics.heads(self._generator))
        reward, discount = self.tensor(batch["reward"]), self.tensor(batch["discount"])
        return self.critics.target_of(outputs, self.critics.backup(reward, discount, entropy))

    def _update_actor(self, batch: Batch, seen: Seen, action: Tensor) -> dict[str, Tensor]:
        settings = self.settings
        # λ · imitation: Nair et al. 2018 (arXiv 1709.10089), with a λ that decays as in DAPG
        # (Rajeswaran et al. 2018), here linearly.
        done = self.updates - self.schedule.critic_only_updates
        weight = falling(settings.imitation_weight, settings.imitation_updates, done)
        added = weight * self._imitation_loss(batch, seen, action) if weight > 0.0 else None
        metrics = self.actor.learn(
            seen.features,
            lambda squashed: self.critics(_join(seen.features, self.act(squashed, seen.base))),
            self._generator,
            added,
        )
        self._average(settings.average_rate)
        return metrics

    def _average(self, rate: float) -> None:
        """Move what is evaluated and deployed by `rate` towards what learns."""
        self.actor.follow(rate)
        self.encoding.average(rate)

    def _imitation_loss(self, batch: Batch, seen: Seen, action: Tensor) -> Tensor:
        """‖μ(s) − a‖² on the rows in which no policy acted (Nair et al. 2018)."""
        mean = self.act(self.actor.learned.mean(seen.features), seen.base)
        # An operator's corrections are demonstrations of what to do where the policy fails.
        shown = self.tensor(batch["source"] != SOURCE_POLICY).float()
        errors = (mean - action).square().sum(-1)
        return (errors * shown).sum() / shown.sum().clamp(min=1)

    def _compilable(self) -> Iterable[nn.Module]:
        return self.actor.learned.network, self.critics.network, self.critics.target


class Seen(NamedTuple):
    """What actor and critics see: (B, F) features with the base's proposal, and that (B, d)."""

    features: Tensor
    base: Tensor | None


def _join(*parts: Tensor | None) -> Tensor:
    return torch.cat([part for part in parts if part is not None], -1)
