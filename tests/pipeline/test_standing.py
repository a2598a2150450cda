"""Which online episodes tell whether the learned policy does better than the cloned one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_runs import TINY, ServerProcess

from policies import checkpoint
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY
from robot_rl.learning.standing import Standing, chance_of_more
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


def test_more_successes_than_the_clone_had_prove_it_and_failures_undo_that(bench, acting):
    standing = Standing(bench)
    assert (standing.proved, standing.metrics) == (False, {})
    acting.put(0, [True, False, False, False])
    acting.put(900, [True] * 3, helped=True)
    standing.count(acting.steps)
    assert not standing.proved
    assert standing.metrics == {"cloned_success": 0.25}
    acting.put(1000, [True] * 8)
    standing.count(acting.steps)
    assert standing.proved
    assert standing.metrics == {"cloned_success": 0.25, "learned_success": 1.0}
    saved = standing.state_dict()
    acting.put(2000, [False] * 8)

    def after_failures(standing: Standing) -> tuple[bool, float]:
        standing.count(acting.steps)
        return standing.proved, standing.metrics["learned_success"]

    assert after_failures(standing) == (False, 0.5)
    resumed = Standing(bench)
    resumed.load_state_dict(saved)
    assert after_failures(resumed) == (False, 0.5)
    acting.put(3000, [True] * 20)  # only the latest count
    assert after_failures(resumed) == (True, 1.0)


def test_where_nothing_tells_success_the_return_decides(bench, acting):
    standing = Standing(bench)
    for reward in (-3.0, -2.0, -1.0):
        acting.put(0, [False], reward=reward)
    acting.put(1000, [False] * 12, reward=-0.5)
    standing.count(acting.steps)
    assert standing.proved
    acting.put(2000, [False] * 15, reward=-2.5)
    standing.count(acting.steps)
    assert not standing.proved


def test_the_chance_is_that_of_two_beta_distributions():
    rng = np.random.default_rng(0)
    for more, of_more, less, of_less in [(7, 13, 2, 8), (20, 20, 17, 20), (0, 0, 3, 4)]:
        drawn = rng.beta(more + 1, of_more - more + 1, 10**6)
        other = rng.beta(less + 1, of_less - less + 1, 10**6)
        expected = float((drawn > other).mean())
        assert chance_of_more(more, of_more, less, of_less) == pytest.approx(expected, abs=2e-3)
