"""UFACTORY xArm 5/6/7, 850, Lite 6 with `xarm-python-sdk`: Cartesian velocity towards the target.

The arm is position controlled and does not yield. Each velocity command has a duration, after which
the controller sets it to zero: if this process is killed or its node hangs, the arm stops within
`WATCHDOG_SECONDS`. Contact tasks need UFACTORY's force-torque sensor and a force limit.

Not yet run on hardware.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from drivers.arm.base import JointLimits, Tool, Vector, at_most, check_free, pose_of
from drivers.base import DriverError, DriverFault, DriverTimeout, check_ranges, check_reachable
from robot_rl.errors import require
from robot_rl.safety import ArmState, Compliance, rotations

WATCHDOG_SECONDS = 0.15
_PORT = 502
_MILLI = 1e3
_VELOCITY_MODE, _READY, _STOPPED = 5, 0, 4
# SDK getter codes with a valid value: success, a pending error, a pending warning.
_VALUE_IS_GOOD = (0, 1, 2)


@dataclass(eq=False)
class XArm:
    """An xArm; needs `xarm-python-sdk`."""

    compliance: ClassVar[Compliance] = "position"
    joint_limits: ClassVar[JointLimits] = ((), ())

    host: str  # IP address of the control box
    joints: int = 7  # number of joints
    force_torque_sensor: bool = False  # whether UFACTORY's is mounted; else no wrench is measured
    gain: float = 5.0  # speed towards the target per distance [1/s]
    max_speed: float = 0.25  # [m/s]
    max_turn_speed: float = 1.0  # [rad/s]
    collision_sensitivity: int = 3  # of the controller, 1 to 5
    tool: Tool | None = None  # must match the controller's settings; None: any tool
    timeout_s: float = 3.0  # for connecting and for answers [s]

    def __post_init__(self) -> None:
        check_ranges(
            "xArm",
            self,
            joints=(5, 7),
            gain=(0.1, 20.0),
            max_speed=(0.001, 1.0),
            max_turn_speed=(0.001, 3.0),
            collision_sensitivity=(1, 5),
            timeout_s=(0.1, 60.0),
        )
        with contextlib.redirect_stdout(io.StringIO()):  # the SDK prints a banner
            self._sdk = require("xarm.wrapper", "xarm")
        self.joint_names = tuple(f"joint{i}" for i in range(1, self.joints + 1))
        self._api: Any = None
        self._pose: Vector | None = None
        self._measured_at = -math.inf
        self._is_ready = False  # whether it accepts velocities
        self._stopped = False
        self.fault: str | None = None

    def examine(self) -> str:
        """Report whether the control box listens, leaving the arm alone; `DriverError` if not."""
        check_reachable("xArm's control box", self.host, _PORT, self.timeout_s)
        return f"control box at {self.host}, xarm-python-sdk {version('xarm-python-sdk')}"

    def connect(self) -> None:
        """Connect to the control box without moving the arm; raises as `Arm.connect`.

        An earlier error is not cleared: it remains the `fault` until a person clears it.
        """
        check_reachable("xArm's control box", self.host, _PORT, self.timeout_s)
        try:
            self._api = self._sdk.XArmAPI(self.host, is_radian=True)
        except Exception as error:  # the SDK raises no specific class
            raise DriverError(f"the xArm at {self.host} cannot be controlled", got=error) from error
        self._api.set_timeout(self.timeout_s)
        if self.tool is not None:
            try:
                self.tool.check(_tcp_of(self._api.tcp_offset), float(self._api.tcp_load[0]))
            except DriverError:
                self.close()
                raise
        self.fault = self.fault or self._reported_fault()
        if self.force_torque_sensor:
            self._set({"set_ft_sensor_enable": 1})

    def read(self) -> ArmState:
        """Request a measurement from the control box; raises as `Arm.read`."""
        api, asked_ns = self._connected(), time.time_ns()
        position = self._value("pose", api.get_position_aa(is_radian=True))
        joints = self._value("joint states", api.get_joint_states(is_radian=True))
        now = time.monotonic()
        pose = pose_of(position, metre=_MILLI)
        velocity = _velocity(self._pose, pose, now - self._measured_at)
        self._pose, self._measured_at = pose, now
        self.fault = self.fault or self._reported_fault()
        count = len(self.joint_names)
        return ArmState(
            asked_ns,
            np.array(joints[0][:count], np.float64),
            np.array(joints[1][:count], np.float64),
            pose,
            velocity,
            self._wrench(pose),
        )

    def command(self, target_pose: Vector) -> None:
        """Move towards a pose (7,) for at most `WATCHDOG_SECONDS`; raises as `Arm.command`.

        The first call switches the arm to Cartesian velocity control.
        """
        check_free("xArm", self.fault, self._stopped)
        if self._pose is None:
            raise DriverFault("the xArm does not move", got="not measured yet", hint="read it")
        if not self._is_ready:
            self._begin()
        way = self.gain * rotations.between(self._pose, target_pose)
        linear = at_most(way[:3], self.max_speed)
        angular = at_most(way[3:], self.max_turn_speed)
        self._send([*(_MILLI * linear), *angular])

    def hold(self) -> None:
        """Command zero velocity; no-op unless the arm accepts velocities."""
        if self._is_ready and self.fault is None and not self._stopped:
            self._send([0.0] * 6)

    def stop(self) -> None:
        """Set the controller's stop state; if unconfirmed, the last velocity command expires."""
        self._stopped, self._is_ready = True, False
        if self._api is not None:
            code = self._api.set_state(_STOPPED)
            if code not in _VALUE_IS_GOOD:
                raise DriverError(
                    "the xArm does not confirm its stop",
                    got=f"code {code}",
                    hint="if the arm moves, press the emergency stop",
                )

    def clear_errors(self) -> None:
        """Clear the controller's errors and warnings without moving, or raise `DriverFault`."""
        api = self._connected()
        self._is_ready = False
        api.clean_error()
        api.clean_warn()
        # The SDK's cached report may be older than the clearing, so query the code.
        self._value("error code", api.get_err_warn_code())
        remaining = self._reported_fault()
        if remaining is not None:
            raise DriverFault("the xArm's error stays", got=remaining, hint="look at the arm")
        self.fault, self._stopped = None, False

    def close(self) -> None:
        """Stop and disconnect."""
        api, self._api, self._pose, self._is_ready = self._api, None, None, False
        if api is not None:
            api.set_state(_STOPPED)
            api.disconnect()

    def _begin(self) -> None:
        self._set(
            {
                "motion_enable": True,
                "set_collision_sensitivity": self.collision_sensitivity,
                "set_mode": _VELOCITY_MODE,
                "set_state": _READY,
            }
        )
        self._is_ready = True

    def _set(self, steps: Mapping[str, int]) -> None:
        for name, value in steps.items():
            code = getattr(self._api, name)(value)
            if code not in _VALUE_IS_GOOD:
                hint = "UFACTORY's manual says what the code means"
                raise DriverError(f"the xArm refuses {name}", got=f"code {code}", hint=hint)

    def _send(self, speeds: list[float]) -> None:
        options = {"is_radian": True, "duration": WATCHDOG_SECONDS}
        code = self._api.vc_set_cartesian_velocity(speeds, **options)
        if code != 0:
            self.fault = self._reported_fault() or f"it refuses a velocity: code {code}"
            raise DriverFault("the xArm does not move", got=self.fault)

    def _wrench(self, pose: Vector) -> Vector:
        """Return the sensor's wrench, rotated from tool to base axes; NaN without a sensor."""
        if not self.force_torque_sensor:
            return np.full(6, np.nan)
        measured = np.array(self._value("wrench", self._api.get_ft_sensor_data()), np.float64)
        return rotations.rotate_both(pose[3:], measured[:6])

    def _value(self, what: str, answer: tuple[int, Any]) -> Any:
        code, value = answer
        if code not in _VALUE_IS_GOOD:
            raise DriverTimeout(
                f"the xArm at {self.host} does not give its {what}",
                got=f"code {code}",
                hint="firmware 1.9 or newer; see UFACTORY's table of API codes",
            )
        return value

    def _connected(self) -> Any:
        if self._api is None or not self._api.connected:
            raise DriverTimeout(
                f"the xArm at {self.host} is not connected",
                hint="configure its node first; if it was, look at cable and controller",
            )
        return self._api

    def _reported_fault(self) -> str | None:
        return f"controller error {self._api.error_code}" if self._api.has_error else None


def _tcp_of(offset: Sequence[float]) -> Vector:
    """Convert position [mm] and roll, pitch, yaw [rad] (6,) to a pose (7,)."""
    turn = np.array([0.0, 0.0, 0.0, 1.0])
    for axis, angle in zip(np.eye(3), offset[3:], strict=True):
        turn = rotations.multiply(rotations.from_rotation_vector(angle * axis), turn)
    return np.concatenate([np.array(offset[:3]) / _MILLI, turn])


def _velocity(before: Vector | None, pose: Vector, seconds: float) -> Vector:
    """Difference two poses, because the controller does not report the TCP velocity."""
    if before is None or not 0.0 < seconds < 1.0:
        return np.full(6, np.nan)
    return np.asarray(rotations.between(before, pose) / seconds)
