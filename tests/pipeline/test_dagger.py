"""HG-DAgger: what an operator corrects is cut out of the episodes and imitated too."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console
from tiny_runs import TINY
from untrained_policy import untrained

from robot_rl.commands.train import collect, pretrain
from robot_rl.config import ConfigError, Settings, compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.env import factory
from robot_rl.env.operator import OperatorInbox
from robot_rl.learning import workbench
from robot_rl.learning.stages.dagger import correct, corrections
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.run import CLONED, RunDirectory


def rows_of(pattern, terminated):
    """An episode whose steps marked x were the operator's."""
    rows = []
    for at, mark in enumerate(pattern):
        end = at == len(pattern) - 1
        rows.append(
            {
                "action": np.full(2, 0.5, np.float32),
                "policy_action": np.full(2, 0.1, np.float32),
                "reward": np.float32(terminated and end),
                "terminated": np.bool_(terminated and end),
                "truncated": np.bool_(end and not terminated),
                "success": np.bool_(terminated and end),
                "intervened": np.bool_(mark == "x"),
                "is_last": np.False_,
                "episode_step": np.int32(at),
                "state/x": np.float32(at),
            }
        )
    last = {**rows[-1], "action": np.zeros(2, np.float32), "is_last": np.True_}
    return [*rows, {**last, "intervened": np.False_, "state/x": np.float32(len(pattern))}]


def test_each_stretch_is_an_episode_with_the_observation_behind_it():
    first, second = corrections(rows_of("..xx.x", terminated=True))
    assert [float(row["state/x"]) for row in first] == [2, 3, 4]
    assert [float(row["state/x"]) for row in second] == [5, 6]
    for stretch in (first, second):
        assert [bool(row["is_last"]) for row in stretch[-2:]] == [False, True]
        assert not stretch[-1]["action"].any()
        assert [int(row["episode_step"]) for row in stretch] == list(range(len(stretch)))
    assert (first[-2]["truncated"], first[-2]["terminated"]) == (True, False)
    assert (second[-2]["truncated"], second[-2]["terminated"]) == (False, True)


def test_without_the_operator_there_is_nothing_to_cut():
    assert corrections(rows_of("....", terminated=False)) == []


class Scripted(OperatorInbox):
    """Says something at some polls: two at a reset, one at each step and each look between."""

    def __init__(self, says):
        super().__init__(float("inf"))
        self._says, self.polls = says, 0

    def poll(self):
        for event in self._says.get(self.polls, ()):
            self.post(event)
        self.polls += 1
        return super().poll()


@pytest.fixture
def bench(folder):
    """Of a run with demonstrations, whose operator says nothing by himself."""
    quiet = "operator.simulated.habits.attention=0.0"
    config = compose([*TINY, "dagger.episodes=3", "operator=simulated", quiet])
    run = RunDirectory.open("latest", folder / "runs")
    return Workbench(Settings.of(config), run)


def test_nothing_begins_while_it_is_halted_and_a_discarded_episode_is_not_kept(bench, monkeypatch):
    # Polls 2 to 4 are steps, as are 12 to 14; between them it waits, then is reset.
    said = Scripted(
        {
            2: ["take_over"],
            4: ["stop"],
            9: ["clear_errors"],
            12: ["take_over"],
            14: ["discard"],
        }
    )
    monkeypatch.setattr(factory, "make_inbox", lambda config: said)
    printed = io.StringIO()
    monkeypatch.setattr(
        workbench,
        "WorkProgress",
        lambda *about: WorkProgress(*about, console=Console(file=printed, width=200)),
    )
    (recorded,) = correct(bench, untrained(bench.demonstrations().schema), 1)
    assert (
        "waiting: the operator has stopped the robot; next: to go on say clear_errors"
        in printed.getvalue()
    )
    assert len(recorded) == 1
    assert (
        len({record["seed"] for record in bench.run.read_jsonl("corrections")}) == 3
    )  # the discarded one was run again


class Interrupted(Scripted):
    """Takes over in each episode, until Ctrl-C comes at a poll."""

    def __init__(self, at):
        super().__init__({poll: ["take_over"] for poll in range(2, 1000, 7)})
        self._at = at

    def poll(self):
        if self.polls == self._at:
            raise KeyboardInterrupt
        return super().poll()


def test_an_interrupted_round_goes_on_with_the_episode_that_was_not_finished(bench, monkeypatch):
    behaviour = untrained(bench.demonstrations().schema)
    inboxes = [Interrupted(50), Interrupted(-1), Interrupted(-1)]
    monkeypatch.setattr(factory, "make_inbox", lambda config: inboxes.pop(0))
    with pytest.raises(KeyboardInterrupt):
        correct(bench, behaviour, 1)
    (first,) = bench.run.read_jsonl("corrections")
    (recorded,) = correct(bench, behaviour, 1)
    finished = bench.run.read_jsonl("corrections")
    assert finished[0] == first
    assert len({record["seed"] for record in finished}) == len(finished) == 3
    assert [record["corrections"] for record in finished] == [1, 2, 3]
    assert recorded.seeds.tolist() == [record["seed"] for record in finished]
    (both,) = correct(bench, behaviour, 2)
    assert len(both) == 6
    (again,) = correct(bench, behaviour, 1)
    assert again.seeds.tolist() == recorded.seeds.tolist()
    assert again.rows_total == recorded.rows_total < both.rows_total


@pytest.mark.slow  # collects, clones twice and acts
def test_a_round_of_corrections_is_recorded_and_cloned(tmp_path):
    overrides = [*TINY, f"runs_directory={tmp_path}", "dagger.rounds=1", "dagger.episodes=3"]
    with_operator = compose([*overrides, "operator=simulated"])
    collect(with_operator)
    run = RunDirectory.open("latest", tmp_path)
    with_operator.run = str(run.path)
    with pytest.raises(ConfigError, match="operator=simulated"):
        pretrain(compose([*overrides, f"run={run.path}"]))
    pretrain(with_operator)
    recorded = EpisodeDataset(run.corrections)
    assert len(recorded) > 0
    columns = recorded.episode(0)
    assert columns["intervened"][:-1].all()
    assert columns["is_last"].tolist() == [False] * (len(columns["is_last"]) - 1) + [True]
    assert run.has_folder(CLONED)
