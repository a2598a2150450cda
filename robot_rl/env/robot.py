"""The seam between environments and robots: simulated, ROS 2, or any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Field, Observation
from robot_rl.env.operator import OperatorInbox
from robot_rl.errors import RobotRLError

Action = npt.NDArray[np.float32]

# Motion of the target in the base frame: translation, then rotation vector.
ARM_ACTIONS = ("x", "y", "z", "rotation_x", "rotation_y", "rotation_z")
# Motion of the target of one joint: the joint's name, and this.
JOINT_ACTION = ".delta"
# Absolute: -1 open, +1 closed.
GRIPPER_ACTION = "gripper"
GRIPPER_OPEN = -1.0


def state_fields(
    joints: int,
    *,
    pose: bool = True,
    velocity: bool = True,
    wrench: bool = True,
    gripper: bool = True,
    by_joints: bool = False,
) -> tuple[Field, ...]:
    """The state fields of an arm with so many joints, if it measures these: SI, base frame.

    `by_joints`: it takes joint targets, and observes how far these lead it.
    """
    widths = {
        "state/tcp_pose": 7 * pose,  # position [m], quaternion xyzw
        "state/tcp_velocity": 6 * velocity,  # linear [m/s], angular [rad/s]
        # What the surroundings exert on the tool: force [N], and torque about the TCP [Nm].
        "state/tcp_wrench": 6 * wrench,
        # From the measured pose to the target: translation [m], rotation vector [rad].
        "state/target_lead": len(ARM_ACTIONS) * (not by_joints),
        "state/joint_lead": joints * by_joints,  # from measured joints to their targets [rad]
        "state/joint_positions": joints,  # [rad]
        "state/joint_velocities": joints,  # [rad/s]
        "state/gripper_position": 1 * gripper,  # 0 open to 1 closed
    }
    return tuple(Field(name, "float32", (width,)) for name, width in widths.items() if width)


def gripper_columns(action_names: Sequence[str]) -> list[int]:
    """Which columns are grippers: `gripper`, or of several arms `<arm>/gripper` for each."""
    names = enumerate(action_names)
    return [column for column, name in names if name.rpartition("/")[2] == GRIPPER_ACTION]


def joint_columns(action_names: Sequence[str]) -> tuple[str, ...]:
    """Those of the columns that move the targets of joints."""
    return tuple(name for name in action_names if name.endswith(JOINT_ACTION))


class RobotInterrupted(RobotRLError):
    """A robot that holds still because it cannot go on, for example without a fresh measurement.

    The episode ends; the next one can begin once what is missing is back, and where the robot is
    not simulated a person has said `start`.

    Attributes:
        age_s: How long ago it began, as far as is known [s].
        needs_start: Whether a simulated robot waits for a person's `start` too.
    """

    age_s = 0.0
    needs_start = False


class PersonNeeded(RobotRLError):
    """A robot that cannot begin an episode before a person has looked at it.

    Nothing is tried again by itself. Where an operator is heard, they say `start`; elsewhere what
    runs ends.
    """


class Robot(Protocol):
    """A robot, as `RobotEnv` needs it. All poses are in the base frame, units are SI."""

    observation_fields: tuple[Field, ...]
    action_names: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Whether it is a simulation, so that nobody can stand in its way.

        Only such a robot moves without a person's `start`; see `robot_rl.env.intervention`.
        """

    @property
    def opens_grippers(self) -> bool:
        """Whether its grippers are open after `reset`; if not, they keep their last command."""

    @property
    def clamped(self) -> bool:
        """Whether a limit changed what the last action asked for, as far as is known by now."""

    def reset(self, start_pose: npt.NDArray[np.float64], rng: np.random.Generator) -> None:
        """Bring the TCP to `start_pose` (7,), position and quaternion, and forget the last target.

        `rng` is the source of whatever is random about the robot until the next reset.
        """

    def resume(self, rng: np.random.Generator) -> None:
        """As `reset`, but hold, and be ready for an episode that begins where the robot is.

        Raises:
            RobotInterrupted: It cannot begin yet, for example without a fresh measurement.
        """

    def apply(self, action: Action) -> Action:
        """Send a checked action (d,) in [-1, 1], and return what was really sent; never waits."""

    def advance(self, period: float) -> None:
        """Let `period` seconds of physics pass; a real robot does that by itself."""

    def observe(self) -> Observation:
        """The newest measured state, keyed by the names of `observation_fields`."""

    def hold(self) -> None:
        """Stop: the target becomes the measured pose."""

    def close(self) -> None:
        """Release what the robot holds."""


# How the events begin that tell those who watch of a fault.
FAULT = "fault "


@runtime_checkable
class OperatorServer(Protocol):
    """A robot, such as one on topics with services, through which an operator can be heard too.

    It also has a stop of its own, so that an operator's stop need not wait for the loop.
    """

    work_report: Any  # a `robot_rl.ros.operator_services.WorkReport`; none of its methods waits

    def check_free(self) -> None:
        """Raise `RobotInterrupted`, which says what a person has to do, if it may not move."""

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """From now on write to `inbox` what is said there, and obey a stop that is posted to it.

        `attend` is called in the thread of the loop, again and again while `Robot.reset` moves the
        robot; it raises `RobotInterrupted` where the operator has halted it.
        """

    def missing(self) -> str:
        """Which parts of the robot are missing, in words; empty where none is."""


def work_report_of(robot: Robot) -> Any:
    """The `work_report` of a robot; None where nobody can watch it."""
    return robot.work_report if isinstance(robot, OperatorServer) else None
