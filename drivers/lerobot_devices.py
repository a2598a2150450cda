"""Create LeRobot followers and leaders, and convert their units.

LeRobot is imported only when a device connects, because it loads torch.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from drivers.base import DriverError, DriverTimeout
from drivers.gripper.base import Fingers
from robot_rl.errors import did_you_mean, require
from robot_rl.safety.rotations import Vector

EXTRA = "lerobot-arms"
_POSITION = ".pos"
# Motor units that are angles, by LeRobot's `MotorNormMode` [rad per unit].
_ANGLES = {"degrees": math.pi / 180.0, "radians": 1.0}


def connected_device(
    family: Literal["robots", "teleoperators"],
    kind: str,
    settings: Mapping[str, Any],
    joints: Sequence[str],
    fingers: Fingers | None,
    units: str | None,
) -> tuple[Any, Positions]:
    """Create and connect a LeRobot device, which must already be calibrated.

    Args:
        family: Follower (`robots`) or leader (`teleoperators`).
        kind: LeRobot's type name, such as `so101_follower`.
        settings: Further fields of its configuration, such as `port` and `id`.
        joints: Joint names, in our order.
        fingers: The gripper, if it has one.
        units: Joint units, `degrees` or `radians`; None uses the device's own setting.

    Raises:
        DriverError: The type is unknown, a setting is wrong, the device is not calibrated, its
            motors differ, or it does not measure a joint as an angle.
        DriverTimeout: The device does not answer.
        MissingExtra: LeRobot, or a library that this device needs, is not installed.
    """
    device = _made(family, kind, settings)
    try:
        if family == "robots":
            _set_goals(device)
        device.connect(calibrate=False)
        if not device.is_calibrated:
            group, given = family[:-1].replace("teleoperator", "teleop"), {"type": kind, **settings}
            words = " ".join(f"--{group}.{key}={value}" for key, value in given.items())
            raise DriverError(
                f"the {kind} is not calibrated",
                got=f"nothing that fits the motors in {device.calibration_fpath}",
                hint=f"run lerobot-calibrate {words}",
            )
        return device, Positions(device, joints, fingers, units)
    except Exception as error:  # each device raises its own errors
        release(device)
        if isinstance(error, DriverError):
            raise
        if isinstance(error, OSError):
            raise DriverTimeout(f"LeRobot does not reach the {kind}", got=error) from error
        raise DriverError(f"LeRobot does not connect the {kind}", got=repr(error)) from error


def release(device: Any) -> None:
    """Disconnect a device, even if it is only partly connected."""
    with contextlib.suppress(Exception):  # it was not connected, or is gone
        device.disconnect()


def _set_goals(device: Any) -> None:
    """Set each servo's goal to its present position before LeRobot enables torque.

    Otherwise the servos would move to their last goals, however old.
    """
    bus, kind = getattr(device, "bus", None), "lerobot.motors.motors_bus"
    if isinstance(bus, importlib.import_module(kind).SerialMotorsBus):
        bus.connect()
        try:
            present = bus.sync_read("Present_Position", normalize=False)
            bus.sync_write("Goal_Position", present, normalize=False)
        finally:
            bus.disconnect(disable_torque=False)


def _made(family: str, kind: str, settings: Mapping[str, Any]) -> Any:
    require("lerobot", EXTRA)
    draccus = importlib.import_module("draccus")
    package = importlib.import_module(f"lerobot.{family}")
    unusable: dict[str, str] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:
            continue
        try:  # each module registers its types
            importlib.import_module(f"{package.__name__}.{module.name}")
        except ImportError as error:
            unusable[module.name] = str(error)
    importlib.import_module("lerobot.utils.import_utils").register_third_party_plugins()
    robots = family == "robots"
    config_class = package.RobotConfig if robots else package.TeleoperatorConfig
    known = sorted(config_class.get_known_choices())
    if kind not in known:
        raise DriverError(
            f"LeRobot knows no {kind!r} among its {family}",
            got="; ".join(f"{name}: {problem}" for name, problem in unusable.items()) or None,
            expected=known,
            hint=did_you_mean(kind, known),
        )
    try:
        config = draccus.decode(config_class, {"type": kind, **settings})
        utils = importlib.import_module(f"lerobot.{family}.utils")
        make = utils.make_robot_from_config if robots else utils.make_teleoperator_from_config
        return make(config)
    except ImportError as error:
        hint = "install what this device needs, as pip install 'lerobot[feetech]' or '[dynamixel]'"
        raise DriverError(f"LeRobot cannot make the {kind}", got=error, hint=hint) from error
    except Exception as error:  # from draccus, or from a device's own checks
        raise DriverError(
            f"LeRobot refuses the settings of the {kind}",
            got=error,
            hint="settings are the fields of its configuration class in LeRobot",
        ) from error


class Positions:
    """Converts a device's joint and gripper values to and from our units."""

    def __init__(
        self, device: Any, joints: Sequence[str], fingers: Fingers | None, units: str | None
    ) -> None:
        named = [*joints, *([fingers.name] if fingers else [])]
        keys, features = [name + _POSITION for name in named], device.action_features
        if sorted(keys) != sorted(features):
            raise DriverError(
                "this LeRobot device has other motors than it is configured with",
                got=sorted(features),
                expected=sorted(keys),
                hint="correct joint_names, and fingers (null for none); what moves by other numbers"
                " than positions, such as a mobile base, cannot be driven here",
            )
        self._joints, self._fingers = keys[: len(joints)], fingers
        self._factor = np.array([_radians(device, name, units) for name in joints])

    def taken(self, numbers: Mapping[str, Any]) -> tuple[Vector, float | None]:
        """Return joint positions (n,) [rad] and the gripper position, 0 open to 1 closed."""
        joints = self._factor * np.array([float(numbers[key]) for key in self._joints])
        fingers = self._fingers
        if fingers is None:
            return joints, None
        return joints, fingers.share(float(numbers[fingers.name + _POSITION]))

    def given(self, joints: Vector, grip: float | None) -> dict[str, float]:
        """Return the device's values for joint positions (n,) [rad] and a gripper position."""
        numbers = dict(zip(self._joints, (joints / self._factor).tolist(), strict=True))
        if self._fingers is not None and grip is not None:
            numbers[self._fingers.name + _POSITION] = self._fingers.position(grip)
        return numbers


def _radians(device: Any, joint: str, units: str | None) -> float:
    """Return the radians per unit of a joint's position."""
    if units is not None:
        if units not in _ANGLES:
            raise DriverError("units of the joints", got=units, expected=" or ".join(_ANGLES))
        return _ANGLES[units]
    motor = getattr(getattr(device, "bus", None), "motors", {}).get(joint)
    if motor is None:
        raise DriverError(
            f"LeRobot does not say in what unit this device measures the joint {joint!r}",
            hint="give units: degrees or radians, as the device's own documents say",
        )
    mode = str(motor.norm_mode.value)
    if mode not in _ANGLES:
        raise DriverError(
            f"LeRobot measures the joint {joint!r} as a share of its range, which is no angle",
            got=mode,
            expected="degrees",
            hint="set use_degrees: true in its settings, where its type has that",
        )
    return _ANGLES[mode]
