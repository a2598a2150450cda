"""The twin of a UR5e cell: UR's own library, the driver and its node, all as processes."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("rtde_control", reason="needs the extra ur")

from listening import PATIENT

from robot_rl.commands.preparation import robot_nodes
from robot_rl.config import compose
from robot_rl.env.factory import make_env, make_inbox, make_intervention
from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros.client import ask
from robot_rl.ros.errors import ServiceFailed

# Its processes answer each other in milliseconds, which a busy machine does not.
pytestmark = pytest.mark.slow

WORDS = ["robot=twin_ur5e", "task=peg_insert"]
ADDRESS = f"127.1.{os.getpid() % 250}"  # of a network of this machine alone
WAIT_SECONDS = 90.0
ASIDE = np.array([0.3, 0, 0, 0, 0, 0], np.float32)


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    place = ["robot.namespace=twin_cell", f"simulation.host={ADDRESS}.1"]
    config = compose([*WORDS, *place, "robot.attended=true", *PATIENT])
    with robot_nodes(config, tmp_path_factory.mktemp("logs")):
        env = make_env(config)
        yield make_intervention(config, env, make_inbox(config))
        env.close()


def say(service):
    """Ask for a service again and again, until it is done."""
    until_done(lambda: ask(f"/twin_cell/{service}"))


def until_done(do):
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return do()
        except (RobotInterrupted, ServiceFailed):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def begin(env, seed):
    """Begin an episode as soon as the robot can, after a person's start."""

    def reset():
        env.overhear()
        if env.waits_for:
            ask("/twin_cell/start")
        return env.reset(seed=seed)

    return until_done(reset)


def place(env):
    """Where the arm is in the twin's world, whatever the network does."""
    time.sleep(0.5)
    env.robot.mirror.update()
    return env.robot.simulated_task.world.tcp_pose()[:3]


@pytest.mark.parametrize(
    ("fault", "remedy", "named"),
    [
        ("protective_stop", None, "protective stop"),
        ("emergency_stop", "switch_on", "emergency stop"),
        ("delay_packets", None, "program on the controller has ended|too old"),
        ("cut_connection", "restore_connection", "too old|cannot be reached|disconnected"),
    ],
)
def test_a_fault_holds_the_arm_and_is_named_and_a_person_lets_it_go_on(cell, fault, remedy, named):
    begin(cell, 1)
    assert cell.robot.simulated_task is not None  # from now on the world is listened to
    for _ in range(3):
        cell.step(ASIDE)
    say(f"sim/{fault}")

    def act_on():
        for _ in range(100):  # it may take the limits on ages until it is noticed
            if cell.step(ASIDE)[3]:
                cell.reset(seed=2)

    with pytest.raises(RobotInterrupted, match=named):
        act_on()
    np.testing.assert_allclose(place(cell), place(cell), atol=1e-3)
    if remedy is not None:
        say(f"sim/{remedy}")
    say("clear_errors")
    begin(cell, 3)
    before = cell.robot.tcp_pose()
    for _ in range(10):
        cell.step(ASIDE)
    assert cell.robot.tcp_pose()[0] > before[0] + 0.005


def test_the_expert_inserts_the_peg(robot_rl_command, tmp_path):
    place = ["robot.namespace=twin_collecting", f"simulation.host={ADDRESS}.2"]
    words = [*WORDS, *place, *PATIENT, "demonstrations=1"]
    done = robot_rl_command("collect", *words, timeout=400.0)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/peg_insert/*/demonstrations.zarr"))
