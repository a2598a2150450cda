"""Leader arms: an operator moves one by hand, and the robot's joints follow its joints.

For robots that take joint targets. The robot follows only after the leader was brought near it, so
that it never starts a path the operator did not show. It moves at most one action's step at a time:
nothing jumps when a person takes over. If the leader is too far away, for example after a fall, the
robot stops following.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.base import DriverError, Stale, TopicDriver, check_ranges
from drivers.gripper.base import Fingers
from drivers.lerobot_devices import EXTRA, Positions, connected_device, release
from drivers.teleop.base import TeleopState, Vector
from robot_rl.errors import require

if TYPE_CHECKING:
    from robot_rl.ros.sensors import Sensor

# The leader's gripper must move by this fraction of its stroke before it commands the robot's.
_GRIP_MOVED = 0.02


@dataclass
class LeaderArm(ABC):
    """A leader arm; subclasses read its joints."""

    joint_names: Sequence[str]  # leader joint names, in the robot's order
    _: KW_ONLY
    # Per joint (n,), if direction or zero differs from the robot's: robot position = sign × leader
    # + offset [rad]; empty for no difference.
    signs: Sequence[float] = ()
    offsets: Sequence[float] = ()
    engage_within: float = 0.2  # largest joint distance at which the robot starts to follow [rad]
    let_go_beyond: float = 0.6  # joint distance at which the robot stops following [rad]
    moved_by: float = 0.02  # joint motion that counts as moved by hand [rad]
    rest_s: float = 0.5  # time without hand motion after which the leader is at rest [s]
    timeout_s: float = 0.25  # with measurements older than this the device is lost [s]
    # Button events; a leader has no buttons.
    events: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.joint_names)
        check_ranges(
            "leader arm",
            self,
            engage_within=(0.01, 1.0),
            let_go_beyond=(self.engage_within, 3.2),
            moved_by=(0.001, self.engage_within),
            rest_s=(0.05, 10.0),
            timeout_s=(0.02, 5.0),
        )
        for name, values in (("signs", self.signs), ("offsets", self.offsets)):
            if len(values) not in (0, count) or not np.isfinite(values).all():
                problem = f"{name} of the leader arm"
                raise DriverError(problem, got=list(values), expected=f"{count} numbers")
        self._signs = np.array(self.signs or [1.0] * count)
        self._offsets = np.array(self.offsets or [0.0] * count)
        self.let_go()

    @abstractmethod
    def connect(self) -> None:
        """Open the leader and wait for a measurement, or raise `RobotRLError`."""

    @abstractmethod
    def positions(self) -> tuple[Vector, float | None]:
        """Return the latest joint positions (n,) [rad] and gripper position, 0 open to 1 closed.

        Never waits. Raises `RobotRLError` if the latest measurement is too old.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the leader; can be called repeatedly."""

    def let_go(self) -> None:
        """Stop following until the leader is near the robot and moved again."""
        self._follows = False
        self.hint = ""  # next step for the operator; empty once the robot follows
        self._at: Vector | None = None  # position of its last hand motion
        self._moved_at = -np.inf  # time of it, steady clock [s]
        self._grip: float | None = None  # latest gripper command

    def read(self, target: Vector | None = None, steps: Vector | None = None) -> TeleopState:
        """Return the operator's current input, without waiting.

        Args:
            target: The robot's joint targets (n,) [rad]; None only checks the leader.
            steps: Joint change (n,) of an action of 1 [rad].

        Raises:
            RobotRLError: The leader is lost, or reports invalid joint positions.
        """
        measured, grip = self.positions()
        joints = self._signs * measured + self._offsets
        if not np.isfinite(joints).all():
            problem = "the leader's joints are not finite"
            raise DriverError(problem, got=joints.tolist(), expected="finite numbers [rad]")
        now, still = time.time_ns(), np.zeros(len(joints))
        if target is None or steps is None:
            return TeleopState(now, still, None, False, frozenset())
        way = joints - target
        self._note(joints, way, grip)
        if not self._follows:
            return TeleopState(now, still, None, False, frozenset())
        motion = way / steps
        motion /= max(1.0, float(np.abs(motion).max()))
        command = None  # no command until the leader's gripper moves
        if grip is not None and (self._grip is None or abs(grip - self._grip) > _GRIP_MOVED):
            self._grip, command = grip, 2.0 * grip - 1.0
        return TeleopState(now, motion, command, True, frozenset())

    def _note(self, joints: Vector, way: Vector, grip: float | None) -> None:
        now, farthest = time.monotonic(), int(np.argmax(np.abs(way)))
        if self._at is None:
            self._at = joints
        elif np.abs(joints - self._at).max() > self.moved_by:
            self._at, self._moved_at = joints, now
        moved, distance = now - self._moved_at <= self.rest_s, abs(float(way[farthest]))
        if self._follows:
            rests = not moved and distance <= self.moved_by
            if rests or distance > self.let_go_beyond:
                self.let_go()
        elif moved and distance <= self.engage_within:
            self._follows, self._grip = True, grip
        self.hint = ""
        if not self._follows and distance > self.engage_within:
            far = f"{self.joint_names[farthest]} is {way[farthest]:+.2f} rad away"
            self.hint = f"bring the leader to the robot: {far}"


@dataclass
class LeaderTopic(TopicDriver, LeaderArm):
    """A leader on a topic, such as GELLO: stamped sensor_msgs/JointState."""

    _: KW_ONLY
    topic: str = "leader/joint_states"
    namespace: str = ""  # prefix of the topic, unless it starts with a slash
    gripper_joint: str = ""  # joint name of its gripper; empty if it has none
    gripper_open: float = 0.0  # position when open
    gripper_closed: float = 1.0  # position when closed
    first_s: float = 5.0  # timeout for the first message [s]
    _sensor: Sensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fingers = Fingers(self.gripper_joint, self.gripper_open, self.gripper_closed)

    def connect(self) -> None:
        """Subscribe and wait for the first message, or raise `RobotInterrupted`."""
        from sensor_msgs.msg import JointState

        from robot_rl.ros import conversions
        from robot_rl.ros.sensors import Sensor, wait_for_all

        names = [*self.joint_names, *([self.gripper_joint] if self.gripper_joint else [])]
        decode = partial(conversions.joint_positions, names=names)
        client = self.listen("leader_arm")
        self.let_go()
        self._sensor = Sensor(client, JointState, self.topic, self.timeout_s, decode)
        wait_for_all([self._sensor], 1, self.first_s)

    def positions(self) -> tuple[Vector, float | None]:
        """Return the positions in the latest message."""
        self.check_connected("the leader arm")
        assert self._sensor is not None  # set by `listen`
        values = self._sensor.value(self._sensor.newest())
        count = len(self.joint_names)
        return values[:count], self._fingers.share(values[count]) if self.gripper_joint else None


@dataclass
class LeRobotLeader(LeaderArm):
    """A LeRobot leader, such as an SO-101; a separate thread reads it."""

    _: KW_ONLY
    type: str  # LeRobot's teleoperator type, such as so101_leader
    # further fields of its LeRobot configuration
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingers: Fingers | None = field(default_factory=Fingers)  # its gripper
    units: str | None = None  # joint units, degrees or radians; None: as LeRobot reports
    rate_hz: float = 50.0  # read rate
    _newest: tuple[Vector, float | None, float] | None = field(default=None, init=False)
    _problem: Exception | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require("lerobot", EXTRA)

    def connect(self) -> None:
        """Connect, and start the reading thread; raises like `connected_device`."""
        self.close()
        self.let_go()
        motors = (self.joint_names, self.fingers, self.units)
        device, positions = connected_device("teleoperators", self.type, self.settings, *motors)
        try:
            self._newest = (*positions.taken(device.get_action()), time.monotonic())
        except BaseException:
            release(device)
            raise
        self._problem, self._ending = None, threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(device, positions, self._ending), name="leader", daemon=True
        )
        self._thread.start()

    def positions(self) -> tuple[Vector, float | None]:
        """Return the thread's latest reading."""
        if self._thread is None or self._newest is None:
            raise DriverError("the leader arm is not connected", hint="call connect first")
        joints, grip, seconds = self._newest
        if (age := time.monotonic() - seconds) > self.timeout_s:
            problem = self._problem
            raise Stale(
                f"the {self.type}", age, self.timeout_s, None if problem is None else str(problem)
            )
        return joints, grip

    def close(self) -> None:
        """Stop the thread, which releases the leader."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join()

    def _run(self, device: Any, positions: Positions, ending: threading.Event) -> None:
        while not ending.wait(1.0 / self.rate_hz):
            try:
                self._newest = (*positions.taken(device.get_action()), time.monotonic())
            except Exception as problem:  # each device raises its own errors; it may recover
                self._problem = problem
        release(device)
