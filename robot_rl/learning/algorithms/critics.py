"""Critics as they learn: an ensemble, the copy that follows it slowly, and their targets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.critics import VALUES, CriticEnsemble
from policies.networks import move_towards
from robot_rl.learning.algorithms.base import (
    AlgorithmError,
    check_choice,
    check_range,
    check_settings,
)
from robot_rl.learning.algorithms.training import adam, step

Range = Sequence[float]


@dataclass(frozen=True)
class CriticSettings:
    """Settings of algorithms in which a policy learns from critics."""

    critic_heads: int  # number of critics E
    critic_hidden: Sequence[int]  # hidden widths of each critic
    critic_value: str  # what they tell, one of `policies.critics.VALUES`
    target_heads: int  # heads of the random subset whose minimum is the target; 0 takes all
    # Smallest and largest possible return, which targets are limited to and critics are scaled by;
    # None: neither. The learner finds it where a task does not say it.
    value_range: Range | None
    critic_rate: float  # Adam step size of the critics
    target_rate: float  # Polyak rate τ of the target critics
    actor_rate: float  # Adam step size of what acts
    average_rate: float  # rate of its average, which is evaluated and deployed
    actor_every: int  # updates per update of what acts
    # Weight of the imitation loss on the rows of demonstrations and of an operator's interventions;
    # 0 for none.
    imitation_weight: float
    # Updates over which that weight falls linearly to 0; 0: it stays; None: the learner finds it.
    imitation_updates: int | None

    def __post_init__(self) -> None:
        _check_value_range(self.value_range)
        check_choice("critic_value", self.critic_value, VALUES)
        rates = ("critic_rate", "actor_rate", "target_rate", "average_rate")
        check_settings(self, **dict.fromkeys(rates, (0, 1)))
        check_settings(self, critic_heads=1, target_heads=(0, self.critic_heads))
        check_settings(self, actor_every=1, imitation_weight=0)
        check_range("imitation_updates", self.imitation_updates or 0, 0)


class Critics(nn.Module):
    """Critics of (B, inputs), an encoding that learns with them, and their target.

    They tell values as shares of their range, so that one temperature and one step size serve every
    scale of rewards; they begin near 0, where nothing looks good yet.

    Attributes:
        network: The ensemble that learns. `target` follows it.
    """

    def __init__(
        self,
        inputs: int,
        settings: CriticSettings,
        generator: torch.Generator,
        encoding: Iterable[Tensor] = (),
    ) -> None:
        super().__init__()
        self.settings = settings
        hidden, heads = settings.critic_hidden, settings.critic_heads
        self.network = CriticEnsemble(inputs, hidden, heads, generator, settings.critic_value)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = adam(([*self.network.parameters(), *encoding], settings.critic_rate))
        low, high = settings.value_range or (0.0, 1.0)
        self._low, self._width = float(low), float(high) - float(low)

    def forward(self, inputs: Tensor) -> Tensor:
        """Values (E, B) as shares of their range, whose gradient reaches only the inputs."""
        return judged_alone(self.network, inputs)

    def share(self, returns: Tensor) -> Tensor:
        """Returns as shares of their range."""
        return (returns - self._low) / self._width

    def heads(self, generator: torch.Generator) -> Tensor | None:
        """The random subset of heads whose minimum is the target (REDQ, algorithm 1)."""
        return self.network.subset(
            self.settings.target_heads or self.settings.critic_heads, generator
        )

    def backup(
        self, reward: Tensor, discount: Tensor, entropy: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Map the value at s' to y = Σ_{j<m} γ^j r_j + γ^m V(s'), both as shares of their range.

        SAC's target (Haarnoja et al. 2018, eq. 5) over m steps (Sutton and Barto, eq. 7.1). The
        batch holds the sum, and γ^m, which is 0 after a termination. With an entropy values leave
        the range, and are not limited to it.
        """
        limited = self.settings.value_range is not None and entropy is None

        def backed_up(share: Tensor) -> Tensor:
            share = share.clamp(0, 1) if limited else share
            value = self._low + self._width * (share if entropy is None else share + entropy)
            return self.share(reward + discount * value)

        return backed_up

    def target_of(self, outputs: Tensor, backup: Callable[[Tensor], Tensor]) -> Tensor:
        """What critics shall tell: the least of outputs (H, B, outputs) at s', backed up."""
        told = self.target.value
        return told.backed_up(told.lowest(outputs), backup)

    def learn(
        self,
        inputs: Tensor,
        target: Tensor,
        added: Callable[[Tensor], Tensor | None] | None = None,
    ) -> dict[str, Tensor]:
        """Regress every head on a target, and let the target critics follow; gives metrics.

        `added` says what is added to the loss at values (E, B).
        """
        told = self.network.value
        outputs = self.network.outputs(inputs)
        # Σ_e mean (Q_e(s, a) − y)²: SAC, eq. 5; a sum, so that each head has its own step size.
        loss = told.loss(outputs, target).mean(1).sum()
        values = told.mean(outputs)
        further = None if added is None else added(values)
        step(self.optimizer, loss if further is None else loss + further)
        # Q' ← (1 − τ) Q' + τ Q (DDPG, Lillicrap et al. 2016).
        move_towards(self.target, self.network, self.settings.target_rate)
        mean = self._low + self._width * values.detach().mean()
        metrics = {"critic_loss": loss.detach(), "q_mean": mean}
        return metrics if further is None else metrics | {"conservatism": further.detach()}

    def check_range(self) -> None:
        """Raise `AlgorithmError` where critics tell distributions over a range nobody knows."""
        kind = self.settings.critic_value
        if kind != "scalar" and self.settings.value_range is None:
            raise AlgorithmError(
                "critics that tell a distribution must know the range of returns",
                got=f"critic_value {kind} and no value_range",
                hint="add task.value_range=[LOW,HIGH], or algorithm.settings.critic_value=scalar",
            )


def judged_alone(critics: CriticEnsemble, inputs: Tensor) -> Tensor:
    """Values (E, B) of inputs (B, inputs), whose gradient reaches only these."""
    critics.requires_grad_(False)
    values: Tensor = critics(inputs)
    critics.requires_grad_(True)
    return values


def _check_value_range(value_range: Range | None) -> None:
    if value_range is None:
        return
    given = list(value_range) if isinstance(value_range, Sequence) else [value_range]
    numbers = [value for value in given if type(value) in (int, float)]
    if len(given) == len(numbers) == 2 and numbers[0] < numbers[1]:
        return
    raise AlgorithmError(
        "the range of values is impossible",
        got=given,
        expected="[low, high] with low < high, or null where the returns are not known",
        hint="task.value_range=[0.0,1.0] fits a reward of 1 at success and 0 before it",
    )
