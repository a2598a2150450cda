"""Preparation before a command's work: the robot's device, nodes and environment.

ROS 2 nodes run as long as the command. A Gymnasium environment is tried before any recording or
learning.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig

from robot_rl.config import joined, on_stepped_clock
from robot_rl.data.schema import Observation
from robot_rl.env.factory import check_device, check_env, make_env
from robot_rl.env.gym import ANY, LAST, NO_SUCCESS, REWARDED, TERMINATED, GymError, GymRobot
from robot_rl.env.robot_env import RobotEnv
from robot_rl.errors import RobotRLError
from robot_rl.plugins import added, resolve
from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.signals import ask_to_end
from robot_rl.processes.waiting import wait_until
from robot_rl.ros.environment import prepare_environment
from robot_rl.ros.nodes import NodeDescription, node_table
from robot_rl.safety import default_stop_folder, kept_stop

_POLL_SECONDS = 0.1
_FOUND_SECONDS = 2.0  # time to discover other nodes
_MOVES_AT_START = "drivers.gripper.robotiq"  # activation moves its fingers
# Limits for the trial of a Gymnasium environment.
_MOST_STEPS, _REPEATED_STEPS, _MOST_SECONDS = 1000, 10, 0.3
_JUDGED_STEPS, _JUDGED_EPISODES = 50, 10  # to judge rewards: steps, and maximum episodes
# Tolerances for numbers, and for an image's mean difference: renderers differ slightly.
_RELATIVE, _ABSOLUTE, _GRAY_LEVELS = 1e-3, 1e-5, 1.0


def check_robot(config: DictConfig) -> None:
    """Raise `RobotRLError` for an unusable device, robot, task or node."""
    check_device(config)
    check_env(config)
    companions(config)
    if config.start_nodes:
        node_table(config)


def companions(config: DictConfig) -> dict[str, list[str]]:
    """Processes that plug-ins run next to the robot's nodes: name → module and arguments."""
    found = {name: resolve(make)(config) for name, make in added("companions").items()}
    return {name: words for name, words in found.items() if words}


@contextmanager
def robot_nodes(config: DictConfig, logs: Path) -> Iterator[ProcessGroup | None]:
    """Run the configured robot's nodes, if `start_nodes` is set, and the `companions`.

    Yields the group of their processes, or None if there are none. A node that is killed is
    restarted. If a node ends with its own error, such as an impossible parameter, or cannot be
    restarted, this process is interrupted as by Ctrl-C and raises `ProcessDied`; a companion's end
    has no effect. Logs and parameters are in `logs`.
    """
    table = node_table(config) if config.start_nodes else ()
    beside = companions(config)
    if not table and not beside:
        yield None
        return
    prepare_environment(config.robot.discovery_range)
    problems: list[Exception] = []
    ending = threading.Event()

    def watch() -> None:
        while not ending.wait(_POLL_SECONDS):
            try:
                for node in table:
                    group.require(node.process)
                for name in beside:
                    group.running(name)
            except Exception as problem:  # raised in the main thread
                problems.append(problem)
                ask_to_end()
                return

    try:
        with ProcessGroup(logs) as group:
            for node in table:
                file = logs / f"{node.process}.yaml"
                file.write_text(node.parameter_file(), encoding="utf-8")
                group.start(node.process, node.arguments(file), module=node.module)
            for name, (module, *words) in beside.items():
                group.start(name, [str(logs.parent / name), *words], module, needed=False)
            watching = threading.Thread(target=watch, name="nodes", daemon=True)
            watching.start()
            try:
                yield group
            except KeyboardInterrupt:
                if problems:
                    raise problems[0] from None
                raise
            finally:
                ending.set()
                watching.join()
    finally:
        for node in table:
            _print_kept_stop(node)


def run_nodes(config: DictConfig) -> None:
    """Run only the nodes of the configured robot, until Ctrl-C."""
    table = node_table(config)
    if not table:
        got = f"robot={config.choices.robot}, whose section `nodes` is empty"
        raise RobotRLError("there are no nodes to run", got=got, hint="name your robot: cell=PATH")
    prepare_environment(config.robot.discovery_range)
    _check_alone(table)
    config.start_nodes = True
    if any(_MOVES_AT_START in str(node.driver.get("_target_")) for node in table):
        print("the gripper's fingers may open and close now: hands away", flush=True)
    logs = Path(config.runs_directory).absolute() / "nodes" / "logs"
    with robot_nodes(config, logs) as group:
        assert group is not None
        for node in table:
            name = f"{node.namespace.rstrip('/')}/{node.name}"
            log = logs / f"{node.process}.log"
            print(f"{name} is process {group.process_id(node.process)}, log {log}", flush=True)
        print("the arm does not move by itself; Ctrl-C ends them", flush=True)
        threading.Event().wait()


def _check_alone(table: Sequence[NodeDescription]) -> None:
    """Raise `RobotRLError` if a node of one of these arms is already running."""
    from robot_rl.ros.ros_client import RosClient  # late import: loads ROS

    arms = {node.namespace for node in table if node.module.startswith("drivers.arm.")}
    with closing(RosClient("nodes", "/")) as client:
        stops = {joined(namespace, "stop"): namespace for namespace in sorted(arms)}
        if wait_until(lambda: any(map(client.node.count_services, stops)), _FOUND_SECONDS):
            found = ", ".join(stops[stop] for stop in stops if client.node.count_services(stop))
            raise RobotRLError(
                f"the nodes of {found} run already",
                hint="end them first (Ctrl-C); ROS shows killed nodes for up to 20 s",
            )


def _print_kept_stop(node: NodeDescription) -> None:
    """Print that a stopped arm stays stopped after this command ends."""
    folder = Path(node.parameters.get("stop_folder", default_stop_folder()))
    namespace = node.namespace.rstrip("/")
    name = f"{namespace}/{node.name}"
    kept = kept_stop(folder, name, node.driver)
    if kept is not None:
        print(
            f"{name} is still stopped: {kept}. It stays so when it is started again. Next: look at"
            " the arm, give the command again and say clear_errors, with the device, in"
            f" robot-rl console, or with robot-rl doctor call={namespace}/clear_errors",
            file=sys.stderr,
            flush=True,
        )


@dataclass
class _Episode:
    """The first steps of an episode with random actions."""

    seen: list[Observation]
    rewards: list[float] = field(default_factory=list)
    success: bool = False  # at the latest step
    terminated: bool = False
    truncated: bool = False


def try_environment(config: DictConfig) -> None:
    """Try the environment of `robot=gym` and print the findings; no-op for other robots.

    Sets the control rate and the success criterion in the configuration, if they are open.
    `GymError` if a policy cannot learn in the environment.
    """
    if config.robot.get("_target_") != f"{GymRobot.__module__}.{GymRobot.__qualname__}":
        return
    with closing(make_env(on_stepped_clock(config))) as env:
        config.control_rate_hz = env.schema.control_rate_hz
        assert isinstance(env.robot, GymRobot)
        print("\n    ".join(_facts(config.robot, env, env.robot)), flush=True)


def _facts(options: DictConfig, env: RobotEnv, robot: GymRobot) -> list[str]:
    """Return the findings of a trial; sets `success` in the robot's options."""
    shape = (_MOST_STEPS, len(robot.action_names))
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, shape).astype(np.float32)
    first = _begin(env, actions)
    strange = not robot.within_its_space
    other, _ = env.reset(seed=1)
    again = _begin(env, actions[:_REPEATED_STEPS])
    if changed := _difference(first.seen[0], again.seen[0]):
        raise GymError(
            f"the environment {robot.id} ignores its seed",
            got=f"another {changed} at a second reset with the same one",
            expected="the same scene, for policies to be compared on",
            hint="call super().reset(seed=seed) in its reset, and draw from self.np_random alone",
        )
    low, high, steps = min(first.rewards), max(first.rewards), env.task.time_limit_steps
    source = robot.rate_source or "it does not say how long; set control_rate_hz"
    return [
        f"{robot.id}: at most {steps} steps of {env.clock.period:g} s ({source});"
        f" reward {low:g} to {high:g} in {len(first.rewards)} random steps",
        f"success: {_success(options, env, robot, first)}",
        *["its observations have other bounds or dtypes than its space declares"] * strange,
        *["all seeds begin alike"] * (_difference(first.seen[0], other) is None),
        *["the same actions lead elsewhere: no run can be repeated"]
        * any(map(_difference, first.seen, again.seen)),
    ]


def _success(options: DictConfig, env: RobotEnv, robot: GymRobot, first: _Episode) -> str:
    """Return the success criterion of an episode as a sentence."""
    if robot.success_return is not None:
        return f"rewards that sum to {robot.success_return:g} or more"
    said = {TERMINATED: "termination", NO_SUCCESS: "none is counted"}
    if robot.success in said:
        return f"{said[robot.success]} (robot.success={robot.success})"
    if robot.success_from is not None:
        ever = "any step" if robot.success.startswith(ANY) else "the last step"
        other = " (robot.success=any: any step)" if robot.success == LAST else ""
        ends = (
            "ends the episode" if first.terminated else "ends no episode: each lasts to its limit"
        )
        seen = f"it {ends}" if first.success else "random actions never reached it"
        return f"info[{robot.success_from!r}] at {ever}{other}; {seen}"
    if robot.success == REWARDED:
        return "termination with a positive reward (robot.success=rewarded)"
    if robot.success not in (LAST, ANY):
        return f"{robot.success} in the info, which has not come up in these steps"
    return _by_reward(options, env, first)


def _by_reward(options: DictConfig, env: RobotEnv, first: _Episode) -> str:
    """Fallback if no info reports success: a positive reward at the end, if only there."""
    tried, rng = [first], np.random.default_rng(1)
    while sum(len(e.rewards) for e in tried) < _JUDGED_STEPS and len(tried) < _JUDGED_EPISODES:
        shape = (_JUDGED_STEPS, len(env.robot.action_names))
        actions = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        tried.append(_begin(env, actions, seed=len(tried)))
    before_end = [r for e in tried for r in (e.rewards[:-1] if e.terminated else e.rewards)]
    if not any(reward > 0.0 for reward in before_end):
        options.success = REWARDED
        return (
            "termination with a positive reward, for want of another sign"
            " (robot.success=rewarded; or robot.success_return=SUM)"
        )
    if any(each.terminated or each.truncated for each in tried):  # some infos report it at the end
        options.success = NO_SUCCESS
    return (
        "unknown, so no episode counts as one: rewards are positive before an end, and no info"
        " reports it. Name it with robot.success=KEY (of the info), =rewarded or =terminated, or"
        " with robot.success_return=SUM"
    )


def _begin(env: RobotEnv, actions: npt.NDArray[np.float32], seed: int = 0) -> _Episode:
    """Act for a short time, at most until a success or the end of the episode."""
    deadline, episode = time.monotonic() + _MOST_SECONDS, _Episode([env.reset(seed=seed)[0]])
    for action in actions:
        observation, reward, episode.terminated, episode.truncated, info = env.step(action)
        episode.seen.append(observation)
        episode.rewards.append(float(reward))
        episode.success = info["success"]
        ended = episode.success or episode.terminated or episode.truncated
        if ended or time.monotonic() > deadline:
            break
    return episode


def _difference(one: Observation, two: Observation) -> str | None:
    """Name of the first entry that differs."""
    for name, value in one.items():
        if value.dtype == np.uint8:
            same = np.abs(value - two[name].astype(np.float32)).mean() < _GRAY_LEVELS
        else:
            same = np.allclose(value, two[name], _RELATIVE, _ABSOLUTE)
        if not same:
            return name
    return None
