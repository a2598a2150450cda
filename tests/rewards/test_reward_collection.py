"""Examples of success and failure: who acts, whose labels, and which frames show success."""

import io

import numpy as np
import pytest
from rich.console import Console

from robot_rl.config import compose, save_resolved
from robot_rl.data.rows import RowBuilder
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.rollout import rollout
from robot_rl.operator import OperatorInbox
from robot_rl.progress import WorkProgress
from robot_rl.rewards.collection import CollectionOptions, Lingering, StallingController
from robot_rl.rewards.source import RewardError
from robot_rl.rewards.wrapper import RewardWrapper
from robot_rl.run import RunDirectory
from robot_rl.stages.collect import ExpertController
from robot_rl.stages.collect_reward import collect_by_operator

CONFIG = compose(
    [
        "task=reach",
        "classifier.cameras=[]",
        "classifier.collection.positive_frames=5",
        "classifier.collection.frames_after_success=3",
        "classifier.collection.negative_episodes=1",
    ]
)


class Scripted(OperatorInbox):
    """Says something at some ticks: an episode has two at its reset and one at each step."""

    def __init__(self, says):
        super().__init__(float("inf"))
        self._says, self._tick = says, 0

    def poll(self):
        if self._tick in self._says:
            self.post(self._says[self._tick])
        self._tick += 1
        return super().poll()


def test_the_operators_word_is_the_label_and_discarded_episodes_are_not_kept(tmp_path):
    run = RunDirectory.create("reach", tmp_path)
    save_resolved(CONFIG, run.path)
    # Steps 2 to 7 (the success and two more frames), 10 and 11, 14 to 16, 19 to 21 (one more).
    said = Scripted({5: "success", 11: "discard", 16: "failure", 20: "success"})
    with WorkProgress(0, console=Console(file=io.StringIO())) as progress:
        recorded = collect_by_operator(CONFIG, run, said, progress)
    assert recorded.successes.tolist() == [True, False, True]
    assert np.diff(recorded.episode_ends, prepend=0).tolist() == [7, 4, 4]
    shown = np.split(recorded.read("success"), recorded.episode_ends[:-1])
    assert [np.flatnonzero(s).tolist() for s in shown] == [[3, 4, 5], [], [1, 2]]
    assert not recorded.read("truncated").any()


def test_an_expert_that_stalls_hardly_moves_any_more():
    inner = make_env(CONFIG)
    env = RewardWrapper(inner, Lingering(1))
    names = env.schema.action_names
    controller = StallingController(
        ExpertController(make_expert(CONFIG, inner), len(names)), names, fidget=0.0
    )
    recorder = RowBuilder(env.schema, 0)
    controller.stall_at = 5
    (result,) = rollout([env], controller, iter([3]), recorder=recorder)
    actions = np.array([row["action"] for row in result.rows])
    assert np.abs(actions[:5]).max(1).min() > 0
    assert not actions[5:].any()
    assert result.steps == env.task.time_limit_steps


def test_labels_of_nobody_are_refused():
    with pytest.raises(RewardError, match="got: robot"):
        CollectionOptions("robot", 1, 1, 1, 0.0, 0.0, 0.0, 1, 0.0)
