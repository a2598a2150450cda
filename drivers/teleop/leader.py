"""Leader arms: an operator moves one by hand, and the robot's joints go where its joints are.

For a robot that takes joint targets. The robot follows only a leader that was first brought near
it, so that it does not set out on a way that nobody showed it, and at most by an action's step:
nothing jumps when a person takes over. A leader that is far away, as one that fell, is let go of.
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

# The leader's gripper must move by this share of its way before it commands the robot's.
_GRIP_MOVED = 0.02


@dataclass
class LeaderArm(ABC):
    """A leader; a subclass says how it is read."""

    joint_names: Sequence[str]  # the leader's joints, in the order of the robot's
    _: KW_ONLY
    # For joints (n,) that turn or count otherwise than the robot's: the robot's position
    # is sign x leader + offset [rad]; empty: the same.
    signs: Sequence[float] = ()
    offsets: Sequence[float] = ()
    engage_within: float = (
        0.2  # largest distance of a joint at which the robot starts to follow [rad]
    )
    let_go_beyond: float = 0.6  # distance of the leader at which the robot stops following [rad]
    moved_by: float = 0.02  # a joint that has moved by this was moved by a hand [rad]
    rest_s: float = 0.5  # time without such a motion after which it rests [s]
    timeout_s: float = 0.25  # a measurement older than this is a lost device [s]
    # Events of its buttons; a leader has no buttons.
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
        """Open the leader and wait until it is measured; else it is a `RobotRLError`."""

    @abstractmethod
    def positions(self) -> tuple[Vector, float | None]:
        """The newest joint positions (n,) [rad], and how far its gripper is closed, 0 to 1.

        It never waits, and raises `RobotRLError` where the newest are too old.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the leader; may be called again."""

    def let_go(self) -> None:
        """The robot follows no more, until the leader is near it and moved."""
        self._follows = False
        self.hint = ""  # the operator's next step before the robot follows; empty once it does
        self._at: Vector | None = None  # where it was moved to last
        self._moved_at = -np.inf  # when, on the steady clock [s]
        self._grip: float | None = None  # newest command of its gripper

    def read(self, target: Vector | None = None, steps: Vector | None = None) -> TeleopState:
        """The operator's input now; never waits.

        Args:
            target: The robot's joint targets (n,) [rad]; None: only look at the leader.
            steps: What an action of 1 changes them by (n,) [rad].

        Raises:
            RobotRLError: The leader is lost, or gives what is no joint position.
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
        command = None  # no command before the leader's gripper moves
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
    """A leader whose joints are on a topic, as those of GELLO: sensor_msgs/JointState, stamped."""

    _: KW_ONLY
    topic: str = "leader/joint_states"
    namespace: str = ""  # below which it is, unless it begins with a slash
    gripper_joint: str = ""  # name of its gripper among the joints; empty: it has none
    gripper_open: float = 0.0  # position when it is open
    gripper_closed: float = 1.0  # position when it is closed
    first_s: float = 5.0  # for the first message [s]
    _sensor: Sensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fingers = Fingers(self.gripper_joint, self.gripper_open, self.gripper_closed)

    def connect(self) -> None:
        """Subscribe, and wait for the first message, or raise `RobotInterrupted`."""
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
        """Positions of the newest message."""
        self.check_connected("the leader arm")
        assert self._sensor is not None  # since it listens
        values = self._sensor.value(self._sensor.newest())
        count = len(self.joint_names)
        return values[:count], self._fingers.share(values[count]) if self.gripper_joint else None


@dataclass
class LeRobotLeader(LeaderArm):
    """A leader of the LeRobot library, such as an SO-101's; a thread of its own reads it."""

    _: KW_ONLY
    type: str  # LeRobot's name of the teleoperator, such as so101_leader
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its LeRobot configuration
    fingers: Fingers | None = field(default_factory=Fingers)  # its gripper
    units: str | None = None  # of its joints, degrees or radians; None: as LeRobot reports
    rate_hz: float = 50.0  # at which it is read
    _newest: tuple[Vector, float | None, float] | None = field(default=None, init=False)
    _problem: Exception | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require("lerobot", EXTRA)

    def connect(self) -> None:
        """Connect it, and read it from now on; raises as `connected_device`."""
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
        """Positions of the thread's newest read."""
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
        """End the thread, which releases the leader."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join()

    def _run(self, device: Any, positions: Positions, ending: threading.Event) -> None:
        while not ending.wait(1.0 / self.rate_hz):
            try:
                self._newest = (*positions.taken(device.get_action()), time.monotonic())
            except Exception as problem:  # each device raises errors of its own; it may come back
                self._problem = problem
        release(device)
