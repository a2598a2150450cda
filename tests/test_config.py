"""The configuration of a cell, and that of a run that is gone on with."""

import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from policies import registry
from robot_rl import cli
from robot_rl.commands.preparation import check_robot
from robot_rl.commands.runs import (
    compose_for_run,
    compose_new_run,
    kept_cell,
    load_resolved,
    save_resolved,
    working_run,
)
from robot_rl.commands.teach import start_lines
from robot_rl.config import ConfigError, compose, composed, read_cell
from robot_rl.env.task import TrackedTask
from robot_rl.errors import RobotRLError
from robot_rl.processes.group import ProcessDied, ProcessGroup
from robot_rl.processes.resources import find_resource
from robot_rl.processes.waiting import wait_until
from robot_rl.ros.nodes import node_table
from robot_rl.run import RunDirectory

POSE = "[0.4,0,0.3,1,0,0,0]"
UR = """
choices: {robot: ur, teleop: gamepad, reward: human}
robot: {limits: {workspace_low: [0.3, -0.2, 0]}}
nodes:
  arm.parameters: {driver: {host: 192.168.1.10}, reset: {pose: "???"}, limits: {max_force: 40}}
"""
RESET = f"nodes.arm.parameters.reset.pose={POSE}"


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Path:
    """A folder with a cell; it is the working directory's only one."""
    monkeypatch.chdir(tmp_path)
    # Read folders join the registry for this process and its children.
    monkeypatch.setenv("ROBOT_RL_PATH", "")
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/cell.yaml").write_text(UR)
    return tmp_path / "lab"


def test_what_must_be_given_is_asked_for_once():
    """A run with a classifier could not start its processes: each asked for the path again."""
    with pytest.raises(ConfigError, match=r"must be given: reward\.source\.path"):
        compose(["reward=classifier"])
    run_config = compose(["reward=classifier", "reward.source.path=somewhere"])
    assert compose_for_run([], run_config).reward.source.path == "somewhere"


def test_a_cell_is_added_to_its_choices_and_what_is_typed_wins(lab):
    config = compose(["cell=lab", RESET, "teleop=none", "nodes.arm.parameters.rate_hz=50"])
    assert (config.choices.robot, config.choices.teleop) == ("ur", "none")
    assert (config.choices.reward, config.cell) == ("human", str(lab / "cell.yaml"))
    (arm,) = node_table(config)
    assert arm.parameters["limits.workspace_low"] == [0.3, -0.2, 0.0]
    assert arm.parameters["limits.max_force"] == 40.0
    assert isinstance(arm.parameters["limits.max_force"], float)
    assert arm.parameters["rate_hz"] == 50.0
    with pytest.raises(ConfigError, match=rf"given: nodes\.arm.*pose; next: write .* {lab}/cell"):
        compose(["cell=lab"])


def test_tasks_and_classes_beside_a_cell_are_found(lab):
    (lab / "configs/task").mkdir(parents=True)
    (lab / "configs/task/ours.yaml").write_text("defaults: [reach, _self_]\nname: ours\n")
    (lab / "cell.yaml").write_text("choices: {robot: sim, task: ours}\n")
    assert compose(["cell=lab/cell.yaml"]).task.name == "ours"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML; got: "),
        ("", "is no cell; got: {}; expected: a mapping"),
        ("- robot", "is no cell; got: ['robot']; expected: a mapping"),
        ("just words", "unknown key 'just words'"),
        ("choices: ur", "is no cell"),
        ("choices: {robt: ur}", "unknown group 'robt'"),
        ("choices: {robot: urr}", "did you mean robot=ur?"),
        ("robot: {limts: {max_force: 3}}", "unknown key 'robot.limts'; got: limts"),
        ("robot.limits.max_force: strong", "robot.limits.max_force has another type"),
        ("control_rate_hz: null", "control_rate_hz has another type"),
        ("observation: {cameras: [{name: a}, {name: a}]}", "have one name; got: a"),
        ("nodes: {a_camera: {}, a_camera: {}}", "a_camera stands twice in "),
        ("seed: 1\nsteps: 2\nseed: 3\n", "cell.yaml: lines 1 and 3; next: delete the first"),
    ],
)
def test_a_cell_that_cannot_be_used_is_refused_with_the_key(lab, capsys, text, said):
    (lab / "cell.yaml").write_text(text)
    assert cli.main(["collect", "cell=lab"]) == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert str(lab / "cell.yaml") in error or "observation" in text
    assert not Path("runs").exists()


def test_a_cell_that_is_not_there_is_inside_robot_rl_or_of_another_robot(lab):
    with pytest.raises(ConfigError, match=r"no such cell; got: .*; next: write one: robot-rl cell"):
        compose(["cell=nothing"])
    with pytest.raises(ConfigError, match="is inside robot_rl"):
        compose([f"cell={find_resource('configs/config.yaml')}"])
    with pytest.raises(ConfigError, match="the cell is one of robot=ur; got: robot=sim"):
        compose(["cell=lab", "robot=sim"])


def test_a_written_cell_asks_only_for_what_the_lab_knows(lab, capsys):
    cameras = "cameras=wrist:realsense:7,front:uvc:/dev/video0"
    for arm in ("ur", "franka", "xarm", "topics"):
        for gripper in ("none", "robotiq", "franka", "topics"):
            words = [f"lab/{arm}-{gripper}.yaml", f"arm={arm}", f"gripper={gripper}", cameras]
            assert cli.main(["cell", *words, "teleop=gamepad"]) == 0
            asked = re.findall(r"to fill in: (.*)", capsys.readouterr().out)[0].split(", ")
            values = {"pose": POSE, "tcp": POSE, "payload_kg": "1.0", "joint_names": "[a]"}
            values |= {"open_at": "0.0", "closed_at": "1.0"}
            given = [f"{key}={values.get(key.split('.')[-1], 'x')}" for key in asked]
            config = compose([f"cell=lab/{arm}-{gripper}.yaml", *given])
            devices = ["arm", *(["gripper"] if gripper != "none" else [])]
            names = [node.name for node in node_table(config)]
            assert names == [*devices, "wrist_camera", "front_camera"]
            assert config.robot.gripper == (gripper != "none")
            assert ("nodes.arm.parameters.driver.tool.tcp" in asked) == (arm != "topics")
    before = (lab / "cell.yaml").read_text()
    assert cli.main(["cell", "lab", "arm=ur"]) == cli.EXIT_ERROR
    assert "is there already" in capsys.readouterr().err
    assert (lab / "cell.yaml").read_text() == before


def test_a_written_cell_asks_a_person_for_the_scene_and_shows_pictures_of_the_size_observed(lab):
    cameras = "cameras=wrist:realsense:7,front:uvc:/dev/video0"
    assert cli.main(["cell", "lab/new.yaml", "arm=ur", cameras, "teleop=spacemouse"]) == 0
    arm = "nodes.arm.parameters"
    taught = f"{arm}.reset.pose: null\n{arm}.reset.joints: [[0, -1.5, 1.5, -1.5, -1.5, 0]]\n"
    lead = "robot.limits.max_lead_translation: 0.004\n"
    with (lab / "new.yaml").open("a") as file:  # what robot-rl teach prints is added at the end
        file.write(f"{taught}{arm}.driver.type: ur5e\n{arm}.driver.host: robot\n{lead}")
        file.write(f"{arm}.driver.tool: {{tcp: [0, 0, 0.1, 0, 0, 0, 1], payload_kg: 1.2}}\n")
    config = compose(["cell=lab/new.yaml"])
    assert config.choices.reset == "human"
    node, *shown = node_table(config)
    assert node.driver["tool"]["_target_"] == "drivers.arm.base.Tool"
    assert node.parameters["limits.max_lead_translation"] == 0.004
    assert [(n.driver["width"], n.parameters["size"]) for n in shown] == [(640, [128, 128])] * 2
    assert [(c.width, c.height) for c in config.observation.cameras] == [(128, 128)] * 2
    front = "nodes.front_camera.parameters"
    for words in (
        [f"{front}.size=[256,192]"],
        [f"{front}.size=[]", f"+{front}.crop=[0,0,256,192]"],
    ):
        with pytest.raises(RobotRLError) as refusal:
            node_table(compose(["cell=lab/new.yaml", *words]))
        assert f"{front} publishes pictures of another size" in str(refusal.value)
        assert "got: size: [256, 192]; expected: size: [128, 128], as obs" in str(refusal.value)


def test_a_cell_of_two_arms_has_for_each_what_a_lab_has_of_one(lab, capsys):
    cameras = "cameras=left/wrist:realsense:7,right/wrist:realsense:8,left/front:uvc:/dev/video0"
    words = ["cell", "lab/two.yaml", "arm=ur", "arms=left,right", "gripper=robotiq", cameras]
    assert cli.main(words) == 0
    asked = re.findall(r"to fill in: (.*)", capsys.readouterr().out)[0].split(", ")
    with pytest.raises(ConfigError) as missing:
        compose(["cell=lab/two.yaml"])
    assert all(key in str(missing.value) for key in asked)
    given = [f"{key}={POSE if key.endswith('pose') else key}" for key in asked]  # each its own
    slow = "arms.right.nodes.arm.parameters.rate_hz=50"
    config = compose(["cell=lab/two.yaml", *given, slow, "robot.limits.max_tilt=0.1"])
    table = {node.process: node for node in node_table(config)}
    cameras_of = {"left": ["wrist_camera", "front_camera"], "right": ["wrist_camera"]}
    devices = [f"{a}-{of}" for a in cameras_of for of in ("arm", "gripper", *cameras_of[a])]
    assert list(table) == devices
    hosts = [table[f"{arm}-arm"].driver["host"] for arm in cameras_of]
    assert hosts == [f"arms.{arm}.nodes.arm.parameters.driver.host" for arm in cameras_of]
    rates = [table[f"{arm}-arm"].parameters["rate_hz"] for arm in cameras_of]
    assert rates == [100.0, 50.0]
    assert config.arms.left.robot.limits.max_tilt == 0.6  # its own wins over what all share


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (
            "gripper: {paramters: {}}",
            r"nodes\.gripper\.paramters; .* mean nodes\.gripper\.parameters",
        ),
        ("gripper: {parameters: {rate_h: 50}}", r"mean nodes\.gripper\.parameters\.rate_hz\?"),
        ("gripper: {parameters: {driver: {gripper: {forse: 1}}}}", r"driver: .*'forse'.*'force'"),
        ("cameras: {parameters: {frame_rate: 15}}", r"mean .*\.frame_rate_hz"),
        ("arm: {parameters: {stop_foldr: here}}", r"mean .*\.stop_folder"),
    ],
)
def test_a_mistyped_key_of_a_node_is_refused_by_doctor_and_by_what_would_move(
    lab, capsys, node, said
):
    (lab / "cell.yaml").write_text(f"choices: {{robot: ros_sim}}\nnodes:\n  {node}\n")
    for command in ("doctor", "collect"):
        assert cli.main([command, "cell=lab"]) == cli.EXIT_ERROR
        assert re.search(said, capsys.readouterr().err), command
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "left: {robot: {limits: {max_tlt: 0.1}}}",
            r"arms\.left: .* did you mean robot.limits.max_til",
        ),
        ("left: {algorithm: {}}", r"arms\.left: unknown key 'algorithm'"),
        ("left: 7", r"`arms` cannot be read; got: {'left': 7}"),
        (
            "left: {nodes: {arm: {parameters: {limits: {max_forse: 1.0}}}}}",
            r"^arms\.left\.nodes\.arm\.parameters: .*max_forse",
        ),
    ],
)
def test_what_an_arm_of_several_cannot_have_is_refused(lab, line, said):
    (lab / "cell.yaml").write_text(f"choices: {{robot: ros_sim}}\narms:\n  {line}\n  right: {{}}\n")
    with pytest.raises(RobotRLError, match=said):
        node_table(compose(["cell=lab"]))


@pytest.mark.parametrize(
    ("robot", "driver", "said"),
    [
        ("ur", "{host: 10.0.0.2}", "host: 10.0.0.2 twice"),
        ("lerobot", "{settings: {port: /dev/arm}}", "settings.port: /dev/arm twice"),
    ],
)
def test_two_arms_at_one_address_are_refused(lab, capsys, robot, driver, said):
    own = f"{{nodes: {{arm: {{parameters: {{driver: {driver}}}}}}}}}"
    arms = f"arms: {{one: {own}, two: {own}}}"
    (lab / "cell.yaml").write_text(f"choices: {{robot: {robot}}}\n{arms}\n")
    told = f"the nodes one-arm and two-arm would open one device; got: {said}"
    with pytest.raises(RobotRLError, match=told):
        check_robot(composed([], read_cell("lab")))
    assert cli.main(["doctor", "cell=lab"]) == cli.EXIT_ERROR
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cell", "other"], "which arm is it?"),
        (["cell", "other", "arm=ur", "cameras=a:webcam:1"], "cannot be read; got: a:webcam:1"),
        (["cell", "other", "arm=ur", "cameras=a:uvc"], "a camera cannot be read; got: a:uvc"),
        (["cell", "other", "arm=ur", "cameras=a:uvc:x,a:topics"], "two cameras have one name"),
        (["cell", "other", "arm=ur", "arms=left"], "several arms cannot be read; got: left"),
        (
            ["cell", "other", "arm=ur", "arms=l,r", "cameras=a:topics"],
            "must name its arm; got: the camera a",
        ),
        (["cell", "other", "arm=ur", "arms=l,l"], "an arm is given twice; got: arms=l,l"),
        (
            ["cell", "other", "arm=ur", "cameras=l/a:topics"],
            "the only arm has no name; got: the camera l/a; expected: NAME alone; next: or name",
        ),
        (["cell", "other", "arm=ur", "arms=l,r", "teleop=joy"], "a device moves one arm alone"),
        (["cell", str(find_resource("configs").parent), "arm=ur"], "is inside robot_rl"),
    ],
)
def test_a_cell_that_cannot_be_written_leaves_nothing(lab, capsys, words, said):
    assert cli.main(words) == cli.EXIT_ERROR
    assert said in capsys.readouterr().err
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ConfigError("no such device"), False), (ProcessDied("the arm's node"), True)],
)
def test_a_refused_recording_leaves_no_run_but_the_words_of_a_process_that_died(lab, error, kept):
    config = compose(["task=reach"])
    with pytest.raises(type(error)), working_run(config) as run:  # noqa: PT012
        (run.path / "logs").mkdir(exist_ok=True)
        (run.path / "logs/arm.log").write_text("connected\n")
        raise error
    assert (run.path / "logs/arm.log").exists() == kept
    assert Path("runs").exists() == kept


def test_a_log_that_the_terminal_names_is_kept(lab, capfd, monkeypatch):
    """The arm's node died, and the command failed for want of it: the run is empty."""
    Path("broken.py").write_text('import sys\nprint("no robot", flush=True)\nsys.exit(1)\n')
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    config = compose(["task=reach"])
    with (  # noqa: PT012
        pytest.raises(RobotRLError, match="no measurement"),
        working_run(config) as run,
        ProcessGroup(run.path / "logs") as group,
    ):
        group.start("arm", [], module="broken")
        node = psutil.Process(group.process_id("arm"))
        assert wait_until(lambda: node.status() == psutil.STATUS_ZOMBIE, 60.0)
        raise RobotRLError("no measurement")
    (named,) = re.findall(r"see (\S+arm\.log)", capfd.readouterr().err)
    assert "no robot" in Path(named).read_text()


def test_a_recording_that_was_kept_from_beginning_is_not_the_latest_run(lab):
    """A person ended it while the robot was waited for: its only file tells of that."""
    config = compose(["task=reach"])
    with working_run(config) as first:
        (first.path / "stages.jsonl").write_text("{}")
    with pytest.raises(KeyboardInterrupt), working_run(config) as run:  # noqa: PT012
        run.append_jsonl("faults", {"kind": "SensorLate"})
        raise KeyboardInterrupt
    assert run.path.exists()
    assert RunDirectory.open("latest").path == first.path


def test_a_command_says_that_it_waits_for_another_one_in_the_same_run(lab, capsys):
    with working_run(compose(["task=reach"])) as run:
        (run.path / "stages.jsonl").write_text("{}")
    assert "waiting" not in capsys.readouterr().out
    with run.claim("train"), working_run(compose([f"run={run.path}"])):
        assert "another command works on it: waiting" in capsys.readouterr().out


def test_examples_for_a_classifier_need_somebody_who_drives(lab, capsys):
    labels = "classifier.collection.labels=operator"
    words = ["cell=lab", RESET, "task=reach", "teleop=none", "reward=human", labels]
    assert cli.main(["collect-reward", *words]) == cli.EXIT_ERROR
    assert "nobody drives the robot to success and to failure" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["cell", "file/lab", "arm=ur"],
            "cannot be written; got: .*; next: name a folder of yours",
        ),
        (["doctor", "cell=nowhere"], "there is no such cell; .* write one: robot-rl cell nowhere"),
        (["collect", "cell=sim", "task=push", "reward=human"], "the task push has no simulation"),
        (["doctor", "cell=lab", "nodes.gripper=null"], "no settings .*write it into lab/cell.yaml"),
        (["collect", "task=plug"], "unknown task 'plug'.* a task of your own needs cell=PATH"),
        (["collect", "task=reach", "runs_directory=file/x"], "another place: runs_directory=PATH"),
    ],
)
def test_what_cannot_be_says_what_to_do_next(lab, capsys, words, said):
    Path("file").touch()
    Path("sim").mkdir()
    Path("sim/cell.yaml").write_text("choices: {robot: ros_sim}\n")
    start = f"start={POSE}"
    assert cli.main(["task", "sim/push", "instruction=push", start]) == 0
    assert cli.main(words) == cli.EXIT_ERROR
    assert re.search(said, capsys.readouterr().err)


def test_corners_that_are_one_point_are_no_region(capsys):
    poses = [(np.zeros(6), np.array([0.4, y, 0.2, 1, 0, 0, 0])) for y in (0.0, 0.0004, 0.002)]
    start_lines(poses[:2])
    assert "the corners are one point: the region is empty" in capsys.readouterr().err
    start_lines(poses)
    assert capsys.readouterr().err == ""


def test_a_written_task_tells_all_that_comes_next(lab, capsys):
    assert cli.main(["task", "lab/plug", "instruction=push", "reward=classifier"]) == 0
    told = re.findall("next: robot-rl (.*)", capsys.readouterr().out)
    assert [word.split()[0] for word in told] == [
        "teach",
        "collect-reward",
        "train-reward",
        "collect",
    ]
    assert told[-1].endswith("reward.source.path=RUN/checkpoints/reward")


def test_a_flight_recorder_of_a_simulation_without_topics_is_said_to_record_nothing(capsys):
    check_robot(compose(["task=reach", "recorder.minutes=3"]))
    assert "robot=sim has no topics: recorder.minutes records nothing" in capsys.readouterr().err


def test_a_run_of_a_cell_on_another_robot_points_to_the_cell_of_that_one(lab):
    made = compose(["cell=lab", RESET])
    with pytest.raises(
        ConfigError, match=r"must be given: .*; next: name .* with cell=PATH, or add"
    ):
        compose_for_run(["robot=franka"], made, elsewhere=True)


def test_a_written_task_asks_only_for_what_the_lab_knows_and_says_what_success_is(lab, capsys):
    rewards = ("human", "pose", "classifier", "task")
    for reward, gripper in zip(rewards, ("none", "none", "closed", "moves"), strict=True):
        words = [f"lab/{reward}", 'instruction=it\'s "in": #1', f"reward={reward}"]
        assert cli.main(["task", *words, f"gripper={gripper}"]) == 0
        told = re.findall(r"to fill in: (.*)", capsys.readouterr().out)[0].split(", ")
        asked = ["task.goal_pose"] if reward == "pose" else []
        assert told == [*asked, "task.tracked.start_pose"]
        path = ["reward.source.path=any"] if reward == "classifier" else []
        given = [RESET, *(f"{key}={POSE}" for key in told), *path]
        config = compose(["cell=lab", f"task={reward}", *given])
        assert config.choices.reward == reward  # the cell's is human
        assert config.reward.source.get("pose") == config.task.get("goal_pose")
        if reward == "classifier":
            assert config.reward.cameras == config.observation.cameras
        task = registry.make(config.task.tracked, TrackedTask)
        assert task.action_names[6:] == (("gripper",) if gripper == "moves" else ())
        assert (task.gripper_closed, task.instruction) == (gripper == "closed", words[1][12:])
    (lab / "configs/task/tight.yaml").write_text(
        "# @package _global_\ndefaults: [pose, _self_]\ntask: {name: tight}\n"
    )
    given = [RESET, f"task.tracked.start_pose={POSE}", f"task.goal_pose={POSE}"]
    assert compose(["cell=lab", "task=tight", *given]).choices.reward == "pose"
    assert compose(["cell=lab", "task=tight", *given, "reward=human"]).choices.reward == "human"
    with pytest.raises(ConfigError, match=r"write them into .*cell.yaml and .*/tight.yaml, or add"):
        compose(["cell=lab", "task=tight"])
    (lab / "configs/task/tight.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"composed; got: .*tight.yaml., line 1"):
        compose(["cell=lab", "task=tight"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab/new"], "what is the robot to do?"),
        (["lab/new.yaml", "instruction=a"], "the name of a task; got: new.yaml"),
        (["lab/reach", "instruction=a"], "there is a task reach already"),
        (["lab/new", "instruction=a", "start=[1,2]"], "start is no pose; got: (2,)"),
        (["lab/new", "instruction=a", "start=[0,0,0,0,0,0,0]"], "is not a rotation"),
        (["lab/new", "instruction=a", "start=here"], "start cannot be read; got: here"),
        (["lab/new", "instruction=a", "steps=0"], "steps is out of range; got: 0"),
        (["lab/new", "instruction=a", "noise=nan"], "noise is no number; got: nan"),
        (["lab/new", "instruction=a", f"goal={POSE}"], "only reward=pose has a goal"),
        ([str(find_resource("configs") / "new"), "instruction=a"], "is inside robot_rl"),
    ],
)
def test_a_task_that_cannot_be_written_leaves_nothing(lab, capsys, words, said):
    assert cli.main(["task", *words]) == cli.EXIT_ERROR
    assert said in capsys.readouterr().err
    assert not (lab / "configs").exists()


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_run_goes_on_with_the_cell_that_it_was_made_with(lab, capsys, change):
    run = RunDirectory.create("any", "runs")
    save_resolved(compose(["cell=lab", RESET]), run.path)
    if change == "gone":
        (lab / "cell.yaml").unlink()
    else:
        (lab / "cell.yaml").write_text(UR.replace("40", "50"))
    saved = load_resolved(run.path)
    cell = kept_cell(run.path, saved)
    assert f"{change if change == 'gone' else 'has changed'}" in capsys.readouterr().out
    config = compose_for_run(["teleop=none"], saved, cell=cell)
    assert config.nodes.arm.parameters.limits.max_force == 40.0
    assert config.nodes.arm.parameters.reset.pose == [0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0]
    assert config.cell == str(lab / "cell.yaml")
    if change == "changed":
        with pytest.raises(
            ConfigError, match=r"differs in nodes\.arm\.parameters\.limits\.max_force"
        ):
            compose_for_run(["cell=lab"], saved, cell=cell)
    # Its policy may be tried on another robot, which has nothing of the cell.
    moved = compose_for_run(["robot=ros_sim"], saved, cell=cell, elsewhere=True)
    assert moved.nodes.arm.executable == "sim_arm_node"
    assert "host" not in moved.nodes.arm.parameters.driver


def test_a_policy_of_the_simulation_may_be_measured_in_a_cell(lab):
    made = compose(["task=reach", "reward=human"])
    config = compose_for_run(["cell=lab", RESET], made, elsewhere=True)
    assert [node.name for node in node_table(config)] == ["arm"]
    assert config.nodes.arm.parameters.limits.max_force == 40.0


@pytest.mark.slow
def test_demonstrations_are_recorded_in_a_cell_and_gone_on_with(lab, robot_rl_command):
    """A simulated robot in the processes that a user starts."""
    (lab / "cell.yaml").write_text(
        "choices: {robot: sim, task: reach}\nrobot: {limits: {max_force: 30}}\n"
    )
    for words in (["cell=lab", "demonstrations=1"], ["latest"]):
        done = robot_rl_command("collect", *words)
        assert done.returncode == 0, done.stderr
        assert load_resolved(Path("runs/latest")).robot.limits.max_force == 30.0
    (lab / "cell.yaml").unlink()
    done = robot_rl_command("collect", "latest")
    assert "cell.yaml is gone, or cannot be read any more: the run goes on" in done.stdout


def test_a_robot_that_is_not_simulated_does_no_task_that_nobody_has_named(lab, capsys):
    """A lab's first `collect` would have gone to the start of a simulated task."""
    for command in ("collect", "train", "collect-reward"):
        assert cli.main([command, "cell=lab", RESET]) == cli.EXIT_ERROR
        told = capsys.readouterr().err
        assert "which task is this robot to do?; got: none; expected: task=NAME, one of " in told
        assert f"robot-rl task {lab}/NAME instruction=TEXT" in told
    assert not Path("runs").exists()
    assert compose_new_run(["cell=lab", RESET, "task=reach"]).task.name == "reach"
    (lab / "cell.yaml").write_text(UR.replace("{robot: ur", "{task: reach, robot: ur"))
    assert compose_new_run(["cell=lab", RESET]).task.name == "reach"
    assert compose_new_run(["robot=ros_sim"]).choices.task == compose([]).choices.task
