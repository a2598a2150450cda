"""Parts of a robot, its cameras, its task and its reward that work wrongly, for `bench_explain`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from policies.backbones import SmallConvolutional
from robot_rl.data.schema import Observation
from robot_rl.env.robot import Action
from robot_rl.env.sim.robot import SimRobot
from robot_rl.env.sim.task import Vector
from robot_rl.env.sim.tasks.reach import Reach
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import RewardSource

Array = npt.NDArray[Any]


@dataclass(eq=False)
class FaultyRobot(SimRobot):
    """The simulated arm, of which one thing is wrong and nobody is told.

    `columns` (d, d) is what becomes of an action; `spoiled` names an observation, `how` it is
    spoiled, and `amount` how much; `late_s` is the longest time that it holds the loop up.
    """

    fault: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rng = np.random.default_rng(0)
        self._first: dict[str, Array] = {}
        observe = self.task.observe
        # The task's own part of the observation is spoiled as the robot's is.
        self.task.observe = lambda: self._spoil(observe())  # type: ignore[method-assign]

    def reset(self, start_pose: npt.NDArray[np.float64], rng: np.random.Generator) -> None:
        self._first.clear()
        super().reset(start_pose, rng)

    def apply(self, action: Action) -> Action:
        if "late_s" in self.fault:
            time.sleep(self._rng.uniform(0.0, self.fault["late_s"]))
        columns = np.array(self.fault.get("columns", np.eye(len(action))), np.float32)
        super().apply(np.clip(columns @ action, -1.0, 1.0))
        return action

    def observe(self) -> Observation:
        return self._spoil(super().observe())

    def _spoil(self, seen: Observation) -> Observation:
        name = self.fault.get("spoiled")
        if name not in seen:
            return seen
        spoil = _SPOILING[self.fault["how"]]
        spoiled = spoil(self, seen[name], self.fault.get("amount", 0.0))
        return {**seen, name: spoiled.astype(seen[name].dtype)}

    def scaled(self, value: Array, amount: float) -> Array:
        """Of positions alone: the first three numbers."""
        scaled = value.copy()
        scaled[..., :3] *= amount
        return scaled

    def noisy(self, value: Array, amount: float) -> Array:
        return value + self._rng.normal(0.0, amount, value.shape)

    def frozen(self, value: Array, amount: float) -> Array:
        return self._first.setdefault(str(self.fault["spoiled"]), value.copy())

    def scalar_first(self, value: Array, amount: float) -> Array:
        return np.concatenate([value[:3], value[6:], value[3:6]])

    def constant(self, value: Array, amount: float) -> Array:
        return np.full_like(value, amount)


_SPOILING: dict[str, Callable[[FaultyRobot, Array, float], Array]] = {
    "scaled": FaultyRobot.scaled,
    "noisy": FaultyRobot.noisy,
    "frozen": FaultyRobot.frozen,
    "scalar_first": FaultyRobot.scalar_first,
    "constant": FaultyRobot.constant,
}


@dataclass(kw_only=True, eq=False)
class ReachElsewhere(Reach):
    """The same at another place of the table."""

    def reset(self, rng: np.random.Generator) -> Vector:
        start, shift = super().reset(rng), np.array([-0.05, 0.13, 0.05, 0, 0, 0, 0])
        self._goal = self._goal + shift
        self.world.set_body_pose("goal", self._goal)
        return start + shift


class Negated(RewardSource):
    """The reward with the other sign."""

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        return task._replace(reward=-task.reward)


class Silent(RewardSource):
    """Never says that the goal is reached."""

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        return Outcome(0.0, False, task.truncated, False)


class Hasty(RewardSource):
    """Calls it a success when some steps are over."""

    def reset(self, observation: Observation) -> None:
        self._steps = 0

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        self._steps += 1
        success = task.success or self._steps >= 6
        return Outcome(float(success), success, task.truncated, success)


class Blind(SmallConvolutional):
    """An image encoder whose output does not depend on the image."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * 0.0
