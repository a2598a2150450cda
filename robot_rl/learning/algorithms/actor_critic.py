"""Shared parts of `rlpd` and `residual`: an ensemble of critics, and a soft actor.

SAC (Haarnoja et al. 2018, arXiv 1812.05905) with REDQ's targets (Chen et al. 2021, arXiv
2101.05982), as in RLPD (Ball et al. 2023, arXiv 2302.02948). Our changes for sparse rewards and
short episodes: targets are clamped to the possible range of returns, and an average of the actor's
weights is evaluated and deployed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.columns import INSTRUCTION_FEATURES, INSTRUCTION_WIDTH
from policies.critics import CriticEnsemble
from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh
from policies.networks import move_towards
from policies.policy import ChunkPolicy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.base import AlgorithmError, check_range, check_settings
from robot_rl.learning.algorithms.training import adam, step

# Averaging rate while the actor is fitted to demonstrations. With an `average_rate` of 0.002, the
# 1,000 updates of that phase would leave 14 % of the random initial weights in the average. With
# this rate the average lags about 20 updates behind the actor.
PRETRAINING_AVERAGE_RATE = 0.05


@dataclass(frozen=True)
class CriticSettings:
    """Settings of algorithms whose policy learns from critics."""

    critic_heads: int  # number of critics E
    critic_hidden: Sequence[int]  # hidden widths of each critic
    target_heads: int  # heads in the random subset whose minimum is the target; 0 for all
    # Smallest and largest possible return. Targets are clamped to them and critics scaled by them.
    # None: neither. If the task does not set them, the learner determines them.
    value_range: Sequence[float] | None
    critic_rate: float  # Adam step size of the critics
    target_rate: float  # Polyak rate τ of the target critics
    actor_rate: float  # Adam step size of the actor
    average_rate: float  # rate of the actor's average, which is evaluated and deployed
    actor_every: int  # updates per update of the actor
    # Weight of the imitation loss on rows of demonstrations and operator interventions. 0 for none.
    imitation_weight: float
    # Updates over which that weight falls linearly to 0. 0: constant. None: set by the learner.
    imitation_updates: int | None

    def __post_init__(self) -> None:
        if (limits := self.value_range) is not None:
            given = list(limits) if isinstance(limits, Sequence) else [limits]
            numbers = [value for value in given if type(value) in (int, float)]
            if not (len(given) == len(numbers) == 2 and numbers[0] < numbers[1]):
                raise AlgorithmError(
                    "the range of values is impossible",
                    got=given,
                    expected="[low, high] with low < high, or null where the returns are not known",
                    hint="task.value_range=[0.0,1.0] fits a reward of 1 at success and 0 before it",
                )
        rates = ("critic_rate", "actor_rate", "target_rate", "average_rate")
        check_settings(self, **dict.fromkeys(rates, (0, 1)))
        check_settings(self, critic_heads=1, target_heads=(0, self.critic_heads))
        check_settings(self, actor_every=1, imitation_weight=0)
        check_range("imitation_updates", self.imitation_updates or 0, 0)


@dataclass(frozen=True)
class TemperatureSettings:
    """Settings of the temperature α."""

    initial_temperature: float  # α at the start
    target_entropy: float  # target entropy per action column
    temperature_rate: float  # Adam step size of the temperature

    def __post_init__(self) -> None:
        check_settings(self, temperature_rate=(0, 1), initial_temperature=1e-9)


@dataclass(frozen=True)
class ActorCriticSettings(CriticSettings, TemperatureSettings):
    """Settings of soft actor-critic."""

    actor_hidden: Sequence[int]  # hidden widths of the actor
    actor_layer_norm: bool  # LayerNorm in the actor's hidden layers
    initial_log_std: float  # log standard deviation of the actor at the start
    entropy_in_target: bool  # whether the target has SAC's entropy term; it is then not clamped
    imitation_pretraining: bool  # train the actor on demonstrations during the critic-only phase

    def __post_init__(self) -> None:
        super().__post_init__()
        TemperatureSettings.__post_init__(self)


class Critics(nn.Module):
    """An ensemble of critics of (B, inputs), with slowly updated target critics.

    Values are normalised to the range of returns, so one temperature and one step size fit every
    reward scale. They start near 0, so nothing looks good at first.
    """

    def __init__(self, inputs: int, settings: CriticSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings = settings
        self.network = CriticEnsemble(
            inputs, settings.critic_hidden, settings.critic_heads, generator
        )
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = adam((self.network.parameters(), settings.critic_rate))
        low, high = settings.value_range or (0.0, 1.0)
        self._low, self._width = float(low), float(high) - float(low)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return values (E, B) of inputs (B, inputs). Gradients flow only to the inputs."""
        self.network.requires_grad_(False)
        values: Tensor = self.network(inputs)
        self.network.requires_grad_(True)
        return values

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile both ensembles."""
        self.network.compile(*arguments, **options)
        self.target.compile(*arguments, **options)

    def share(self, returns: Tensor) -> Tensor:
        """Normalise returns to their range."""
        return (returns - self._low) / self._width

    def target_heads(self, generator: torch.Generator) -> Tensor | None:
        """Draw the heads whose minimum is the target (REDQ, algorithm 1). None for all heads."""
        every = self.settings.critic_heads
        count = self.settings.target_heads or every
        chosen = torch.randperm(every, generator=generator)[:count]
        return None if count == every else chosen

    def backup(
        self, reward: Tensor, discount: Tensor, value: Tensor, entropy: Tensor | None = None
    ) -> Tensor:
        """Y = Σ_{j<m} γ^j r_j + γ^m V(s'), all (B,), normalised to the range of returns.

        SAC's target (Haarnoja et al. 2018, eq. 5) over m steps (Sutton and Barto, eq. 7.1). The
        batch contains the sum and γ^m, which is 0 after a termination. With an entropy term, values
        can leave the range and are not clamped.
        """
        if entropy is not None:
            value = value + entropy
        elif self.settings.value_range is not None:
            value = value.clamp(0, 1)
        return self.share(reward + discount * (self._low + self._width * value))

    def learn(self, inputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Regress every head on targets (B,), then update the target critics. Returns metrics."""
        values = self.network(inputs)
        # Σ_e mean (Q_e(s, a) − y)²: SAC, eq. 5. A sum, so the step size per head does not depend on
        # E.
        loss = (values - target).square().mean(1).sum()
        step(self.optimizer, loss)
        self.follow()
        return {"critic_loss": loss.detach(), "q_mean": self.mean_return(values)}

    def follow(self) -> None:
        """Q' ← (1 − τ) Q' + τ Q (DDPG, Lillicrap et al. 2016)."""
        move_towards(self.target, self.network, self.settings.target_rate)

    def mean_return(self, values: Tensor) -> Tensor:
        """Return the mean of values (E, B), as a return."""
        return self._low + self._width * values.detach().mean()


class SoftActor(nn.Module):
    """An actor with its temperature, and its average, which is deployed. `rate` is Adam's."""

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

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the learning network."""
        self.learned.network.compile(*arguments, **options)

    def reset(self) -> None:
        """Reset to the initial weights."""
        self.load_state_dict(self._first)
        self.optimizer.state.clear()

    def learn(
        self,
        features: Tensor,
        value: Callable[[Tensor], Tensor],
        generator: torch.Generator,
        imitation: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Update actor and temperature once on features (B, F). Returns metrics.

        `value` returns values (E, B) of the actor's outputs (B, d). `imitation` is added to the
        loss.
        """
        temperature = self.log_temperature.detach().exp()
        squashed, log_prob = self.learned.sample(features, generator)
        # mean (α log π(a|s) − mean_e Q_e(s, a)): SAC, eq. 7, with the mean of all heads as in RLPD.
        loss = (temperature * log_prob - value(squashed).mean(0)).mean()
        if imitation is not None:
            loss = loss + imitation
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
        """Move the average towards the actor by `rate`."""
        move_towards(self.average, self.learned, rate)


def imitation_loss(mean: Tensor, action: Tensor, source: npt.NDArray[Any]) -> Tensor:
    """‖μ(s) − a‖² (B, d) on the rows not from the policy (Nair et al. 2018, arXiv 1709.10089).

    Operator corrections count too: they show what to do where the policy fails.
    """
    shown = torch.from_numpy(source != SOURCE_POLICY).to(mean)
    errors = (mean - action).square().sum(-1)
    return (errors * shown).sum() / shown.sum().clamp(min=1)


def single_step_encoder(base: ChunkPolicy) -> StateEncoder:
    """Create an encoder of single observations with the clone's keys and statistics.

    For a policy that follows instructions, it also encodes the instruction.
    """
    normalizer = copy.deepcopy(base.encoder.normalizer)
    if base.conditioned:
        normalizer = normalizer.with_identity(INSTRUCTION_FEATURES, INSTRUCTION_WIDTH)
    return StateEncoder(normalizer.widths, normalizer)
