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
    """Named arms that do a task together; if one cannot continue, all hold.

    The action's columns follow the order of the arms.
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
        # In the first arm's namespace.
        self.work_report = next((arm.work_report for arm in self._servers()), None)
        self.opens_grippers = all(arm.opens_grippers for arm in self.arms.values())

    def reset(self, start_pose: Vector, rng: np.random.Generator) -> None:
        """Bring each arm to its part of `start_pose` (7 · arms,), each with its own generator."""
        self.check_free()
        poses, children = iter(start_pose.reshape(-1, _POSE)), iter(rng.spawn(len(self.arms)))
        self._each(lambda arm: arm.reset(next(poses), next(children)))

    def resume(self, rng: np.random.Generator) -> None:
        """Prepare each arm to start at its current pose, each with its own generator."""
        self.check_free()
        children = iter(rng.spawn(len(self.arms)))
        self._each(lambda arm: arm.resume(next(children)))

    @property
    def clamped(self) -> bool:
        """Whether a limit changed any arm's action."""
        return any(arm.clamped for arm in self.arms.values())

    def apply(self, action: Action) -> Action:
        """Send each arm its columns of the action."""
        parts = iter(np.split(action, self._ends))
        return np.concatenate(self._each(lambda arm: arm.apply(next(parts))))

    def advance(self, period: float) -> None:
        """Advance each arm."""
        for arm in self.arms.values():
            arm.advance(period)

    def observe(self) -> Observation:
        """Return the measured state of each arm, under its name."""
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
        """Check that all arms may move; see `OperatorServer`, also for the next two methods."""
        for arm in self._servers():
            arm.check_free()

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """Forward operator input from each arm that receives it."""
        for arm in self._servers():
            arm.serve_operator(inbox, attend)

    def missing(self) -> str:
        """Return the missing parts of all arms."""
        return "; ".join(missing for arm in self._servers() if (missing := arm.missing()))

    def _servers(self) -> list[OperatorServer]:
        return [arm for arm in self.arms.values() if isinstance(arm, OperatorServer)]

    def _each(self, act: Callable[[Robot], _T]) -> list[_T]:
        """Call `act` for each arm; if one raises, all hold."""
        try:
            return [act(arm) for arm in self.arms.values()]
        except BaseException:
            self.hold()
            raise


class MultiArmTask:
    """One task per arm, by arm name, run in parallel until all are done."""

    def __init__(self, name: str, tasks: Mapping[str, Task]) -> None:
        self.name = name
        self.tasks = dict(tasks)
        self.instruction = "; ".join(f"{arm}: {task.instruction}" for arm, task in tasks.items())
        self.time_limit_steps = min(task.time_limit_steps for task in tasks.values())
        self.observation_fields = _fields_of(self.tasks)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw each arm's start pose; return them concatenated, in the arms' order."""
        return np.concatenate([task.reset(rng) for task in self.tasks.values()])

    def resume(self, rng: np.random.Generator) -> None:
        """Start each task at its arm's current pose."""
        for task in self.tasks.values():
            task.resume(rng)

    def observe(self) -> Observation:
        """Return the observations of each task, under its arm's name."""
        return _joined((arm, task.observe()) for arm, task in self.tasks.items())

    def outcome(self) -> Outcome:
        """Return reward 1 and end the episode when all are done; one failure also ends it."""
        outcomes = [task.outcome() for task in self.tasks.values()]
        success = all(outcome.success for outcome in outcomes)
        failed = any(outcome.terminated and not outcome.success for outcome in outcomes)
        truncated = any(outcome.truncated for outcome in outcomes)
        return Outcome(float(success), success or failed, truncated, success)


class MultiArmExpert:
    """Demonstrates with all arms: one expert per arm, in the arms' order."""

    def __init__(self, experts: Sequence[Expert]) -> None:
        self._experts = experts

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode."""
        for expert in self._experts:
            expert.reset(rng)

    def act(self, rng: np.random.Generator) -> Action:
        """Return the action columns of all arms."""
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
    """Field name of one arm: `state/tcp_pose` becomes `state/left/tcp_pose`."""
    kind, _, name = field.partition("/")
    return f"{kind}/{arm}/{name}"
