"""`rlpd_gripper`: `rlpd` for the arm, and HIL-SERL's discrete critic for the gripper.

Luo et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement
Learning": arm and gripper are two problems on the same transitions, and moving the gripper costs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh
from policies.gripper import (
    LAST_COMMAND,
    GaussianGripperPolicy,
    GripperCritic,
    choice_commands,
    last_command,
    nearest_command,
)
from policies.networks import move_towards, seeded
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.actor_critic import ActorCriticSettings, adam, step
from robot_rl.learning.algorithms.base import (
    AlgorithmError,
    Batch,
    Range,
    Schedule,
    check_settings,
    limited,
)
from robot_rl.learning.algorithms.encoding import Encoding
from robot_rl.learning.algorithms.losses import choice_loss
from robot_rl.learning.algorithms.rlpd import RLPD

COLUMN = "gripper"
_NEXT = f"next/{LAST_COMMAND}"


@dataclass(frozen=True)
class GripperSettings:
    """Settings of the gripper's critic."""

    hidden: Sequence[int]  # hidden widths of the critic
    penalty: float  # reward, at most 0, of a step that tells the gripper something new
    exploration: float  # probability of a random choice when acting
    critic_rate: float  # Adam step size
    target_rate: float  # Polyak rate τ of the target critic, which is also the deployed one

    def __post_init__(self) -> None:
        """Check the range of values.

        Raises:
            AlgorithmError: Names the setting.
        """
        check_settings(
            penalty=(self.penalty, -math.inf, 0),
            exploration=(self.exploration, 0, 1),
            critic_rate=(self.critic_rate, 0, 1),
            target_rate=(self.target_rate, 0, 1),
        )


class RLPDGripper(RLPD):
    """Soft actor-critic over the arm's columns, a double DQN over the gripper's choices.

    The arm's critics do not see the gripper's column, as in HIL-SERL. In an n-step return the
    penalty is that of the first step: the following ones are not of the critic's choosing.

    Args:
        base: See `ActorCritic`.
        encoding: See `ActorCritic`.
        action_names: Names of the action columns; one of them is "gripper".
        schedule: See `Schedule`.
        settings: See `ActorCriticSettings`, for the arm.
        gripper: See `GripperSettings`.
        seed: See `ActorCritic`.

    Raises:
        AlgorithmError: The task's action has no column "gripper".
    """

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        action_names: Sequence[str],
        schedule: Schedule,
        settings: ActorCriticSettings,
        gripper: GripperSettings,
        seed: int,
    ) -> None:
        if COLUMN not in action_names:
            raise AlgorithmError(
                "the algorithm rlpd_gripper needs a task that moves the gripper",
                got=f"action columns {', '.join(action_names)}",
                expected=f"one that is named {COLUMN!r}",
                hint="use algorithm=rlpd",
            )
        super().__init__(base, encoding, schedule, settings, seed, columns=len(action_names) - 1)
        self._settings = gripper
        self._column = list(action_names).index(COLUMN)
        self.required = replace(self.required, fields=(*self.required.fields, LAST_COMMAND))
        self._columns = (*self._columns, LAST_COMMAND, _NEXT)
        self.gripper_critic = GripperCritic(
            self.encoder.features, gripper.hidden, generator=seeded(seed + 2)
        )
        self.target_gripper_critic = copy.deepcopy(self.gripper_critic).requires_grad_(False)
        self._gripper_optimizer = adam((self.gripper_critic.parameters(), gripper.critic_rate))
        self._range = _with_penalty(settings.value_range, gripper.penalty, schedule.discount)

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh) -> Policy:
        """A policy with this actor, and the gripper's critic that belongs to it."""
        return GaussianGripperPolicy(
            encoder,
            actor,
            copy.deepcopy(self.target_gripper_critic),
            self._column,
            self._settings.exploration,
        )

    def learn(self, batch: Batch, features: Tensor, next_features: Tensor) -> dict[str, Tensor]:
        """Update the arm on its columns as `rlpd` does, then the gripper's critic.

        See `ActorCritic.learn`; the gripper's loss does not train the encoder.
        """
        arm = np.delete(batch["action"], self._column, 1)
        metrics = super().learn({**batch, "action": arm}, features, next_features)
        return metrics | self._update_gripper(batch, features.detach(), next_features)

    def _update_gripper(
        self, batch: Batch, features: Tensor, next_features: Tensor
    ) -> dict[str, Tensor]:
        """Double DQN (van Hasselt et al. 2016): the critic chooses, the target critic judges."""
        settings = self._settings
        with torch.no_grad():
            last = last_command(batch, self._column).to(self.device)
            next_last = last_command({LAST_COMMAND: batch[_NEXT]}, self._column).to(self.device)
            best = self.gripper_critic(next_features, next_last).argmax(-1, keepdim=True)
            value = self.target_gripper_critic(next_features, next_last).gather(1, best)[:, 0]
            told = nearest_command(self.tensor(batch["action"])[:, self._column])
            moved = told != last
            reward = self.tensor(batch["reward"]) + settings.penalty * moved
            target = reward + self.tensor(batch["discount"]) * limited(value, self._range)
        predicted = self.gripper_critic(features, last)
        # Where "stay" tells the gripper the same as "open" or "close", both were chosen.
        loss = choice_loss(predicted, target, choice_commands(last) == told[:, None])
        step(self._gripper_optimizer, loss)
        move_towards(self.target_gripper_critic, self.gripper_critic, settings.target_rate)
        return {"gripper_loss": loss.detach(), "gripper_moves": moved.float().mean()}

    def _modules(self) -> dict[str, torch.nn.Module]:
        return {
            **super()._modules(),
            "gripper_critic": self.gripper_critic,
            "target_gripper_critic": self.target_gripper_critic,
        }

    def _optimizers(self) -> dict[str, torch.optim.Adam]:
        return {**super()._optimizers(), "gripper": self._gripper_optimizer}


def _with_penalty(value_range: Range | None, penalty: float, discount: float) -> Range | None:
    """The range of returns with the penalty: at worst the gripper is moved for ever."""
    if value_range is None:
        return None
    low, high = value_range
    if penalty == 0.0:
        return value_range
    return low + penalty / (1 - discount) if discount < 1.0 else -math.inf, high
