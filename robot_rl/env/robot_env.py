"""Gymnasium environment for all robots, and its two clocks."""

from __future__ import annotations

import atexit
import math
import time
import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from robot_rl.data.schema import LAST_COMMAND, Field, Observation, RowSchema, row_schema
from robot_rl.env.robot import GRIPPER_OPEN, Action, Robot, gripper_columns
from robot_rl.env.task import Task
from robot_rl.errors import RobotRLError
from robot_rl.safety import check_action, rotations

# Reset options, and return types of reset and step, as in Gymnasium.
Options = dict[str, Any] | None
ResetResult = tuple[Observation, dict[str, Any]]
StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]
# Reset option that moves neither the robot nor the scene.
IN_PLACE: dict[str, Any] = {"in_place": True}
_open: weakref.WeakSet[RobotEnv] = weakref.WeakSet()


class SteppedClock:
    """Simulated time: no sleeping, every tick is on time, and runs are reproducible."""

    def __init__(self, control_rate_hz: float) -> None:
        self.period = 1.0 / control_rate_hz  # of the control loop [s]
        self._ticks = 0

    def start(self) -> None:
        """Start an episode at time zero, so that its stamps depend only on its seed."""
        self._ticks = 0

    def wait(self) -> float:
        """Advance simulated time by one period; return the lateness [s], always 0."""
        self._ticks += 1
        return 0.0

    def since_tick(self) -> float:
        """Return 0: deciding takes no simulated time; delays are modelled in whole steps."""
        return 0.0

    def now_ns(self) -> int:
        """Return simulated time since the episode started [ns], for stamps and records."""
        return round(self._ticks * self.period * 1e9)


class RealtimeClock:
    """Wall time with absolute deadlines, so that lateness does not accumulate.

    If a tick is late by half a period or more, the next follows a full period later: two commands
    in quick succession would move a robot twice as fast.
    """

    def __init__(self, control_rate_hz: float) -> None:
        self.period = 1.0 / control_rate_hz  # of the control loop [s]
        self._due = self._next = time.monotonic()

    def start(self) -> None:
        """Start an episode, with the next tick in one period."""
        self._due = time.monotonic()
        self._next = self._due + self.period

    def wait(self) -> float:
        """Sleep until the next tick; return its lateness [s], never negative."""
        remaining = self._next - time.monotonic()
        if remaining > 0.0:
            time.sleep(remaining)
        now = time.monotonic()
        self._due = self._next
        lateness = max(0.0, now - self._due)
        self._next = (self._due if lateness < 0.5 * self.period else now) + self.period
        return lateness

    def since_tick(self) -> float:
        """Return the time since the current tick was due [s], including its lateness."""
        return time.monotonic() - self._due

    def now_ns(self) -> int:
        """Return system time [ns], for records and matching only."""
        return time.time_ns()


Clock = SteppedClock | RealtimeClock


class RobotEnv(gymnasium.Env[Observation, Action]):
    """A task on a robot.

    Observations are flat dictionaries keyed by the field names of `schema`. Actions are float32
    (d,) in [-1, 1]. The task computes the reward and ends episodes; its time limit truncates,
    unless the last step terminates. ``info`` has ``success``, ``clamped``, ``executed_action``
    (sent after safety limits), ``stamp_observation`` and ``stamp_action`` [ns], ``lateness`` of the
    tick after the action [s], and ``decision_seconds`` from the tick until the action was sent.

    The observation also has ``last_command`` (d,), the action sent in the previous step. At an
    episode's first step it is zero motion and each gripper's last command: -1 if the reset has
    opened it, and its measured position if this process has not commanded it yet.

    With `task_state` the task's own fields are observed, such as object poses, which a robot with
    only cameras does not know. Quaternion signs never jump within an episode; see
    `robot_rl.safety.rotations.continuous`.
    """

    def __init__(self, robot: Robot, task: Task, clock: Clock, *, task_state: bool = True) -> None:
        self.robot = robot
        self.task = task
        self.clock = clock
        self._task_state = task_state
        fields = (*robot.observation_fields, *(task.observation_fields if task_state else ()))
        self.schema: RowSchema = row_schema(
            task.name, fields, robot.action_names, 1.0 / clock.period
        )
        # Gymnasium types the values of a Dict space as Any.
        columns: Any = {f.name: _space(f) for f in fields}
        self.action_space = spaces.Box(-1.0, 1.0, (len(robot.action_names),), np.float32)
        columns[LAST_COMMAND] = self.action_space
        self.observation_space = cast("spaces.Space[Observation]", spaces.Dict(columns))
        self._gripper_columns = gripper_columns(robot.action_names)
        self._signs = PoseSigns(fields)
        self._last_command = self._at_rest(GRIPPER_OPEN)
        self._grippers_known = False
        self._step = 0
        self._closed = False
        _open.add(self)
        _close_first()

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        """Start an episode.

        Args:
            seed: The only source of randomness for the scene and the start pose.
            options: `IN_PLACE` keeps robot and scene as they are, unless the goal is already
                reached. The seed then only affects what each episode draws, such as observation
                errors.

        Returns:
            The first observation, and an info with ``success``, ``stamp_observation`` [ns] and
            ``in_place``, whether robot and scene stayed as they were.

        Raises:
            RobotRLError: With `IN_PLACE`: the task can only start from a restored scene.
        """
        super().reset(seed=seed)
        in_place = options == IN_PLACE
        if in_place:
            self.task.resume(self.np_random)
            self.robot.resume(self.np_random)
            in_place = not self.task.outcome().terminated  # else the task is already done
        if not in_place:
            super().reset(seed=seed)  # discard draws for the in-place start
            self.robot.reset(self.task.reset(self.np_random), self.np_random)
        if self.robot.opens_grippers and not in_place:
            self._last_command = self._at_rest(GRIPPER_OPEN)
        elif self._grippers_known:
            self._last_command = self._at_rest(self._last_command[self._gripper_columns])
        else:
            self._last_command = self._at_rest(self._measured_grippers())
        self._grippers_known = True
        self.clock.start()
        self._step = 0
        self._signs.forget()
        seen = self.observe()
        _close_first()  # some robots load their renderer only now
        return seen, {
            "success": False,
            "stamp_observation": self.clock.now_ns(),
            "in_place": in_place,
        }

    def step(self, action: Action) -> StepResult:
        """Send the action, wait one control period, then observe and judge.

        Raises:
            ActionRefused: The action is not finite, out of range or has the wrong shape.
        """
        executed = self.robot.apply(check_action(action, self.robot.action_names))
        self._last_command = executed.copy()
        decision_seconds = self.clock.since_tick()
        stamp_action = self.clock.now_ns()
        self.robot.advance(self.clock.period)
        lateness = self.clock.wait()
        observation = self.observe()
        stamp_observation = self.clock.now_ns()
        self._step += 1
        outcome = self.task.outcome()
        over = outcome.truncated or self._step >= self.task.time_limit_steps
        truncated = over and not outcome.terminated
        info = {
            "success": outcome.success,
            "clamped": self.robot.clamped,
            "executed_action": executed,
            "stamp_observation": stamp_observation,
            "stamp_action": stamp_action,
            "lateness": lateness,
            "decision_seconds": decision_seconds,
        }
        return observation, outcome.reward, outcome.terminated, truncated, info

    def close(self) -> None:
        """Hold the robot and release it; idempotent.

        Open environments are closed at interpreter exit.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.robot.hold()
        finally:
            self.robot.close()

    def observe(self) -> Observation:
        """Observe outside of a step, for display between episodes."""
        seen = {**self.robot.observe(), LAST_COMMAND: self._last_command}
        return self._signs.kept({**seen, **self.task.observe()} if self._task_state else seen)

    def _at_rest(self, grippers: npt.ArrayLike) -> Action:
        """A command (d,) without motion, with the given gripper commands."""
        command = np.zeros(len(self.robot.action_names), np.float32)
        command[self._gripper_columns] = grippers
        return command

    def _measured_grippers(self) -> list[float]:
        """Commands that keep the grippers where they are; open if not measured."""
        seen = self.robot.observe()
        names = (self.robot.action_names[column] for column in self._gripper_columns)
        positions = (seen.get(f"state/{name}_position") for name in names)
        return [
            GRIPPER_OPEN if p is None else min(max(2.0 * float(p[0]) - 1.0, -1.0), 1.0)
            for p in positions
        ]


class PoseSigns:
    """Keeps quaternion signs of pose fields continuous; see `rotations.continuous`."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self._names = [field.name for field in fields if field.holds_poses]
        self._last: Observation = {}

    def forget(self) -> None:
        """Start an episode without earlier signs."""
        self._last.clear()

    def kept(self, seen: Observation) -> Observation:
        """Return the next observation of the episode with continuous quaternion signs."""
        for name in self._names:
            self._last[name] = rotations.continuous(seen[name][None], self._last.get(name))[0]
        return {**seen, **self._last}


def _close_all() -> None:
    with ExitStack() as stack:  # all of them, even if one raises
        for env in _open:
            stack.callback(env.close)


def _close_first() -> None:
    """Make the interpreter close environments before the libraries they use shut down."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # exit handlers run in reverse order


def _space(field: Field) -> spaces.Box:
    dtype = np.dtype(field.dtype)
    if dtype.kind == "u":
        return spaces.Box(0, int(np.iinfo(dtype).max), field.shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, field.shape, dtype.type)


def make_clock(name: str, control_rate_hz: Any) -> Clock:
    """Make the clock of a configuration's `clock: stepped | realtime`, or raise `RobotRLError`."""
    if name not in ("stepped", "realtime"):
        raise RobotRLError("unknown clock", got=name, expected="stepped or realtime")
    if not (isinstance(control_rate_hz, float | int) and 0.0 < control_rate_hz < math.inf):
        raise RobotRLError(
            "control_rate_hz is not a positive number",
            got=control_rate_hz,
            expected="a finite number > 0",
        )
    return (SteppedClock if name == "stepped" else RealtimeClock)(float(control_rate_hz))
