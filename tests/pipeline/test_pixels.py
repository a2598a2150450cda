"""Learning from cameras through the real processes, on a tiny configuration."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_dagger import Scripted
from tiny_runs import TINY

from policies import checkpoint
from policies.columns import ENCODER_ID, FEATURES
from robot_rl import cli
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.env import factory
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.sim.robot import SimRobot
from robot_rl.replay.store_reader import StoreReader

CAMERA = "{_target_: robot_rl.env.sim.cameras.CameraOptions, name: front, width: 32, height: 24}"
QUICK = (
    "observation.vision_training.cloning.updates=5",
    "observation.vision_training.cloning.batch_size=8",
    "observation.vision_training.exploration_episodes=2",
    "environment_steps=200",
    "evaluation.episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.slots=2",
    "evaluation.videos=0",
)
PIXELS = (
    *TINY,
    "observation=pixels",
    f"observation.cameras=[{CAMERA}]",
    "observation.vision.backbone.channels=[4,8]",
    *QUICK,
)
POINTS = (
    *TINY,
    "observation=points",
    "observation.cameras=[{name: front, width: 32, height: 24, points: 16}]",
    "observation.vision.backbone.hidden=[8,16]",
    *QUICK,
)


def rows_of(run):
    reader = StoreReader(run / "store")
    episodes = reader.episodes()
    rows = [(e.source, reader.read_episode(e)) for e in episodes if e.sealed]
    reader.close()
    return rows


@pytest.mark.slow  # renders and trains an encoder
def test_an_exploration_episode_that_is_cut_at_once_is_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["collect", *PIXELS]) == 0
    step, cut = RobotEnv.step, []

    def cut_the_first_step(env, action):
        if not cut:
            cut.append(True)
            raise RobotInterrupted("a camera is late")
        return step(env, action)

    monkeypatch.setattr(RobotEnv, "step", cut_the_first_step)
    assert cli.main(["pretrain", "run=latest"]) == 0
    assert cut
    assert len(EpisodeDataset((tmp_path / "runs/latest").resolve() / "exploration.zarr")) == 2


@pytest.mark.slow  # renders and trains an encoder
def test_a_policy_is_cloned_from_point_clouds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["collect", *POINTS]) == 0
    assert cli.main(["pretrain", "run=latest"]) == 0
    run = (tmp_path / "runs/latest").resolve()
    cloned = checkpoint.load(run / "checkpoints/bc/policy")
    assert cloned.vision.cameras == {"points/front": (16, 6)}
    assert cloned.observation["points/front"] == 16 * 6
    assert FEATURES in cloned.policy.observation
    assert EpisodeDataset(run / "demonstrations.zarr").schema.point_clouds == cloned.vision.cameras
    assert cli.main(["evaluate", "run=latest"]) == 0
    assert "/2 = " in capsys.readouterr().out


@pytest.mark.slow  # renders and trains an encoder
def test_exploration_is_announced_and_waits_for_a_person_who_is_then_heard(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["collect", *PIXELS]) == 0
    monkeypatch.setattr(SimRobot, "simulated", False)  # somebody may stand beside it
    polls, reset = [], SimRobot.reset  # how much the person had said when the robot was moved

    def noted_reset(robot, start_pose, rng):
        polls.append(said.polls)
        reset(robot, start_pose, rng)

    said = Scripted({3: ["start"], 9: ["discard"]})
    monkeypatch.setattr(SimRobot, "reset", noted_reset)
    monkeypatch.setattr(factory, "make_inbox", lambda config: said)
    capsys.readouterr()
    assert cli.main(["pretrain", "run=latest"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    announced = printed.index("in 2 episodes of up to")
    assert announced < printed.index("a person has to look at the robot")
    assert polls[0] > 3
    assert len(polls) == 3  # the discarded episode is run again
    assert len(EpisodeDataset((tmp_path / "runs/latest").resolve() / "exploration.zarr")) == 2


def test_a_robot_that_is_not_simulated_does_not_explore_unless_it_is_asked_to():
    def episodes(*words):
        config = compose(["observation=pixels", *words])
        return config.observation.vision_training.exploration_episodes

    robot = ["robot=ur", "nodes.arm.parameters.driver.host=192.168.1.10"]
    robot += ["nodes.arm.parameters.reset.pose=[0.4,0,0.3,1,0,0,0]"]
    assert (episodes(), episodes("robot=ros_sim"), episodes(*robot)) == (20, 20, 0)
    assert episodes(*robot, "observation.vision_training.exploration_episodes=5") == 5


@pytest.mark.slow  # a whole run that renders and trains an encoder: two minutes
def test_a_policy_learns_from_features_that_the_rows_carry(tmp_path, robot_rl_command):
    done = robot_rl_command("train", *PIXELS, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs/latest").resolve()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["environment_steps"], summary["gradient_updates"]) == (200, 20 + 125)

    explored = EpisodeDataset(run / "exploration.zarr")
    assert len(explored) == 2
    assert summary["exploration_steps"] == explored.episode_ends[-1] - 2

    cloned = checkpoint.load(run / "checkpoints/bc/policy")
    learned = checkpoint.load(run / "checkpoints/last/policy")
    assert learned.encoder_id == cloned.encoder_id != 0
    assert "state/relative_pose" not in learned.observation
    rows = rows_of(run)
    assert {source for source, _ in rows} == {"demo", "policy"}
    for _, episode in rows:
        assert set(episode[ENCODER_ID]) == {cloned.encoder_id}
        expected = cloned.vision.encode({"images/front": episode["images/front"]})
        # One image at a time is summed in another order than an episode at a time.
        np.testing.assert_allclose(episode[FEATURES], expected, atol=5e-3)

    out = tmp_path / "exported"
    assert robot_rl_command("export", str(run), str(out)).returncode == 0
    names = [f.name for f in EpisodeDataset(out).schema.fields]
    assert "images/front" in names
    assert FEATURES not in names

    wrong = robot_rl_command(
        "pretrain", *PIXELS, f"dataset={out}", f"observation.cameras=[{CAMERA.replace('32', '48')}]"
    )
    assert wrong.returncode == 2
    assert "field 'images/front' differs; got: uint8 (24, 32, 3); expected: uint8 (24, 48, 3)" in (
        " ".join(wrong.stderr.split())
    )
