"""The parameters of the arm's node: limits, how it resets, and where a stop is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
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

_RESET_POSE = "reset.pose"
_UNSET_POSE = [0.0] * 7


class ArmParameters:
    """Declares the parameters at the arm's node, and reads them."""

    def __init__(self, node: DeviceNode) -> None:
        self._node = node
        self._limits = self._numbers("limits", ArmLimits)
        for corner in ("workspace_low", "workspace_high"):
            text = f"{corner.removeprefix('workspace_')}est position of the target (3,) [m]"
            self._limits[corner] = node.parameter(f"limits.{corner}", [0.0] * 3, text)
        text = "quaternion xyzw (4,) that tilt and yaw are measured from"
        self._limits["reference_orientation"] = node.parameter(
            "limits.reference_orientation", [1.0, 0.0, 0.0, 0.0], text
        )
        text = "whether the task makes contact: stiff arms are then refused"
        self.contact_task: bool = node.parameter("contact_task", True, text)
        self._reset = self._numbers("reset", ResetOptions)
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
        """Where `reset` moves to, which may be no pose (7,); `CommandRefused` if nothing is set."""
        value = self._node.get_parameter(_RESET_POSE).value
        if value is None or list(value) == _UNSET_POSE:
            hint = "set the parameter reset.pose"
            raise CommandRefused("malformed", "no reset pose is set", hint=hint)
        return value

    def _numbers(self, group: str, options: type[ArmLimits | ResetOptions]) -> dict[str, Any]:
        return {
            each.name: self._node.parameter(f"{group}.{each.name}", each.default, **each.metadata)
            for each in fields(options)
            if each.metadata
        }


def _checked(parameters: Sequence[Parameter]) -> SetParametersResult:
    from rcl_interfaces.msg import SetParametersResult

    try:
        for parameter in parameters:
            if parameter.name == _RESET_POSE:
                checked_reset_pose(parameter.value)
    except CommandRefused as refusal:
        return SetParametersResult(successful=False, reason=str(refusal))
    return SetParametersResult(successful=True)
