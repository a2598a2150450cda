"""Scripted experts for Gymnasium environments, which bring none of their own."""

from __future__ import annotations

import numpy as np

from robot_rl.env.gym import GymTask
from robot_rl.env.robot import Action

# What gym_hil's `agent_pos` holds: 7 joint angles, 7 velocities, the gripper, the TCP's position.
_TCP = slice(-3, None)


class GymHilPickExpert:
    """Picks up the cube of `gym_hil/PandaPickCubeBase-v0`, imperfectly.

    The action is x, y, z [action_scale metres] and the gripper's change, as `robot=gym_hil` has
    them.

    Args:
        task: The task.
        offset: Standard deviation of its error about the cube's position, per axis [m].
        action_noise: Standard deviation of noise on each action column.
        step: Metres that an action of 1 moves the TCP's target.
        speed_low: Slowest pace of an episode, as a share of the largest action.
        hover: Height over the cube until it is above it [m].
        align: Distance at which it goes on to the next phase [m].
        close_steps: Control steps that the gripper is given to close.
    """

    def __init__(
        self,
        task: GymTask,
        offset: float,
        action_noise: float,
        step: float,
        speed_low: float,
        hover: float,
        align: float,
        close_steps: int,
    ) -> None:
        self._task = task
        self._offset = offset
        self._action_noise = action_noise
        self._step = step
        self._speed_low = speed_low
        self._hover = hover
        self._align = align
        self._close_steps = close_steps
        self._error = np.zeros(3)
        self._speed = 1.0
        self._descending = False
        self._closing = 0

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        self._error = rng.normal(0.0, self._offset, 3) * np.array([1.0, 1.0, 0.0])
        self._speed = float(rng.uniform(self._speed_low, 1.0))
        self._descending = False
        self._closing = 0

    def act(self, rng: np.random.Generator) -> Action:
        """Over the cube, down, close, up."""
        seen = self._task.robot.last_observation
        way = seen["environment_state"] + self._error - seen["agent_pos"][_TCP]
        self._descending = self._descending or float(np.hypot(way[0], way[1])) < self._align
        if self._closing or (self._descending and abs(float(way[2])) < self._align):
            self._closing += 1
        if self._closing > self._close_steps:
            way = np.array([0.0, 0.0, self._hover])
        elif not self._descending:
            way = way + np.array([0.0, 0.0, self._hover])
        motion = np.clip(way / self._step, -self._speed, self._speed)
        wanted = np.array([*motion, 1.0 if self._closing else -1.0])
        noisy = wanted + rng.normal(0.0, self._action_noise, wanted.shape)
        return np.clip(noisy, -1.0, 1.0).astype(np.float32)
