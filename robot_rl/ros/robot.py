"""`RosRobot`: an arm, its gripper and its cameras on ROS 2 topics.

docs/topics.md lists topic names and units. Measurements arrive in a separate thread; the control
loop uses the latest ones and never waits.
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

# The arm's node aborts a reset after half a second without a message from its client [s].
_SHOWN_SECONDS = 0.05
# Longest time a holding robot waits for the names of other publishers [s].
_NAMED_SECONDS = 0.4


class EpisodeStart(Protocol):
    """Moves an arm to the start of an episode."""

    @property
    def opens_grippers(self) -> bool:
        """As in `robot_rl.env.robot.Robot`."""

    def perform(self, robot: RosRobot, start_pose: Vector, rng: np.random.Generator) -> None:
        """Move it to a pose (7,), base frame, or raise `RobotInterrupted`."""


@dataclasses.dataclass(eq=False)
class RosRobot:
    """One arm on topics, for a task of type `robot_rl.env.task.TrackedTask`.

    `apply` integrates actions into a target, like every robot in robot_rl, and publishes it. If the
    arm's node limits the target, `clamped` shows it by the next observation. `observe` assembles
    measurements taken at the same time. If one is late or unusable, the robot holds, and both
    methods raise `RobotInterrupted` until the next reset. If neither is called, the arm's node
    holds on its own.
    """

    task: TrackedTask  # may need object poses and the success signal
    clock: str  # must be `realtime`: a robot cannot wait for a simulated clock
    discovery_range: str | None  # see `robot_rl.ros.environment`
    control_rate_hz: float  # rate at which commands are published
    namespace: str  # prefix of the topics
    joint_names: Sequence[str]  # for this and the following fields see `Measurements`
    pose: bool
    twist: bool
    wrench: bool  # without it `limits.max_force` does not apply
    gripper: bool
    cameras: Sequence[CameraOptions]
    track_objects: bool  # whether object poses are observed
    limits: CartesianLimits  # for pose targets
    joints: JointActionLimits | None  # limits for joint targets; None for pose targets
    sensors: SensorLimits  # maximum ages of measurements
    episodes: EpisodeStart  # moves the arm to the start of an episode
    mirror: SceneMirror | None  # copy of the simulated world; None for a real robot
    attended: bool  # whether it waits for a `start`; a robot without a mirror always does
    discovery_s: float = 2.0  # longest wait for ROS discovery of running nodes [s]

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
        self._problem: RobotInterrupted | None = None  # why publishing is suspended
        command = qos.command_publisher(self.control_rate_hz)
        self._target = node.create_publisher(targets.kind, targets.topic, command)
        # Other publishers on this topic are a conflict, so create this one only if it is used.
        self._grip = None
        if self._gripper_column or task.gripper_closed:
            self._grip = node.create_publisher(Float64, "gripper/command", command)
        self.all_sensors = self.measurements.all_sensors
        self.observation_fields = self.measurements.fields
        applied = targets.applied_topic
        self._applied = Sensor(client, targets.kind, applied, math.inf, targets.target)
        self._sent, self._sent_ns = self.limiter.target, -1  # latest command and its stamp
        self.clamped = False
        self._mode = ArmMode(client)
        self._stops = 0  # count of the arm's stops when the reset started
        self._shown = 0.0  # last time the arm's node heard from this client [s]
        self._operator: OperatorServices | None = None
        self._attend: Callable[[], None] = lambda: None
        self.work_report = WorkReport(client)

    # -- Robot ------------------------------------------------------------------------------------

    def reset(self, start_pose: Vector, rng: np.random.Generator) -> None:
        """Move the arm to the episode's start and wait for fresh measurements.

        Raises `RobotInterrupted` if a topic or service is missing, the operator has halted the
        robot, or the arm is or was stopped; the caller may retry from the start. Raises
        `PersonNeeded` if the arm does not arrive, or the goal is already reached.
        """
        self._prepare()
        self.episodes.perform(self, start_pose, rng)
        if self.opens_grippers:
            self.command_gripper(0.0)  # its node may not have discovered this process earlier
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
        """Hold the arm's current position and allow motion again; raises as `reset`."""
        self._prepare()
        self.hold()
        self._begin()

    def apply(self, action: Action) -> Action:
        """Publish the arm and gripper targets of an action (d,) in [-1, 1].

        Raises `RobotInterrupted` if the robot holds; the action is then not published.
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
        """Do nothing: real time passes by itself."""

    def observe(self) -> Observation:
        """Return measurements taken together; without them, hold and raise as `apply`."""
        self.client.check()
        with self._holding_at_trouble():
            self._check_alone()
            self.clamped = self.clamped or self._was_limited()
            return self._assembled()

    def hold(self) -> None:
        """Set the target to the arm's position; send nothing without a fresh measurement."""
        try:
            place = self.measurements.place()
        except RobotInterrupted:
            return  # the position is unknown; without commands the arm's node holds on its own
        self.limiter.reset(place)
        self._send(place)

    def check_free(self) -> None:
        """Raise `ArmStopped` if the arm's node reports that the arm is stopped."""
        self._mode.check()

    def missing(self) -> str:
        """Describe the missing topics and services."""
        absent = self.measurements.missing()
        if self._operator is not None and not self._operator.stop.client.service_is_ready():
            absent.append(f"nobody serves {self.client.topic('stop')}")
        return "; ".join(absent)

    def close(self) -> None:
        """Leave ROS."""
        self.client.close()

    def serve_operator(self, inbox: OperatorInbox, attend: Callable[[], None]) -> None:
        """Offer the operator's events as ROS services; see `robot_rl.ros.operator_services`."""
        self._operator, self._attend = OperatorServices(self.client, inbox, self._mode), attend
        wait_until(lambda: not self.missing(), self.discovery_s)

    # -- for tasks and episode starts -------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        """Whether the world is simulated (there is a mirror) and the robot is unattended."""
        return self.mirror is not None and not self.attended

    @property
    def simulated_task(self) -> SimTask | None:
        """The task with its true state, updated with each observation; None on a real robot."""
        if self.mirror is None:
            return None
        if self.mirror.sensor is None:
            self.mirror.listen(self.client, self.sensors.tracker_s)
        return self.mirror.task

    def tcp_pose(self) -> Vector:
        """Return the latest TCP pose (7,), base frame; `RobotInterrupted` without one."""
        return self.measurements.tcp_pose()

    def attend(self) -> None:
        """Check for a halt; called repeatedly while the arm moves to the episode's start.

        Raises `RobotInterrupted` if the operator halted the robot, or the arm was stopped since the
        reset started.
        """
        self.client.check()
        self._attend()
        self._mode.check(self._stops)

    def accompany(self) -> None:
        """Show the arm's node that its client is alive while the node runs its own motion."""
        self.attend()
        self._check_sources()
        now = time.monotonic()
        if now - self._shown > _SHOWN_SECONDS:
            self._shown = now
            self._send(self.measurements.place())

    def move_target(self, target: Vector) -> None:
        """Publish a target outside an episode.

        Raises `RobotInterrupted` as `attend` does, or if a measurement is too old.
        """
        self.attend()
        self._check_sources()
        self._send(target)

    def command_gripper(self, position: float) -> None:
        """Publish the gripper target, 0 open to 1 closed, if the task moves the gripper."""
        if self._grip is not None and self._gripper_column:
            self._grip.publish(Float64(data=position))

    def wait_until_fresh(self) -> None:
        """Wait for new measurements on every topic. Not for use in the control loop."""
        self.measurements.wait_until_fresh()
        self._assembled()

    # -- implementation ---------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Clear the last problem; check everything that is needed before the robot moves."""
        self._problem = None
        self.client.check()
        self._stops = self._mode.stops
        self.check_free()
        self._check_alone(replacing=True)
        self.wait_until_fresh()
        if self._operator is not None:  # the operator's stop must be able to reach the arm
            self.client.wait_for(self._operator.stop.client, self.sensors.start_timeout_s)
        if self._grip is not None and self.task.gripper_closed:
            self._grip.publish(Float64(data=1.0))

    def _check_alone(self, **where: bool) -> None:
        """Raise `CommandConflict` if another node commands the arm; see `RosClient.check_alone`."""
        self.client.check_alone(self.targets.topic, **where)
        if self._grip is not None:
            self.client.check_alone("gripper/command", **where)

    def _check_sources(self) -> None:
        """Check that no other node commands the arm and that all measurements are usable."""
        self._check_alone()
        check_all(self.all_sensors)

    def _begin(self) -> None:
        """Start the limiter at the arm's current position, with recent camera images."""
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
        """Whether the arm's node is known to have applied a different target than was sent.

        It answers each accepted command with the command's stamp and the target after the
        workspace, tilt, step and lead limits. The speed limit is not included, nor a later hold,
        which `mode` reports. A foreign node may not answer.
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
        """On `RobotInterrupted`, hold and publish nothing until the next reset."""
        if self._problem is not None:
            raise self._problem
        try:
            yield
        except RobotInterrupted as problem:
            self.hold()
            self._problem = self._named(problem)
            raise self._problem from None

    def _named(self, problem: RobotInterrupted) -> RobotInterrupted:
        """Return the problem with all publishers' names, which may be discovered a little later."""

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
