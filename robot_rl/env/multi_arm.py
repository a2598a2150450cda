"""Several arms as one robot: observations `state/<arm>/…`, actions `<arm>/…`, arm after arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import Action, OperatorServer, Robot
from robot_rl.env.task import Expert, Outcome, Task
from robot_rl.safety.rotations import Vector

_POSE = 7
_T = TypeVar("_T")


class MultiArm:
    """Arms, by name, that do a task together; where one cannot go on, all hold.

    Their order is that of the action's columns.
    """

    def __init__(self, arms: Mapping[str, Robot], task: MultiArmTask) -> None:
        self.task = task
        self.arms = dict(arms)
        self.observation_fields = _fields_of(self.arms)
        self.action_names = tuple(
            f"{name}/{column}" for name, arm in self.arms.items() for column in arm.action_names
        )
        self._ends = np.cumsum([len(arm.action_names) for arm in self.arms.values()])[:-1]
        self.simulated = all(arm.simulated for arm in self.arms.values())
        # In the namespace of the first.
        self.work_report = next((arm.work_report for arm in self._servers()), None)
        self.opens_grippers = all(arm.opens_grippers for arm in self.arms.values())

    def reset(self, start_pose: Vector, rng: np.random.Generator) -> None:
        """Bring each arm to its part of `start_pose` (7 · arms,), with randomness of its own."""
        self.check_free()
        poses, children = iter(start_pose.reshape(-1, _POSE)), iter(rng.spawn(len(self.arms)))
        self._each(lambda arm: arm.reset(next(poses), next(children)))

    def resume(self, rng: np.random.Generator) -> None:
        """Let each be ready where it is, with randomness of its own."""
        self.check_free()
        children = iter(rng.spawn(len(self.arms)))
        self._each(lambda arm: arm.resume(next(children)))

    @property
    def clamped(self) -> bool:
        """Whether a limit changed what any of them was asked for."""
        return any(arm.clamped for arm in self.arms.values())

    def apply(self, action: Action) -> Action:
        """Send each arm its columns of the action."""
        parts = iter(np.split(action, self._ends))
        return np.concatenate(self._each(lambda arm: arm.apply(next(parts))))

    def advance(self, period: float) -> None:
        """Let time pass for each."""
        for arm in self.arms.values():
            arm.advance(period)

    def observe(self) -> Observation:
        """The measured state of each, under its name."""
        return _joined(zip(self.arms, self._each(lambda arm: arm.observe()), strict=True))

    def hold(self) -> None:
        """Hold all."""
        for arm in self.arms.values():
            arm.hold()

    def close(self) -> None:
        """Release all."""
        for arm in self.arms.values():
            arm.close()

    def check_free(self) -> None:
        """Look whether all may move; see `OperatorServer`, as the two below."""
        for arm in self._servers():
            arm.check_free()

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """Let an operator be heard through each arm that can."""
        for arm in self._servers():
            arm.serve_operator(inbox, attend)

    def missing(self) -> str:
        """The missing parts of each."""
        return "; ".join(missing for arm in self._servers() if (missing := arm.missing()))

    def _servers(self) -> list[OperatorServer]:
        return [arm for arm in self.arms.values() if isinstance(arm, OperatorServer)]

    def _each(self, act: Callable[[Robot], _T]) -> list[_T]:
        """Let each do something; all hold where one cannot."""
        try:
            return [act(arm) for arm in self.arms.values()]
        except BaseException:
            self.hold()
            raise


class MultiArmTask:
    """Tasks, by name of the arm, done at the same time: all until each of them is done."""

    def __init__(self, name: str, tasks: Mapping[str, Task]) -> None:
        self.name = name
        self.tasks = dict(tasks)
        self.instruction = "; ".join(f"{arm}: {task.instruction}" for arm, task in tasks.items())
        self.time_limit_steps = min(task.time_limit_steps for task in tasks.values())
        self.observation_fields = _fields_of(self.tasks)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw where each arm starts: their poses, one after the other."""
        return np.concatenate([task.reset(rng) for task in self.tasks.values()])

    def resume(self, rng: np.random.Generator) -> None:
        """Begin each where its arm is, one after the other."""
        for task in self.tasks.values():
            task.resume(rng)

    def observe(self) -> Observation:
        """The observations of each task, under its arm's name."""
        return _joined((arm, task.observe()) for arm, task in self.tasks.items())

    def outcome(self) -> Outcome:
        """The reward is 1 and the episode over when all are done; one that fails ends it."""
        outcomes = [task.outcome() for task in self.tasks.values()]
        success = all(outcome.success for outcome in outcomes)
        failed = any(outcome.terminated and not outcome.success for outcome in outcomes)
        truncated = any(outcome.truncated for outcome in outcomes)
        return Outcome(float(success), success or failed, truncated, success)


class MultiArmExpert:
    """Demonstrates with each arm, by an expert for each, in the arms' order."""

    def __init__(self, experts: Sequence[Expert]) -> None:
        self._experts = experts

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode."""
        for expert in self._experts:
            expert.reset(rng)

    def act(self, rng: np.random.Generator) -> Action:
        """The columns of all arms."""
        return np.concatenate([expert.act(rng) for expert in self._experts])


def _fields_of(parts: Mapping[str, Robot] | Mapping[str, Task]) -> tuple[Field, ...]:
    return tuple(
        Field(of_arm(arm, field.name), field.dtype, field.shape)
        for arm, part in parts.items()
        for field in part.observation_fields
    )


def _joined(seen: Iterable[tuple[str, Observation]]) -> Observation:
    return {of_arm(arm, name): value for arm, part in seen for name, value in part.items()}


def of_arm(arm: str, field: str) -> str:
    """The name of what one arm observes: `state/tcp_pose` is `state/left/tcp_pose`."""
    kind, _, name = field.partition("/")
    return f"{kind}/{arm}/{name}"
