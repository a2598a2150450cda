"""The off-policy core that `rlpd` and `residual` share: soft actor-critic on an ensemble.

RLPD (Ball et al. 2023, arXiv 2302.02948, algorithm 1), which is SAC (Haarnoja et al. 2018, arXiv
1812.05905) with REDQ's targets (Chen et al. 2021, arXiv 2101.05982). Ours, for sparse rewards and
short episodes: no entropy in the target, targets limited to the range that the return can have,
n-step returns, and an average of the actor's weights for evaluation.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from policies.critics import VALUES, CriticEnsemble
from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh
from policies.networks import move_towards, seeded
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.base import (
    AlgorithmError,
    Batch,
    Range,
    Schedule,
    check_choice,
    check_critic_value,
    check_settings,
    check_value_range,
)
from robot_rl.learning.algorithms.encoding import Encoding
from robot_rl.learning.algorithms.training import Training, adam, check_columns, falling, step
from robot_rl.replay.sampler import SampleSpec

# Rate of the actor's average while the actor is fitted to demonstrations. With an `average_rate` of
# 0.002 the 1,000 updates of that phase would leave 14 % of the random initial weights in the
# average; with this rate it is some 20 updates behind the actor.
_IMITATION_AVERAGE_RATE = 0.05


@dataclass(frozen=True)
class ActorCriticSettings:
    """Settings of the actor-critic core."""

    actor_hidden: Sequence[int]  # hidden widths of the actor
    actor_layer_norm: bool  # LayerNorm in the actor's hidden layers
    initial_log_std: float  # log standard deviation of the actor at the start
    critic_heads: int  # number of critics E
    critic_hidden: Sequence[int]  # hidden widths of each critic
    critic_value: str  # what they tell, one of `policies.critics.VALUES`
    target_heads: int  # heads of the random subset whose minimum is the target; 0 takes all
    # Smallest and largest possible return, which targets are limited to and critics are scaled by;
    # None: neither. With `entropy_in_target` targets are not limited: values with entropy leave the
    # range. The learner finds it where a task does not say it.
    value_range: Range | None
    critic_rate: float  # Adam step size of the critics
    actor_rate: float  # Adam step size of the actor
    temperature_rate: float  # Adam step size of the temperature
    target_rate: float  # Polyak rate τ of the target critics
    average_rate: float  # rate of the actor's average that is evaluated and deployed
    initial_temperature: float  # α at the start
    target_entropy: float  # entropy per action column that the temperature aims at
    entropy_in_target: bool  # whether the target has SAC's entropy term
    actor_every: int  # updates per actor update
    # Weight of the imitation loss on the rows of demonstrations and of an operator's interventions;
    # 0 for none.
    imitation_weight: float
    # Updates over which that weight falls linearly to 0; 0: it stays; None: the learner finds it.
    imitation_updates: int | None
    imitation_pretraining: bool  # train the actor on the demonstrations in the critic-only phase

    def __post_init__(self) -> None:
        """Check the range of values, and name the setting in an `AlgorithmError`."""
        check_value_range(self.value_range)
        check_choice("critic_value", self.critic_value, VALUES)
        if self.critic_value != "scalar" and self.entropy_in_target:
            raise AlgorithmError(
                "values with entropy leave the range of returns, which a distribution is over",
                got=f"critic_value {self.critic_value} with entropy_in_target",
                hint="algorithm.settings.entropy_in_target=false, or critic_value=scalar",
            )
        rates = ("critic_rate", "actor_rate", "temperature_rate", "target_rate", "average_rate")
        check_settings(
            **{name: (getattr(self, name), 0, 1) for name in rates},
            critic_heads=(self.critic_heads, 1, math.inf),
            target_heads=(self.target_heads, 0, self.critic_heads),
            initial_temperature=(self.initial_temperature, 1e-9, math.inf),
            actor_every=(self.actor_every, 1, math.inf),
            imitation_weight=(self.imitation_weight, 0, math.inf),
            imitation_updates=(self.imitation_updates or 0, 0, math.inf),
        )


class ActorCritic(Training):
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
        self.actor = GaussianTanh(
            seen,
            width,
            settings.actor_hidden,
            generator=seeded(seed + 1),
            layer_norm=settings.actor_layer_norm,
            zero_last_layer=self.starts_at_zero,
            initial_log_std=settings.initial_log_std,
        )
        self.average_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.critics = CriticEnsemble(
            seen + width,
            settings.critic_hidden,
            settings.critic_heads,
            self._generator,
            settings.critic_value,
        )
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        # Critics tell values as shares of their range, so that one temperature and one step size
        # serve every scale of rewards; they begin near 0, where nothing looks good yet.
        low, high = settings.value_range or (0.0, 1.0)
        self._low, self._width = float(low), float(high) - float(low)
        self.log_temperature = torch.tensor(settings.initial_temperature).log().requires_grad_()
        self._critic_optimizer = adam(
            ([*self.critics.parameters(), *encoding.parameters], settings.critic_rate)
        )
        self._actor_optimizer = adam(
            (self.actor.parameters(), settings.actor_rate),
            ([self.log_temperature], settings.temperature_rate),
        )
        observed = (*self.encoder.observed, *(["base_action"] if self.uses_base else []))
        self.required = SampleSpec(
            (*observed, "action"),
            batch_size=schedule.batch_size,
            n_step=schedule.n_step,
            discount=schedule.gamma,
            demonstration_share=schedule.demonstration_share,
        )
        following = [f"next/{name}" for name in observed]
        self._columns = (*self.required.fields, "source", "reward", "discount", *following)

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
        check_columns(batch, self._columns)
        check_critic_value(self.settings.critic_value, self.settings.value_range)
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
        metrics = self._update_critics(batch, seen, action, following)
        seen = Seen(seen.features.detach(), base)
        if self.updates > self.schedule.critic_only_updates:
            if self.updates % settings.actor_every == 0:
                metrics |= self._update_actor(batch, seen, action)
        elif settings.imitation_pretraining:
            loss = self._imitation_loss(batch, seen, action)
            step(self._actor_optimizer, loss)
            self._average(_IMITATION_AVERAGE_RATE)
            metrics["imitation_loss"] = loss.detach()
        return metrics

    def to(self, device: torch.device, *, compiled: bool = False) -> None:
        """Compute on a device from now on; before the first update or `load_state_dict`."""
        self.encoder.to(device)
        super().to(device, compiled=compiled)

    def acting_policy(self) -> Policy:
        """The policy with the actor as it learns: with its average exploration comes later."""
        return self.policy_of(copy.deepcopy(self.encoder), copy.deepcopy(self.actor))

    def policy(self) -> Policy:
        """The policy with the averaged actor, and the averaged image encoder where one learns."""
        encoder = copy.deepcopy(self.encoding.deployed)
        return self.policy_of(encoder, copy.deepcopy(self.average_actor))

    def next_outputs(self, following: Seen, action: Tensor, heads: Tensor | None) -> Tensor:
        """The outputs (H, B, outputs) of H target critics, or of all, at s'.

        The actor wants `action` (B, d) there.
        """
        return self.target_critics.outputs(_join(following.features, action), heads)

    def conservatism(
        self, batch: Batch, seen: Seen, following: Seen, values: Tensor
    ) -> Tensor | None:
        """What is added to the critics' loss at their values (E, B) of the batch's actions."""
        return None

    def _target(self, batch: Batch, following: Seen) -> Tensor:
        """What the critics shall tell: y = Σ_{j<m} γ^j r_j + γ^m V(s').

        SAC's target (eq. 5) over m steps (Sutton and Barto, eq. 7.1). V is the least Q'_e(s', a')
        of a random subset of heads (REDQ, algorithm 1) at the actor's own a' ~ π(s'), and with
        `entropy_in_target` − α log π(a'|s') (SAC, eq. 3). The batch holds the sum, and γ^m, which
        is 0 after a termination.
        """
        settings = self.settings
        entropy: Tensor | float = 0.0
        if settings.entropy_in_target:
            squashed, log_prob = self.actor.sample(following.features, self._generator)
            entropy = -self.log_temperature.exp() * log_prob
        else:
            squashed = self.actor.action(following.features, self._generator)
        action = self.act(squashed, following.base)
        heads = settings.target_heads or settings.critic_heads
        chosen = self.target_critics.subset(heads, self._generator)
        outputs = self.next_outputs(following, action, chosen)
        limited = settings.value_range is not None and not settings.entropy_in_target
        reward, discount = self.tensor(batch["reward"]), self.tensor(batch["discount"])

        def backup(share: Tensor) -> Tensor:
            value = share + entropy
            value = self._low + self._width * (value.clamp(0, 1) if limited else value)
            return (reward + discount * value - self._low) / self._width

        told = self.target_critics.value
        return told.backed_up(told.lowest(outputs), backup)

    def _update_critics(
        self, batch: Batch, seen: Seen, action: Tensor, following: Seen
    ) -> dict[str, Tensor]:
        told = self.critics.value
        with torch.no_grad():
            target = self._target(batch, following)
        outputs = self.critics.outputs(_join(seen.features, action))
        # Σ_e mean (Q_e(s, a) − y)²: SAC, eq. 5; a sum, so that each head has its own step size.
        loss = told.loss(outputs, target).mean(1).sum()
        values = told.mean(outputs)
        added = self.conservatism(batch, seen, following, values)
        step(self._critic_optimizer, loss if added is None else loss + added)
        # Q' ← (1 − τ) Q' + τ Q (DDPG, Lillicrap et al. 2016).
        move_towards(self.target_critics, self.critics, self.settings.target_rate)
        metrics = {
            "critic_loss": loss.detach(),
            "q_mean": self._low + self._width * values.detach().mean(),
        }
        return metrics if added is None else metrics | {"conservatism": added.detach()}

    def _update_actor(self, batch: Batch, seen: Seen, action: Tensor) -> dict[str, Tensor]:
        settings = self.settings
        temperature = self.log_temperature.detach().exp()
        squashed, log_prob = self.actor.sample(seen.features, self._generator)
        chosen = self.act(squashed, seen.base)
        # Gradients reach the actor through the critics' input; the critics' own are not wanted.
        self.critics.requires_grad_(False)
        values = self.critics(_join(seen.features, chosen))
        self.critics.requires_grad_(True)
        # mean (α log π(a|s) − mean_e Q_e(s, a)): SAC, eq. 7, with the mean of all heads as in RLPD.
        loss = (temperature * log_prob - values.mean(0)).mean()
        # Plus λ · imitation: Nair et al. 2018 (arXiv 1709.10089), with a λ that decays as in DAPG
        # (Rajeswaran et al. 2018), here linearly.
        done = self.updates - self.schedule.critic_only_updates
        weight = falling(settings.imitation_weight, settings.imitation_updates, done)
        if weight > 0.0:
            loss = loss + weight * self._imitation_loss(batch, seen, action)
        target_entropy = settings.target_entropy * self.actor.action_dimension
        # − log α · mean (log π(a|s) + target entropy): SAC, eq. 18, in log α.
        dual = -(self.log_temperature * (log_prob.detach() + target_entropy).mean())
        step(self._actor_optimizer, loss + dual)  # they share no gradient
        self._average(settings.average_rate)
        return {
            "actor_loss": loss.detach(),
            "temperature": temperature,
            "entropy": -log_prob.detach().mean(),
        }

    def _average(self, rate: float) -> None:
        """Move what is evaluated and deployed by `rate` towards what learns."""
        move_towards(self.average_actor, self.actor, rate)
        self.encoding.average(rate)

    def _imitation_loss(self, batch: Batch, seen: Seen, action: Tensor) -> Tensor:
        """‖μ(s) − a‖² on the rows in which no policy acted (Nair et al. 2018)."""
        mean = self.act(self.actor.mean(seen.features), seen.base)
        # An operator's corrections are demonstrations of what to do where the policy fails.
        shown = self.tensor(batch["source"] != SOURCE_POLICY).float()
        errors = (mean - action).square().sum(-1)
        return (errors * shown).sum() / shown.sum().clamp(min=1)

    def _modules(self) -> dict[str, nn.Module]:
        return {
            "actor": self.actor,
            "average_actor": self.average_actor,
            "critics": self.critics,
            "target_critics": self.target_critics,
            **self.encoding.modules,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"critic": self._critic_optimizer, "actor": self._actor_optimizer}

    def _numbers(self) -> dict[str, Tensor]:
        return {"log_temperature": self.log_temperature}

    def _compilable(self) -> Iterable[nn.Module]:
        return self.actor.network, self.critics, self.target_critics


class Seen(NamedTuple):
    """What actor and critics see: (B, F) features with the base's proposal, and that (B, d)."""

    features: Tensor
    base: Tensor | None


def _join(*parts: Tensor | None) -> Tensor:
    return torch.cat([part for part in parts if part is not None], -1)
