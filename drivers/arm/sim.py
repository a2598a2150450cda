"""The simulated arm: a Panda in the MuJoCo world of a task, in real time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drivers.arm.base import JointLimits, Vector, check_free
from drivers.base import DriverError, Stale
from drivers.live_world import LiveWorld
from robot_rl.safety import ArmState, Compliance

# Damping of a simulated joint over its stiffness: it swings little, and is at its target soon [s].
_DAMPING_SECONDS = 0.08


@dataclass(eq=False)
class SimArm(LiveWorld):
    """A simulated Panda under Cartesian impedance control, in real time.

    Physics runs in a thread of its own. As on a real Panda, a contact force over `reflex_force`
    stops the arm until `clear_errors`. It is the measured one, a mean over 0.1 s: the joint torque
    sensors of a real arm do not see the first millisecond of an impact either.
    """

    compliance: ClassVar[Compliance] = "impedance"

    reflex_force: float = 150.0  # measured contact force of the collision reflex [N]
    stale_after_s: float = 0.5  # age at which a measurement is too old: the machine is too busy

    def __post_init__(self) -> None:
        super().__post_init__()
        arm = self._world.kinematics
        self.joint_limits: JointLimits = (tuple(arm.low.tolist()), tuple(arm.high.tolist()))
        self.posture: Vector | None = None
        self._stopped = False
        self.fault: str | None = None
        self.reset(self.seed)

    def connect(self) -> None:
        """Let time pass in the world."""
        with self._lock:
            self._lean()
        super().connect()

    def read(self) -> ArmState:
        """The newest measurement; raises as `Arm.read`, also where the simulation has failed."""
        self.check_running()
        age = time.monotonic() - self._measured_at
        if age > self.stale_after_s:
            raise Stale(
                "the simulated arm's state", age, self.stale_after_s, "the machine is too busy"
            )
        return self._state

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,), which physics takes next; raises as `Arm.command`."""
        self.check_running()
        with self._lock:
            check_free("simulated arm", self.fault, self._stopped)
            self._world.set_target(target_pose)

    def forward_kinematics(self, joints: Vector) -> Vector:
        """The pose (7,) of the TCP, which is the flange here, at joint positions (7,) [rad]."""
        return self._world.kinematics.pose(joints)

    def hold(self) -> None:
        """Let the target be the measured pose."""
        with self._lock:
            self._stay()

    def stop(self) -> None:
        """Brake, and refuse motion until `clear_errors`."""
        with self._lock:
            self._stopped = True
            self._brake()

    def clear_errors(self) -> None:
        """Allow motion again; the arm holds where it is."""
        with self._lock:
            self._wrenches.clear()
            self.fault, self._stopped = None, False
            self._world.set_braking(False)
            self._stay()

    def reset(self, seed: int) -> Vector:
        """Begin the episode of a seed, as `SimRobot` does; returns the arm's pose (7,).

        A fault is over: it is another scene.
        """
        with self._lock:
            start_pose = self._begin(seed)
            self._lean()
            self.fault, self._stopped = None, False
            self._measure(np.zeros(6))
        return start_pose

    def _advance(self) -> None:
        self._world.step(self._period)
        self._measure(self._world.tcp_wrench())

    def _measure(self, wrench: Vector) -> None:
        world = self._world
        self._wrenches.append(wrench)
        self.stamp_ns = time.time_ns()
        self._state = ArmState(
            self.stamp_ns,
            world.joint_positions(),
            world.joint_velocities(),
            world.tcp_pose(),
            world.tcp_velocity(),
            np.mean(self._wrenches, axis=0),
        )
        self._measured_at = time.monotonic()
        force = math.hypot(*self._state.tcp_wrench[:3])
        if force > self.reflex_force and self.fault is None:
            self.fault = f"collision reflex at {force:.0f} N"
            self._brake()

    def _stay(self) -> None:
        self._world.set_target(self._world.tcp_pose())

    def _lean(self) -> None:
        if self.posture is not None:
            self._world.set_posture(self.posture)


@dataclass(eq=False)
class SimJointArm(SimArm):
    """The same arm, but it takes joint targets: each joint has a spring and a damper."""

    # Stiffness of the springs (n,) [Nm/rad]; as of a Panda under its own joint impedance.
    stiffness: Sequence[float] = (600.0, 600.0, 600.0, 400.0, 200.0, 100.0, 50.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.stiffness) != len(self.joint_names):
            raise DriverError(
                "stiffness of the simulated arm is for another number of joints",
                got=len(self.stiffness),
                expected=len(self.joint_names),
            )
        stiffness = np.array(self.stiffness)
        self._world.control_joints(stiffness, _DAMPING_SECONDS * stiffness)

    def command_joints(self, joints: Vector) -> None:
        """Set the joints' targets (n,) [rad]; raises as `Arm.command`."""
        self.check_running()
        with self._lock:
            check_free("simulated arm", self.fault, self._stopped)
            self._world.set_posture(joints)

    def _stay(self) -> None:
        self._world.set_posture(self._world.joint_positions())

    def _brake(self) -> None:
        self._stay()

    def _lean(self) -> None:
        """Its target is its posture."""
