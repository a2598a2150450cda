"""A policy that sees two cameras acts over topics, and each of its steps is timed."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from omegaconf import DictConfig
from topics import NAMESPACE, demonstrated, over_topics

from policies.behaviour import Behaviour
from policies.compute import compute_device
from policies.runner import PolicyRunner
from robot_rl.commands.preparation import robot_nodes
from robot_rl.config import Settings
from robot_rl.data.policy_columns import check_fit
from robot_rl.data.schema import Observation
from robot_rl.env.factory import make_env
from robot_rl.env.rollout import rollout
from robot_rl.env.session import Session, Watcher
from robot_rl.learning.stages.clone import Clone
from robot_rl.learning.stages.vision import Vision
from robot_rl.learning.workbench import Workbench
from robot_rl.ros import qos
from robot_rl.ros.conversions import to_nanoseconds
from robot_rl.ros.robot import RosRobot
from robot_rl.ros.ros_client import RosClient

# Control and cameras keep their phase within an episode: many short ones meet all phases.
_EPISODE_STEPS = 20


def act_over_topics(config: DictConfig, folder: Path) -> dict[str, object]:
    """Act for `bench.ticks` steps with a hastily cloned policy of the observation `pixels`.

    The figures are explained in `bench_ros.run`; run and logs are in the folder.
    """
    behaviour = _cloned(config, folder)
    settings = over_topics(config, "observation=pixels")
    with robot_nodes(settings, folder / "nodes"):
        env = make_env(settings)
        assert isinstance(env.robot, RosRobot)
        env.task.time_limit_steps = _EPISODE_STEPS
        session, timed, answers = Session(env), _Timed(env.robot), _Answers()
        session.watcher = timed
        try:
            check_fit(behaviour, env.schema)
            runner = PolicyRunner(behaviour.exploring("mean").to(compute_device(config.device)))
            ticks = int(config.bench.ticks)
            interrupted = 0
            for result in rollout(
                [session], runner, itertools.count(1), stop=lambda: timed.steps > ticks
            ):
                interrupted += result.interrupted is not None
        finally:
            answers.close()
            session.close()
    figures = timed.figures(float(config.inference_budget_seconds))
    return {**figures, **answers.figures(), "interrupted_episodes": interrupted}


def _cloned(config: DictConfig, folder: Path) -> Behaviour:
    """A policy that computes as long as a good one does, from a few demonstrations."""
    training = "observation.vision_training"
    settings, run = demonstrated(
        config,
        str(folder),
        "observation=pixels",
        "cloning.updates=50",
        f"{training}.exploration_episodes=0",
        f"{training}.cloning.updates=20",
    )
    bench = Workbench(Settings.of(settings), run)
    for stage in (Vision(bench.settings), Clone(bench.settings)):
        stage.run(bench)
    return bench.cloned


class _Timed(Watcher):
    """Notes how old what an action follows from is when it has been sent, and how late."""

    def __init__(self, robot: RosRobot) -> None:
        self.steps = 0
        self._robot = robot
        self._measured: dict[str, int] = {}  # per topic, when what was observed last was measured
        self._ages: list[dict[str, float]] = []  # per topic [s]
        self._lateness: list[float] = []  # of the tick [s]
        self._decisions: list[float] = []  # from the tick to the sending [s]

    def began(self, observation: Observation, info: dict[str, Any]) -> None:
        self._measured = dict(self._robot.measurements.stamps_ns)

    def stepped(self, observation: Observation, reward: float, info: dict[str, Any]) -> None:
        sent = info["stamp_action"]
        self._ages.append({topic: 1e-9 * (sent - at) for topic, at in self._measured.items()})
        self._measured = dict(self._robot.measurements.stamps_ns)
        self._lateness.append(info["lateness"])
        self._decisions.append(info["decision_seconds"])
        self.steps += 1

    def figures(self, budget: float) -> dict[str, object]:
        topics = [topic for topic in self._ages[0] if topic.endswith("image_raw")]
        ages = {topic: np.array([age[topic] for age in self._ages]) for topic in self._ages[0]}
        older = np.max([ages[topic] for topic in topics], axis=0)
        decisions = np.array(self._decisions)
        return {
            "steps": self.steps,
            "age_p50_ms": {topic: _percentile(age, 50) for topic, age in ages.items()},
            "older_camera_age_p50_ms": _percentile(older, 50),
            "older_camera_age_p99_ms": _percentile(older, 99),
            "decision_p50_ms": _percentile(decisions, 50),
            "decision_p99_ms": _percentile(decisions, 99),
            "tick_lateness_p99_ms": _percentile(np.array(self._lateness), 99),
            "lateness_p99_ms": _percentile(np.maximum(decisions - budget, 0.0), 99),
        }


class _Answers:
    """Notes how long the arm's node takes to say that it has taken a command."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._client = RosClient("answers", NAMESPACE)
        self._client.node.create_subscription(
            PoseStamped, "applied_pose", self._take, qos.sensor_subscription(20)
        )

    def _take(self, message: PoseStamped) -> None:
        stamp = to_nanoseconds(message.header.stamp)
        self._seconds.append(1e-9 * (time.time_ns() - stamp))

    def close(self) -> None:
        self._client.close()

    def figures(self) -> dict[str, object]:
        seconds = np.array(self._seconds)
        return {
            "commands_answered": len(seconds),
            "command_to_node_and_back_p50_ms": _percentile(seconds, 50),
            "command_to_node_and_back_p99_ms": _percentile(seconds, 99),
        }


def _percentile(seconds: Any, share: float) -> float:
    """Of some seconds, in milliseconds."""
    return 1e3 * float(np.percentile(seconds, share))
