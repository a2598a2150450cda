"""ROS parameters of the arm node, and the limits and resets they define."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter

from drivers.arm.base import Vector, reset_waypoints
from drivers.base import DriverError
from robot_rl.ros.device_node import DeviceNode
from robot_rl.safety import (
    ArmGuard,
    ArmLimits,
    CommandRefused,
    JointArmLimits,
    JointResets,
    ResetOptions,
    Resets,
    checked_reset_pose,
    default_stop_folder,
    refuse_stiff_contact,
    sole_reset_end,
)

_RESET_POSE = "reset.pose"


class ArmParameters:
    """The parameters `limits.*`, `reset.*`, `contact_task` and `stop_folder`.

    An arm with pose targets requires `limits.workspace_low` and `limits.workspace_high`. For one
    with joint targets, the driver supplies the joint ranges, and pose limits do not apply.
    """

    def __init__(self, node: DeviceNode) -> None:
        self._node = node
        self._limits = self._numbers("limits", ArmLimits)
        self._joint_limits = self._numbers("limits", JointArmLimits)
        for name, default, text in (
            ("workspace_low", [0.0] * 3, "lowest position of the target (3,) [m]"),
            ("workspace_high", [0.0] * 3, "highest position of the target (3,) [m]"),
            (
                "reference_orientation",
                [1.0, 0.0, 0.0, 0.0],
                "quaternion xyzw (4,) of no tilt and yaw",
            ),
        ):
            self._limits[name] = tuple(node.parameter(f"limits.{name}", default, text))
        text = "whether the task makes contact: stiff arms are then refused"
        self._contact_task: bool = node.parameter("contact_task", True, text)
        self._reset = self._numbers("reset", ResetOptions)
        text = "where `reset` moves to: position [m], quaternion xyzw (7,)"
        node.parameter(_RESET_POSE, [], text, read_only=False)
        text = "instead: joint positions of waypoints in a row, to the last of which it moves [rad]"
        self._reset_joints: list[float] = node.parameter("reset.joints", [], text)
        node.add_on_set_parameters_callback(_checked)
        text = "where a stop of the arm is kept"
        self.stop_folder = Path(node.parameter("stop_folder", str(default_stop_folder()), text))

    def limits(self, driver: Any) -> ArmLimits | JointArmLimits:
        """Return the limits for a driver's arm.

        Raises `RobotRLError` if the limits are invalid, a workspace is given for an arm with
        joint targets, or the arm is too stiff for a contact task.
        """
        low, high = map(tuple, driver.joint_limits)
        limits: ArmLimits | JointArmLimits
        if not hasattr(driver, "command_joints"):
            limits = ArmLimits.of_parameters(self._limits, joint_low=low, joint_high=high)
        elif any((*self._limits["workspace_low"], *self._limits["workspace_high"])):
            raise DriverError(
                "an arm that takes joint targets keeps no workspace",
                got="limits.workspace_low and limits.workspace_high",
                hint="leave them out: nobody may know where its tool is; bound its joints instead",
            )
        else:
            limits = JointArmLimits(**self._joint_limits, joint_low=low, joint_high=high)
        if self._contact_task:
            refuse_stiff_contact(driver.compliance, limits)
        return limits

    def resets(self, driver: Any, guard: ArmGuard) -> Resets:
        """Return the resets of a driver's arm; `RobotRLError` if it cannot reach `reset.joints`."""
        self._waypoints: Vector = reset_waypoints(driver, self._reset_joints, guard.limits)
        options = ResetOptions(**self._reset)
        if isinstance(guard.limits, JointArmLimits):
            return JointResets(guard, options)
        return Resets(guard, options, getattr(driver, "forward_kinematics", None))

    def reset_end(self, guard: ArmGuard) -> Any:
        """Return where a reset ends, as a pose (7,) or waypoints (k, n).

        Raises `CommandRefused` if both or neither is given. For an arm with joint targets, raises
        `DriverError` if a pose is given or waypoints are missing.
        """
        pose = self._node.get_parameter(_RESET_POSE).value
        if isinstance(guard.limits, JointArmLimits) and (pose or not len(self._waypoints)):
            raise DriverError(
                "a reset of an arm that takes joint targets needs reset.joints alone",
                got="reset.pose" if pose else "neither",
                hint="see hardware/arms.md, section Resets",
            )
        return sole_reset_end(pose, self._waypoints)

    def _numbers(
        self, group: str, options: type[ArmLimits | JointArmLimits | ResetOptions]
    ) -> dict[str, Any]:
        """Return the values of options that are parameters; both kinds of limits share some."""
        node = self._node
        numbers = {f"{group}.{each.name}": each for each in fields(options) if each.metadata}
        return {
            each.name: float(node.get_parameter(name).value or 0.0)
            if node.has_parameter(name)
            else node.parameter(name, each.default, **each.metadata)
            for name, each in numbers.items()
        }


def _checked(parameters: Sequence[Parameter]) -> SetParametersResult:
    try:
        for parameter in parameters:
            if parameter.name == _RESET_POSE:
                checked_reset_pose(parameter.value)
    except CommandRefused as refusal:
        return SetParametersResult(successful=False, reason=str(refusal))
    return SetParametersResult(successful=True)
