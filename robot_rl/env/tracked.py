"""A task whose objects are tracked from outside: by cameras and markers, or by a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Observation
from robot_rl.env.task import Outcome, TaskView
from robot_rl.errors import RobotRLError

Vector = npt.NDArray[np.float64]


class Tracker(Protocol):
    """A robot that knows more than its own state."""

    @property
    def tracked(self) -> Mapping[str, Any]:
        """What the newest observation says of the task.

        `tcp_pose` (7,), and where known `object_poses` (k, 7), base frame, and `success`.
        """


class Tracked:
    """What a policy sees of a task, and when it is done, from what the robot reports.

    Observations and actions are those of the simulated task with the same view, so that a policy
    that was trained on one runs on the other.

    Args:
        name: Name of the task, recorded with every episode.
        instruction: What the robot is to do, in words.
        time_limit_steps: Control steps after which an episode is truncated.
        view: What is seen of the task.
        start_pose: TCP pose (7,) = position [m], quaternion xyzw, about which episodes start.
        start_noise: Half range of the start position per axis [m].
        reports_success: Whether something tells when the goal is reached (`task/success`); if not,
            episodes end by their time limit or by a person.
    """

    def __init__(
        self,
        name: str,
        instruction: str,
        time_limit_steps: int,
        view: TaskView,
        start_pose: Sequence[float],
        start_noise: float,
        reports_success: bool,
    ) -> None:
        """See the class."""
        self.name = name
        self.instruction = instruction
        self.time_limit_steps = time_limit_steps
        self.observation_fields = view.observation_fields
        self.action_names = view.action_names
        self.reports_success = reports_success
        self._view = view
        self._start_pose = np.array(start_pose, np.float64)
        if self._start_pose.shape != (7,):
            raise RobotRLError(
                "task.tracked.start_pose is no pose", got=list(start_pose), expected="7 numbers"
            )
        self._start_noise = start_noise
        self._tracker: Tracker | None = None

    @property
    def objects(self) -> int:
        """How many objects are tracked."""
        poses = (f for f in self.observation_fields if f.name == "state/object_poses")
        return next((field.shape[0] for field in poses), 0)

    def attach(self, tracker: Tracker) -> None:
        """Take the robot that reports."""
        self._tracker = tracker

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw where the episode starts; the objects lie where they lie."""
        shift = rng.uniform(-self._start_noise, self._start_noise, 3)
        return np.concatenate([self._start_pose[:3] + shift, self._start_pose[3:]])

    def resume(self, rng: np.random.Generator) -> None:
        """Nothing is drawn: the objects are seen where they are."""

    def observe(self) -> Observation:
        """The task's part of the observation."""
        tracked = self._tracked()
        return self._view.observe(tracked["object_poses"], tracked["tcp_pose"])

    def outcome(self) -> Outcome:
        """The sparse reward: 1 and the end of the episode at success, 0 before."""
        success = bool(self._tracked().get("success", False))
        return Outcome(float(success), terminated=success, truncated=False, success=success)

    def _tracked(self) -> Mapping[str, Any]:
        assert self._tracker is not None, "attach the task to its robot first"
        return self._tracker.tracked
