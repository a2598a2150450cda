"""From a configuration to an environment: the one place that joins task, robot and clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from policies import registry
from robot_rl.data.schema import Observation, RowSchema
from robot_rl.env.clock import make_clock
from robot_rl.env.intervention import Attendant, Intervention, unmovable_columns
from robot_rl.env.multi_arm import MultiArm, MultiArmExpert, MultiArmTask, of_arm
from robot_rl.env.operator import JOG_TIMEOUT_S, OperatorInbox
from robot_rl.env.robot import (
    ARM_ACTIONS,
    GRIPPER_ACTION,
    OperatorServer,
    Robot,
    RobotInterrupted,
    joint_columns,
)
from robot_rl.env.robot_env import RobotEnv, RobotEnvWrapper
from robot_rl.env.sim.domain import Domain
from robot_rl.env.task import Expert, Task
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

_STARTING_SECONDS = 15.0  # in which the nodes that a command starts may come up
_FOR_ARMS = (
    "no device can drive two arms yet: bring demonstrations along with robot-rl import, then"
    " dataset=PATH"
)


class Device(Protocol):
    """What a person drives a robot with: of `drivers.teleop.base` or `drivers.teleop.leader`."""

    events: Mapping[str, str]  # what its buttons say

    def connect(self) -> None:
        """Open it."""

    def read(self) -> Any:
        """What the person does now; never waits."""

    def close(self) -> None:
        """Release it."""


def make_env(
    config: Mapping[str, Any], further_cameras: Sequence[Mapping[str, Any]] = ()
) -> RobotEnv:
    """Make the environment that `task`, `robot`, `observation` and the clock describe.

    The robot gets `further_cameras` beside its own.

    Raises:
        RobotRLError: The task has not the form that the robot needs, or the domain is for another.
    """
    make = _make_arms if config["arms"] else _make_robot
    robot, task = make(config, further_cameras)
    rate = config["control_rate_hz"]
    if rate is None:  # only robots with a rate of their own may have none here
        rate = getattr(robot, "control_rate_hz", None)
    clock = make_clock(str(config["clock"]), rate)
    return RobotEnv(robot, task, clock, task_state=bool(config["observation"]["task_state"]))


def _make_arms(
    config: Mapping[str, Any], cameras: Sequence[Mapping[str, Any]]
) -> tuple[Robot, Task]:
    """Make each of `arms`; they do the task each, and are done together."""
    robots: dict[str, Robot] = {}
    tasks: dict[str, Task] = {}
    try:
        for arm, alone in _arms_alone(config).items():
            robots[arm], tasks[arm] = _make_robot(alone, cameras)
    except BaseException:
        for robot in robots.values():
            robot.close()
        raise
    together = MultiArmTask(str(config["task"]["name"]), tasks)
    return MultiArm(robots, together), together


def _arms_alone(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The configuration of each of `arms` if it were the only one."""
    return {str(arm): {**config, **own, "arms": {}} for arm, own in config["arms"].items()}


def _make_robot(
    config: Mapping[str, Any], further_cameras: Sequence[Mapping[str, Any]]
) -> tuple[Robot, Task]:
    parts: dict[str, Any] = {}
    from robot_rl.env.sim.cameras import CameraOptions  # late: loads MuJoCo

    task, domain = _task_and_domain(config)
    if has_domain(config):
        parts["domain"] = domain
    if further_cameras:
        every = [*config["robot"].get("cameras", ()), *further_cameras]
        parts["cameras"] = [registry.make(camera, CameraOptions) for camera in every]
    return registry.make(config["robot"], Robot, task=task, **parts), task


def check_env(config: Mapping[str, Any]) -> None:
    """Check what can be checked before a robot is there: before its nodes are started.

    Raises:
        RobotRLError: As `make_env`.
    """
    for alone in _arms_alone(config).values() or [config]:
        _task_and_domain(alone)
        registry.check_arguments(alone["robot"], Robot)


def _task_and_domain(config: Mapping[str, Any]) -> tuple[Task, Domain]:
    domain = registry.make(config["domain"], Domain)
    if not has_domain(config) and domain != type(domain)():
        raise RobotRLError(
            "only a simulated robot has a domain",
            got=f"domain={config['choices']['domain']} with robot={config['choices']['robot']}",
            expected="domain=ideal, or robot=sim",
            hint="add domain=ideal: this robot is as it is",
        )
    return registry.make(config["task"][task_form(config)], Task), domain


def task_form(config: Mapping[str, Any]) -> str:
    """Which section of the task the robot needs; `RobotRLError` where the task has none."""
    # A simulated task is in a world; one on topics is told where its objects are.
    form = str(config["robot"].get("task", "environment"))
    if form not in config["task"]:
        raise RobotRLError(
            f"the task {config['task']['name']!r} cannot be done on this robot",
            got=f"task.{form} is missing",
            hint="add it to the task's configuration, as in configs/task/reach.yaml"
            + (", or name its robot with cell=PATH" if "tracked" in config["task"] else ""),
        )
    return form


def make_task(task: str, overrides: Sequence[str] = ()) -> RobotEnv:
    """Make the environment of a task by its name: what `gymnasium.make` calls.

    `overrides` are of the configuration, such as `observation=pixels`.
    """
    from robot_rl.config import compose  # late: loads Hydra

    return make_env(compose([f"task={task}", *overrides]))


def has_domain(config: Mapping[str, Any]) -> bool:
    """Whether the configured robot is simulated in a way that `domain` can change."""
    return registry.takes(config["robot"], Robot, "domain")


def make_expert(
    config: Mapping[str, Any],
    env: RobotEnv | RobotEnvWrapper,
    part: str = "expert",
    **replaced: Any,
) -> Expert:
    """Make the scripted expert of the configured task, looking at `env`'s true state.

    It is the `part` of the task: `expert`, or `hand` of a simulated operator, with some arguments
    `replaced`. Over topics it sees the copy of the simulated world that the robot keeps.

    Raises:
        RobotRLError: The task has none.
    """
    check_expert(config, part)
    if isinstance(env.robot, MultiArm):
        arms, tasks = env.robot.arms, env.robot.task.tasks
        return MultiArmExpert(
            [
                _make_expert(alone, arms[arm], tasks[arm], part, replaced)
                for arm, alone in _arms_alone(config).items()
            ]
        )
    return _make_expert(config, env.robot, env.task, part, replaced)


def _make_expert(
    config: Mapping[str, Any], robot: Robot, task: Task, part: str, replaced: Mapping[str, Any]
) -> Expert:
    task = getattr(robot, "simulated_task", None) or task
    section, joints = config["task"][part], config["robot"].get("joints")
    if joints is None:
        return registry.make(section, Expert, task=task, **replaced)
    from robot_rl.env.sim.task import JointExpert, ScriptedExpert  # late: loads MuJoCo

    expert = registry.make(section, ScriptedExpert, task=task, **replaced)
    return JointExpert(expert, joints["step"])


def check_expert(config: Mapping[str, Any], part: str = "expert") -> None:
    """Raise `RobotRLError` where the configured task has no scripted expert."""
    if config["task"][part] is None:
        raise RobotRLError(
            f"the task {config['task']['name']!r} has no scripted expert on this robot",
            got=f"task.{part}=null",
            hint=_FOR_ARMS
            if config["arms"]
            else "demonstrate with teleop=keyboard, spacemouse or another of configs/teleop;"
            " or name demonstrations with dataset=PATH",
        )


def make_inbox(config: Mapping[str, Any]) -> OperatorInbox:
    """Make the inbox of the process that steps the environment of a configuration."""
    # Simulated time may stand still while a motion ages on the wall clock.
    return OperatorInbox(math.inf if config["clock"] == "stepped" else JOG_TIMEOUT_S)


def check_device(config: Mapping[str, Any]) -> None:
    """Raise `RobotRLError` where this machine cannot use the device of `teleop`."""
    if config["teleop"]["device"] is not None:
        registry.make(config["teleop"]["device"], Device)


def make_intervention(
    config: Mapping[str, Any], env: RobotEnv, inbox: OperatorInbox
) -> Intervention:
    """Let whoever writes to `inbox` take over in `env`, configured operators and devices included.

    On a robot on ROS topics, clients of the operator's services write to it too.

    Raises:
        RobotRLError: The device of `teleop` cannot be connected or cannot move this robot, or the
            operator is a simulated one, and the task has no scripted expert.
    """
    operator = config["operator"]
    attendants: list[Attendant] = []
    if operator["simulated"] is not None:
        if config["robot"].get("joints") is not None:
            raise RobotRLError(
                "the simulated operator moves a tool, and this robot takes joint targets",
                got="operator=simulated",
                expected="operator=none",
            )
        # Where nobody knows the true state there is neither; the error is about the expert.
        known = config["task"]["expert"] is not None
        part = "hand" if known and "hand" in config["task"] else "expert"
        from robot_rl.env.sim.task import Imperfections  # late: loads MuJoCo

        flaws = registry.make(operator["imperfections"], Imperfections)
        hand = make_expert(config, env, part, imperfections=flaws)
        settings, rate = operator["simulated"], env.schema.control_rate_hz
        given = {"inbox": inbox, "hand": hand, "control_rate_hz": rate}
        person = registry.make(settings, Attendant, **given)
        attendants.append(person)
    if config["teleop"]["device"] is not None:
        attendants.append(_make_device_attendant(config, env.schema.action_names, inbox))
    own_nodes = config["start_nodes"] and (config["nodes"] or config["arms"])
    starting = _STARTING_SECONDS if own_nodes else 0.0
    operated = Intervention(env, inbox, float(operator["hand_back_s"]), attendants, starting)
    if isinstance(env.robot, OperatorServer):
        env.robot.serve_operator(inbox, operated.attend)
    return operated


def _make_device_attendant(
    config: Mapping[str, Any], action_names: Sequence[str], inbox: OperatorInbox
) -> DeviceAttendant:
    """Connect the device of `teleop`, with which a person drives what has these columns."""
    device, joints = config["teleop"]["device"], joint_columns(action_names)
    leads = registry.takes(device, Device, "engage_within")  # it is a leader arm
    unmovable = unmovable_columns(action_names)
    one_arm = not any("/" in name for name in joints)
    if leads and not (joints and one_arm and len(joints) == len(device["joint_names"])):
        raise RobotRLError(
            "the leader arm of teleop.device cannot move this robot",
            got=f"{len(device['joint_names'])} joints for the columns {', '.join(action_names)}",
            expected="one arm that takes joint targets, with as many joints",
            hint="take robot=lerobot or another with robot.joints, or another device of teleop",
        )
    if unmovable and not leads:
        raise RobotRLError(
            "the device of teleop.device cannot move this robot",
            got=f"{device['_target_']} for the action columns {', '.join(unmovable)}",
            expected=f"columns among {', '.join((*ARM_ACTIONS, GRIPPER_ACTION))}",
            hint=f"take teleop=none. {_FOR_ARMS}"
            if config["arms"]
            else "take teleop=none; what an operator says is heard from the console. A leader arm"
            " moves joints: teleop=leader_topic or lerobot_leader",
        )
    if config["clock"] != "realtime":
        raise RobotRLError(
            "a person cannot drive in simulated time",
            got=f"clock={config['clock']} with a device of teleop",
            hint="add clock=realtime",
        )
    if leads:
        steps = np.array(config["robot"]["joints"]["step"])
        return LeaderAttendant(registry.make(device, Device), inbox, steps)
    return DeviceAttendant(registry.make(device, Device), inbox)


def observed_widths(config: Mapping[str, Any], schema: RowSchema) -> dict[str, int]:
    """Keys and widths of the numbers that the policy sees: `observation.states`; null: all.

    `RobotRLError` where it is to see what the robot does not observe.
    """
    every = [name for name in schema.observation_names if name.startswith("state/")]
    names = config["observation"]["states"]
    names = every if names is None else names
    if config["arms"]:  # what a task says of one arm it says of all
        each = [
            name if name in every else of_arm(arm, name) for name in names for arm in config["arms"]
        ]
        names = list(dict.fromkeys(each))
    check_observed(names, every)
    return {str(name): int(np.prod(schema.dtype[str(name)].shape)) for name in names}


def check_observed(names: Sequence[str], every: Sequence[str]) -> None:
    """Raise `RobotRLError` where some of the names of states are not those of a robot."""
    unknown = [str(name) for name in names if name not in every]
    if unknown:
        raise RobotRLError(
            "the policy is to see what this robot does not observe",
            got=", ".join(unknown),
            expected=f"some of {', '.join(every)}",
            hint="name what it sees with observation.states=[...]",
        )


class DeviceAttendant:
    """Writes what a `drivers.teleop.base.TeleopDevice` says to the inbox, when the loop reads that.

    Where the device fails the robot holds still, and no episode begins before it is connected
    again. It is connected here, or raises `RobotRLError`.
    """

    def __init__(self, device: Any, inbox: OperatorInbox) -> None:
        self._device, self._inbox, self._lost = device, inbox, False
        device.connect()

    def begin(self, seed: int) -> None:
        """Connect the device anew if it was lost."""
        if self._lost:
            self._or_lost(self._device.connect)
            self._lost = False

    def watch(self, observation: Observation) -> None:
        """Read the device; raises `RobotInterrupted` where it has failed."""
        pose = observation.get("state/tcp_pose")
        orientation = None if pose is None else np.asarray(pose[3:], np.float64)
        state = self._or_lost(lambda: self._device.read(orientation, self._inbox.gripper))
        for button in sorted(state.buttons):
            if button in self._device.events:
                self._inbox.post(self._device.events[button])
        self._inbox.jog(state.motion, state.gripper, source="device")

    def listen(self, observation: Observation) -> None:
        """As `watch`; a device that was lost is connected anew first."""
        self.begin(0)
        # Unknown before the first episode; any orientation tells whether the operator moves.
        downward = np.concatenate([np.zeros(3), rotations.DOWNWARD])
        self.watch({"state/tcp_pose": downward, **observation})

    def close(self) -> None:
        """Release the device."""
        self._device.close()

    def _or_lost(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RobotRLError as error:
            self._lost = True
            self._inbox.jog(np.zeros(6), source="device")
            if isinstance(error, RobotInterrupted) and error.needs_start:
                raise  # the device is there, and another one with it
            raise RobotInterrupted(
                "the operator's device is gone, so nobody could correct the robot",
                got=error,
                hint="connect it again",
            ) from error


class LeaderAttendant(DeviceAttendant):
    """The same for a leader arm (`drivers.teleop.leader`), which moves joints.

    Attributes:
        steps: What an action of 1 changes each joint's target by (n,) [rad].
    """

    def __init__(self, device: Any, inbox: OperatorInbox, steps: npt.NDArray[np.float64]) -> None:
        super().__init__(device, inbox)
        self.steps = steps

    def begin(self, seed: int) -> None:
        """As of any device; the robot follows no leader into an episode."""
        super().begin(seed)
        self._device.let_go()
        self._inbox.lead(np.zeros(len(self.steps)), source="device")

    def watch(self, observation: Observation) -> None:
        """Read the leader; raises `RobotInterrupted` where it has failed."""
        measured, lead = observation["state/joint_positions"], observation["state/joint_lead"]
        target = measured.astype(np.float64) + lead
        state = self._or_lost(lambda: self._device.read(target, self.steps))
        self._inbox.advice = self._device.hint
        self._inbox.lead(state.motion, state.gripper, source="device")

    def listen(self, observation: Observation) -> None:
        """Look whether the leader is there; between episodes nobody moves the robot with it."""
        if self._lost:
            self.begin(0)
        self._or_lost(self._device.read)
