"""A scripted expert for gym_hil, which comes with none."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from robot_rl.env.gym import GymTask
from robot_rl.env.robot import Action


@dataclass(kw_only=True, eq=False)
class GymHilPickExpert:
    """Picks up the cube of `gym_hil/PandaPickCubeBase-v0`, imperfectly.

    The action is x, y, z [action_scale metres] and the gripper's change, as `robot=gym_hil` has
    them.
    """

    task: GymTask
    offset: float  # standard deviation of its error about the cube's position, per axis [m]
    action_noise: float  # standard deviation of noise on each action column
    step: float  # metres that an action of 1 moves the TCP's target
    speed_low: float  # slowest pace of an episode, as a share of the largest action
    hover: float  # height over the cube until it is above it [m]
    align: float  # distance at which it goes on to the next phase [m]
    close_steps: int  # control steps that the gripper is given to close
    _descending: bool = field(default=False, init=False)
    _closing: int = field(default=0, init=False)

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        self._error = rng.normal(0.0, self.offset, 3) * np.array([1.0, 1.0, 0.0])
        self._speed = float(rng.uniform(self.speed_low, 1.0))
        self._descending = False
        self._closing = 0

    def act(self, rng: np.random.Generator) -> Action:
        """Over the cube, down, close, up."""
        seen = self.task.robot.last_observation
        # `agent_pos` holds 7 joint angles, 7 velocities, the gripper, the TCP's position.
        way = seen["environment_state"] + self._error - seen["agent_pos"][-3:]
        self._descending = self._descending or float(np.hypot(way[0], way[1])) < self.align
        if self._closing or (self._descending and abs(float(way[2])) < self.align):
            self._closing += 1
        if self._closing > self.close_steps:
            way = np.array([0.0, 0.0, self.hover])
        elif not self._descending:
            way = way + np.array([0.0, 0.0, self.hover])
        motion = np.clip(way / self.step, -self._speed, self._speed)
        wanted = np.array([*motion, 1.0 if self._closing else -1.0])
        noisy = wanted + rng.normal(0.0, self.action_noise, wanted.shape)
        return np.clip(noisy, -1.0, 1.0).astype(np.float32)
