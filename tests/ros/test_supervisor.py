"""The nodes of the simulated robot as processes, run and watched by the stage that uses them."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import PATIENT_NODES  # with a ROS domain of this process's own for the nodes, too
from omegaconf import OmegaConf

from robot_rl.commands.preparation import robot_nodes
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.env.robot import RobotInterrupted
from robot_rl.processes.group import ProcessDied
from robot_rl.processes.waiting import wait_until
from robot_rl.ros.ros_client import ask

WAIT_SECONDS = 90.0


def configuration(*words):
    named = "robot.namespace=supervised"
    return compose(["robot=ros_sim", "task=reach", named, *PATIENT_NODES, *words])


def begin(env, seed):
    """Begin an episode as soon as the robot is there."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return env.reset(seed=seed)
        except RobotInterrupted:
            if time.monotonic() > deadline:
                raise


def nodes():
    """The running nodes by the name that they were given."""
    children = psutil.Process().children()
    named = [(word, child) for child in children for word in child.cmdline() if "__node:=" in word]
    return {word.partition(":=")[2]: child for word, child in named}


def connected(logs):
    log = logs / "supervised-arm.log"
    return log.exists() and "connected: drivers.arm.sim.SimArm" in log.read_text()


def test_a_node_that_is_killed_is_started_again_and_all_end_with_the_stage(tmp_path):
    config = configuration()
    with robot_nodes(config, tmp_path):
        env = make_env(config)
        begin(env, 1)
        killed = nodes()["gripper"]
        os.kill(killed.pid, signal.SIGKILL)
        gripper = next(s for s in env.robot.all_sensors if s.topic.endswith("/gripper/state"))
        gripper.limit_s = 0.2  # sooner than any process can take its place
        with pytest.raises(RobotInterrupted, match="/supervised/gripper/state"):  # noqa: PT012
            for _ in range(40):  # the loop was never blocked: it goes on until the bound on age
                env.step(np.zeros(6, np.float32))
        gripper.limit_s = 3.0
        observation, _ = begin(env, 2)
        assert 0.0 <= observation["state/gripper_position"][0] <= 1.0
        running = nodes()
        assert running["gripper"].pid != killed.pid
        env.close()
    assert not any(node.is_running() for node in running.values())
    assert connected(tmp_path)


def test_of_a_stop_that_is_kept_the_stage_says_at_its_end_that_it_stays(tmp_path, capfd):
    config = configuration()
    for how, said in (("stop", True), ("clear_errors", False)):
        logs = tmp_path / how
        logs.mkdir()
        with robot_nodes(config, logs):
            # Before that there is nothing to clear.
            assert wait_until(lambda logs=logs: connected(logs), WAIT_SECONDS)
            ask(f"/supervised/{how}")
            assert "/supervised/arm is still stopped" not in capfd.readouterr().err
        output = capfd.readouterr().err
        assert ("/supervised/arm is still stopped: the service stop was called." in output) == said
        assert ("robot-rl doctor call=/supervised/clear_errors" in output) == said


@pytest.fixture
def interrupted_by_sigterm():
    """As `robot-rl` is."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, previous)


@pytest.mark.usefixtures("interrupted_by_sigterm")
def test_a_node_that_cannot_run_ends_the_stage_with_its_last_words(tmp_path):
    config = configuration()
    OmegaConf.set_struct(config, False)
    config.nodes.arm.parameters.rate_hz = 1.0e9

    def wait_for_it():
        with robot_nodes(config, tmp_path):
            time.sleep(WAIT_SECONDS)

    began = time.monotonic()
    with pytest.raises(ProcessDied, match=r"'rate_hz'.*got.*1000000000\.0"):
        wait_for_it()
    assert time.monotonic() < began + WAIT_SECONDS, "the wait of the stage was not cut short"


@pytest.mark.slow
@pytest.mark.usefixtures("interrupted_by_sigterm")
def test_a_node_that_cannot_be_started_again_ends_the_stage(tmp_path, monkeypatch):
    def kill_one():
        with robot_nodes(configuration(), tmp_path):
            monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
            nodes()["gripper"].kill()
            time.sleep(WAIT_SECONDS)

    began = time.monotonic()
    with pytest.raises(ProcessDied, match=r"gripper' was killed by SIGKILL and cannot be started"):
        kill_one()
    assert time.monotonic() < began + WAIT_SECONDS, "the wait of the stage was not cut short"


@pytest.mark.slow
@pytest.mark.parametrize("arms", ["", "{left: {}, right: {robot: {limits: {max_tilt: 0.5}}}}"])
def test_training_goes_through_topics_from_demonstrations_to_the_report(
    robot_rl_command, tmp_path, arms
):
    (tmp_path / "cell.yaml").write_text(f"choices: {{robot: ros_sim}}\narms: {arms or '{}'}\n")
    tiny = [
        "demonstrations=1",
        "cloning.updates=40",
        "environment_steps=100",
        "block_steps=25",
        "algorithm.schedule.warmup_steps=30",
        "algorithm.schedule.critic_only_updates=10",
        "algorithm.schedule.updates_per_step=1",
        "algorithm.schedule.batch_size=32",
        "evaluation.every_steps=50",
        "evaluation.final_episodes=1",
    ]
    easy = ["task.environment.tolerance=0.01", "task.environment.angle_tolerance=0.1"]
    words = ["cell=.", "task=reach", "robot.namespace=trained", *PATIENT_NODES, *tiny, *easy]
    done = robot_rl_command("train", *words, timeout=460.0)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/latest/report.html").exists()
