"""`rlpd_gripper`: `rlpd` for the arm, and HIL-SERL's discrete critic for the gripper.

Luo et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement
Learning": arm and gripper are two problems on the same transitions, and moving the gripper has a
cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from policies.gaussian import GaussianPolicy
from policies.networks import move_towards, seeded
from policies.policy import ChunkPolicy, Policy
from robot_rl.extras.zoo.gripper import (
    LAST_COMMAND,
    GaussianGripperPolicy,
    GripperCritic,
    choice_commands,
    last_command,
    nearest_command,
)
from robot_rl.learning.algorithms.actor_critic import ActorCriticSettings
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, Schedule, check_settings
from robot_rl.learning.algorithms.rlpd import RLPD
from robot_rl.learning.algorithms.training import adam, check_batch, encoded, step
from robot_rl.replay.windows import NEXT

COLUMN = "gripper"


@dataclass(frozen=True)
class GripperSettings:
    """Settings of the gripper's critic."""

    hidden: Sequence[int]  # hidden widths of the critic
    penalty: float  # reward (at most 0) of a step that changes the gripper's command
    exploration: float  # probability of a random choice when acting
    critic_rate: float  # Adam step size
    target_rate: float  # Polyak rate τ of the target critic, which is also the deployed one

    def __post_init__(self) -> None:
        check_settings(self, exploration=(0, 1), critic_rate=(0, 1), target_rate=(0, 1))
        check_settings(self, penalty=(-math.inf, 0))


class RLPDGripper(RLPD):
    """Soft actor-critic for the arm's columns, a double DQN for the gripper's choices.

    The arm's critics do not see the gripper's column, as in HIL-SERL. An n-step return includes
    only the first step's penalty, since the critic did not choose the later steps.

    Besides the arguments of `RLPD` it takes `action_names`, which must include "gripper", and
    `gripper`, its `GripperSettings`.

    Raises:
        AlgorithmError: The task's action has no column "gripper".
    """

    def __init__(
        self,
        base: ChunkPolicy,
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
        super().__init__(base, schedule, settings, seed, columns=len(action_names) - 1)
        self._settings = gripper
        self._column = list(action_names).index(COLUMN)
        self.required = replace(self.required, fields=(*self.required.fields, LAST_COMMAND))
        self.gripper_critic = GripperCritic(
            self.encoder.features, gripper.hidden, generator=seeded(seed + 2)
        )
        self.target_gripper_critic = copy.deepcopy(self.gripper_critic).requires_grad_(False)
        self._gripper_optimizer = adam((self.gripper_critic.parameters(), gripper.critic_rate))
        self.modules["gripper_critic"] = self.gripper_critic
        self.modules["target_gripper_critic"] = self.target_gripper_critic
        self.optimizers["gripper"] = self._gripper_optimizer
        self._range = settings.value_range
        if self._range is not None and gripper.penalty:
            # Worst case: the gripper moves at every step forever.
            low, high = self._range
            paid = gripper.penalty / (1 - schedule.gamma) if schedule.gamma < 1 else -math.inf
            self._range = low + paid, high

    def acting_policy(self) -> Policy:
        """Return the arm's learning actor with the gripper's critic."""
        return self._with_gripper(super().acting_policy())

    def policy(self) -> Policy:
        """Return the arm's averaged actor with the gripper's critic."""
        return self._with_gripper(super().policy())

    def _with_gripper(self, arm: Policy) -> Policy:
        assert isinstance(arm, GaussianPolicy)
        critic, settings = copy.deepcopy(self.target_gripper_critic), self._settings
        return GaussianGripperPolicy(
            arm.encoder, arm.actor, critic, self._column, settings.exploration
        )

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the arm on its columns as `rlpd` does, then the gripper's critic.

        Double DQN (van Hasselt et al. 2016): the critic chooses, the target critic evaluates.
        """
        check_batch(batch, self.required)
        arm = np.delete(batch["action"], self._column, 1)
        metrics = super().update({**batch, "action": arm})
        settings = self._settings
        with torch.no_grad():
            features, next_features = encoded(self.encoder, batch)
            last = last_command(batch, self._column).to(self.device)
            following = {LAST_COMMAND: batch[NEXT + LAST_COMMAND]}
            next_last = last_command(following, self._column).to(self.device)
            best = self.gripper_critic(next_features, next_last).argmax(-1, keepdim=True)
            value = self.target_gripper_critic(next_features, next_last).gather(1, best)[:, 0]
            commanded = nearest_command(self.tensor(batch["action"])[:, self._column])
            moved = commanded != last
            reward = self.tensor(batch["reward"]) + settings.penalty * moved
            if self._range is not None:
                value = value.clamp(*self._range)
            target = reward + self.tensor(batch["discount"]) * value
        predicted = self.gripper_critic(features, last)
        # If "stay" gives the same command as "open" or "close", both count as chosen.
        chosen = choice_commands(last) == commanded[:, None]
        loss = ((predicted - target[:, None]).square() * chosen).sum(1).mean()
        step(self._gripper_optimizer, loss)
        move_towards(self.target_gripper_critic, self.gripper_critic, settings.target_rate)
        return metrics | {"gripper_loss": loss.detach(), "gripper_moves": moved.float().mean()}
