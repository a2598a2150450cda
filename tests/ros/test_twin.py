"""The twin of a UR5e cell: UR's own library, the driver and its node, all as processes."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("rtde_control", reason="needs the extra ur")

from listening import PATIENT

from drivers.teleop.spacemouse import SpaceMouse
from policies import registry
from robot_rl.commands.preparation import robot_nodes
from robot_rl.config import compose
from robot_rl.env.factory import make_session
from robot_rl.env.input_device import TeleopInput
from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros.faults import ServiceFailed
from robot_rl.ros.ros_client import ask
from robot_rl.run import RunDirectory

# Its processes answer each other in milliseconds, which a busy machine does not.
pytestmark = pytest.mark.slow

# Packets are late by more than the controller's watchdog, of 1 s, waits.
WORDS = ["robot=twin_ur5e", "task=peg_insert", "+nodes.twin.parameters.delay_s=1.5"]
ADDRESS = f"127.1.{os.getpid() % 250}"  # of a network of this machine alone
CAMERA = (
    "observation.cameras=[{_target_:robot_rl.env.sim.cameras.CameraOptions,"
    "name:wrist,width:64,height:64}]"
)
WAIT_SECONDS = 90.0
ASIDE = np.array([0.3, 0, 0, 0, 0, 0], np.float32)


@pytest.fixture(scope="module")
def cell(request, tmp_path_factory):
    """A cell, a process for each node, and its environment in this one; a person starts it."""
    words = request.param if request.param is WORDS else equipped()
    place = ["robot.namespace=twin_cell", f"simulation.host={ADDRESS}.1"]
    # A frozen camera is opened anew every two seconds, and then gives some pictures.
    patient = [*PATIENT, "robot.sensors.image_s=1.0"]
    config = compose([*words, *place, "robot.attended=true", *patient])
    with robot_nodes(config, tmp_path_factory.mktemp("logs")):
        session = make_session(config, RunDirectory(tmp_path_factory.mktemp("run")))
        yield session
        session.close()


def equipped():
    """With a gripper and a camera."""
    pytest.importorskip("pymodbus", reason="needs the extra robotiq")
    pytest.importorskip("libusb_package", reason="needs the extra realsense")
    return ["robot=twin_ur5e_2f85", "task=pick_cube", CAMERA]


bare = pytest.mark.parametrize("cell", [WORDS], indirect=True, ids=["bare"])
full = pytest.mark.parametrize("cell", [None], indirect=True, ids=["equipped"])


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
        env.operator.overhear()
        if env.operator.waits_for:
            ask("/twin_cell/start")
        return env.reset(seed=seed)

    return until_done(reset)


def place(env):
    """Where the arm is in the twin's world, whatever the network does."""
    time.sleep(0.5)
    env.robot.mirror.update()
    return env.robot.simulated_task.world.tcp_pose()[:3]


def check_stands(env):
    """It may have been on its way to a start, from which it stops within two seconds."""
    time.sleep(2.0)
    np.testing.assert_allclose(place(env), place(env), atol=1e-3)


@bare
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
    check_stands(cell)
    if remedy is not None:
        say(f"sim/{remedy}")
    say("clear_errors")
    begin(cell, 3)
    before = cell.robot.tcp_pose()
    for _ in range(10):
        cell.step(ASIDE)
    assert cell.robot.tcp_pose()[0] > before[0] + 0.005


@full
@pytest.mark.parametrize(
    ("fault", "part", "named"),
    [
        ("freeze_cameras", "cameras", "color/image_raw.* the same picture again and again"),
        ("silence_cameras", "cameras", "color/image_raw.*(too old|gave no new picture)"),
        ("silence_gripper", "gripper", "gripper/state.*(too old|does not answer)"),
        ("jam_gripper", "gripper", "gripper/state.*the fingers of the gripper .* do not move"),
    ],
)
def test_a_fault_of_gripper_or_camera_holds_the_arm_and_is_in_the_log(
    cell, tmp_path, fault, part, named
):
    begin(cell, 1)
    assert cell.robot.simulated_task is not None  # from now on the world is listened to
    say(f"sim/{fault}")
    closing = np.array([0, 0, 0, 0, 0, 0, 1.0], np.float32)

    def act_on():
        for number in range(200):
            if cell.step(closing * (-1.0) ** (number // 30))[3]:
                cell.reset(seed=2)

    with pytest.raises(RobotInterrupted, match=named):
        act_on()
    check_stands(cell)
    cell.keep_faults()
    assert cell.run.read_jsonl("faults")[-1]["kind"] == "SensorLate"
    say(f"sim/restore_{part}")
    if fault == "jam_gripper":
        say("gripper/clear_errors")
    begin(cell, 2)
    cell.step(closing)


class _Mouse:
    """A device of hidapi with reports of a SpaceMouse that is pushed to the front, then let go."""

    def open_path(self, path):
        self.pushed = True

    def read(self, count, milliseconds):
        time.sleep(0.008)
        return bytes.fromhex(
            "01 0000 a2fe 0000 0000 0000 0000" if self.pushed else "01" + "00" * 12
        )

    def close(self):
        """Nothing to close."""


@bare
def test_an_operator_takes_over_with_a_spacemouse(cell, monkeypatch):
    mouse = _Mouse()
    library = SimpleNamespace(device=lambda: mouse, enumerate=lambda *ids: [])
    monkeypatch.setitem(sys.modules, "hidraw", library)
    device = registry.make(
        compose(["teleop=spacemouse"]).teleop.device, SpaceMouse, path="/dev/hidraw0"
    )
    begin(cell, 5)
    mouse_input = TeleopInput(device, cell.inbox)
    monkeypatch.setattr(cell.operator, "devices", (mouse_input,))
    before = cell.robot.tcp_pose()
    still = np.zeros(6, np.float32)
    cell.step(still)  # the first report may just be coming
    assert all(cell.step(still)[4]["intervened"] for _ in range(10))
    assert cell.robot.tcp_pose()[0] > before[0] + 0.02
    mouse.pushed = False
    deadline = time.monotonic() + WAIT_SECONDS
    while cell.step(still)[4]["intervened"]:
        assert time.monotonic() < deadline, "it stays with the operator"
    mouse_input.close()


def test_the_expert_inserts_the_peg(robot_rl_command, tmp_path):
    place = ["robot.namespace=twin_collecting", f"simulation.host={ADDRESS}.2"]
    words = [*WORDS, *place, *PATIENT, "demonstrations=1"]
    done = robot_rl_command("collect", *words, timeout=400.0)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/peg_insert/*/demonstrations.zarr"))
