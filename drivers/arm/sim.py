"""The simulated arm: owns the MuJoCo world of a task and runs it in real time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import mujoco
import numpy as np

from drivers.arm.base import JointLimits, Vector, check_free
from drivers.errors import DriverError, Stale
from drivers.gripper.base import check_position
from robot_rl.env.robot import GRIPPER_ACTION
from robot_rl.env.sim.robot import FINGER_STROKE
from robot_rl.env.sim.task import put_in_world
from robot_rl.env.sim.world import (
    ARM_JOINTS,
    GripperMotor,
    SceneState,
    forward_kinematics,
)
from robot_rl.env.task import Task
from robot_rl.safety import ArmState, Compliance

# The wrench is the mean over this long, as a wrist sensor's filter gives it [s].
_WRENCH_SECONDS = 0.1
# A world that is this far behind the clock lets time pass instead of hurrying after it [s].
_LONGEST_LAG = 0.03


class SimScene(NamedTuple):
    """What the rest of a simulated cell needs of the world, at one instant."""

    stamp_ns: int  # system time of the instant [ns]
    state: Vector  # see `SceneState`
    # Poses (k, 7) of the task's objects as observed, with its noise; None for a task without.
    object_poses: Vector | None
    success: bool  # whether the task's goal is reached, by the true state


@dataclass(eq=False)
class SimArm:
    """A simulated Panda under Cartesian impedance control, in real time.

    Physics runs in a thread of its own. As on a real Panda, a contact force over `reflex_force`
    stops the arm until `clear_errors`. It is the measured one, a mean over 0.1 s: the joint torque
    sensors of a real arm do not see the first millisecond of an impact either.
    """

    compliance: ClassVar[Compliance] = "impedance"
    joint_names: ClassVar[tuple[str, ...]] = ARM_JOINTS

    task: Task  # a simulated one
    model: str  # path of the arm's MJCF, beginning with `hardware/`
    home_joints: Sequence[float]  # joint angles (7,) near which start poses are solved [rad]
    gripper: GripperMotor  # moves the fingers where the task's action has a gripper column
    rate_hz: float = 100.0  # measurements per second; between them physics runs without a pause
    reflex_force: float = 150.0  # measured contact force of the collision reflex [N]
    stale_after_s: float = 0.5  # age at which a measurement is too old: the machine is too busy
    seed: int = 0  # of the first episode

    def __post_init__(self) -> None:
        self._task = put_in_world(self.task, self.model, self.gripper)
        self._world = self._task.world
        self._scene = SceneState(self._world)
        self.fingerprint = self._scene.fingerprint  # of the model, for copies of the world
        chain = self._world.chain
        self.joint_limits: JointLimits = (tuple(chain.low.tolist()), tuple(chain.high.tolist()))
        self._kinematics = mujoco.MjData(self._world.model)  # of joints that are thought of
        self.posture: Vector | None = None
        self._period = 1.0 / self.rate_hz
        self._wrenches: deque[Vector] = deque(maxlen=max(1, round(_WRENCH_SECONDS * self.rate_hz)))
        self._lock = threading.Lock()  # the world, and what is said of it
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._stopped = False
        self.fault: str | None = None
        self.reset(self.seed)

    def connect(self) -> None:
        """Let time pass in the world."""
        with self._lock:
            self._lean()
        self._ending.clear()
        self._problem = None
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self._thread.start()

    def read(self) -> ArmState:
        """The newest measurement; raises as `Arm.read`, also where the simulation has failed."""
        self._check_running()
        age = time.monotonic() - self._measured_at
        if age > self.stale_after_s:
            raise Stale(
                "the simulated arm's state", age, self.stale_after_s, "the machine is too busy"
            )
        return self._state

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,), which physics takes next; raises as `Arm.command`."""
        self._check_running()
        with self._lock:
            check_free("simulated arm", self.fault, self._stopped)
            self._world.set_target(target_pose)

    def forward_kinematics(self, joints: Vector) -> Vector:
        """The pose (7,) of the TCP, which is the flange here, at joint positions (7,) [rad]."""
        return forward_kinematics(self._world.model, self._kinematics, self._world.chain, joints)

    def hold(self) -> None:
        """Let the target be the measured pose."""
        with self._lock:
            self._world.set_target(self._world.tcp_pose())

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
            self._world.set_target(self._world.tcp_pose())

    def close(self) -> None:
        """Let time stand still."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # -- of a simulation only ---------------------------------------------------------------------

    def reset(self, seed: int) -> Vector:
        """Begin the episode of a seed, as `SimRobot` does; returns the arm's pose (7,).

        A fault is over: it is another scene.
        """
        with self._lock:
            start_pose = self._task.reset(np.random.default_rng(seed))
            self._world.reset(start_pose, np.array(self.home_joints))
            self._lean()
            self._world.set_finger_opening(self._task.finger_opening)
            self._wrenches.clear()
            self.fault, self._stopped = None, False
            self._measure(np.zeros(6))
        return start_pose

    def command_gripper(self, position: float) -> None:
        """Move the fingers to a position, 0 open to 1 closed, where the task uses them."""
        check_position(position)
        if GRIPPER_ACTION in self._task.action_names:
            with self._lock:
                self._world.set_finger_target((1.0 - position) * FINGER_STROKE)

    def scene(self) -> SimScene:
        """The world as it is now."""
        with self._lock:
            observed = self._task.observe().get("state/object_poses")
            poses = None if observed is None else np.array(observed, np.float64)
            stamp, success = self._state.stamp_ns, self._task.succeeded()
            return SimScene(stamp, self._scene.capture(), poses, success)

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._ending.is_set():
                due = max(due + self._period, time.monotonic() - _LONGEST_LAG)
                self._ending.wait(max(0.0, due - time.monotonic()))
                with self._lock:
                    self._world.step(self._period)
                    self._measure(self._world.tcp_wrench())
        except BaseException as problem:  # raised to whoever reads next
            self._problem = problem

    def _measure(self, wrench: Vector) -> None:
        world = self._world
        self._wrenches.append(wrench)
        self._state = ArmState(
            time.time_ns(),
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

    def _lean(self) -> None:
        if self.posture is not None:
            self._world.set_posture(self.posture)

    def _brake(self) -> None:
        self._world.set_braking(True)
        self._world.set_target(self._world.tcp_pose())

    def _check_running(self) -> None:
        if self._problem is not None:
            raise DriverError("the simulation failed", got=repr(self._problem)) from self._problem
        if self._thread is None:
            raise DriverError("the simulated arm is not connected", hint="call connect first")
