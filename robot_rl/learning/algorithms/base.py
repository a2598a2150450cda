"""The algorithm interface, and checks of settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt
import torch
from torch import Tensor

from policies.policy import Policy
from robot_rl.errors import RobotRLError
from robot_rl.replay.windows import SampleSpec

Batch = Mapping[str, npt.NDArray[Any]]


class AlgorithmError(RobotRLError):
    """A batch, setting or training state that does not fit an algorithm."""


class LearningDiverged(RobotRLError):
    """A loss or weight is no longer finite. The last checkpoint predates this."""


_LOWER_RATES = (
    "a run keeps its algorithm: begin another one with lower algorithm.settings.critic_rate and"
    " actor_rate, and with dataset=PATH for the same demonstrations"
)


def check_finite(name: str, tensor: Tensor, when: str, hint: str = _LOWER_RATES) -> None:
    """Raise `LearningDiverged` if a loss or weights are not finite."""
    total = float(tensor.detach().sum(dtype=torch.float64))
    if not math.isfinite(total):
        raise LearningDiverged(
            f"{name} is no longer a finite number at {when}", got=total, hint=hint
        )


def check_range(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Check that a setting is a number from `low` to `high`. Raise `AlgorithmError` if not."""
    if not (isinstance(value, int | float) and low <= value <= high):
        most = f">= {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        raise AlgorithmError(
            f"the setting {name!r} is out of range",
            got=value,
            expected=f"<= {high:g}" if low == -math.inf else most,
        )


def check_settings(settings: object, **ranges: float | tuple[float, float]) -> None:
    """Apply `check_range` to settings by name, given each lowest value or (lowest, highest)."""
    for name, given in ranges.items():
        check_range(
            name, getattr(settings, name), *(given if isinstance(given, tuple) else (given,))
        )


LEAST_DISCOUNT = 0.97  # lower limit for discounts derived from demonstrations


@dataclass(frozen=True)
class Schedule:
    """When the learner updates, and on which data."""

    warmup_steps: int  # environment steps before updates
    critic_only_updates: int  # critic-only updates when the warm-up ends
    updates_per_step: int  # update-to-data ratio, enforced
    batch_size: int  # transitions per update
    demonstration_share: float  # fraction of demonstrations in every batch
    n_step: int  # steps of a return before bootstrapping
    discount: float | None  # γ per control step; None: derived from the demonstrations
    # Standard deviation of the cloned policy's action noise in the warm-up. None: the policy that
    # will learn acts itself.
    warmup_noise: float | None
    hindsight_share: float  # fraction of every batch relabelled with reached goals; see `Hindsight`
    offline_updates: int = 0  # updates on recorded episodes before any policy acts; see `Offline`

    def __post_init__(self) -> None:
        """Check value ranges. `learning.blocks` checks counts of steps and updates."""
        check_settings(self, batch_size=1, n_step=1, offline_updates=0)
        check_range("warmup_noise", self.warmup_noise or 0.0, 0)
        check_settings(self, demonstration_share=(0, 1), hindsight_share=(0, 1))
        check_range("discount", self.gamma, 0, 1)

    @property
    def gamma(self) -> float:
        """The discount γ per control step, available once there are demonstrations."""
        return LEAST_DISCOUNT if self.discount is None else self.discount

    def sampling(self, fields: Sequence[str], **options: Any) -> SampleSpec:
        """Return the spec of batches with these fields. `options` are other `SampleSpec` fields."""
        return SampleSpec(
            tuple(fields),
            batch_size=self.batch_size,
            n_step=self.n_step,
            discount=self.gamma,
            demonstration_share=self.demonstration_share,
            **options,
        )


class Algorithm(Protocol):
    """A learning method on batches of transitions, created by `make_algorithm`.

    `required` specifies the contents of a batch. See `SampleSpec`.
    """

    schedule: Schedule
    required: SampleSpec

    def to(self, device: torch.device, *, compiled: bool = False) -> None:
        """Move computation to a device. Batches and saved states stay on the CPU."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update. Returns scalar metrics, still on the device.

        Raises:
            AlgorithmError: A required field is missing.
        """

    def acting_policy(self) -> Policy:
        """Return the policy with the current weights, which explores by sampling."""

    def policy(self) -> Policy:
        """Return the policy to evaluate and deploy, which acts by its mean."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything a resumed run needs, including the random generator."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`.

        Raises:
            AlgorithmError: An entry is missing or does not fit.
        """


@runtime_checkable
class Correction(Protocol):
    """An algorithm that corrects the cloned policy, and is compared with it on real episodes."""

    def reset_actor(self) -> None:
        """Reset the corrections to their initial value of none. The critics are kept."""
