"""What an arm's node is told: its targets on topics, as poses or as joint positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState

from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, JOINT_ACTION
from robot_rl.ros import messages
from robot_rl.safety.rotations import Vector


class PoseTargets:
    """Targets that are poses (7,) of the TCP, base frame."""

    kind = PoseStamped
    topic, applied_topic = "target_pose", "applied_pose"
    columns: tuple[str, ...] = ARM_ACTIONS  # that move them
    # Of what the arm's node applied to what was sent [m, rad]: a tenth of what an action of 1 does.
    # Where both keep the same lead, theirs differs by as much as the arm has moved between the two
    # measurements: 0.03 mm at most in a simulated insertion.
    tolerances = np.repeat([1e-3, 5e-3], 3)

    def action_names(self, of_task: tuple[str, ...]) -> tuple[str, ...]:
        """Columns of the action where a task has these."""
        return of_task

    def message(self, target: npt.ArrayLike, stamp_ns: int, frame: str = "") -> PoseStamped:
        """The message of a target; `frame` is what the arm's driver calls the base frame."""
        return messages.pose_message(target, stamp_ns, frame or messages.BASE_FRAME)

    def numbers(self, message: PoseStamped, frame: str) -> Vector:
        """The numbers of a target as they were sent, whether or not they are one.

        `MessageError` where it is in another frame than this one, of this name.
        """
        messages.check_frame(message, frame)
        return messages.pose_numbers(message.pose)

    def target(self, message: PoseStamped) -> Vector:
        """A target, or `MessageError`."""
        return messages.pose_array(message)


@dataclass(frozen=True)
class JointTargets:
    """Targets that are joint positions (n,) [rad]."""

    names: Sequence[str]  # of the joints; a message may have them in another order
    kind = JointState
    topic, applied_topic = "target_joints", "applied_joints"
    tolerances = np.array([5e-3])  # rad

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that move them."""
        return tuple(name + JOINT_ACTION for name in self.names)

    def action_names(self, of_task: tuple[str, ...]) -> tuple[str, ...]:
        """All joints, and the gripper where the task has it."""
        return (*self.columns, *(name for name in of_task if name == GRIPPER_ACTION))

    def message(self, target: npt.ArrayLike, stamp_ns: int, frame: str = "") -> JointState:
        """The message of a target; positions are in no frame."""
        return messages.joint_state_message(self.names, target, None, stamp_ns)

    def numbers(self, message: JointState, frame: str) -> Vector:
        """The positions as they were sent; `MessageError` where a joint is missing."""
        return messages.joint_numbers(message, self.names)

    def target(self, message: JointState) -> Vector:
        """A target, or `MessageError`."""
        return messages.joint_positions(message, self.names)
