"""A task's MuJoCo world in real time, and devices that mirror it.

The simulated arm and the twin's controller each own a world. They send its state as one vector to
the simulated grippers and cameras, so each process can be killed separately.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drivers.base import DriverError, DriverTimeout, TopicDriver
from drivers.gripper.base import check_position
from robot_rl.env.robot import GRIPPER_ACTION
from robot_rl.env.sim.robot import FINGER_STROKE
from robot_rl.env.sim.task import put_in_world
from robot_rl.env.sim.world import GripperMotor, SceneState
from robot_rl.env.task import Task
from robot_rl.processes.waiting import wait_until
from robot_rl.safety.rotations import Vector as Vector

if TYPE_CHECKING:
    from robot_rl.ros.ros_client import RosClient
    from robot_rl.ros.sensors import Sensor

# The wrench is averaged over this time, like a wrist sensor's filter [s].
_WRENCH_SECONDS = 0.1
# A world that lags further behind the clock skips time instead of catching up [s].
_LONGEST_LAG = 0.03
_REST_SPEED = 2e-3  # fingers slower than this are at rest [m/s]
_STALE_S = 0.5  # oldest usable world state [s]


class Scene(NamedTuple):
    """Snapshot of the world for the other devices of a simulated cell."""

    stamp_ns: int  # system time of the snapshot [ns]
    state: Vector  # see `SceneState`
    object_poses: Vector  # (k, 7) of the task's objects as observed, including noise
    success: bool  # whether the goal is reached according to the true state


@dataclass(eq=False)
class LiveWorld(ABC):
    """A task's world, with physics in its own thread between `connect` and `close`."""

    task: Task  # must be a simulated task
    model: str  # path of the arm's MJCF, beginning with `hardware/`
    home_joints: Sequence[float]  # start poses are solved near these (n,) [rad]
    gripper: GripperMotor  # moves the fingers if the task's action has a gripper column
    rate_hz: float = 100.0  # measurements per second; physics runs without pauses in between
    seed: int = 0  # seed of the first episode

    def __post_init__(self) -> None:
        self._task = put_in_world(self.task, self.model, self.gripper)
        self._world = self._task.world
        self._scene = SceneState(self._world)
        self.fingerprint = self._scene.fingerprint  # of the model, checked by mirrors
        self.joint_names = self._world.arm_joints
        self._period = 1.0 / self.rate_hz
        self._wrenches: deque[Vector] = deque(maxlen=max(1, round(_WRENCH_SECONDS * self.rate_hz)))
        self._lock = threading.RLock()  # guards the world and its measurements
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self.stamp_ns = time.time_ns()  # of the latest measurement

    @abstractmethod
    def reset(self, seed: int) -> Vector:
        """Start the episode of a seed; returns the start pose (7,) of the arm."""

    @abstractmethod
    def _advance(self) -> None:
        """Step the world by one period and measure; the caller holds the lock."""

    def connect(self) -> None:
        """Start the physics thread."""
        self._ending.clear()
        self._problem = None
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the physics thread."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def command_gripper(self, position: float) -> None:
        """Move the fingers to a position, 0 open to 1 closed; no-op if the task has no gripper."""
        check_position(position)
        if GRIPPER_ACTION in self._task.action_names:
            with self._lock:
                self._world.set_finger_target((1.0 - position) * FINGER_STROKE)

    def gripper_position(self) -> tuple[float, bool]:
        """Return the finger position, 0 open to 1 closed, and whether the fingers are at rest."""
        with self._lock:
            position = 1.0 - self._world.finger_opening() / FINGER_STROKE
            return position, abs(self._world.finger_speed()) < _REST_SPEED

    def scene(self) -> Scene:
        """Return a snapshot of the current world."""
        with self._lock:
            poses = np.array(self._task.observe()["state/object_poses"], np.float64)
            return Scene(self.stamp_ns, self._scene.capture(), poses, self._task.succeeded())

    def check_running(self) -> None:
        """Raise `DriverError` if the physics thread failed or was never started."""
        if self._problem is not None:
            raise DriverError("the simulation failed", got=repr(self._problem)) from self._problem
        if self._thread is None:
            raise DriverError("the simulated arm is not connected", hint="call connect first")

    def _begin(self, seed: int) -> Vector:
        """Sample the scene of a seed and move the arm to its start pose (7,), which is returned."""
        start_pose = self._task.reset(np.random.default_rng(seed))
        self._world.reset(start_pose, np.array(self.home_joints))
        self._world.set_finger_opening(self._task.finger_opening)
        self._wrenches.clear()
        return start_pose

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._ending.is_set():
                due = max(due + self._period, time.monotonic() - _LONGEST_LAG)
                self._ending.wait(max(0.0, due - time.monotonic()))
                with self._lock:
                    self._advance()
        except BaseException as problem:  # the next read raises it
            self._problem = problem

    def _brake(self) -> None:
        self._world.set_braking(True)
        self._world.set_target(self._world.tcp_pose())


@dataclass(eq=False, kw_only=True)
class SimDevice(TopicDriver):
    """A device with a mirror of the simulated arm node's world."""

    task: Task  # the simulated task, same as the arm's
    model: str  # path of the arm's MJCF, beginning with `hardware/`
    # Moves the fingers if the task's action has a gripper column; otherwise they stay still.
    gripper: GripperMotor
    namespace: str = ""  # of the arm's node

    def __post_init__(self) -> None:
        from robot_rl.ros.sim_topics import SceneMirror

        self._mirror = SceneMirror(self.task, self.model, self.gripper)
        self._world = self._mirror.task.world

    def listen(self, name: str = "sim_device") -> RosClient:
        """Start following the world, replacing any old subscription."""
        client = super().listen(name)
        self._mirror.listen(client, _STALE_S)
        return client

    def wait(self, timeout_s: float) -> int:
        """Load the next world state and return its stamp [ns].

        Raises `DriverTimeout`, or `MeasuredTwice` if several nodes publish the state.
        """
        sensor = self._sensor()
        seen = sensor.count
        if not wait_until(lambda: sensor.count != seen, timeout_s, every_s=0.001):
            raise sensor.conflict() or DriverTimeout(
                f"no new simulated state on {sensor.topic}",
                got=f"none within {timeout_s:g} s",
                hint="does the simulated arm's node run, in the same namespace?",
            )
        return self._mirror.update()

    def update(self) -> int:
        """Load the latest state, waiting only for the first one; otherwise like `wait`."""
        return self._mirror.update() if self._sensor().count else self.wait(_STALE_S)

    def _sensor(self) -> Sensor:
        self.check_connected("the simulated device")
        assert self._mirror.sensor is not None  # set by `listen`
        return self._mirror.sensor
