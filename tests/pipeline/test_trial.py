"""Which online episodes tell whether boldness or caution does better, and what follows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import TINY, ServerProcess

from policies import checkpoint
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY
from robot_rl.learning.trial import Trial, chance_of_more
from robot_rl.learning.workbench import Workbench
from robot_rl.replay import ReplayClient
from robot_rl.run import RunDirectory


class Acting:
    """Stands for an actor: puts episodes into the store of a run."""

    def __init__(self, run: Path, client: ReplayClient) -> None:
        dataset = EpisodeDataset(run / "demonstrations.zarr")
        schema = stored_schema(dataset.schema, checkpoint.load(run / "checkpoints/bc/policy"))
        self.client, self.steps = client, 0
        self._episode = dataset.episode(0)
        client.open_session(schema.task, schema, 1)

    def put(
        self, version: int, successes: list[bool], *, reward: float = 0.0, helped: bool = False
    ) -> None:
        for success in successes:
            columns = {name: column.copy() for name, column in self._episode.items()}
            columns["source"][:] = SOURCE_POLICY
            if helped:
                columns["source"][2] = SOURCE_INTERVENTION
            columns["policy_version"][:] = version
            columns["reward"][:] = reward
            columns["success"][:] = False
            columns["success"][-2] = success  # with the last action
            columns["base_action"] = np.zeros_like(columns["action"])
            length = len(columns["action"])
            rows = [
                {name: column[row] for name, column in columns.items()} for row in range(length)
            ]
            self.client.append_episode(rows, {"task": "reach", "seed": 0, "instruction": ""}, 10.0)
            self.steps += length - 1
        self.client.flush()


@pytest.fixture
def bench(folder: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    with ReplayClient(server.run / "store") as client:
        yield Workbench(compose(TINY), RunDirectory(server.run), client=client)


@pytest.fixture
def acting(bench: Workbench, server: ServerProcess):
    with ReplayClient(server.run / "store") as client:
        yield Acting(server.run, client)


class Told:
    """Stands for an algorithm: remembers what it was told last."""

    def choose(self, *, acting_boldly: bool, boldly: bool) -> None:
        self.acting_boldly, self.boldly = acting_boldly, boldly


def act_until(trial: Trial, told: Told, acting: Acting, rates: dict[bool, float]) -> list[bool]:
    """Act two episodes at a time as told, 40 in all; returns who acted."""
    rng, ways = np.random.default_rng(0), []
    for version in range(1, 21):
        trial.note_published(version)
        ways.append(told.acting_boldly)
        acting.put(version, [bool(rng.random() < rates[told.acting_boldly]) for _ in range(2)])
        trial.count(acting.steps)
    return ways


@pytest.mark.parametrize("better", [False, True])
def test_who_succeeds_more_often_acts_more_often_and_is_deployed(bench, acting, better):
    told = Told()
    trial = Trial(bench, told)
    assert (told.acting_boldly, told.boldly, trial.metrics) == (False, False, {})
    ways = act_until(trial, told, acting, {better: 0.9, not better: 0.2})
    assert set(ways) == {False, True}  # both were tried
    assert ways.count(better) > 12
    assert told.boldly == better
    shares = trial.metrics["cautious_success"], trial.metrics["bold_success"]
    assert shares[better] > 0.6 > shares[not better]


def test_episodes_of_the_clone_of_two_ways_and_of_an_operator_do_not_count(bench, acting):
    told = Told()
    trial = Trial(bench, told)
    acting.put(0, [True] * 3)
    trial.note_published(7)
    acting.put(7, [True] * 3, helped=True)
    trial.count(acting.steps)
    assert trial.metrics == {}


def test_a_resumed_trial_goes_on_as_the_uninterrupted_one(bench, acting):
    told, again = Told(), Told()
    trial = Trial(bench, told)
    act_until(trial, told, acting, {False: 0.3, True: 0.6})
    saved = trial.state_dict()
    resumed = Trial(bench, again)
    resumed.load_state_dict(json.loads(json.dumps(saved)))
    for version in range(31, 36):
        for each in (trial, resumed):
            each.note_published(version)
        acting.put(version, [True, False])
        for each in (trial, resumed):
            each.count(acting.steps)
        assert vars(told) == vars(again)
        assert trial.metrics == resumed.metrics


def test_where_nothing_tells_success_the_return_decides(bench, acting):
    told = Told()
    trial = Trial(bench, told)
    for version in range(1, 21):
        trial.note_published(version)
        acting.put(version, [False] * 2, reward=-0.5 if told.acting_boldly else -1.0)
        trial.count(acting.steps)
    assert told.boldly
    assert trial.metrics["bold_success"] == 1.0


def test_the_chance_is_that_of_two_beta_distributions():
    rng = np.random.default_rng(0)
    for more, of_more, less, of_less in [(7, 13, 2, 8), (20, 20, 17, 20), (0, 0, 3, 4)]:
        drawn = rng.beta(more + 1, of_more - more + 1, 10**6)
        other = rng.beta(less + 1, of_less - less + 1, 10**6)
        expected = float((drawn > other).mean())
        assert chance_of_more(more, of_more, less, of_less) == pytest.approx(expected, abs=2e-3)
