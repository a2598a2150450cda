"""`RosRobot`: an arm, its gripper and its cameras on ROS 2 topics.

Names and units of the topics are those of docs/topics.md. What is measured arrives in a
thread of its own; the control loop takes what is there, and never waits.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from std_msgs.msg import Float64

from robot_rl.data.schema import Observation
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import GRIPPER_ACTION, Action, RobotInterrupted
from robot_rl.env.sim.cameras import CameraOptions
from robot_rl.env.sim.task import SimTask
from robot_rl.env.task import TrackedTask
from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import qos
from robot_rl.ros.conversions import JointTargets, PoseTargets
from robot_rl.ros.environment import clean_shared_memory, prepare_environment
from robot_rl.ros.faults import CommandConflict, GoalReachedBefore, MeasuredTwice
from robot_rl.ros.measurements import Measurements, SensorLimits
from robot_rl.ros.operator_services import ArmMode, OperatorServices, WorkReport
from robot_rl.ros.ros_client import UNNAMED, RosClient
from robot_rl.ros.sensors import Sensor, check_all
from robot_rl.ros.sim_topics import SceneMirror
from robot_rl.safety import ActionLimiter, CartesianLimits, JointActionLimits
from robot_rl.safety.rotations import Vector

# The arm's node gives up a reset after half a second without a message of its client [s].
_SHOWN_SECONDS = 0.05
# Longest wait of a holding robot for the names of other publishers [s].
_NAMED_SECONDS = 0.4


class EpisodeStart(Protocol):
    """Brings an arm to where an episode starts."""

    @property
    def opens_grippers(self) -> bool:
        """As in `robot_rl.env.robot.Robot`."""

    def perform(self, robot: RosRobot, start_pose: Vector, rng: np.random.Generator) -> None:
        """Bring it to a pose (7,), base frame, or raise `RobotInterrupted`."""


@dataclasses.dataclass(eq=False)
class RosRobot:
    """One arm on topics, for a task `robot_rl.env.task.TrackedTask`.

    `apply` integrates actions into a target as every robot of robot_rl does and publishes it; what
    the arm's node then makes of it is that node's business, and is in `clamped` by the next
    observation. `observe` assembles the measurements that were taken together. Where one is late,
    or cannot be used, the robot holds, and both raise `RobotInterrupted` until the next reset. When
    neither is called, the arm's node holds by itself.
    """

    task: TrackedTask  # may need poses of objects and the success signal
    clock: str  # must be `realtime`: a robot does not wait for a simulated one
    discovery_range: str | None  # see `robot_rl.ros.environment`
    control_rate_hz: float  # at which commands are published
    namespace: str  # of the topics
    joint_names: Sequence[str]  # this, and what is measured: see `Measurements`
    pose: bool
    twist: bool
    wrench: bool  # without it `limits.max_force` does not apply
    gripper: bool
    cameras: Sequence[CameraOptions]
    track_objects: bool  # whether poses of objects are observed
    limits: CartesianLimits  # for targets that are poses
    joints: JointActionLimits | None  # where its targets are joint positions: within these
    sensors: SensorLimits  # how fresh measurements must be
    episodes: EpisodeStart  # brings the arm to where an episode starts
    mirror: SceneMirror | None  # the world, for scripted experts; None for a real robot
    attended: bool  # whether it waits for a `start`; a robot without a mirror always does
    discovery_s: float = 2.0  # longest wait for ROS to discover what runs already [s]

    def __post_init__(self) -> None:
        self._check()
        prepare_environment(self.discovery_range)
        clean_shared_memory()
        self.client = RosClient("robot_rl", self.namespace)
        try:
            self._take_part()
        except BaseException:
            self.client.close()
            raise

    def _check(self) -> None:
        task: Any = self.task
        if self.clock != "realtime":
            raise RobotRLError(
                "a robot on ROS topics runs in real time",
                got=f"clock={self.clock}",
                expected="clock=realtime",
                hint="leave clock=... out; robot=ros and robot=ros_sim set it",
            )
        if not isinstance(task, TrackedTask):
            raise RobotRLError(
                f"a robot on ROS topics cannot do the task {task.name!r}",
                got=type(task).__name__,
                expected="robot_rl.env.task.TrackedTask",
                hint="give its configuration a section `tracked`, as configs/task/reach.yaml has",
            )
        if task.gripper_closed and not self.gripper:
            problem = f"the task {task.name!r} closes a gripper"
            raise RobotRLError(problem, got="robot.gripper=false")
        if self.joints is None:
            task.check_start(self.limits)

    def _take_part(self) -> None:
        client, node, task = self.client, self.client.node, self.task
        max_force = self.limits.max_force if self.wrench else None
        limits = self.joints or dataclasses.replace(self.limits, max_force=max_force)
        self.limiter = ActionLimiter(limits)
        joints, objects = self.joint_names, task.objects if self.track_objects else 0
        measured = (self.pose, self.twist, self.wrench, self.gripper, self.cameras, objects)
        self.measurements = Measurements(
            client, self.sensors, limits, joints, *measured, task.reports_success
        )
        self.targets = targets = PoseTargets() if self.joints is None else JointTargets(joints)
        self.action_names = targets.action_names(task.action_names)
        self.opens_grippers = bool(self.episodes.opens_grippers)
        self._columns = [targets.columns.index(n) for n in self.action_names if n != GRIPPER_ACTION]
        self._gripper_column = GRIPPER_ACTION in self.action_names
        self._problem: RobotInterrupted | None = None  # why nothing more is published
        command = qos.command_publisher(self.control_rate_hz)
        self._target = node.create_publisher(targets.kind, targets.topic, command)
        # Nobody else may command it: so this publisher is there only where it is used.
        self._grip = None
        if self._gripper_column or task.gripper_closed:
            self._grip = node.create_publisher(Float64, "gripper/command", command)
        self.all_sensors = self.measurements.all_sensors
        self.observation_fields = self.measurements.fields
        applied = targets.applied_topic
        self._applied = Sensor(client, targets.kind, applied, math.inf, targets.target)
        self._sent, self._sent_ns = self.limiter.target, -1  # the newest command and its stamp
        self.clamped = False
        self._mode = ArmMode(client)
        self._stops = 0  # stops of the arm when the reset started
        self._shown = 0.0  # when the arm's node last heard of this client [s]
        self._operator: OperatorServices | None = None
        self._attend: Callable[[], None] = lambda: None
        self.work_report = WorkReport(client)

    # -- Robot ------------------------------------------------------------------------------------

    def reset(self, start_pose: Vector, rng: np.random.Generator) -> None:
        """Bring the arm to where the episode starts, and wait for fresh measurements.

        Raises `RobotInterrupted` where something is missing, the operator has halted the robot, or
        the arm is stopped or was meanwhile: it may be tried again, from the start. Raises
        `PersonNeeded` where the arm does not arrive, or the goal is reached already.
        """
        self._prepare()
        self.episodes.perform(self, start_pose, rng)
        if self.opens_grippers:
            self.command_gripper(0.0)  # for a node that did not know this process before
        self.wait_until_fresh()
        signal = self.measurements.success
        if signal is not None and signal.value(signal.newest()):  # every episode would succeed
            raise GoalReachedBefore(
                "the goal is reached before the episode begins",
                got=f"{signal.topic}: true",
                hint="put the scene back and let it go on: say start, or run the command again;"
                " reset=human asks for it before every episode",
            )
        self._begin()

    def resume(self, rng: np.random.Generator) -> None:
        """Hold where the arm is, which may move again; raises as `reset`."""
        self._prepare()
        self.hold()
        self._begin()

    def apply(self, action: Action) -> Action:
        """Publish the target that an action (d,) in [-1, 1] leads to, and the gripper's.

        Raises `RobotInterrupted` where the robot holds; nothing was published.
        """
        motion = np.zeros(len(self.targets.columns))
        motion[self._columns] = action[: len(self._columns)]
        with self._holding_at_trouble():
            self._check_sources()
            place, force = self.measurements.place(), self.measurements.contact_force()
            target, self.clamped = self.limiter.advance(motion, place, force)
            if (problem := self.limiter.straying.problem(place)) is not None:
                hint = "check what pushes it, and check its tool centre point"
                raise RobotInterrupted(problem, hint=hint)
        self._sent, self._sent_ns = target, self._send(target)
        self.command_gripper(0.5 * (1.0 + float(action[-1])))
        return action

    def advance(self, period: float) -> None:
        """Time passes by itself."""

    def observe(self) -> Observation:
        """The measurements that were taken together; without them the robot holds, as `apply`."""
        self.client.check()
        with self._holding_at_trouble():
            self._check_alone()
            self.clamped = self.clamped or self._was_limited()
            return self._assembled()

    def hold(self) -> None:
        """Let the target be where the arm is; without a fresh measurement nothing is sent."""
        try:
            place = self.measurements.place()
        except RobotInterrupted:
            return  # where the arm is, is not known: its node holds by itself, without commands
        self.limiter.reset(place)
        self._send(place)

    def check_free(self) -> None:
        """Raise `ArmStopped` where the arm's node says that the arm is stopped."""
        self._mode.check()

    def missing(self) -> str:
        """The topics and services that are missing, in words."""
        absent = self.measurements.missing()
        if self._operator is not None and not self._operator.stop.client.service_is_ready():
            absent.append(f"nobody serves {self.client.topic('stop')}")
        return "; ".join(absent)

    def close(self) -> None:
        """Leave ROS."""
        self.client.close()

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """Let ROS clients say what an operator can say; see `robot_rl.ros.operator_services`."""
        self._operator, self._attend = OperatorServices(self.client, inbox, self._mode), attend
        wait_until(lambda: not self.missing(), self.discovery_s)

    # -- for tasks, and for what brings the arm to its start --------------------------------------

    @property
    def simulated(self) -> bool:
        """Whether the world is simulated, of which there then is a mirror, and nobody attends."""
        return self.mirror is not None and not self.attended

    @property
    def simulated_task(self) -> SimTask | None:
        """The task with its true state, kept as new as observations are; None on a real robot."""
        if self.mirror is None:
            return None
        if self.mirror.sensor is None:
            self.mirror.listen(self.client, self.sensors.tracker_s)
        return self.mirror.task

    def tcp_pose(self) -> Vector:
        """The newest measured pose (7,) of the TCP, base frame; `RobotInterrupted` without one."""
        return self.measurements.tcp_pose()

    def attend(self) -> None:
        """Called again and again while the arm is moved to where an episode starts.

        `RobotInterrupted`: the operator has halted the robot, or the arm stopped since the reset
        began.
        """
        self.client.check()
        self._attend()
        self._mode.check(self._stops)

    def accompany(self) -> None:
        """Show the arm's node, during a motion of its own, that its client is alive."""
        self.attend()
        self._check_sources()
        now = time.monotonic()
        if now - self._shown > _SHOWN_SECONDS:
            self._shown = now
            self._send(self.measurements.place())

    def move_target(self, target: Vector) -> None:
        """Publish a target outside of episodes.

        `RobotInterrupted` as `attend`, and where a measurement is too old.
        """
        self.attend()
        self._check_sources()
        self._send(target)

    def command_gripper(self, position: float) -> None:
        """Publish where the gripper is to be, 0 open to 1 closed, if the task moves one."""
        if self._grip is not None and self._gripper_column:
            self._grip.publish(Float64(data=position))

    def wait_until_fresh(self) -> None:
        """Wait until every topic has given new measurements: not inside the control loop."""
        self.measurements.wait_until_fresh()
        self._assembled()

    # -- how --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Forget what ended the last episode; nothing moves before all is there that must be."""
        self._problem = None
        self.client.check()
        self._stops = self._mode.stops
        self.check_free()
        self._check_alone(replacing=True)
        self.wait_until_fresh()
        if self._operator is not None:  # a stop that is posted must reach the arm
            self.client.wait_for(self._operator.stop.client, self.sensors.start_timeout_s)
        if self._grip is not None and self.task.gripper_closed:
            self._grip.publish(Float64(data=1.0))

    def _check_alone(self, **where: bool) -> None:
        """Raise `CommandConflict` where somebody else commands; `RosClient.check_alone`."""
        self.client.check_alone(self.targets.topic, **where)
        if self._grip is not None:
            self.client.check_alone("gripper/command", **where)

    def _check_sources(self) -> None:
        """Check that nobody else commands, and that all measurements can be used."""
        self._check_alone()
        check_all(self.all_sensors)

    def _begin(self) -> None:
        """Let the limiter begin where the arm is, with young pictures."""
        self.measurements.wait_for_pictures()
        self.attend()
        self.limiter.reset(self.measurements.place())

    def _send(self, target: Vector) -> int:
        """Publish a target; returns its stamp [ns]."""
        stamp = time.time_ns()
        frame = self.measurements.base_frame()
        self._target.publish(self.targets.message(target, stamp, frame))
        return stamp

    def _was_limited(self) -> bool:
        """Whether the arm's node applied another target than was sent, as far as it has answered.

        It answers each accepted command, with its stamp and the target after the limits of
        workspace, tilt, step and lead. Its limit of speed is not in it, nor a later hold,
        which its `mode` says. A foreign node may not answer at all.
        """
        answer = self._applied.of_stamp(self._sent_ns)
        if answer is None:
            return False
        difference = self.limiter.limits.between(self._sent, self._applied.value(answer))
        return bool((np.abs(difference) > self.targets.tolerances).any())

    def _assembled(self) -> Observation:
        seen = self.measurements.observe(self.limiter.target)
        self.task.tracked = self.measurements.tracked
        if self.mirror is not None:
            self.mirror.update()
        return seen

    @contextmanager
    def _holding_at_trouble(self) -> Iterator[None]:
        """Hold where a measurement is missing, and publish nothing until the next reset."""
        if self._problem is not None:
            raise self._problem
        try:
            yield
        except RobotInterrupted as problem:
            self.hold()
            self._problem = self._named(problem)
            raise self._problem from None

    def _named(self, problem: RobotInterrupted) -> RobotInterrupted:
        """The same, with the names of all publishers, which may come a little later than they."""

        def asked() -> bool:
            nonlocal problem
            try:
                self._check_sources()
            except (CommandConflict, MeasuredTwice) as found:
                problem = found
            return UNNAMED not in str(problem)

        if UNNAMED in str(problem):
            wait_until(asked, _NAMED_SECONDS)
        return problem
