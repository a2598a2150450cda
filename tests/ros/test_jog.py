"""The commands of an arm's first motion: its nodes alone, and a way of some millimetres."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from arm_cell import HOME, ArmCell, sim_arm
from listening import PATIENT_NODES

from robot_rl import cli
from robot_rl.processes.waiting import wait_until


@pytest.fixture(scope="module")
def cell():
    given = {"limits.workspace_high": [0.65, 0.20, float(HOME[2]) + 0.015]}
    cell = ArmCell(f"/jogged_{os.getpid()}", sim_arm(), **given)
    cell.commander.leave()
    yield cell
    cell.close()


@pytest.fixture
def jog(cell):
    """Start `robot-rl jog` from home, with what it says on a pipe."""
    assert cell.listener.trigger("clear_errors")[0]
    assert cell.listener.trigger("sim/reset")[0]
    cell.until_mode("hold: ")
    cell.listener.until(lambda: np.abs(cell.pose()[:3] - HOME[:3]).max() < 1e-3)
    started = []

    def start(*words, stdin=subprocess.DEVNULL):
        command = [sys.executable, "-m", "robot_rl.cli", "jog", f"namespace={cell.namespace}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([*command, *words], stdin=stdin, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def went(said):
    """What it says that it measured [mm]."""
    return np.array([float(n) for n in re.findall(r"measured \[(.*)\] mm", said)[0].split(",")])


@pytest.mark.slow  # it moves for a second in real time, in which a busy machine may pause
def test_an_arm_goes_on_a_straight_way_after_enter_and_then_holds(cell, jog):
    person, terminal = pty.openpty()
    process = jog("y=-0.006", "z=0.008", stdin=terminal)
    assert "10 mm at 10 mm/s" in process.stdout.readline()
    assert not cell.moved(HOME, 1e-3)  # nobody has said so yet
    os.write(person, b"\n")
    said, _ = process.communicate(timeout=60.0)
    assert process.returncode == 0, said
    assert "asked [0.0, -6.0, 8.0] mm" in said
    np.testing.assert_allclose(went(said), [0.0, -6.0, 8.0], atol=1.0)
    assert "no command for" in cell.until_mode("hold: ")
    os.close(person)
    os.close(terminal)


@pytest.mark.slow  # the same
def test_a_way_ends_where_the_node_limits_it(cell, jog):
    said, _ = jog("z=0.03", "yes=true").communicate(timeout=60.0)
    assert "robot-rl: the arm's node limits the target along z; got: " in said
    assert re.search(r"ends here, or the tool presses on something: force \d+\.\d N, most", said)
    assert went(said)[2] < 18.0


@pytest.mark.faults
@pytest.mark.parametrize("ends", ["stop", "Ctrl-C"])
def test_a_way_ends_at_a_stop_and_at_ctrl_c(cell, jog, ends):
    process = jog("y=0.05", "yes=true")
    cell.listener.until(lambda: cell.moved(HOME, 0.003))
    if ends == "stop":
        assert cell.listener.trigger("stop")[0]
    else:
        process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60.0)
    expected = {"stop": (2, "the service stop was called"), "Ctrl-C": (130, "robot-rl: stopped")}
    assert (process.returncode, expected[ends][1] in said) == (expected[ends][0], True), said
    assert "follow" not in cell.until_mode("stopped" if ends == "stop" else "hold")
    assert not cell.moved(HOME, 0.045)
    if ends == "stop":  # nor does it begin before a person has cleared it
        said, _ = jog("y=0.01", "yes=true").communicate(timeout=60.0)
        assert "next: look at the arm, then say clear_errors" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["yes=true"], "this way is not possible; got: 0 m"),
        (["x=0.04", "y=0.04", "yes=true"], "together more than 0 and at most 0.05"),
        (["z=1cm"], "z is no number; got: 1cm; expected: z=0.0, for example"),
        (["z=0.01", "speed=0.2"], "this speed is not possible; got: 0.2 m/s"),
        (["z=0.01"], "nobody can confirm the motion; got: no terminal; next: add yes=true"),
    ],
)
def test_an_impossible_way_is_refused_without_an_arm(capsys, words, message):
    assert cli.main(["jog", *words]) == cli.EXIT_ERROR
    assert message in capsys.readouterr().err


@pytest.mark.slow  # the nodes are processes, one of which is started twice
def test_nodes_run_alone_and_a_killed_one_comes_back(tmp_path):
    words = ["robot=ros_sim", f"robot.namespace=/alone_{os.getpid()}", *PATIENT_NODES]
    process = subprocess.Popen(
        [sys.executable, "-m", "robot_rl.cli", "nodes", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        assert "task=" not in lines[0]
        number, log = re.search(r"/arm is process (\d+), log (.*)\n", lines[1]).groups()

        def connected():
            with open(log) as file:
                return "connected: drivers.arm.sim.SimArm" in file.read()

        assert wait_until(connected, 60.0)
        second = [sys.executable, "-m", "robot_rl.cli", "nodes", *words]
        said = subprocess.run(second, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert f"the nodes of /alone_{os.getpid()} run already; next: end them first" in said.stderr
        os.kill(int(number), signal.SIGKILL)
        again = re.search(
            r"arm' was killed by SIGKILL.* as process (\d+)", process.stdout.readline()
        )
        assert int(again[1]) != int(number)
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == cli.EXIT_INTERRUPTED
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow  # it starts a process, which starts another
def test_hands_are_warned_of_a_gripper_that_moves_at_its_start(tmp_path):
    driver = "{_target_:drivers.gripper.robotiq.Robotiq2F,address:/dev/nothing}"
    node = (
        "{executable:gripper_node,module:drivers.gripper.node,parameters:{driver:" + driver + "}}"
    )
    words = ["robot=ros", "robot.joint_names=[a]", f"robot.namespace=/fingers_{os.getpid()}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robot_rl.cli", "nodes", *words, f"+nodes.gripper={node}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[1] == "the gripper's fingers may open and close now: hands away\n"
        assert lines[3] == "the arm does not move by itself; Ctrl-C ends them\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == cli.EXIT_INTERRUPTED
    finally:
        process.kill()
        process.communicate()


def test_there_is_nothing_to_run_of_a_robot_without_nodes(capsys):
    assert cli.main(["nodes", "robot=sim"]) == cli.EXIT_ERROR
    assert "there are no nodes to run; got: robot=sim" in capsys.readouterr().err
