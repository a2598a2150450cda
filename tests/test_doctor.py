"""`robot-rl doctor`: it says what is here, and survives what crashes and hangs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_device import ScriptedDevice

from robot_rl import cli
from robot_rl.commands import doctor as probes
from robot_rl.commands.devices import devices_of, look, watch
from robot_rl.commands.doctor import CHECKS, ask, examine, run
from robot_rl.config import NOT_GIVEN
from robot_rl.errors import RobotRLError

LIGHT = {name: CHECKS[name] for name in ("python", "mujoco", "hidraw", "disk", "memory")}


def check_report(text, checks):
    *lines, last = text.splitlines()
    report = json.loads(last)
    assert report["usable"]
    assert report["machine"]["cores"] > 0
    assert list(report["checks"]) == list(checks)
    for name, check in checks.items():
        finding = report["checks"][name]
        (line,) = [line for line in lines if line.split()[0] == name]
        assert line.split()[1] == ("ok" if finding["works"] else "missing")
        assert finding["found"] in line
        assert finding["works"] or any(finding["fix"] in line for line in lines)
        assert finding["works"] or not check.required


def test_the_report_names_everything_and_ends_with_json(capsys, monkeypatch):
    monkeypatch.setattr("robot_rl.commands.doctor.CHECKS", LIGHT)
    assert cli.main(["doctor", "json=true"]) == 0
    check_report(capsys.readouterr().out, LIGHT)
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "ok" in line.split()[:2]] != []
    assert not lines[-1].startswith("{")


@pytest.mark.slow  # each of the probes is a process, and two of them import torch
def test_the_whole_report_of_this_machine(robot_rl_command):
    done = robot_rl_command("doctor", "json=true")
    assert done.returncode == 0, done.stderr
    check_report(done.stdout, CHECKS)


def test_doctor_takes_no_path(capsys):
    assert cli.main(["doctor", "runs/latest"]) == cli.EXIT_ERROR
    assert "doctor takes key=value only; got: runs/latest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os; os.abort()", "was killed by signal 6"),
        ("raise OSError('no such library')", "ended with code 1: OSError: no such library"),
        ("print('hello')", "ended with code 0"),
        ("print('[1, 2]')", "ended with code 0"),
        ("import time; time.sleep(60)", "gave no answer within 0.5 s"),
    ],
)
def test_a_probe_that_crashes_hangs_or_babbles_is_a_finding(code, found):
    finding = ask([sys.executable, "-c", code], 0.5 if "sleep" in code else 20.0)
    assert not finding.works
    assert found in finding.found
    assert "see what it says" in finding.fix


def test_what_a_library_prints_does_not_disturb():
    code = """print('banner {}'); print('{"works": true, "found": "x"}')"""
    assert ask([sys.executable, "-c", code], 20.0).found == "x"


def test_a_backend_without_its_library_is_named_with_the_command_that_installs_it():
    code = (
        f"import {probes.__name__} as p;"
        "look = lambda: p.rendered('nothing', 'NoLibrary', 'apt-get install it');"
        "p.CHECKS['x'] = p.Check(look, '');"
        "p.main('x')"
    )
    finding = ask([sys.executable, "-c", code], 20.0)
    assert finding.found == "MUJOCO_GL=nothing: the library NoLibrary is not installed"
    assert finding.fix == "apt-get install it"


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch):
    with pytest.raises(probes.NotHere, match="package absent is not installed") as caught:
        probes.imported("absent.part", "pip install absent")
    assert caught.value.fix == "pip install absent"
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(probes.NotHere, match="DISPLAY is not set"):
        probes.keyboard()


def test_devices_without_permission_are_not_called_missing(tmp_path: Path, monkeypatch):
    (tmp_path / "video0").touch()
    (tmp_path / "video0.name").write_text("Webcam\n")

    def look(pattern):
        return probes.find_devices(f"{tmp_path}/{pattern}", f"{tmp_path}/{{}}.name", "video")

    assert look("video0") == f"{tmp_path}/video0 (Webcam)"
    with pytest.raises(probes.NotHere, match="no device among"):
        look("js*")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(probes.NotHere, match=r"no permission.*video0") as caught:
        look("video0")
    assert "usermod -aG video" in caught.value.fix


def test_without_a_required_part_it_fails(capsys, monkeypatch, tmp_path):
    """A torch that cannot be imported, found before the real one."""
    (tmp_path / "torch.py").write_text("raise ImportError('libc10.so: cannot open')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    finding = examine("torch")
    assert "torch cannot be imported: ImportError: libc10.so" in finding.found
    assert "pip install" in finding.fix
    monkeypatch.setattr("robot_rl.commands.doctor.CHECKS", {"torch": CHECKS["torch"]})
    with pytest.raises(RobotRLError, match=r"without torch; got: .*libc10.*next: \.venv/bin/pip"):
        run()
    assert "missing" in capsys.readouterr().out


def test_the_probes_run_by_hand():
    command = [sys.executable, "-m", probes.__name__, "python"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["works"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_axes_of_a_device_are_shown_on_a_terminal_and_read_once_elsewhere():
    front = [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    device = ScriptedDevice(script=[front, "fire", *[front] * 50])
    screen = Terminal()
    found = watch(device, 0.3, screen)
    assert "front +0.44" in screen.getvalue()  # beyond the dead zone
    assert found == "connected; largest motion 0.44 of 1, buttons fire"
    log = io.StringIO()
    assert watch(ScriptedDevice(script=[[0.0] * 6, front]), 60.0, log).endswith("0.00 of 1")
    assert log.getvalue() == ""


def test_a_device_that_is_named_is_looked_at_and_may_be_missing(capsys, monkeypatch):
    monkeypatch.setattr("robot_rl.commands.doctor.CHECKS", {"python": CHECKS["python"]})
    monkeypatch.delenv("DISPLAY", raising=False)
    run(json=True, teleop="keyboard")
    checks = json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]
    assert "needs a display" in checks["teleop"]["found"]
    assert "teleop=gamepad" in checks["teleop"]["fix"]


def test_the_devices_of_a_cell_are_looked_at_one_by_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["arm=ur", "gripper=robotiq", "cameras=wrist:uvc:/dev/nothing"]
    assert cli.main(["cell", "lab", *words]) == 0
    assert cli.main(["doctor", "cell=lab", "json=true"]) == cli.EXIT_ERROR
    output = capsys.readouterr()
    checks = json.loads(output.out.splitlines()[-1])["checks"]
    assert list(checks) == ["cell", "arm", "gripper", "wrist_camera"]
    assert "nodes.arm.parameters.reset.pose" in checks["cell"]["found"]
    assert checks["arm"]["found"] == "its host is not given"
    assert checks["wrist_camera"]["found"] == "there is no camera /dev/nothing"
    assert "ls -l /dev/v4l/by-id" in checks["wrist_camera"]["fix"]
    assert "the robot of lab is not ready, see above: cell, arm, gripper, wrist_c" in output.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"      limits:  ": "      limits:\n        max_spede_rotation: 1.0\n      #"},
            "nodes.arm.parameters: unknown key limits.max_spede_rotation",
        ),
        (
            {"pose: ???": "pose: [0.4, 0, 0.3, 1, 0, 0, 0]", "joints: null": "joints: [[0.0]]"},
            "needs one of the parameters reset.pose and reset.joints; got: both",
        ),
        ({"pose: ???": "pose: [0.4, 0, 0.3, 1, 0, 0]"}, "reset.pose is no pose; got: (6,)"),
        (
            {"pose: ???": "pose: [400, 0, 300, 1, 0, 0, 0]"},
            "reset.pose is outside the limits of workspace; got: [400.0, 0.0, 300.0] m",
        ),
        ({"pose: ???": "pose: [0.4, 0, 0.3, 0, 0, 0, 1]"}, "outside the limits of tilt; got: 3.14"),
        (
            {"pose: ???": "pose: null", "joints: null": "joints: [[0.0, 0.1, 0.2, 0.3, 0.4]]"},
            "reset.joints holds no waypoints; got: [0.0, 0.1, 0.2, 0.3, 0.4]; expected: 6 numbers",
        ),
        (
            {"pose: ???": "pose: null", "joints: null": "joints: [[0, -90, 90, 0, 90, 0]]"},
            "a joint of reset.joints is beyond one turn; got: [0, -90, 90, 0, 90, 0]",
        ),
        ({"low: [0.30, -0.20": "low: [300.0, -200.0"}, "'workspace_low' is not a position; got: "),
        ({"translation_step: 0.01": "translation_step: 1.0"}, "'translation_step' is too large"),
        ({"  max_force: 60.0   ": "  max_force: 900.0 "}, "limits.max_force is out of range"),
        ({"_low: [0.30": "_low: [0.90"}, "robot.limits: the workspace is empty along x"),
    ],
)
def test_values_of_an_arm_that_cannot_be_are_named_without_it(
    capsys, tmp_path, monkeypatch, changes, said
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["cell", "lab", "arm=ur"]) == 0
    text = (tmp_path / "lab/cell.yaml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "lab/cell.yaml").write_text(text)
    assert cli.main(["doctor", "cell=lab"]) == cli.EXIT_ERROR
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rate", "published", "said"),
    [
        (0, {}, "'rate_hz' of the camera is out of range; got: 0"),
        ("3O", {}, "'rate_hz' of the camera is out of range; got: 3O"),
        (30, {"frame_rate_hz": -1.0}, "frame_rate_hz is not a positive number; got: -1"),
        (30, {"crop": [1.0, 2.0]}, "this part of a camera's pictures is impossible"),
        (30, {}, "there is no camera /dev/nothing"),
    ],
)
def test_values_of_a_camera_that_cannot_be_are_named_without_it(rate, published, said):
    driver = {"_target_": "drivers.camera.uvc.UvcCamera", "device": "/dev/nothing", "rate_hz": rate}
    with pytest.raises(RobotRLError) as refusal:
        look("camera", json.dumps(driver), json.dumps(published))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("start_pose: [0.4, ", "start_pose: [0.9, ", "outside the limits of workspace; got: [0.89"),
        ("1, 0, 0, 0]", "0, 0, 0, 0]", "start_pose: the orientation is not a rotation"),
        ("1, 0, 0, 0]", "0, 0, 0, 1]", "outside the limits of tilt; got: 3.14 rad"),
        ("start_noise: 0.01", "start_noise: 0.5", "with its start_noise, is outside the limits of"),
        ("rotation_z", "rotatoin_z", "action_names of the task; got: x, y, z, rotation_x, "),
        ("tcp_wrench", "tcp_wrensh", "what this robot does not observe; got: state/tcp_wrensh"),
    ],
)
def test_values_of_a_task_that_its_robot_would_refuse_are_named_without_it(
    capsys, tmp_path, monkeypatch, old, new, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROBOT_RL_PATH", "")
    assert cli.main(["cell", "lab", "arm=ur"]) == 0
    start = "start=[0.4, 0, 0.2, 1, 0, 0, 0]"
    assert cli.main(["task", "lab/plug", "instruction=push", start]) == 0
    file = tmp_path / "lab/configs/task/plug.yaml"
    text = file.read_text().replace("0.4, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0", start[7:-1])
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RobotRLError) as refusal:
        devices_of("cell=lab", "task=plug")
    assert said in str(refusal.value)
    assert devices_of("cell=lab")[0]  # nobody has named a task


@pytest.mark.parametrize(
    ("tcp", "payload_kg", "said"),
    [
        ([0, 0, 174.0], 1.0, r"tool\.tcp is too far away; got: \[0.0, 0.0, 174.0\]; .* m, not mm"),
        ([0, 0, 0.174], 1000, r"tool\.payload_kg cannot be; got: 1000; expected: more than 0"),
        ([0, 0, 0.174], 0.0, r"tool\.payload_kg cannot be; got: 0.0"),
    ],
)
def test_a_tool_that_cannot_be_is_named_without_the_arm(tcp, payload_kg, said):
    tool = {
        "tcp": [*tcp, 0, 0, 0, 1],
        "payload_kg": payload_kg,
        "_target_": "drivers.arm.base.Tool",
    }
    driver = {"_target_": "drivers.arm.ur.UrArm", "host": "192.0.2.1", "tool": tool}
    with pytest.raises(RobotRLError, match=said):
        look("", json.dumps(driver))


def test_a_driver_that_cannot_go_to_joint_positions_is_named():
    pytest.importorskip("rtde_control", reason="needs the extra ur")
    driver = {"_target_": "drivers.arm.ur.UrArm", "host": "192.0.2.1"}
    with pytest.raises(RobotRLError, match="give the driver of a UR arm its type"):
        look("by joints", json.dumps(driver))


def test_an_arm_on_topics_needs_its_controller_and_all_that_is_open():
    driver = {"_target_": "drivers.arm.topics.PoseTopicArm", "namespace": "/nothing_here"}
    with pytest.raises(RobotRLError, match="its joint_names is not given"):
        look("", json.dumps({**driver, "joint_names": NOT_GIVEN}))
    with pytest.raises(RobotRLError, match="nobody publishes /nothing_here/joint_states, /nothing"):
        look("", json.dumps({**driver, "joint_names": ["a"], "timeout_s": 0.5}))
