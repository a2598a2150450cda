"""One table of nodes serves the supervisor and the launch files."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import launch_stand_in
import pytest
from omegaconf import OmegaConf

from robot_rl import cli
from robot_rl.commands.runs import save_resolved
from robot_rl.config import compose, joined
from robot_rl.errors import RobotRLError
from robot_rl.ros.environment import DISCOVERY, PROFILE, leave_shared_memory, ros_environment
from robot_rl.ros.nodes import node_table
from robot_rl.run import RunDirectory

JOBS = ("train", "collect", "evaluate", "run", "robot", "sim_robot")
PIXELS = "observation=pixels"


def test_the_simulated_robot_has_a_node_for_its_arm_its_gripper_and_each_camera():
    table = node_table(compose(["robot=ros_sim", PIXELS, "robot.namespace=left"]))
    assert [(node.name, node.executable) for node in table] == [
        ("arm", "sim_arm_node"),
        ("gripper", "gripper_node"),
        ("front_camera", "camera_node"),
        ("wrist_camera", "camera_node"),
    ]
    assert {node.namespace for node in table} == {"/left"}
    arm, _, front, _ = (node.parameters for node in table)
    assert arm["limits.max_force"] == 60.0
    driver = json.loads(front["driver"])
    assert (front["camera"], driver["camera"], driver["namespace"]) == ("front", "front", "/left")
    assert driver["task"]["_target_"].endswith("PegInsert")


def test_a_camera_that_only_the_reward_sees_has_a_node_too():
    words = ["robot=ros_sim", "reward=classifier", "reward.source.path=anywhere"]
    names = [node.name for node in node_table(compose(words))]
    assert names == ["arm", "gripper", "front_camera", "wrist_camera"]
    both = node_table(compose([*words, PIXELS]))
    assert [node.name for node in both] == names
    assert "width" not in json.loads(both[2].parameters["driver"])  # as the policy sees it
    assert json.loads(node_table(compose(words))[2].parameters["driver"])["width"] == 64


def test_two_nodes_that_would_open_one_device_are_refused():
    camera = (
        "+nodes.{0}_camera={{executable:camera_node,module:drivers.camera.node,parameters:{{"
        "camera:{0},driver:{{_target_:drivers.camera.realsense.RealSenseCamera,serial:'{1}'}}}}}}"
    )
    cell = ["robot=ros", "robot.joint_names=[j]", "observation.cameras=[{name:left},{name:right}]"]
    with pytest.raises(RobotRLError, match=r"left_camera and right_camera .*serial: 7 twice"):
        node_table(compose([*cell, camera.format("left", 7), camera.format("right", 7)]))
    node_table(compose([*cell, camera.format("left", 7), camera.format("right", 8)]))


def test_a_robot_in_this_process_has_no_nodes():
    assert node_table(compose([])) == ()


def test_every_executable_is_a_script_of_the_package(checkout):
    scripts = (checkout / "pyproject.toml").read_text()
    for node in node_table(compose(["robot=ros_sim", PIXELS])):
        wrapper = (checkout / "launch/lib" / node.executable).read_text()
        script = f"robot_rl_{node.executable}"
        assert f"/bin/{script}" in wrapper
        assert f'{script} = "{node.module}:main"' in scripts


def test_a_node_that_lacks_its_executable_is_named():
    config = compose(["robot=ros_sim"])
    OmegaConf.set_struct(config, False)
    config.nodes.gripper = {"module": "drivers.gripper.node"}
    with pytest.raises(RobotRLError, match=r"nodes\.gripper.*no executable"):
        node_table(config)
    config.nodes.gripper = {"executable": "a", "module": "b", "respwan": True}
    with pytest.raises(RobotRLError, match="respwan"):
        node_table(config)
    config.nodes.gripper = {"executable": "gripper_node", "module": "timeit"}
    with pytest.raises(RobotRLError, match=r"nodes\.gripper is no node of robot_rl.*timeit"):
        node_table(config)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [(("/", ""), "/"), (("left", ""), "/left"), (("/left/", "/hand"), "/left/hand")],
)
def test_namespaces_are_joined(parts, whole):
    assert joined(*parts) == whole


def test_the_fast_dds_profile_is_used_unless_the_user_has_one(monkeypatch):
    monkeypatch.delenv(PROFILE, raising=False)
    monkeypatch.delenv(DISCOVERY, raising=False)
    wanted = ros_environment("LOCALHOST")
    assert Path(wanted[PROFILE]).name == "fastdds.xml"
    assert wanted[DISCOVERY] == "LOCALHOST"
    monkeypatch.setenv(PROFILE, "mine.xml")
    assert PROFILE not in ros_environment()


@pytest.mark.parametrize(
    ("found", "name", "left"),
    [
        ("LOCALHOST", "fastdds_udp_localhost.xml", "SYSTEM_DEFAULT"),
        ("SUBNET", "fastdds_udp.xml", "SUBNET"),
    ],
)
def test_a_node_without_pictures_leaves_shared_memory(monkeypatch, found, name, left):
    monkeypatch.delenv(PROFILE, raising=False)
    monkeypatch.setenv(DISCOVERY, found)
    monkeypatch.setenv(PROFILE, ros_environment()[PROFILE])
    leave_shared_memory()
    assert (Path(os.environ[PROFILE]).name, os.environ[DISCOVERY]) == (name, left)


def test_a_profile_of_the_user_is_left_to_nodes_without_pictures(monkeypatch):
    monkeypatch.setenv(DISCOVERY, "LOCALHOST")
    monkeypatch.setenv(PROFILE, "mine.xml")
    leave_shared_memory()
    assert (os.environ[PROFILE], os.environ[DISCOVERY]) == ("mine.xml", "LOCALHOST")


@pytest.fixture
def described(checkout, monkeypatch, tmp_path):
    """Reads a launch file: its arguments, and what it starts for some of their values.

    The newest run is one of the configuration `made_with`.
    """
    launch_stand_in.install(monkeypatch)
    monkeypatch.chdir(tmp_path)

    def read(job, made_with=(), **values):
        run = RunDirectory.create("any", tmp_path / "runs")
        save_resolved(compose(list(made_with)), run.path)
        generate = run_path(str(checkout / f"launch/{job}.launch.py"))
        *declared, rest = generate["generate_launch_description"]().entities
        defaults = {one.positional[0]: one.named["default_value"] for one in declared}
        context = launch_stand_in.LaunchContext({**defaults, **values})
        return declared, rest.named["function"](context, *rest.named["args"])

    return read


@pytest.mark.parametrize("job", JOBS)
def test_a_launch_file_starts_the_nodes_of_the_table_again_and_again(described, job):
    given = {"robot": "ros_sim", "task": "reach", "namespace": "left"}
    declared, started = described(job, ["task=reach"], **given)
    assert all(argument.named["description"] for argument in declared)
    assert {"task", "robot", "namespace"} <= {argument.positional[0] for argument in declared}
    defaults = {argument.positional[0]: argument.named["default_value"] for argument in declared}
    assert defaults["namespace"] == ""  # else it would replace the configuration's own
    table = node_table(compose(["robot=ros_sim", "task=reach", "robot.namespace=left"]))
    nodes = [action for action in started if type(action).__name__ == "Node"]
    assert [
        (n.named["package"], n.named["executable"], n.named["name"], n.named["namespace"])
        for n in nodes
    ] == [("robot_rl", node.executable, node.name, node.namespace) for node in table]
    assert [n.named["parameters"] for n in nodes] == [[dict(node.parameters)] for node in table]
    assert all(n.named["respawn"] for n in nodes)


def test_an_evaluation_starts_the_nodes_of_its_run(described):
    made_with = ["task=reach", PIXELS]
    _, started = described("evaluate", made_with, robot="ros_sim")
    nodes = [action.named for action in started if type(action).__name__ == "Node"]
    table = node_table(compose(["robot=ros_sim", *made_with]))
    assert [node["name"] for node in nodes] == [node.name for node in table]
    assert "front_camera" in [node["name"] for node in nodes]
    driver = json.loads(nodes[0]["parameters"][0]["driver"])
    assert driver["task"]["_target_"].endswith("Reach")


def test_a_launch_file_takes_a_cell_in_place_of_a_robot(described, tmp_path):
    (tmp_path / "cell.yaml").write_text("choices: {robot: ros_sim, task: reach}\nseed: 3\n")
    _, started = described("collect", cell=str(tmp_path / "cell.yaml"), robot="ros")
    names = [action.named["name"] for action in started if type(action).__name__ == "Node"]
    assert names == ["arm", "gripper"]


def ended(code):
    """The event of a process that has ended."""
    return SimpleNamespace(returncode=code, process_name="arm-1")


@pytest.mark.parametrize("job", JOBS)
def test_its_stage_uses_these_nodes_and_its_end_is_the_end_of_all(described, job):
    given = {"robot": "ros_sim", "overrides": "seed=3 policy=flow runs_directory='our runs'"}
    Path("our runs").symlink_to("runs")
    _, started = described(job, ["seed=3", "policy=flow"], **given)
    commands = [action for action in started if type(action).__name__ == "ExecuteProcess"]
    assert len(commands) == (job in ("train", "collect", "evaluate", "run"))
    for command in commands:
        _, name, *words = command.named["cmd"]
        assert name == job
        assert {"robot=ros_sim", "seed=3", "policy=flow", "start_nodes=false"} <= set(words)
        assert "runs_directory=our runs" in words
        assert ("run=latest" in words) == (job in ("evaluate", "run"))
        for code in (0, 130):  # done, or stopped by Ctrl-C
            assert type(command.named["on_exit"](ended(code), None)).__name__ == "Shutdown"
        with pytest.raises(RobotRLError, match=rf"robot-rl {job} has failed; got: exit code 2; .*"):
            command.named["on_exit"](ended(2), None)


def test_a_node_that_is_killed_is_started_again_and_one_that_fails_is_not(described):
    _, (*_, node) = described("sim_robot")
    goes_on = SimpleNamespace(is_shutdown=False)
    assert node.named["on_exit"](ended(-9), goes_on) is None
    assert node.named["on_exit"](ended(2), SimpleNamespace(is_shutdown=True)) is None
    with pytest.raises(RobotRLError, match="the node arm-1 has failed; got: exit code 2"):
        node.named["on_exit"](ended(2), goes_on)


@pytest.mark.parametrize("job", ["train", "collect", "evaluate"])
def test_a_person_drives_the_robot_with_a_launch_argument(described, job):
    _, started = described(job, robot="ros_sim", teleop="spacemouse")
    assert "teleop=spacemouse" in started[-1].named["cmd"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"robot": "ros"}, r"robot.joint_names=\[NAME,NAME,...\] \(.*overrides:='KEY=VALUE'"),
        (
            {"robot": "ros", "overrides": "robot.joint_names=[a]"},
            "nothing to launch; got: robot=ros, whose section `nodes` is empty; next: .*robot:=",
        ),
        ({"robot": "ros_sim", "overrides": "a='b"}, "overrides cannot be read; got: a='b "),
    ],
)
def test_what_cannot_be_launched_says_what_to_write(described, values, said):
    with pytest.raises(RobotRLError, match=said):
        described("robot", **values)


LAUNCH = """
import sys, launch
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource
file, *values = sys.argv[1:]
pairs = [value.split(":=", 1) for value in values]
service = launch.LaunchService(argv=values)
included = IncludeLaunchDescription(AnyLaunchDescriptionSource(file), launch_arguments=pairs)
service.include_launch_description(launch.LaunchDescription([included]))
sys.exit(service.run())
"""


@pytest.fixture
def ros2_launch(checkout, tmp_path):
    """Does what `ros2 launch` does, with robot_rl in a prefix as it is installed to."""
    if importlib.util.find_spec("launch_ros") is None:
        pytest.skip("needs a ROS installation")
    import listening  # a ROS domain of this test process's own

    assert listening
    (tmp_path / "share/ament_index/resource_index/packages").mkdir(parents=True)
    (tmp_path / "share/ament_index/resource_index/packages/robot_rl").touch()
    shutil.copytree(checkout / "launch/lib", tmp_path / "lib/robot_rl")
    (tmp_path / "bin").mkdir()
    for name in (tmp_path / "lib/robot_rl").iterdir():
        name.chmod(0o755)
    scripts = [("robot-rl", "robot_rl.cli")]
    scripts += [
        (f"robot_rl_{node.executable}", node.module)
        for node in node_table(compose(["robot=ros_sim", PIXELS]))
    ]
    for script, module in scripts:
        path = tmp_path / "bin" / script
        path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m {module} \"$@\"\n")
        path.chmod(0o755)

    def launch(job, *values):
        return subprocess.run(
            [sys.executable, "-c", LAUNCH, checkout / f"launch/{job}.launch.py", *values],
            cwd=tmp_path,
            env={
                **os.environ,
                "AMENT_PREFIX_PATH": f"{tmp_path}:{os.environ.get('AMENT_PREFIX_PATH', '')}",
                "ROS_LOG_DIR": str(tmp_path / "log"),
            },
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
        )

    return launch


def test_a_stage_that_fails_is_a_failure_of_its_launch(ros2_launch):
    done = ros2_launch(
        "collect", "robot:=ros_sim", "task:=reach", "overrides:=runs_directory=/dev/null"
    )
    assert done.returncode == 1, done.stdout
    assert "robot-rl collect has failed; got: exit code 2" in done.stdout + done.stderr


def test_a_node_that_cannot_run_ends_its_launch(ros2_launch):
    impossible = "overrides:=nodes.arm.parameters.rate_hz=1.0e9"
    done = ros2_launch("sim_robot", "task:=reach", impossible)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "'rate_hz' of /arm cannot have this value" in said
    assert said.count("[sim_arm_node-1]: process started") == 1


@pytest.mark.skipif(shutil.which("ros2") is None, reason="needs a ROS installation")
@pytest.mark.parametrize("job", JOBS)
def test_ros2_launch_reads_the_launch_file(checkout, job):
    command = ["ros2", "launch", str(checkout / f"launch/{job}.launch.py"), "--show-args"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "'robot'" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("given", "listens_to"), [("/controller", "/controller"), ("controller", "/left/controller")]
)
def test_a_driver_listens_in_its_namespace(given, listens_to):
    config = compose(["robot=ros", "robot.joint_names=[a]", "robot.namespace=left"])
    OmegaConf.set_struct(config, False)
    driver = {"_target_": "drivers.arm.topics.PoseTopicArm", "namespace": given}
    config.nodes.arm = {
        "executable": "arm_node",
        "module": "drivers.arm.node",
        "parameters": {"driver": driver},
    }
    (arm,) = node_table(config)
    assert arm.namespace == "/left"
    assert json.loads(arm.parameters["driver"])["namespace"] == listens_to


def test_several_arms_have_all_nodes_each():
    table = node_table(compose(["robot=ros_sim_two", "task=reach"]))
    assert [node.process for node in table] == [
        f"{arm}-{device}" for arm in ("left", "right") for device in ("arm", "gripper")
    ]
    drivers = [json.loads(node.parameters["driver"]) for node in table]
    assert [driver.get("namespace") for driver in drivers] == [None, "/left", None, "/right"]


def camera_node(camera, target, **driver):
    """The override that gives a camera a node, as a person writes it."""
    words = (f"_target_:drivers.camera.{target}", *(f"{n}:{value}" for n, value in driver.items()))
    parameters = f"{{camera:{camera},driver:{{{','.join(words)}}}}}"
    node = f"executable:camera_node,module:drivers.camera.node,parameters:{parameters}"
    return f"+nodes.{camera}_camera={{{node}}}"


FRANKA = (
    "robot=franka",
    "nodes.arm.parameters.driver.host=arm",
    "nodes.arm.parameters.reset.pose=[0.4,0,0.3,1,0,0,0]",
    "robot.namespace=left",
)
ONE = ("observation.cameras=[{name:front,width:640,height:480}]",)
TWO = ("observation.cameras=[{name:front},{name:wrist}]",)
REALSENSE, UVC = "realsense.RealSenseCamera", "uvc.UvcCamera"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ONE, r"no node serves the camera front; got: nodes for no camera"),
        ((PIXELS, camera_node("front", UVC, device="/dev/video0")), "the camera wrist"),
    ],
)
def test_cameras_that_no_node_can_serve_are_refused_with_the_line_to_write(words, message):
    with pytest.raises(RobotRLError, match=message):
        node_table(compose([*FRANKA, *words]))


@pytest.mark.parametrize("target", [REALSENSE, UVC])
def test_one_node_for_each_camera_needs_a_driver_that_knows_which_it_is(target):
    words = [*FRANKA, *TWO, camera_node("any", target).replace("any_camera", "cameras")]
    words[-1] = words[-1].replace("executable", "each_camera:true,executable")
    with pytest.raises(RobotRLError, match=rf"{target}, which takes no `camera`.*\+nodes\.front_c"):
        node_table(compose(words))
    words[-1] = words[-1].replace(target, "sim.SimCamera")
    names = [node.name for node in node_table(compose(words))]
    assert names == ["arm", "front_camera", "wrist_camera"]


@pytest.mark.parametrize("line", ["node", "null"])
def test_the_line_in_the_refusal_fixes_it(line):
    with pytest.raises(RobotRLError) as refusal:
        node_table(compose([*FRANKA, *ONE]))
    said = str(refusal.value)
    written = said.split('"')[1] if line == "node" else said.split(", ")[-1]
    names = [node.name for node in node_table(compose([*FRANKA, *ONE, written]))]
    assert names == ["arm", *(["front_camera"] if line == "node" else [])]


def test_a_camera_with_nodes_and_devices_of_its_own_is_taken():
    words = [*FRANKA, *TWO, camera_node("front", REALSENSE, serial="'7'")]
    table = node_table(compose([*words, camera_node("wrist", UVC, device="/dev/video0")]))
    assert [node.name for node in table] == ["arm", "front_camera", "wrist_camera"]
    assert node_table(compose(["robot=ros", "robot.joint_names=[a]", *TWO])) == ()  # all by others


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("40412060001", "serial of the node left-front_camera is a number; .* quote the serial"),
        (
            "'1',width:640,height:480",
            r"crop is not within .*; got: crop: \[600, 0, 128, 128\]; .*640×4",
        ),
    ],
)
def test_values_of_a_camera_that_cannot_be_are_refused(given, said):
    node = camera_node("front", REALSENSE, serial=given)
    node = node.replace("driver:", "crop:[600,0,128,128],driver:")
    with pytest.raises(RobotRLError, match=said):
        node_table(compose([*FRANKA, "observation.cameras=[{name:front}]", node]))


@pytest.mark.parametrize("command", ["collect", "train"])
def test_a_command_refuses_such_a_camera_before_it_makes_anything(command, tmp_path, capsys):
    words = [*FRANKA, *ONE, "task=reach", f"runs_directory={tmp_path / 'runs'}"]
    assert cli.main([command, *words]) == cli.EXIT_ERROR
    assert "no node serves the camera front" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
