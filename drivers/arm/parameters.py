"""The parameters of the arm's node: limits, how it resets, and where a stop is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.arm.base import Vector
from robot_rl.safety import ArmLimits, CommandRefused, ResetOptions, default_stop_folder

if TYPE_CHECKING:
    from rcl_interfaces.msg import SetParametersResult
    from rclpy.parameter import Parameter

    from robot_rl.ros.device_node import DeviceNode

# Default, description, lowest and highest value of each limit that is one number.
_LIMITS: dict[str, tuple[float, str, float, float]] = {
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
_RESET: dict[str, tuple[float, str, float, float]] = {
    "retract_distance": (0.08, "how far the tool is drawn back first [m]", 0.001, 0.5),
    "speed_translation": (0.08, "speed of a reset [m/s]", 0.001, 0.25),
    "speed_rotation": (0.4, "speed of its rotation [rad/s]", 0.001, 1.0),
    "tolerance_translation": (0.005, "distance that counts as there [m]", 0.0005, 0.1),
    "tolerance_rotation": (0.05, "angle that counts as there [rad]", 0.005, 0.5),
}
_RESET_POSE = "reset.pose"
_UNSET_POSE = [0.0] * 7


class ArmParameters:
    """Declares the parameters at a node, and reads them.

    Args:
        node: The arm's.

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
        self._limits["reference_orientation"] = node.parameter(
            "limits.reference_orientation",
            [1.0, 0.0, 0.0, 0.0],
            "quaternion xyzw (4,) that tilt and yaw are measured from",
        )
        self.contact_task: bool = node.parameter(
            "contact_task", True, "whether the task makes contact: stiff arms are then refused"
        )
        self._reset = self._numbers("reset", _RESET)
        node.parameter(
            _RESET_POSE,
            _UNSET_POSE,
            "where `reset` moves to: position [m], quaternion xyzw (7,)",
            read_only=False,
        )
        folder = node.parameter(
            "stop_folder", str(default_stop_folder()), "where a stop of the arm is kept"
        )
        self.stop_folder = Path(folder)
        node.add_on_set_parameters_callback(_checked)

    def limits(self, joint_low: Sequence[float], joint_high: Sequence[float]) -> ArmLimits:
        """The limits of an arm with these limits of its joints, each (n,) [rad].

        Raises:
            RobotRLError: They could not hold.
        """
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

    def reset_pose(self) -> Vector:
        """Where `reset` moves to (7,).

        Raises:
            CommandRefused: No pose has been set, or what the node was started with is none.
        """
        value = self._node.get_parameter(_RESET_POSE).value
        if (problem := _problem_of(value)) is not None:
            unset = value is not None and list(value) == _UNSET_POSE
            raise CommandRefused(
                "malformed",
                "no reset pose is set" if unset else problem,
                hint="set the parameter reset.pose",
            )
        return np.array(value, np.float64)

    def _numbers(
        self, group: str, table: Mapping[str, tuple[float, str, float, float]]
    ) -> dict[str, Any]:
        return {
            name: self._node.parameter(f"{group}.{name}", default, text, low=low, high=high)
            for name, (default, text, low, high) in table.items()
        }


def _checked(parameters: Sequence[Parameter]) -> SetParametersResult:
    """Refuse a reset pose that is none."""
    from rcl_interfaces.msg import SetParametersResult

    problems = [_problem_of(p.value) for p in parameters if p.name == _RESET_POSE]
    problem = next((one for one in problems if one is not None), None)
    return SetParametersResult(successful=problem is None, reason=problem or "")


def _problem_of(value: Any) -> str | None:
    """Why this cannot be a reset pose, None if it can."""
    try:
        pose = np.array(value, np.float64)
    except (TypeError, ValueError):  # a text, for example
        pose = np.zeros(0)
    rotation = float(np.linalg.norm(pose[3:])) if pose.shape == (7,) else 0.0
    if np.isfinite(pose).all() and abs(rotation - 1.0) < 1e-3:
        return None
    return f"reset.pose is no pose: got {value}, expected 3 numbers [m] and a unit quaternion xyzw"
