"""The simulated arm: a Panda in a task's MuJoCo world, in real time."""

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

# Damping over stiffness of a simulated joint; gives little overshoot and a fast response [s].
_DAMPING_SECONDS = 0.08


@dataclass(eq=False)
class SimArm(LiveWorld):
    """A simulated Panda under Cartesian impedance control, in real time.

    Physics runs in a separate thread. As on a real Panda, a contact force above `reflex_force`
    stops the arm until `clear_errors`. The force is averaged over 0.1 s, because a real arm's joint
    torque sensors do not detect the first millisecond of an impact either.
    """

    compliance: ClassVar[Compliance] = "impedance"

    reflex_force: float = 150.0  # measured contact force of the collision reflex [N]
    stale_after_s: float = 0.5  # older measurements mean that the machine is overloaded [s]

    def __post_init__(self) -> None:
        super().__post_init__()
        arm = self._world.kinematics
        self.joint_limits: JointLimits = (tuple(arm.low.tolist()), tuple(arm.high.tolist()))
        self.posture: Vector | None = None
        self._stopped = False
        self.fault: str | None = None
        self.reset(self.seed)

    def connect(self) -> None:
        """Set the posture and start the physics thread."""
        with self._lock:
            self._lean()
        super().connect()

    def read(self) -> ArmState:
        """Return the latest measurement; raises as `Arm.read`, or if the simulation failed."""
        self.check_running()
        age = time.monotonic() - self._measured_at
        if age > self.stale_after_s:
            raise Stale(
                "the simulated arm's state", age, self.stale_after_s, "the machine is too busy"
            )
        return self._state

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,) for the next physics step; raises as `Arm.command`."""
        self.check_running()
        with self._lock:
            check_free("simulated arm", self.fault, self._stopped)
            self._world.set_target(target_pose)

    def forward_kinematics(self, joints: Vector) -> Vector:
        """Return the pose (7,) of the TCP (here the flange) at joint positions (7,) [rad]."""
        return self._world.kinematics.pose(joints)

    def hold(self) -> None:
        """Set the target to the measured pose."""
        with self._lock:
            self._stay()

    def stop(self) -> None:
        """Brake, and refuse motion until `clear_errors`."""
        with self._lock:
            self._stopped = True
            self._brake()

    def clear_errors(self) -> None:
        """Allow motion again; the arm holds its position."""
        with self._lock:
            self._wrenches.clear()
            self.fault, self._stopped = None, False
            self._world.set_braking(False)
            self._stay()

    def reset(self, seed: int) -> Vector:
        """Start the episode of a seed, as `SimRobot` does; returns the arm's pose (7,).

        Clears a fault, because the scene is new.
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
    """The same arm with joint targets: each joint has a spring and a damper."""

    # Spring stiffness (n,) [Nm/rad], as of a Panda under its own joint impedance.
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
        """Set the joint targets (n,) [rad]; raises as `Arm.command`."""
        self.check_running()
        with self._lock:
            check_free("simulated arm", self.fault, self._stopped)
            self._world.set_posture(joints)

    def _stay(self) -> None:
        self._world.set_posture(self._world.joint_positions())

    def _brake(self) -> None:
        self._stay()

    def _lean(self) -> None:
        """Do nothing: the target already is the posture."""
