"""Franka Research 3 and Emika Panda through `franky-control`'s Cartesian impedance tracker.

The impedance law runs at 1 kHz in franky's real-time thread. If this process is killed, the
controller misses its commands and stops the arm (reflex `communication_constraints_violation`). If
the node hangs, the arm goes to its last target, which is a bounded distance ahead. The law starts
with the first target; until then the control unit holds position.

Not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from drivers.arm.base import JointLimits, Spring, StateClock, Tool, Vector, check_free
from drivers.base import DriverError, DriverFault, DriverTimeout, check_ranges, check_reachable
from robot_rl.errors import require
from robot_rl.safety import ArmState, Compliance

_FCI_PORT = 1337
_STALE_SECONDS = 0.2
_OTHER_FIRMWARE = (
    "PyPI's franky-control speaks server version 10 alone, of an FR3 with system 5.9.0 or newer; a"
    " Panda has server version 5 or lower. Install the wheel for your arm's server version from the"
    " index that franky's README names (see hardware/arms.md)"
)
_NOT_READY = "unlock the joints, activate FCI in Desk, and run a real-time kernel"
# Joint limits from the data sheets of Panda and FR3, the narrower of the two [rad].
_LOW = (-2.7437, -1.7628, -2.8973, -3.0421, -2.8065, 0.5445, -2.8973)
_HIGH = (2.7437, 1.7628, 2.8973, -0.1518, 2.8065, 3.7525, 2.8973)
_JOINTS = tuple(f"fr3_joint{number}" for number in range(1, 8))


@dataclass(eq=False)
class FrankaArm:
    """A Franka arm reached through FCI; needs `franky-control`."""

    compliance: ClassVar[Compliance] = "impedance"
    joint_limits: ClassVar[JointLimits] = (_LOW, _HIGH)

    host: str  # name or IP address of the control unit
    spring: Spring = field(default_factory=Spring)  # stiffness; damping is critical, see franky
    max_error_translation: float = 0.03  # position error is clipped to this, per axis [m]
    max_error_rotation: float = 0.2  # the same for the rotation [rad]
    collision_torque: float = 40.0  # joint torque of the collision reflex [Nm]
    collision_force: float = 60.0  # the same for the force at the TCP [N]
    joint_names: Sequence[str] = _JOINTS
    posture_stiffness: float = 10.0  # pulls the elbow towards `posture` [Nm/rad]
    tool: Tool | None = None  # must match the controller's settings; None: any tool
    timeout_s: float = 3.0  # for connecting [s]

    def __post_init__(self) -> None:
        check_ranges(
            "Franka arm",
            self,
            max_error_translation=(0.001, 0.1),
            max_error_rotation=(0.01, 0.6),
            collision_torque=(1.0, 100.0),
            collision_force=(1.0, 100.0),
            posture_stiffness=(0.1, 50.0),
        )
        if len(self.joint_names) != len(_LOW):
            raise DriverError(
                "a Franka arm has seven joints", got=list(self.joint_names), expected="7 names"
            )
        self._franky = require("franky", "franka")
        self._robot: Any = None
        self._tracker: Any = None
        self._model: Any = None
        self._clock = StateClock()
        self.posture: Vector | None = None  # (7,) [rad]
        self._stopped = False
        self.fault: str | None = None

    def examine(self) -> str:
        """Report whether FCI listens, without touching the arm; `DriverError` if it does not."""
        check_reachable("Franka control unit", self.host, _FCI_PORT, self.timeout_s)
        library = f"franky-control {version('franky-control')}"
        fits = "PyPI's 2.0 fits an FR3 with system 5.9.0 or newer, see hardware/arms.md"
        return f"FCI at {self.host}, {library} ({fits})"

    def connect(self) -> None:
        """Connect; the control unit holds position until the first target.

        An earlier reflex is not cleared: it remains the `fault` until a person clears it. Raises as
        `Arm.connect`.
        """
        check_reachable("Franka control unit", self.host, _FCI_PORT, self.timeout_s)
        try:
            self._robot = self._franky.Robot(self.host)
            self._model = self._robot.model  # sent by the control unit once, then evaluated locally
            if self.tool is not None:
                state = self._robot.state
                self.tool.check(_array(state.F_T_EE), state.m_total)
            self.fault = self.fault or self._reported_fault()
        except (DriverError, self._franky.Exception) as error:
            self.close()
            if isinstance(error, DriverError):
                raise
            other = isinstance(error, self._franky.IncompatibleVersionException)
            raise DriverError(
                f"the Franka arm at {self.host} cannot be controlled",
                got=error,
                hint=_OTHER_FIRMWARE if other else _NOT_READY,
            ) from error

    def read(self) -> ArmState:
        """Return the latest measurement, 1 kHz while the controller runs; raises as `Arm.read`."""
        if self._robot is None:
            raise DriverTimeout(
                f"the Franka arm at {self.host} is not connected", hint="configure its node first"
            )
        try:
            state = self._robot.state
            self.fault = self.fault or self._reported_fault()
        except self._franky.Exception as error:
            problem = f"the Franka arm at {self.host} does not answer"
            raise DriverTimeout(problem, got=error) from error
        self._clock.take(state.time.to_sec())
        self._clock.check("the Franka arm's state", _STALE_SECONDS)
        pose, twist = state.O_T_EE, state.O_dP_EE_est
        velocity = np.full(6, np.nan)
        if twist is not None:
            velocity = np.concatenate([twist.linear, twist.angular]).astype(np.float64)
        return ArmState(
            self._clock.stamp_ns,
            np.array(state.q, np.float64).ravel(),
            np.array(state.dq, np.float64).ravel(),
            _array(pose),
            velocity,
            # Libfranka reports the wrench that the arm exerts on the environment.
            -np.array(state.O_F_ext_hat_K, np.float64).ravel(),
        )

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,); the first one starts control. Raises as `Arm.command`."""
        check_free("Franka arm", self.fault, self._stopped or self._robot is None)
        if self._tracker is None:
            try:
                self._begin()
            except self._franky.Exception as error:
                problem = "the Franka arm's impedance control does not begin"
                raise DriverFault(problem, got=error, hint=_NOT_READY) from error
        self._tracker.set_target(self._franky.Affine(target_pose[:3], target_pose[3:]))

    def forward_kinematics(self, joints: Vector) -> Vector:
        """Return the flange pose (7,), base frame, at joint positions (7,) [rad]."""
        flange, nothing = self._franky.Frame.Flange, self._franky.Affine()
        return _array(self._model.pose(flange, joints, nothing, nothing))

    def hold(self) -> None:
        """Set the target to the measured pose."""
        if self._tracker is not None:
            pose = self.read().tcp_pose
            self._tracker.set_target(self._franky.Affine(pose[:3], pose[3:]))

    def stop(self) -> None:
        """Stop the motion with franky's stop; the brakes stay open."""
        self._stopped = True
        self._end()

    def clear_errors(self) -> None:
        """Recover from a reflex without moving the arm; `DriverFault` if that fails."""
        if self._robot is None:
            raise DriverFault("the Franka arm is not connected", hint="wait until it is")
        try:
            self._end()
            if not self._robot.recover_from_errors():
                raise DriverFault(
                    "the Franka arm does not recover",
                    got=self._reported_fault(),
                    hint="release the user stop, and look at Desk",
                )
            self.fault, self._stopped = None, False
        except self._franky.Exception as error:
            raise DriverFault("the Franka arm does not recover", got=error) from error

    def close(self) -> None:
        """Stop the motion and disconnect."""
        self._end()
        self._robot = None

    def _begin(self) -> None:
        self._robot.set_collision_behavior(self.collision_torque, self.collision_force)
        posture = None
        if self.posture is not None:
            posture = self._franky.PostureTask(self.posture, self.posture_stiffness)
        self._tracker = self._franky.CartesianImpedanceTracker(
            self._robot,
            translational_stiffness=self.spring.stiffness_translation,
            rotational_stiffness=self.spring.stiffness_rotation,
            translational_error_clip=np.full(3, self.max_error_translation),
            rotational_error_clip=np.full(3, self.max_error_rotation),
            posture_task=posture,
        )

    def _end(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            try:
                tracker.stop()
            except self._franky.Exception as error:  # it ended by itself, or the cable is out
                self.fault = self.fault or str(error)

    def _reported_fault(self) -> str | None:
        modes = self._franky.RobotMode
        mode = self._robot.state.robot_mode
        if mode in (modes.Reflex, modes.UserStopped, modes.Guiding):
            return f"{mode.name}: {self._robot.state.current_errors}"
        if self._tracker is not None and not self._robot.is_in_control:
            return f"the controller has ended: {self._robot.state.last_motion_errors}"
        return None


def _array(pose: Any) -> Vector:
    """Convert a franky transformation to a pose (7,)."""
    return np.concatenate([pose.translation, pose.quaternion]).astype(np.float64)
