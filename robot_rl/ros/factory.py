"""From a configuration to a robot on topics: the target of `configs/robot/ros*.yaml`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from robot_rl.env.clock import ClockError
from robot_rl.env.several_arms import SeveralArms, SeveralTasks
from robot_rl.env.task import Task, Tracked
from robot_rl.errors import RobotRLError
from robot_rl.ros.client import RosClient
from robot_rl.ros.environment import clean_shared_memory, prepare_environment
from robot_rl.ros.measurements import Measurements, SensorLimits
from robot_rl.ros.nodes import joined
from robot_rl.ros.robot import RosRobot
from robot_rl.safety import CartesianLimiter, CartesianLimits, Plausibility


def make_ros_robot(
    task: Task,
    clock: str,
    discovery_range: str | None,
    control_rate_hz: float,
    namespace: str,
    joint_names: Sequence[str],
    twist: bool,
    wrench: bool,
    gripper: bool,
    cameras: Sequence[Any],
    track_objects: bool,
    limits: CartesianLimits,
    sensors: SensorLimits,
    episodes: Any,
    mirror: Any,
) -> RosRobot:
    """Make a robot on topics.

    Args:
        task: A `robot_rl.env.task.Tracked`.
        clock: Must be `realtime`: a robot does not wait for a simulated clock.
        discovery_range: See `robot_rl.ros.environment`.
        control_rate_hz: Actions per second.
        namespace: Of the arm's topics.
        joint_names: See `Measurements`.
        twist: See there.
        wrench: See there; without it `limits.max_force` does not apply.
        gripper: See there.
        cameras: See there.
        track_objects: Whether poses of objects are observed.
        limits: What the arm may be asked for.
        sensors: See `SensorLimits`.
        episodes: See `RosRobot`.
        mirror: See there.

    Raises:
        ClockError: Another clock.
        RobotRLError: Another kind of task.
    """
    if clock != "realtime":
        raise ClockError(
            "a robot on ROS topics runs in real time",
            got=f"clock={clock}",
            expected="clock=realtime",
            hint="leave clock=... out; robot=ros and robot=ros_sim set it",
        )
    if not isinstance(task, Tracked):
        raise RobotRLError(
            f"a robot on ROS topics cannot do the task {task.name!r}",
            got=type(task).__name__,
            expected="robot_rl.env.task.Tracked",
            hint="give its configuration a section `tracked`, as configs/task/reach.yaml has",
        )
    if not wrench:
        limits = dataclasses.replace(limits, max_force=None)
    prepare_environment(discovery_range)
    clean_shared_memory()
    client = RosClient("robot_rl", namespace)
    try:
        measurements = Measurements(
            client,
            sensors,
            Plausibility(limits),
            joint_names,
            twist,
            wrench,
            gripper,
            cameras,
            task.objects if track_objects else 0,
            task.reports_success,
        )
        limiter = CartesianLimiter(limits)
        return RosRobot(
            client, task, limiter, measurements, sensors, episodes, control_rate_hz, mirror
        )
    except BaseException:
        client.close()
        raise


def make_ros_arms(task: Task, arms: Sequence[str], namespace: str, **settings: Any) -> SeveralArms:
    """Make several arms on topics, each in a namespace of its name, that do the task each.

    Args:
        task: See `make_ros_robot`.
        arms: Their names.
        namespace: Of all of them.
        **settings: See `make_ros_robot`; the same for each.
    """
    tasks = {arm: copy.deepcopy(task) for arm in arms}
    robots = {
        arm: make_ros_robot(tasks[arm], namespace=joined(namespace, arm), **settings)
        for arm in arms
    }
    return SeveralArms(robots, SeveralTasks(task.name, tasks))
