"""Any follower arm of the LeRobot library, such as an SO-101, with joint targets.

Its motors hold positions and measure only positions. LeRobot has no stop, and without torque the
arm would fall, so a stop makes the motors hold their position. If this process is killed, they keep
their last target, which is a bounded distance ahead of the arm.

Tested with LeRobot's own classes and simulated servos; not yet run on hardware.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from drivers.arm.base import JointLimits, Vector, check_free
from drivers.base import DriverError, DriverTimeout
from drivers.gripper.base import Fingers
from drivers.lerobot_devices import EXTRA, connected_device, release
from robot_rl.errors import require
from robot_rl.safety import ArmState, Compliance

# Time over which velocities are differenced, because servo positions have coarse steps [s].
_VELOCITY_SECONDS = 0.2


@dataclass(eq=False)
class LeRobotArm:
    """An arm driven through LeRobot, with its gripper on the same bus; it has no pose."""

    compliance: ClassVar[Compliance] = "position"
    fault: ClassVar[str | None] = None  # LeRobot reports none

    type: str  # LeRobot's robot type, such as so101_follower
    joint_names: Sequence[str]  # motor names, without the gripper's
    joint_low: Sequence[float]  # lowest positions that may be commanded (n,) [rad]
    joint_high: Sequence[float]  # highest (n,) [rad]
    settings: Mapping[str, Any] = field(default_factory=dict)  # for its LeRobot configuration
    fingers: Fingers | None = field(default_factory=Fingers)  # the gripper; None without one
    units: str | None = None  # of its joints, degrees or radians; None: as LeRobot reports

    def __post_init__(self) -> None:
        require("lerobot", EXTRA)
        if self.settings.get("cameras"):
            raise DriverError(
                "the cameras of a LeRobot robot would hold up its joints",
                got="settings.cameras",
                hint="leave them out, and give each a node of its own: see hardware/cameras.md",
            )
        for name, limit in (("joint_low", self.joint_low), ("joint_high", self.joint_high)):
            if len(limit) != len(self.joint_names):
                raise DriverError(
                    f"{name} of the LeRobot arm is for another number of joints",
                    got=len(limit),
                    expected=f"{len(self.joint_names)} numbers [rad]",
                    hint="lerobot-find-joint-limits measures them",
                )
        self.joint_limits: JointLimits = tuple(self.joint_low), tuple(self.joint_high)
        self._device: Any = None
        self._stopped = False
        self.gripper_position = 0.0
        self._grip: float | None = None  # last gripper command, or its position at connect
        self._past: deque[tuple[float, Vector]] = deque()
        if self.fingers is not None:
            self.grip = self._take_grip

    def connect(self) -> None:
        """Connect and hold position; raises as `connected_device`, or `DriverTimeout`."""
        self.close()
        motors = (self.joint_names, self.fingers, self.units)
        self._device, self._positions = connected_device(
            "robots", self.type, self.settings, *motors
        )
        try:
            self._past.clear()
            _, self._grip = self._measured()
            self.hold()
        except BaseException:
            self.close()
            raise

    def read(self) -> ArmState:
        """Read the positions of all motors; `DriverTimeout` if they do not answer."""
        asked_ns = time.time_ns()
        joints, grip = self._measured()
        self.gripper_position = 0.0 if grip is None else grip
        now, unknown = time.monotonic(), np.full(6, np.nan)
        self._past.append((now, joints))
        while len(self._past) > 2 and now - self._past[1][0] >= _VELOCITY_SECONDS:
            self._past.popleft()
        began, first = self._past[0]
        velocities = (joints - first) / max(now - began, 1e-3)
        pose = np.full(7, np.nan)
        return ArmState(asked_ns, joints, velocities, pose, unknown, unknown)

    def command(self, target_pose: Vector) -> None:
        """Raise `DriverError`: pose targets are not supported."""
        raise DriverError("a LeRobot arm takes joint targets, no poses")

    def command_joints(self, joints: Vector) -> None:
        """Send the targets of the joints (n,) [rad] and gripper; raises as `Arm.command`."""
        check_free("LeRobot arm", self.fault, self._stopped)
        self._send(joints)

    def hold(self) -> None:
        """Set the joint targets to the measured positions."""
        self._send(self._measured()[0])

    def stop(self) -> None:
        """Hold, and refuse motion until `clear_errors`."""
        self._stopped = True
        self.hold()

    def clear_errors(self) -> None:
        """Allow motion again; the arm holds its position."""
        self.hold()
        self._stopped = False

    def close(self) -> None:
        """Disconnect; `disable_torque_on_disconnect` decides whether the motors then hold."""
        device, self._device = self._device, None
        if device is not None:
            release(device)

    def _take_grip(self, position: float) -> None:
        self._grip = position

    def _measured(self) -> tuple[Vector, float | None]:
        observe = lambda device: device.get_observation()  # noqa: E731
        try:
            numbers = self._asked("measure", observe)
        except DriverTimeout:  # servos occasionally lose an answer
            numbers = self._asked("measure", observe)
        return self._positions.taken(numbers)

    def _send(self, joints: Vector) -> None:
        numbers = self._positions.given(joints, self._grip)
        self._asked("move", lambda device: device.send_action(numbers))

    def _asked(self, what: str, ask: Any) -> Any:
        if self._device is None:
            raise DriverError("the LeRobot arm is not connected", hint="call connect first")
        try:
            return ask(self._device)
        except Exception as error:  # each robot type raises different errors
            raise DriverTimeout(
                f"the {self.type} does not {what} its motors",
                got=error,
                hint="look at its cable and its power",
            ) from error
