"""Several arms as one robot: observations `state/<arm>/…`, actions `<arm>/…`, arm after arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Field, Observation
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import Action, OperatorServer, Robot, Stoppable
from robot_rl.env.task import Outcome, Task

Vector = npt.NDArray[np.float64]
_POSE = 7
_T = TypeVar("_T")


class SeveralArms:
    """Arms that move together; where one cannot go on, all hold.

    Args:
        arms: Name → robot, in the order of the action's columns.
        task: What they do together.
    """

    def __init__(self, arms: Mapping[str, Robot], task: SeveralTasks) -> None:
        self.task = task
        self.arms = dict(arms)
        self.observation_fields = tuple(
            Field(_of_arm(name, field.name), field.dtype, field.shape)
            for name, arm in self.arms.items()
            for field in arm.observation_fields
        )
        self.action_names = tuple(
            f"{name}/{column}" for name, arm in self.arms.items() for column in arm.action_names
        )
        ends = np.cumsum([len(arm.action_names) for arm in self.arms.values()])
        self._ends = ends[:-1]

    def reset(self, start_pose: Vector, rng: np.random.Generator) -> None:
        """Bring each arm to its part of `start_pose` (7 · arms,), with randomness of its own.

        Raises:
            RobotInterrupted: One of them cannot move: none does, where it says so before.
        """
        self._check_free()
        poses = start_pose.reshape(len(self.arms), _POSE)
        children = rng.spawn(len(self.arms))

        def reset_all() -> None:
            for arm, pose, child in zip(self.arms.values(), poses, children, strict=True):
                arm.reset(pose, child)

        self._or_hold(reset_all)

    def resume(self) -> None:
        """Let each be ready where it is."""
        self._check_free()

        def resume_all() -> None:
            for arm in self.arms.values():
                arm.resume()

        self._or_hold(resume_all)

    @property
    def simulated(self) -> bool:
        """Whether all of them are."""
        return all(arm.simulated for arm in self.arms.values())

    @property
    def opens_grippers(self) -> bool:
        """Whether each of them has its gripper open after a reset."""
        return all(arm.opens_grippers for arm in self.arms.values())

    @property
    def clamped(self) -> bool:
        """Whether a limit changed what any of them was asked for."""
        return any(arm.clamped for arm in self.arms.values())

    def apply(self, action: Action) -> Action:
        """Send each arm its columns of the action."""
        parts = np.split(action, self._ends)
        sent = self._or_hold(
            lambda: [arm.apply(part) for arm, part in zip(self.arms.values(), parts, strict=True)]
        )
        return np.concatenate(sent)

    def advance(self, period: float) -> None:
        """Let time pass for each."""
        for arm in self.arms.values():
            arm.advance(period)

    def observe(self) -> Observation:
        """What each measures, under its name."""
        seen = self._or_hold(lambda: {name: arm.observe() for name, arm in self.arms.items()})
        return {
            _of_arm(name, field): value
            for name, observation in seen.items()
            for field, value in observation.items()
        }

    def hold(self) -> None:
        """Hold all."""
        for arm in self.arms.values():
            arm.hold()

    def close(self) -> None:
        """Release all."""
        for arm in self.arms.values():
            arm.close()

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """Let an operator be heard through each arm that can; see `OperatorServer`."""
        for arm in self.arms.values():
            if isinstance(arm, OperatorServer):
                arm.serve_operator(inbox, attend)

    def missing(self) -> str:
        """What each of them misses; see `OperatorServer`."""
        every = (arm.missing() for arm in self.arms.values() if isinstance(arm, OperatorServer))
        return "; ".join(missing for missing in every if missing)

    def _check_free(self) -> None:
        for arm in self.arms.values():
            if isinstance(arm, Stoppable):
                arm.check_free()

    def _or_hold(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except BaseException:
            self.hold()
            raise


class SeveralTasks:
    """Tasks that several arms do at the same time; it is done when each of them is.

    Args:
        name: Name of the whole, recorded with every episode.
        tasks: Name of the arm → its task.
    """

    def __init__(self, name: str, tasks: Mapping[str, Task]) -> None:
        self.name = name
        self.tasks = dict(tasks)
        self.instruction = "; ".join(f"{arm}: {task.instruction}" for arm, task in tasks.items())
        self.time_limit_steps = min(task.time_limit_steps for task in tasks.values())
        self.observation_fields = tuple(
            Field(_of_arm(arm, field.name), field.dtype, field.shape)
            for arm, task in tasks.items()
            for field in task.observation_fields
        )

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw where each arm starts: their poses, one after the other."""
        return np.concatenate([task.reset(rng) for task in self.tasks.values()])

    def resume(self, rng: np.random.Generator) -> None:
        """Begin each where its arm is, one after the other.

        Raises:
            RobotRLError: One of them can only begin from a scene that was put back.
        """
        for task in self.tasks.values():
            task.resume(rng)

    def observe(self) -> Observation:
        """What each task shows, under its arm's name."""
        return {
            _of_arm(arm, field): value
            for arm, task in self.tasks.items()
            for field, value in task.observe().items()
        }

    def outcome(self) -> Outcome:
        """The reward is 1 and the episode over when all are done; one that fails ends it."""
        outcomes = [task.outcome() for task in self.tasks.values()]
        success = all(outcome.success for outcome in outcomes)
        failed = any(outcome.terminated and not outcome.success for outcome in outcomes)
        truncated = any(outcome.truncated for outcome in outcomes)
        return Outcome(float(success), success or failed, truncated, success)


def _of_arm(arm: str, field: str) -> str:
    kind, _, name = field.partition("/")
    return f"{kind}/{arm}/{name}"
