"""How an arm on topics reaches the start of an episode: simulated, scripted, or by its joints."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters

from robot_rl.env.robot import RobotInterrupted
from robot_rl.processes.waiting import wait_until
from robot_rl.ros.faults import ResetFailed, ServiceFailed
from robot_rl.ros.robot import RosRobot
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector

_ATTEMPTS = 2
_COMMAND_SECONDS = 0.05
_FEWEST_SETTLING = 10  # fewest commands at the start pose, so that every arm settles
_AGAIN_SECONDS = 1.0  # repeat period; setting a parameter twice is harmless
_LARGEST_SEED = 2**63
_OPEN = 0.1  # largest position of an open gripper, including finger play


@dataclass(frozen=True)
class SimulatedStart:
    """Makes the simulation start the seed's episode, as it does in a single process."""

    opens_grippers: ClassVar[bool] = True  # see `robot_rl.env.robot.Robot`

    node: str  # node that owns the world; its parameter `episode_seed` is the seed
    service: str  # that node's service that starts the episode
    timeout_s: float  # for each answer [s]

    def perform(self, robot: RosRobot, start_pose: Vector, rng: np.random.Generator) -> None:
        """Place the scene and the arm; `ServiceFailed` if the simulation does not."""
        seed, parameters = _seed_of(rng), f"{self.node}/set_parameters"
        value = ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=seed)
        request = SetParameters.Request(parameters=[Parameter(name="episode_seed", value=value)])
        answer = robot.client.call(
            SetParameters, parameters, request, self.timeout_s, again_s=_AGAIN_SECONDS
        )
        for result in answer.results:
            if not result.successful:
                problem = f"{robot.client.topic(parameters)} was refused"
                raise ServiceFailed(problem, got=result.reason)
        robot.client.trigger(self.service, self.timeout_s)
        if robot.mirror is not None:
            robot.mirror.task.reset(np.random.default_rng(seed))


@dataclass(frozen=True)
class ScriptedStart:
    """Makes the arm's node perform its reset motion, then moves slowly to the episode's start.

    The safety limits of the arm's node apply to both. Both end if the arm is stopped, a measurement
    is late, or this process is killed. After such an end the whole motion restarts.
    """

    service: str  # reset service of the arm's node
    timeout_s: float  # for the reset motion [s]
    speed: float  # of the motion to the start [m/s]
    turn_speed: float  # the same for its rotation [rad/s]
    tolerance: float  # largest distance from the start at which an episode may start [m]
    turn_tolerance: float  # the same for the angle [rad]
    # As in `robot_rl.env.robot.Robot`. It opens before the arm moves and drops any held object.
    opens_grippers: bool = False
    # For a twin: puts the objects back once the arm is clear of them. On a real robot, people do.
    scene: SimulatedStart | None = None
    settling_s: float = 3.0  # longest time for a compliant arm to settle at the start [s]

    def perform(self, robot: RosRobot, start_pose: Vector, rng: np.random.Generator) -> None:
        """Move to the start; retry once if the arm does not arrive, but not if interrupted.

        Raises `RobotInterrupted` as `RosRobot.move_target` does, or if a service does not answer.
        Raises `ResetFailed` if the gripper did not open, or the arm did not arrive in two attempts:
        a person must check.
        """
        if self.opens_grippers:
            self._release(robot)
        for _ in range(_ATTEMPTS):
            robot.client.trigger(self.service, self.timeout_s, robot.accompany)
            if self.scene is not None:
                self.scene.perform(robot, start_pose, rng)
            try:
                self._approach(robot, start_pose)
            except RobotInterrupted:
                robot.hold()
                raise
            if self._is_there(robot, start_pose):
                return
        left = rotations.apart(robot.tcp_pose(), start_pose)
        raise ResetFailed(
            "the arm does not come to where the episode starts",
            got=f"{1e3 * left[0]:.1f} mm and {left[1]:.3f} rad away after {_ATTEMPTS} attempts",
            expected=f"at most {1e3 * self.tolerance:.1f} mm, {self.turn_tolerance:.3f} rad",
            hint="is it obstructed? See /diagnostics; if it is stopped call clear_errors; then let"
            " it go on: say start, or run the command again",
        )

    def _release(self, robot: RosRobot) -> None:
        jaws = robot.measurements.gripper
        if jaws is None:
            return

        def is_open() -> bool:
            robot.command_gripper(0.0)  # repeated: its node may not know us yet
            robot.accompany()
            return bool(jaws.value(jaws.newest())[0] <= _OPEN)

        if not wait_until(is_open, self.timeout_s):
            raise ResetFailed(
                "the gripper does not open",
                got=f"position {float(jaws.value(jaws.newest())[0]):.2f}",
                expected=f"at most {_OPEN:g}, where 0 is open",
                hint="look what blocks it, and at its node in /diagnostics; then say start",
            )

    def _is_there(self, robot: RosRobot, goal: Vector) -> bool:
        distance, angle = rotations.apart(robot.tcp_pose(), goal)
        return distance <= self.tolerance and angle <= self.turn_tolerance

    def _approach(self, robot: RosRobot, goal: Vector) -> None:
        """Move the target in a straight line, then wait for the arm to settle."""
        start = robot.tcp_pose()
        way = rotations.between(start, goal)
        longest = max(math.hypot(*way[:3]) / self.speed, math.hypot(*way[3:]) / self.turn_speed)
        steps = max(1, math.ceil(longest / _COMMAND_SECONDS))
        for step in range(1, steps + round(self.settling_s / _COMMAND_SECONDS)):
            if step >= steps + _FEWEST_SETTLING and self._is_there(robot, goal):
                break
            share = min(1.0, step / steps)
            part = rotations.from_rotation_vector(share * way[3:])
            target = rotations.displaced(start, share * way[:3], part)
            target[3:] = rotations.normalize(target[3:])
            robot.move_target(target)
            time.sleep(_COMMAND_SECONDS)


@dataclass(frozen=True)
class JointStart:
    """Makes the arm's node move to its `reset.joints`, where episodes start."""

    opens_grippers: ClassVar[bool] = False  # see `robot_rl.env.robot.Robot`

    service: str  # reset service of the arm's node
    timeout_s: float  # for the motion [s]

    def perform(self, robot: RosRobot, start_pose: Vector, rng: np.random.Generator) -> None:
        """Move there; raises `RobotInterrupted` if the motion is interrupted or does not arrive.

        Ignores the task's `start_pose`, since the tool pose at these joints is unknown.
        """
        robot.client.trigger(self.service, self.timeout_s, robot.accompany)


def _seed_of(rng: np.random.Generator) -> int:
    """Return the seed a generator was made from, so every simulation gets the same scene."""
    sequence = rng.bit_generator.seed_seq
    seed = getattr(sequence, "entropy", None)
    whole = not getattr(sequence, "spawn_key", ())  # not spawned from another sequence
    if whole and isinstance(seed, int) and 0 <= seed < _LARGEST_SEED:
        return seed
    return int(rng.integers(_LARGEST_SEED))
