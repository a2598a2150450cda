"""The parameters of the arm's node: limits, how it resets, and where a stop is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.safety import (
    ArmLimits,
    CommandRefused,
    ResetOptions,
    checked_reset_pose,
    default_stop_folder,
)

if TYPE_CHECKING:
    from rcl_interfaces.msg import SetParametersResult
    from rclpy.parameter import Parameter

    from robot_rl.ros.device_node import DeviceNode

Table = Mapping[str, tuple[float, str, float, float]]

# Default, description, lowest and highest value of each limit that is one number.
_LIMITS: Table = {
    "max_tilt": (0.6, "largest angle of the tool's axis to the reference's [rad]", 0.01, 3.1416),
    "max_yaw": (3.1416, "largest turn about the tool's axis; 3.1416: any [rad]", 0.01, 3.1416),
    "max_lead_translation": (0.02, "largest lead of the target per axis [m]", 0.001, 0.2),
    "max_lead_rotation": (0.15, "largest lead of its rotation [rad]", 0.001, 1.5),
    "max_step_translation": (0.03, "farthest that one command moves the target [m]", 0.001, 0.2),
    "max_step_rotation": (0.15, "farthest that one command turns it [rad]", 0.001, 1.5),
    "max_speed_translation": (0.25, "speed of the target [m/s]", 0.001, 3.0),
    "max_speed_rotation": (1.0, "speed of its rotation [rad/s]", 0.001, 10.0),
    "max_arm_speed": (1.5, "speed that the arm can have, pushed or not [m/s]", 0.01, 10.0),
    "max_arm_turning": (6.0, "speed that its rotation can have [rad/s]", 0.01, 60.0),
    "max_force": (60.0, "contact force at which it yields [N]; 0: not measured", 0.0, 500.0),
    "max_torque": (15.0, "contact torque at which it yields [Nm]; 0: not measured", 0.0, 100.0),
    "joint_margin": (0.05, "distance kept from the joints' limits [rad]", 0.0, 1.0),
    "max_joint_speed": (2.0, "largest speed of a joint [rad/s]", 0.01, 10.0),
    "command_deadline": (0.2, "time without a command after which it holds [s]", 0.01, 2.0),
    "max_stamp_age": (0.5, "difference of a command's stamp to the clock here [s]", 0.01, 10.0),
}
_RESET: Table = {
    "retract_distance": (0.08, "how far the tool is drawn back first [m]", 0.001, 0.5),
    "speed_translation": (0.08, "speed of a reset [m/s]", 0.001, 0.25),
    "speed_rotation": (0.4, "speed of its rotation [rad/s]", 0.001, 1.0),
    "tolerance_translation": (0.005, "distance that counts as there [m]", 0.0005, 0.1),
    "tolerance_rotation": (0.05, "angle that counts as there [rad]", 0.005, 0.5),
}
_RESET_POSE = "reset.pose"
_UNSET_POSE = [0.0] * 7


class ArmParameters:
    """Declares the parameters at the arm's node, and reads them.

    Attributes:
        contact_task: Whether the task makes contact.
        stop_folder: Where a stop is kept.

    Raises:
        ParameterError: A value is out of range or of another type; names the parameter.
    """

    def __init__(self, node: DeviceNode) -> None:
        self._node = node
        self._limits = self._numbers("limits", _LIMITS)
        for corner in ("workspace_low", "workspace_high"):
            text = f"{corner.removeprefix('workspace_')}est position of the target (3,) [m]"
            self._limits[corner] = node.parameter(f"limits.{corner}", [0.0] * 3, text)
        text = "quaternion xyzw (4,) that tilt and yaw are measured from"
        self._limits["reference_orientation"] = node.parameter(
            "limits.reference_orientation", [1.0, 0.0, 0.0, 0.0], text
        )
        self.contact_task: bool = node.parameter(
            "contact_task", True, "whether the task makes contact: stiff arms are then refused"
        )
        self._reset = self._numbers("reset", _RESET)
        text = "where `reset` moves to: position [m], quaternion xyzw (7,)"
        node.parameter(_RESET_POSE, _UNSET_POSE, text, read_only=False)
        folder = str(default_stop_folder())
        text = "where a stop of the arm is kept"
        self.stop_folder = Path(node.parameter("stop_folder", folder, text))
        node.add_on_set_parameters_callback(_checked)

    def limits(self, joint_low: Sequence[float], joint_high: Sequence[float]) -> ArmLimits:
        """The limits of an arm with these of its joints, each (n,) [rad]; raises as `ArmLimits`."""
        values: dict[str, Any] = {
            name: tuple(value) if np.iterable(value) else value
            for name, value in self._limits.items()
        }
        for name in ("max_force", "max_torque"):
            values[name] = values[name] or None
        return ArmLimits(**values, joint_low=tuple(joint_low), joint_high=tuple(joint_high))

    def reset_options(self) -> ResetOptions:
        """How a reset moves."""
        return ResetOptions(**self._reset)

    def reset_pose(self) -> Any:
        """Where `reset` moves to, which is not known to be a pose (7,).

        Raises:
            CommandRefused: Nothing has been set.
        """
        value = self._node.get_parameter(_RESET_POSE).value
        if value is None or list(value) == _UNSET_POSE:
            hint = "set the parameter reset.pose"
            raise CommandRefused("malformed", "no reset pose is set", hint=hint)
        return value

    def _numbers(self, group: str, table: Table) -> dict[str, Any]:
        return {
            name: self._node.parameter(f"{group}.{name}", default, text, low=low, high=high)
            for name, (default, text, low, high) in table.items()
        }


def _checked(parameters: Sequence[Parameter]) -> SetParametersResult:
    """Refuse a reset pose that is none."""
    from rcl_interfaces.msg import SetParametersResult

    try:
        for parameter in parameters:
            if parameter.name == _RESET_POSE:
                checked_reset_pose(parameter.value)
    except CommandRefused as refusal:
        return SetParametersResult(successful=False, reason=str(refusal))
    return SetParametersResult(successful=True)
