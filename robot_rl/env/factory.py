"""Build environments and sessions from a configuration: task, robot, clock, operator, reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from policies import registry
from robot_rl.data.schema import RowSchema
from robot_rl.env.coach import Coach
from robot_rl.env.input_device import Device, InputDevice, LeaderInput, TeleopInput
from robot_rl.env.intervention import unmovable_columns
from robot_rl.env.multi_arm import MultiArm, MultiArmExpert, MultiArmTask, of_arm
from robot_rl.env.operator import JOG_TIMEOUT_S, OperatorInbox
from robot_rl.env.robot import (
    ARM_ACTIONS,
    GRIPPER_ACTION,
    Robot,
    joint_columns,
)
from robot_rl.env.robot_env import RobotEnv, make_clock
from robot_rl.env.session import Reset, Session
from robot_rl.env.sim.domain import Domain
from robot_rl.env.task import Expert, RewardSource, Task
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from policies.behaviour import Behaviour

_STARTING_SECONDS = 15.0  # startup time for nodes that a command starts
_FOR_ARMS = (
    "no device can drive two arms yet: bring demonstrations along with robot-rl import, then"
    " dataset=PATH"
)


def make_env(
    config: Mapping[str, Any], further_cameras: Sequence[Mapping[str, Any]] = ()
) -> RobotEnv:
    """Make the environment that `task`, `robot`, `observation` and the clock describe.

    The robot gets `further_cameras` besides its own.

    Raises:
        RobotRLError: The task lacks the section that the robot needs, or `domain` does not apply.
    """
    make = _make_arms if config["arms"] else _make_robot
    robot, task = make(config, further_cameras)
    rate = config["control_rate_hz"]
    if rate is None:  # allowed only for robots that define their own rate
        rate = getattr(robot, "control_rate_hz", None)
    clock = make_clock(str(config["clock"]), rate)
    return RobotEnv(robot, task, clock, task_state=bool(config["observation"]["task_state"]))


def _make_arms(
    config: Mapping[str, Any], cameras: Sequence[Mapping[str, Any]]
) -> tuple[Robot, Task]:
    """Make each of `arms`. Each arm does the task; success needs all of them."""
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
    """Single-arm configuration of each of `arms`."""
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
    """Check the configuration before the robot's nodes are started.

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
    """The section of the task that the robot needs; `RobotRLError` if the task lacks it."""
    # A simulated task has a world; a task on topics receives object poses.
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
    """Make the environment of a task by name; the entry point for `gymnasium.make`.

    `overrides` are configuration overrides, such as `observation=pixels`.
    """
    from robot_rl.config import compose  # late: loads Hydra

    return make_env(compose([f"task={task}", *overrides]))


def has_domain(config: Mapping[str, Any]) -> bool:
    """Whether the configured robot is a simulation that takes a `domain`."""
    return registry.takes(config["robot"], Robot, "domain")


def make_expert(
    config: Mapping[str, Any],
    env: RobotEnv | Session,
    part: str = "expert",
    **replaced: Any,
) -> Expert:
    """Make the configured task's scripted expert, which reads `env`'s true state.

    `part` is the task's key: `expert`, or `hand` for a simulated operator. `replaced` overrides
    some arguments. Over topics the expert reads the robot's copy of the simulated world.

    Raises:
        RobotRLError: The task has no such expert.
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
    """Raise `RobotRLError` if the configured task has no scripted expert."""
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
    """Make the inbox of the process that steps the environment."""
    # Simulated time may stand still while a motion expires on the wall clock.
    return OperatorInbox(math.inf if config["clock"] == "stepped" else JOG_TIMEOUT_S)


def check_device(config: Mapping[str, Any]) -> None:
    """Raise `RobotRLError` if this machine cannot use the device of `teleop`."""
    if config["teleop"]["device"] is not None:
        registry.make(config["teleop"]["device"], Device)


def make_session(
    config: DictConfig,
    run: RunDirectory | None = None,
    *,
    operated: bool = True,
    inbox: OperatorInbox | None = None,
    resets: bool = True,
    cameras: Sequence[Mapping[str, Any]] | None = None,
    source: RewardSource | None = None,
    coach: Coach | None = None,
    episodes: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    load_policy: Callable[[RunDirectory], tuple[Behaviour, int]] | None = None,
) -> Session:
    """Make the configured environment with operator, reward and reset.

    Args:
        config: The whole configuration.
        run: Run directory for faults.
        operated: Whether operator input is read: from configured operators and devices, all writers
            to the inbox and, on ROS topics, service clients.
        inbox: The operator's input; None for a new inbox.
        resets: Whether to use the configured reset; otherwise the robot's own.
        cameras: Further cameras, as `observation.cameras`; None for those of the configured reward,
            visible only to the source. A camera whose name already exists is not added.
        source: The reward source; None for the configured one.
        coach: See `Session`.
        episodes: See `Session`.
        stopped: Returns whether the process should end, which also ends a reset motion.
        load_policy: Loads the policy of the run `reset.run`, which undoes each episode.

    Raises:
        RewardError: The model of the configured reward cannot be read.
        RobotRLError: As `make_env`; or the device of `teleop` cannot be connected or cannot move
            this robot; or the operator is simulated and the task has no scripted expert.
    """
    source = make_source(config) if source is None else source
    own = config["observation"]["cameras"]
    further = config["reward"]["cameras"] if cameras is None else cameras
    observed = {camera["name"] for camera in own or ()}
    # A robot with `cameras` None observes all its cameras.
    further = [c for c in further if own is not None and c["name"] not in observed]
    forms = ("images/{}", "images/{}_depth", "points/{}") if cameras is None else ()
    env = make_env(config, further)
    if operated and inbox is None:
        inbox = make_inbox(config)
    nodes_start = config["start_nodes"] and (config["nodes"] or config["arms"])
    reset: Reset | None = None
    if resets and config["reset"]["strategy"] is not None:
        from robot_rl.env.reset import make_reset  # late: loads torch

        reset = make_reset(config, env, stopped, load_policy)
    return Session(
        env,
        inbox,
        hand_back_s=float(config["operator"]["hand_back_s"]),
        devices=[] if inbox is None else make_devices(config, env, inbox),
        starting_s=_STARTING_SECONDS if nodes_start else 0.0,
        source=source,
        hidden=[form.format(camera["name"]) for camera in further for form in forms],
        reset=reset,
        coach=coach,
        run=run,
        episodes=episodes,
    )


def make_source(config: Mapping[str, Any]) -> RewardSource:
    """Make the configured reward source; `RewardError` if its model cannot be read."""
    return registry.make(config["reward"]["source"], RewardSource)


def make_devices(
    config: Mapping[str, Any], env: RobotEnv, inbox: OperatorInbox
) -> list[InputDevice]:
    """Make the inbox writers in the loop's process: a simulated operator, or a device.

    Raises:
        RobotRLError: As `make_session`.
    """
    operator = config["operator"]
    devices: list[InputDevice] = []
    if operator["simulated"] is not None:
        if config["robot"].get("joints") is not None:
            raise RobotRLError(
                "the simulated operator moves a tool, and this robot takes joint targets",
                got="operator=simulated",
                expected="operator=none",
            )
        # Without a known true state there is neither; the error names the expert.
        known = config["task"]["expert"] is not None
        part = "hand" if known and "hand" in config["task"] else "expert"
        from robot_rl.env.sim.task import Imperfections  # late: loads MuJoCo

        flaws = registry.make(operator["imperfections"], Imperfections)
        hand = make_expert(config, env, part, imperfections=flaws)
        given = {"inbox": inbox, "hand": hand, "control_rate_hz": env.schema.control_rate_hz}
        devices.append(registry.make(operator["simulated"], InputDevice, **given))
    if config["teleop"]["device"] is not None:
        devices.append(_make_teleop_input(config, env.schema.action_names, inbox))
    return devices


def _make_teleop_input(
    config: Mapping[str, Any], action_names: Sequence[str], inbox: OperatorInbox
) -> TeleopInput:
    """Connect the device of `teleop` for a robot with these action columns."""
    device, joints = config["teleop"]["device"], joint_columns(action_names)
    leads = registry.takes(device, Device, "engage_within")  # a leader arm
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
        return LeaderInput(registry.make(device, Device), inbox, steps)
    return TeleopInput(registry.make(device, Device), inbox)


def observed_widths(config: Mapping[str, Any], schema: RowSchema) -> dict[str, int]:
    """Keys and widths of the policy's states: `observation.states`, or all if null.

    `RobotRLError` if the robot does not observe one of them.
    """
    every = [name for name in schema.observation_names if name.startswith("state/")]
    names = config["observation"]["states"]
    names = every if names is None else names
    if config["arms"]:  # a name without an arm stands for all arms
        each = [
            name if name in every else of_arm(arm, name) for name in names for arm in config["arms"]
        ]
        names = list(dict.fromkeys(each))
    check_observed(names, every)
    return {str(name): int(np.prod(schema.dtype[str(name)].shape)) for name in names}


def check_observed(names: Sequence[str], every: Sequence[str]) -> None:
    """Raise `RobotRLError` if the robot does not observe some of the named states."""
    unknown = [str(name) for name in names if name not in every]
    if unknown:
        raise RobotRLError(
            "the policy is to see what this robot does not observe",
            got=", ".join(unknown),
            expected=f"some of {', '.join(every)}",
            hint="name what it sees with observation.states=[...]",
        )
