"""Robot interface used by environments: simulated, ROS 2, or any Gymnasium environment."""

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
# Suffix after a joint's name: motion of that joint's target.
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
    """State fields of an arm with `joints` joints, for what it measures: SI units, base frame.

    `by_joints`: it takes joint targets, and observes their lead over the measured joints.
    """
    widths = {
        "state/tcp_pose": 7 * pose,  # position [m], quaternion xyzw
        "state/tcp_velocity": 6 * velocity,  # linear [m/s], angular [rad/s]
        # Contact force on the tool [N], and torque about the TCP [Nm].
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
    """Indices of the gripper columns: `gripper`, or `<arm>/gripper` for several arms."""
    names = enumerate(action_names)
    return [column for column, name in names if name.rpartition("/")[2] == GRIPPER_ACTION]


def joint_columns(action_names: Sequence[str]) -> tuple[str, ...]:
    """The columns that move joint targets."""
    return tuple(name for name in action_names if name.endswith(JOINT_ACTION))


class RobotInterrupted(RobotRLError):
    """The robot holds still because it cannot continue, for example without a fresh measurement.

    The episode ends. The next one can start once the cause is gone and, on a real robot, the
    operator has sent `start`.

    Attributes:
        age_s: How long ago the cause started, if known [s].
        needs_start: Whether a simulated robot must wait for `start` too.
    """

    age_s = 0.0
    needs_start = False


class PersonNeeded(RobotRLError):
    """The robot cannot start an episode until a person has inspected it.

    There is no automatic retry. With an operator the session waits for `start`; otherwise the
    program ends.
    """


class Robot(Protocol):
    """A robot as `RobotEnv` needs it. Poses are in the base frame, units are SI."""

    observation_fields: tuple[Field, ...]
    action_names: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Whether it is a simulation, so that no person can be in its way.

        Only a simulated robot moves without `start`; see `robot_rl.env.intervention`.
        """

    @property
    def opens_grippers(self) -> bool:
        """Whether its grippers are open after `reset`; if not, they keep their last command."""

    @property
    def clamped(self) -> bool:
        """Whether a limit changed the last action, as far as known yet."""

    def reset(self, start_pose: npt.NDArray[np.float64], rng: np.random.Generator) -> None:
        """Bring the TCP to `start_pose` (7,), position and quaternion, and forget the last target.

        `rng` is the robot's source of randomness until the next reset.
        """

    def resume(self, rng: np.random.Generator) -> None:
        """Hold, and prepare for an episode that starts at the current pose; else as `reset`.

        Raises:
            RobotInterrupted: It cannot start yet, for example without a fresh measurement.
        """

    def apply(self, action: Action) -> Action:
        """Send a checked action (d,) in [-1, 1]; return the action actually sent. Never blocks."""

    def advance(self, period: float) -> None:
        """Simulate `period` seconds; a no-op on a real robot."""

    def observe(self) -> Observation:
        """Return the latest measured state, keyed by the names of `observation_fields`."""

    def hold(self) -> None:
        """Stop: set the target to the measured pose."""

    def close(self) -> None:
        """Release the robot's resources."""


# Prefix of the events that report a fault to observers.
FAULT = "fault "


@runtime_checkable
class OperatorServer(Protocol):
    """A robot that also receives operator input, such as one on ROS topics with services.

    It also has its own stop, so that an operator's stop does not wait for the loop.
    """

    work_report: Any  # a `robot_rl.ros.operator_services.WorkReport`; its methods never block

    def check_free(self) -> None:
        """Raise `RobotInterrupted`, with the action required of a person, if it may not move."""

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """Forward operator input to `inbox`, and obey a stop that is posted to it.

        `attend` is called repeatedly in the loop's thread while `Robot.reset` moves the robot; it
        raises `RobotInterrupted` if the operator has halted it.
        """

    def missing(self) -> str:
        """Return the robot's missing parts as text; empty if complete."""


def work_report_of(robot: Robot) -> Any:
    """The `work_report` of a robot; None if it is not an `OperatorServer`."""
    return robot.work_report if isinstance(robot, OperatorServer) else None
