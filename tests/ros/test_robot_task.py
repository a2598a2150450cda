"""A task without a simulation, from the command that writes it to daily use, in a lab's own cell.

The nodes of the cell are simulated; the robot is the one of `robot=ros`, which knows nothing of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import listening  # noqa: F401  # its ROS domain is the commands' too
from omegaconf import OmegaConf

from policies import registry
from robot_rl.commands import teach
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.env.factory import make_env
from robot_rl.env.task import TrackedTask
from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until
from robot_rl.ros.nodes import node_table

START, NOISE = [0.45, 0.1, 0.2, 1.0, 0.0, 0.0, 0.0], 0.005
WORLD = """
      driver: &{name}
        _target_: {driver}
        task:
          _target_: robot_rl.env.sim.tasks.pick_cube.PickCube
          name: world
          instruction: none
          time_limit_steps: 1
          position_range: 0.0
          yaw_range: 0.0
          position_noise: 0.0
          yaw_noise: 0.0
          fine_scale: 0.01
          start_height: 0.14
          start_noise: 0.0
          lift_height: 0.1
          mass: 0.1
        model: hardware/panda/panda.xml
        gripper:
          _target_: robot_rl.env.sim.world.GripperMotor
          force: 30.0
          speed: 0.05
          friction: 1.0
"""
CELL = f"""
choices: {{robot: ros, observation: pixels, reward: human}}
robot:
  discovery_range: LOCALHOST
  joint_names: [joint1, joint2, joint3, joint4, joint5, joint6, joint7]
  sensors: {{arm_s: 5, image_s: 5, gripper_s: 5, skew_s: 5, start_timeout_s: 20}}
  episodes: {{speed: 0.2, tolerance: 0.01, turn_tolerance: 0.1}}
nodes:
  arm:
    executable: sim_arm_node
    module: drivers.arm.sim_node
    parameters:
      limits:
        workspace_low: ${{robot.limits.workspace_low}}
        workspace_high: ${{robot.limits.workspace_high}}
        max_stamp_age: 5.0
      reset:
        pose: [0.45, 0.1, 0.22, 1.0, 0.0, 0.0, 0.0]
        speed_translation: 0.25
        retract_distance: 0.01
{WORLD.format(name="arm", driver="drivers.arm.sim.SimArm")}
        home_joints: [0.0, 0.2, 0.0, -2.3, 0.0, 2.5, 0.785]
        stale_after_s: 5.0
  gripper:
    executable: gripper_node
    module: drivers.gripper.node
    parameters:
{WORLD.format(name="gripper", driver="drivers.gripper.sim.SimGripper")}
        namespace: ""
  front_camera:
    executable: camera_node
    module: drivers.camera.node
    parameters:
      camera: front
      crop: [16, 0, 96, 72]
      size: [32, 24]
{WORLD.format(name="front", driver="drivers.camera.sim.SimCamera")}
        namespace: ""
        camera: front
        width: 128
        height: 96
# So small that all of it takes a minute.
observation:
  cameras: [{{name: front, width: 32, height: 24}}]
  vision: {{backbone: {{channels: [4, 8]}}}}
  vision_training: {{cloning: {{updates: 5, batch_size: 8}}}}
recording: {{countdown_s: 0, undo_s: 0}}
cloning: {{updates: 40, batch_size: 16}}
policy: {{denoiser: {{hidden: [32, 32]}}}}
algorithm:
  settings: {{actor_hidden: [32, 32], critic_hidden: [32, 32]}}
  schedule: {{warmup_steps: 20, critic_only_updates: 5, updates_per_step: 1, batch_size: 16}}
environment_steps: 60
block_steps: 10
evaluation: {{final_episodes: 1}}
"""
PERSON = '''
"""A person who says start whenever it is asked, and pushes down, or waits."""
from dataclasses import dataclass
import numpy as np
from drivers.teleop.base import Axes, TeleopDevice

@dataclass(kw_only=True)
class Person(TeleopDevice):
    down: float
    reads: int = 0

    def connect(self): ...
    def close(self): ...

    def axes(self):
        self.reads += 1
        says = frozenset({1: ["go"], 4: ["won"]}.get(self.reads % 5, []))
        return Axes(np.array([0.0, 0.0, -self.down, 0.0, 0.0, 0.0]), says)
'''
DEVICE = "device: {{_target_: person.Person, down: {}, events: {{go: start{}}}}}"


TASK = (
    *("task", "lab/push", "instruction=push down", "reward=pose", "gripper=closed"),
    *("steps=40", f"noise={NOISE}", f"start={START}", "goal=[0.45,0.1,0.14,1,0,0,0]"),
)


def write_lab(folder):
    """A lab's folder: its cell, and a device that a test plays."""
    (folder / "lab/configs/teleop").mkdir(parents=True)
    (folder / "lab/cell.yaml").write_text(CELL)
    (folder / "lab/person.py").write_text(PERSON)
    for name, down, more in (
        ("pushes", 1.0, ""),
        ("waits", 0.0, ""),
        ("says", 0.0, ", won: success"),
    ):
        (folder / f"lab/configs/teleop/{name}.yaml").write_text(DEVICE.format(down, more))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow  # six commands, with all processes and nodes of a robot
def test_a_task_of_a_lab_goes_from_its_file_to_daily_use(tmp_path, robot_rl_command):
    def output(*words):
        done = robot_rl_command(*words, timeout=400.0)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    write_lab(tmp_path)
    output(*TASK)
    wide = "reward.source.position_tolerance=[0.04,0.04,0.025]"
    output("collect", "cell=lab", "task=push", "teleop=pushes", "demonstrations=2", wide)
    run = (tmp_path / "runs/latest").resolve()
    dataset = EpisodeDataset(run / "demonstrations.zarr")
    assert dataset.successes.tolist() == [True, True]
    for episode in map(dataset.episode, range(2)):
        away = episode["state/tcp_pose"][0, :3] - START[:3]
        assert np.abs(away).max() <= NOISE + 0.011  # how near a motion to a start ends
        assert episode["state/gripper_position"].min() > 0.95
        assert episode["action"].shape[1] == 6  # which the policy does not move
        assert episode["images/front"].shape[1:] == (24, 32, 3)
    output("pretrain")
    assert "deployed: " in output("train", "resume=latest", "teleop=waits")
    output("evaluate", "teleop=waits", "episodes=1")
    assert lines(run / "evaluate.jsonl")[-1]["episodes"] == 1
    assert "of 2 attempts succeeded" in output("run", "latest", "teleop=waits", "episodes=2")
    attempts = lines(run / "attempts.jsonl")
    assert [attempt["counters"]["attempts"] for attempt in attempts] == [1, 2]
    assert not any(attempt["interrupted"] for attempt in attempts)


@contextmanager
def going_on(folder, said, *words):
    """A command while it runs, from when it has said something; gives its output."""
    output = folder / f"{words[0]}.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "robot_rl.cli", *words], cwd=folder, stdout=file, stderr=file
        )
    try:
        assert wait_until(lambda: said in output.read_text() or process.poll(), 300.0)
        assert process.poll() is None, output.read_text()
        yield output.read_text()
    finally:
        process.terminate()
        process.wait(60.0)


@pytest.mark.slow
def test_examples_for_a_classifier_are_recorded_with_the_nodes_of_the_cell(
    tmp_path, robot_rl_command
):
    write_lab(tmp_path)
    assert robot_rl_command(*TASK).returncode == 0
    wanted = {"labels": "operator", "positive_frames": 4, "frames_after_success": 2}
    words = [
        f"classifier.collection.{k}={v}" for k, v in (wanted | {"negative_episodes": 0}).items()
    ]
    given = ("cell=lab", "task=push", "teleop=says", "reward=human", *words)
    cameras = "classifier.cameras=${observation.cameras}"
    done = robot_rl_command("collect-reward", *given, cameras, timeout=300.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 frames show success, in 2 episodes" in done.stdout


@pytest.mark.browser
@pytest.mark.slow
def test_a_part_of_a_live_picture_is_chosen_for_the_cell(tmp_path, monkeypatch, robot_rl_command):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra browser")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs chromium: apt-get install chromium")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROBOT_RL_PATH", os.environ["ROBOT_RL_PATH"])  # which the cell adds to
    write_lab(tmp_path)
    assert robot_rl_command(*TASK).returncode == 0
    collecting = ("collect", "cell=lab", "task=push", "teleop=waits")
    with (
        going_on(tmp_path, "run directory: ", *collecting),
        going_on(tmp_path, "console: http", "console", "console.port=0") as output,
        playwright.sync_playwright() as started,
    ):
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 850})
        page.set_default_timeout(300_000)
        page.goto(re.findall(r"http\S+", output)[0])
        # Not `wait_for_function`: the page's own policy forbids what that evaluates.
        width = "document.querySelector('#cameras-live img')?.naturalWidth"
        assert wait_until(lambda: page.evaluate(width) == 32, 300.0)
        place = page.locator("#cameras-live img").bounding_box()
        scale = place["height"] / 24  # it is wider than the picture, which is in its middle

        def drag(*ends):
            left = place["x"] + 0.5 * (place["width"] - 32 * scale)
            start, end = ((left + x * scale, place["y"] + y * scale) for x, y in ends)
            page.mouse.move(*start)
            page.mouse.down()
            page.mouse.move(*end, steps=3)
            page.mouse.up()
            return page.locator("#crop-lines").inner_text()

        # A pixel of the picture is three of the camera, of which 16 on the left are cut away.
        assert ".crop: [40, 18, 48, 36] " in drag((8, 6), (24, 23))  # in the picture's own shape
        assert ".crop: [40, 18, 48, 36] " in drag((24, 18), (8, 5))  # from the other corner
        # As in the moment in which the next picture loads.
        page.evaluate(
            "for (const side of ['naturalWidth', 'naturalHeight'])"
            " Object.defineProperty(HTMLImageElement.prototype, side, { value: 0 })"
        )
        assert ".crop: [64, 36, 48, 36] " in drag((16, 12), (400, 300))  # not beyond it
        lines = drag((8, 6), (24, 18))
        if folder := os.environ.get("ROBOT_RL_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "crop.png")
        page.locator("#crop-close").click()
        assert not page.locator("#crop, .crop").first.is_visible()
        browser.close()
    (tmp_path / "lab/cell.yaml").write_text(CELL + lines)
    table = {node.name: node for node in node_table(compose(["cell=lab", "task=push"]))}
    parameters = table["front_camera"].parameters
    assert (parameters["crop"], parameters["size"]) == ([40, 18, 48, 36], [32, 24])


def tracked(**changes):
    task = {
        "_target_": "robot_rl.env.task.RobotTask",
        "name": "push",
        "instruction": "push",
        "time_limit_steps": 10,
        "action_names": ["x", "z"],
    }
    section = {"start_pose": START, "start_noise": NOISE, "reports_success": False}
    section["_target_"] = "robot_rl.env.task.TrackedTask"
    task |= {key: changes.pop(key) for key in set(changes) & set(task)}
    return section | changes | {"task": task}


def test_a_start_is_drawn_in_a_region_that_may_differ_along_the_axes():
    task = registry.make(tracked(start_noise=[0.1, 0.0, 0.02]), TrackedTask)
    starts = np.array([task.reset(np.random.default_rng(seed)) for seed in range(200)])
    spread = starts[:, :3] - START[:3]
    np.testing.assert_allclose(np.abs(spread).max(0), [0.1, 0.0, 0.02], rtol=0.05)
    np.testing.assert_array_equal(starts[:, 3:], [START[3:]] * 200)
    assert task.observe() == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action_names": ["z", "x"]}, "got: z, x; expected: some of x, y, z"),
        ({"action_names": []}, "expected: some of x"),
        ({"time_limit_steps": -5}, "time_limit_steps of the task; got: -5"),
        ({"start_pose": [0.0] * 7}, "start_pose: the orientation is not a rotation"),
        ({"start_noise": -0.1}, "start_noise is no half range; got: -0.1"),
        ({"start_noise": [0.1, 0.1]}, "start_noise is no half range"),
        ({"action_names": ["gripper"], "gripper_closed": True}, "either kept closed or moved"),
    ],
)
def test_a_task_that_cannot_be_is_refused(changes, said):
    with pytest.raises(RobotRLError) as refusal:
        registry.make(tracked(**changes), TrackedTask)
    assert said in str(refusal.value)


def test_a_robot_without_a_gripper_holds_no_tool():
    words = ["robot=ros_sim", "task=reach", "robot.gripper=false"]
    config = compose([*words, "+task.tracked.gripper_closed=true"])
    with pytest.raises(RobotRLError, match=r"'reach' closes a gripper; got: robot\.gripper=false"):
        make_env(config)


def test_a_start_outside_the_workspace_is_refused_before_anybody_is_asked():
    config = compose(["robot=ros_sim", "task=reach", "task.tracked.start_noise=0.3"])
    with pytest.raises(RobotRLError, match="start_noise, is outside the limits of workspace"):
        make_env(config)


def test_taught_poses_are_the_start_and_the_goal_of_a_task():
    corners = [[0.40, 0.1, 0.2], [0.50, 0.1, 0.3], [0.45, 0.2, 0.2]]
    taught = [(np.zeros(7), np.array([*corner, *START[3:]])) for corner in corners]

    def read(part, poses):
        return OmegaConf.create(teach.LINES[part](poses))

    section = read("start", taught)
    assert list(section.start_pose) == [0.45, 0.15, 0.25, 1.0, 0.0, 0.0, 0.0]
    assert list(section.start_noise) == [0.05, 0.05, 0.05]
    registry.make(tracked(**section), TrackedTask)
    alone = read("start", taught[:1])
    assert list(alone) == ["start_pose"]  # it says nothing of a region
    assert list(read("goal", taught).goal_pose) == [0.45, 0.2, 0.2, 1.0, 0.0, 0.0, 0.0]
