"""An arm of one's own, without hardware: a gantry of three axes that goes where it is told.

A vendor's would send the target to its controller in `command`, and enable its watchdog in
`connect`: whatever happens to this process, the arm must then stop by itself.
"""

from __future__ import annotations

import time

import numpy as np

from drivers.arm.base import JointLimits, Vector, check_free
from drivers.base import DriverError
from robot_rl.safety import ArmState, Compliance, rotations


class Gantry:
    """A plain class without any ROS; see `drivers.arm.base.Arm` for what each member means.

    Args:
        speed: Of the tool [m/s].
    """

    compliance: Compliance = "impedance"  # as soft as it is imaginary
    joint_names = ("x", "y", "z")  # in m, for want of an angle
    joint_limits: JointLimits = ((), ())

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._at = self._target = np.array([0.45, 0.0, 0.25])  # m
        self._velocity = np.zeros(3)
        self._moved: float | None = None  # when, on the steady clock [s]
        self._stopped = False
        self.fault: str | None = None

    def examine(self) -> str:
        """What `robot-rl doctor` says of it; nothing moves."""
        return f"a gantry that goes {self._speed:g} m/s"

    def connect(self) -> None:
        """Reach the device, and hold where it is."""
        self._moved = time.monotonic()
        self.hold()

    def read(self) -> ArmState:
        """Where the tool is by now: it went towards the target meanwhile."""
        if self._moved is None:
            raise DriverError("the gantry is not connected", hint="call connect first")
        now = time.monotonic()
        seconds, self._moved = now - self._moved, now
        way = self._target - self._at
        share = min(1.0, self._speed * seconds / max(float(np.linalg.norm(way)), 1e-9))
        self._velocity = share * way / max(seconds, 1e-9)
        self._at = self._at + share * way
        return ArmState(
            stamp_ns=time.time_ns(),
            joint_positions=self._at,
            joint_velocities=self._velocity,
            tcp_pose=np.concatenate([self._at, rotations.DOWNWARD]),
            tcp_velocity=np.concatenate([self._velocity, np.zeros(3)]),
            tcp_wrench=np.full(6, np.nan),  # it measures no force
        )

    def command(self, target_pose: Vector) -> None:
        """Set where the tool is to be; it does not turn."""
        check_free("gantry", self.fault, self._stopped)
        self._target = np.array(target_pose[:3])

    def hold(self) -> None:
        """Stay."""
        self._target = self._at

    def stop(self) -> None:
        """Stay, and refuse motion until `clear_errors`."""
        self._stopped = True
        self.hold()

    def clear_errors(self) -> None:
        """Allow motion again, after a person has looked."""
        self._stopped, self.fault = False, None

    def close(self) -> None:
        """Hold, and let go of the device."""
        self.hold()
        self._moved = None
