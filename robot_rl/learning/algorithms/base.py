"""The interface of algorithms, and checks of their settings."""

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
    """A batch, a setting or a training state that does not fit an algorithm."""


class LearningDiverged(RobotRLError):
    """A loss or a weight is no longer a number; the last checkpoint is from before."""


_LOWER_RATES = (
    "a run keeps its algorithm: begin another one with lower algorithm.settings.critic_rate and"
    " actor_rate, and with dataset=PATH for the same demonstrations"
)


def check_finite(name: str, tensor: Tensor, when: str, hint: str = _LOWER_RATES) -> None:
    """Raise `LearningDiverged` where a loss or weights are no longer numbers."""
    total = float(tensor.detach().sum(dtype=torch.float64))
    if not math.isfinite(total):
        raise LearningDiverged(
            f"{name} is no longer a finite number at {when}", got=total, hint=hint
        )


def check_range(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Check that a setting is a number from `low` to `high`, or raise an `AlgorithmError`."""
    if not (isinstance(value, int | float) and low <= value <= high):
        most = f">= {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        raise AlgorithmError(
            f"the setting {name!r} is out of range",
            got=value,
            expected=f"<= {high:g}" if low == -math.inf else most,
        )


def check_settings(settings: object, **ranges: float | tuple[float, float]) -> None:
    """`check_range` of settings by name: the lowest value of each, or the lowest and highest."""
    for name, given in ranges.items():
        check_range(
            name, getattr(settings, name), *(given if isinstance(given, tuple) else (given,))
        )


LEAST_DISCOUNT = 0.97  # of those that are found in demonstrations


@dataclass(frozen=True)
class Schedule:
    """When the learner updates, and on what."""

    warmup_steps: int  # environment steps before updates
    critic_only_updates: int  # updates of the critics alone when the warm-up ends
    updates_per_step: int  # update-to-data ratio, enforced
    batch_size: int  # transitions of an update
    demonstration_share: float  # share of demonstrations in every batch
    n_step: int  # steps of a return before it bootstraps
    discount: float | None  # γ per control step; None: the learner finds it in the demonstrations
    # In the warm-up the cloned policy acts with noise of this standard deviation; None: what is
    # about to learn acts itself.
    warmup_noise: float | None
    hindsight_share: float  # share of every batch towards goals that were reached; see `Hindsight`
    offline_updates: int = 0  # updates on recorded episodes before anything acts; see `Offline`

    def __post_init__(self) -> None:
        """Check the range of values; `learning.blocks` checks counts of steps and updates."""
        check_settings(self, batch_size=1, n_step=1, offline_updates=0)
        check_range("warmup_noise", self.warmup_noise or 0.0, 0)
        check_settings(self, demonstration_share=(0, 1), hindsight_share=(0, 1))
        check_range("discount", self.gamma, 0, 1)

    @property
    def gamma(self) -> float:
        """The discount γ per control step, which is known once there are demonstrations."""
        return LEAST_DISCOUNT if self.discount is None else self.discount

    def sampling(self, fields: Sequence[str], **options: Any) -> SampleSpec:
        """Batches of these fields, by the schedule; `options` are others of `SampleSpec`."""
        return SampleSpec(
            tuple(fields),
            batch_size=self.batch_size,
            n_step=self.n_step,
            discount=self.gamma,
            demonstration_share=self.demonstration_share,
            **options,
        )


class Algorithm(Protocol):
    """A learning method over batches of transitions; `make_algorithm` makes one.

    `required` says what a batch holds: see `SampleSpec`.
    """

    schedule: Schedule
    required: SampleSpec

    def to(self, device: torch.device, *, compiled: bool = False) -> None:
        """Compute on a device from now on; batches and saved states stay on the CPU."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update; returns scalar metrics, not yet read back from the device.

        Raises:
            AlgorithmError: A required field is missing.
        """

    def acting_policy(self) -> Policy:
        """The policy that explores by sampling, with the present weights."""

    def policy(self) -> Policy:
        """The policy that is evaluated and deployed, by its mean."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, random generator included."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict`.

        Raises:
            AlgorithmError: An entry is missing or does not fit.
        """


@runtime_checkable
class Correction(Protocol):
    """An algorithm that corrects the cloned policy, which its own episodes compare it with."""

    def reset_actor(self) -> None:
        """Correct nothing any more, as at the start; the critics are kept."""
