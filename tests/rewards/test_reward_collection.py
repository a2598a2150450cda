"""Examples of success and failure: who acts, whose labels, and which frames show success."""

import io
from dataclasses import dataclass

import numpy as np
import pytest
from rich.console import Console

from robot_rl.commands.runs import save_resolved
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.env.controllers import ExpertController, IdleController
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.operator import OperatorError, OperatorInbox
from robot_rl.env.robot import GRIPPER_OPEN, RobotInterrupted
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.env.session import Session
from robot_rl.learning.stages.collect_reward import collect_by_expert, collect_by_operator
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.rewards.examples import (
    REACTION_FRAMES,
    CollectionOptions,
    Examples,
    Lingering,
    StallingController,
)
from robot_rl.rewards.source import RewardError
from robot_rl.run import RunDirectory

CAMERAS = compose([]).classifier.cameras[:1]
CONFIG = compose(
    [
        "task=reach",
        "classifier.cameras=[]",
        "classifier.collection.positive_frames=5",
        "classifier.collection.frames_after_success=3",
        "classifier.collection.negative_episodes=1",
    ]
)


@dataclass
class Jog:
    """A motion to the front, or the gripper; without arguments the device is at rest."""

    front: float = 0.0
    gripper: float | None = None


class Scripted(OperatorInbox):
    """Says something at some ticks: an episode has two at its reset and one at each step.

    An error among what it says is raised, as by a device that is pulled out.
    """

    def __init__(self, says):
        super().__init__(float("inf"))
        self._says, self._tick = says, 0

    def poll(self):
        said = self._says.get(self._tick)
        self._tick += 1
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Jog):
            self.jog(np.array([said.front, 0, 0, 0, 0, 0]), said.gripper, source="test")
        elif said is not None:
            self.post(said)
        return super().poll()


def by_operator(folder, config, said):
    """A session of an operator; returns what was recorded and what was printed."""
    run = RunDirectory.create("reach", folder)
    save_resolved(config, run.path)
    printed = io.StringIO()
    with WorkProgress(0, console=Console(file=printed, width=200)) as progress:
        return collect_by_operator(config, run, progress, Scripted(said)), printed.getvalue()


def test_the_operators_word_is_the_label_and_discarded_episodes_are_not_kept(tmp_path):
    # Steps 2 to 7 (the success and two more frames), 10 and 11, 14 to 16, 19 to 21 (one more).
    said = {5: "success", 11: "discard", 16: "failure", 20: "success"}
    recorded, _ = by_operator(tmp_path, CONFIG, said)
    assert recorded.successes.tolist() == [True, False, True]
    assert np.diff(recorded.episode_ends, prepend=0).tolist() == [7, 4, 4]
    shown = np.split(recorded.read("success"), recorded.episode_ends[:-1])
    assert [np.flatnonzero(s).tolist() for s in shown] == [[3, 4, 5], [], [1, 2]]
    assert not recorded.read("truncated").any()


def test_frames_of_the_operators_reaction_are_examples_of_neither(tmp_path):
    config = CONFIG.copy()
    config.classifier.collection.negative_episodes = 0
    config.classifier.collection.positive_frames = 3
    config.classifier.collection.reaction_s = 0.15  # of 10 Hz: two frames
    config.classifier.cameras = CAMERAS
    recorded, _ = by_operator(tmp_path, config, {6: "success"})
    labels = Examples(recorded).episode(0).labels
    assert np.flatnonzero(labels.positive).tolist() == [5, 6, 7]
    assert np.flatnonzero(labels.negative).tolist() == [0, 1, 2]


def test_an_episode_that_is_cut_or_that_nobody_labels_is_no_example(tmp_path):
    config = CONFIG.copy()
    config.classifier.collection.positive_frames = 3
    config.task.environment.time_limit_steps = 6
    said = {
        2: RobotInterrupted("the device is gone"),  # at the first step
        7: "reset",
        11: "success",
        12: "stop",
        14: "clear_errors",
        # Steps 17 to 22 run into the time limit.
        26: "failure",
        30: "success",
    }
    recorded, printed = by_operator(tmp_path, config, said)
    assert recorded.successes.tolist() == [False, True]
    assert np.diff(recorded.episode_ends, prepend=0).tolist() == [3, 5]
    assert printed.count("not kept: ") == 4
    for reason in ("the device is gone", "reset", "stop", "nobody said success or failure"):
        assert f"not kept: {reason}" in printed


def test_a_scene_comes_once_whether_it_is_kept_or_not(tmp_path):
    discarded, kept = {5: "discard"}, {11: "success", 17: "failure"}
    recorded, _ = by_operator(tmp_path / "a", CONFIG, discarded | kept | {23: "success"})
    others, _ = by_operator(tmp_path / "b", CONFIG, {5: "success", 11: "failure", 17: "success"})
    assert recorded.seeds[:2].tolist() == others.seeds[1:].tolist()


def test_a_session_that_goes_on_shows_other_scenes(tmp_path):
    run = RunDirectory.create("reach", tmp_path)
    begun = Scripted({5: "discard", 11: "success", 17: "what?"})
    with pytest.raises(OperatorError):
        collect_by_operator(CONFIG, run, WorkProgress(0), begun)
    said = Scripted({5: "success", 11: "failure"})
    recorded = collect_by_operator(CONFIG, run, WorkProgress(0), said)
    assert recorded.successes.tolist() == [True, True, False]
    assert len(set(recorded.seeds.tolist())) == 3


def test_what_an_operator_labels_begins_otherwise_than_what_one_corrects(tmp_path):
    recorded, _ = by_operator(tmp_path, CONFIG, {5: "success", 11: "failure", 17: "success"})
    corrected = {training_seed(CONFIG.seed, SeedStream.CORRECTIONS, n) for n in range(100)}
    assert not corrected & set(recorded.seeds.tolist())


def test_a_session_that_breaks_off_releases_the_robot(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(RobotEnv, "close", lambda self: closed.append(self))
    with pytest.raises(OperatorError, match="no such operator event"):
        by_operator(tmp_path, CONFIG, {3: "what?"})
    assert len(closed) == 1


def test_what_the_operator_holds_is_held_while_nobody_drives(tmp_path):
    config = compose(
        [
            "task=pick_cube",
            "classifier.cameras=[]",
            "classifier.collection.positive_frames=3",
            "classifier.collection.frames_after_success=3",
            "classifier.collection.negative_episodes=0",
        ]
    )
    grasp = Jog(gripper=1.0)
    recorded, _ = by_operator(tmp_path, config, {3: grasp, 4: Jog(), 20: "success"})
    actions = np.array(recorded.read("action"))[:, -1]
    intervened = recorded.read("intervened")
    assert not intervened[12]  # handed back long ago
    assert actions[0] == -1.0
    assert (actions[1:-1] == 1.0).all()


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, "labels=operator with a reaction of 6 frames"),
        ({REACTION_FRAMES: 2}, "labels=operator with a reaction of 6 frames"),
    ],
)
def test_an_operator_does_not_add_to_what_was_labelled_otherwise(tmp_path, before, now):
    run = RunDirectory.create("reach", tmp_path)
    schema = make_env(CONFIG).schema
    EpisodeWriter(run.reward_examples, schema, {"robot": "sim", **before}).close()
    with pytest.raises(RewardError, match=f"labelled in another way; got: {now}"):
        collect_by_operator(CONFIG, run, WorkProgress(0), Scripted({}))


def test_the_task_does_not_add_to_what_an_operator_labelled(tmp_path):
    run = RunDirectory.create("reach", tmp_path)
    schema = make_env(CONFIG).schema
    EpisodeWriter(run.reward_examples, schema, {REACTION_FRAMES: 6}).close()
    with pytest.raises(RewardError, match="got: labels=task; expected: labels=operator"):
        collect_by_expert(CONFIG, run, WorkProgress(0))


def test_an_episode_that_the_robot_cuts_is_no_failure(tmp_path, monkeypatch):
    config = CONFIG.copy()
    config.classifier.collection.positive_frames = 1
    run = RunDirectory.create("reach", tmp_path)
    step, cut = RobotEnv.step, []

    def cut_the_first_negative_at_its_first_step(env, action):
        if not cut and len(EpisodeDataset(run.reward_examples)) == 1:
            cut.append(True)
            raise RobotInterrupted("a camera is late")
        return step(env, action)

    monkeypatch.setattr(RobotEnv, "step", cut_the_first_negative_at_its_first_step)
    with WorkProgress(0) as progress:
        recorded = collect_by_expert(config, run, progress)
    assert cut
    assert recorded.successes.tolist() == [True, False]


def test_an_expert_that_stalls_hardly_moves_any_more():
    env = Session(make_env(CONFIG), source=Lingering(1))
    names = env.schema.action_names
    expert = ExpertController(make_expert(CONFIG, env))
    controller = StallingController(expert, names, 0.0, stalls_at=lambda seed: 5)
    recorder = RowBuilder(env.schema, 0)
    (result,) = rollout([env], controller, iter([3]), recorder=recorder)
    actions = np.array([row["action"] for row in result.rows])
    assert np.abs(actions[:5]).max(1).min() > 0
    assert not actions[5:].any()
    assert result.steps == env.task.time_limit_steps


def test_an_expert_that_stalls_leaves_the_grippers_of_both_arms_alone():
    names = ["left/x", "left/gripper", "right/x", "right/gripper"]
    controller = StallingController(IdleController(names), names, 1.0, stalls_at=lambda seed: 0)
    controller.reset(seeds=[1])
    told = np.array([[0.0, GRIPPER_OPEN, 0.0, 1.0]], np.float32)
    (action,) = controller.act({"last_command": told}).action
    assert np.abs(action[[0, 2]]).min() > 0
    assert action[[1, 3]].tolist() == [GRIPPER_OPEN, 1.0]


def test_labels_of_nobody_are_refused():
    with pytest.raises(RewardError, match="got: robot"):
        CollectionOptions("robot", 1, 1, 1, 0.0, 0.0, 0.0, 1, 0.0, 0.0)
