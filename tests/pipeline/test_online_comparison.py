"""Which online episodes tell whether learning does better than the clone, and what follows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import TINY, RunServer

from policies import checkpoint
from robot_rl.config import Settings, compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY
from robot_rl.learning.online_comparison import OnlineComparison, chance_of_more
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.windows import SampleSpec
from robot_rl.run import RunDirectory

# What acts in an episode: whether the base alone does, the version of the policy, and whether
# there is no noise.
CLONE, NOISY_CLONE, LEARNED, NOISELESS = (
    (True, 0, True),
    (False, 0, False),
    (False, 7, False),
    (False, 7, True),
)


class Acting:
    """Stands for an actor: puts episodes into the store of a run."""

    def __init__(self, bench: Workbench, run: Path, client: ReplayClient) -> None:
        dataset = EpisodeDataset(run / "demonstrations.zarr")
        schema = stored_schema(dataset.schema, checkpoint.load(run / "checkpoints/bc/policy"))
        self.client, self.steps = client, 0
        self._episode = dataset.episode(0)
        client.open_session(schema, 1)
        self.rows = bench.sampler(SampleSpec(("action",), 4))

    def shown_to(self, comparison: OnlineComparison) -> None:
        """Let a comparison count what was put so far."""
        self.rows.show(self.steps)
        comparison.count()

    def put(
        self,
        acts: tuple[bool, int, bool] | list[tuple[bool, int, bool]],
        successes: list[bool],
        *,
        reward: float = 0.0,
        helped: bool = False,
    ) -> None:
        for success in successes:
            columns = {name: column.copy() for name, column in self._episode.items()}
            columns["source"][:] = SOURCE_POLICY
            if helped:
                columns["source"][2] = SOURCE_INTERVENTION
            ways = np.resize(np.atleast_2d(acts), (len(columns["action"]), 3))
            columns["base_alone"], columns["policy_version"] = ways[:, 0] > 0, ways[:, 1]
            columns["noiseless"] = ways[:, 2] > 0
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
def bench(folder: Path, server: RunServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    with Workbench(Settings.of(compose(TINY)), RunDirectory(server.run)) as bench:
        yield bench


@pytest.fixture
def acting(bench: Workbench, server: RunServer):
    with ReplayClient(server.run / "store") as client:
        yield Acting(bench, server.run, client)


def drawn(rng: np.random.Generator, rate: float, count: int) -> list[bool]:
    return [bool(success) for success in rng.random(count) < rate]


@pytest.mark.parametrize(("learned", "clone"), [(0.9, 0.2), (0.2, 0.9)])
def test_only_what_does_better_than_the_clone_is_proved(acting, learned, clone):
    comparison, rng = OnlineComparison(acting.rows), np.random.default_rng(0)
    assert not comparison.proved
    for _ in range(5):
        acting.put(NOISY_CLONE, drawn(rng, 0.0, 2))  # says nothing of either
        acting.put(LEARNED, drawn(rng, learned, 4))
        acting.put(CLONE, drawn(rng, clone, 4))
        acting.shown_to(comparison)
    assert comparison.proved == (learned > clone)
    found = comparison.metrics["exploring_success"], comparison.metrics["base_success"]
    assert found == pytest.approx((learned, clone), abs=0.2)
    assert comparison.share == 0.0  # enough is known of the clone


def test_a_clone_of_long_episodes_acts_until_enough_is_known_of_it(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [False] * 5)
    acting.put(LEARNED, [True] * 12)
    acting.shown_to(comparison)
    assert comparison.share == 0.5  # in an eighth it would take hundreds of steps more
    assert not comparison.proved
    acting.put(CLONE, [False])
    acting.shown_to(comparison)
    assert comparison.share == 0.125
    assert comparison.proved


def test_older_weights_say_nothing_of_what_has_begun_again(acting):
    """Episodes that were still to come of them counted as failures of the new ones."""
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [True, False] * 5)
    acting.put(LEARNED, [False] * 6)
    acting.shown_to(comparison)
    comparison.restart(version=8)
    acting.put(LEARNED, [False] * 3)
    acting.put((False, 8, False), [True] * 6)
    acting.shown_to(comparison)
    assert comparison.metrics["exploring_success"] == 1.0


def test_what_was_better_is_not_held_back_for_a_failure_or_two(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [True, False] * 10)
    acting.put(LEARNED, [True] * 12)
    acting.shown_to(comparison)
    assert comparison.proved
    acting.put(LEARNED, [False] * 3)  # the chance is now 91 %: too little to begin with
    acting.shown_to(comparison)
    assert comparison.proved
    again = OnlineComparison(acting.rows)
    again.load_state_dict(json.loads(json.dumps(comparison.state_dict())))
    assert again.proved


def test_what_was_better_must_stay_better(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [True, False] * 5)
    acting.put(LEARNED, [True] * 12)
    acting.shown_to(comparison)
    assert comparison.proved
    acting.put(LEARNED, [False] * 9)
    acting.shown_to(comparison)
    assert not comparison.proved
    assert comparison.metrics == {"exploring_success": 0.25, "base_success": 0.5}
    said = "learned, exploring: 3 of 12; of its latest 40: 12 of 21; what it began with: 5 of 10"
    assert str(comparison) == said


def test_what_always_succeeds_is_proved_beside_a_good_clone(acting):
    """12 episodes of one kind, or 20 of the other, could not: a clone of 90 % stayed to the end."""
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [True] * 18 + [False] * 2)
    for _ in range(4):
        assert not comparison.proved
        acting.put(LEARNED, [True] * 4)
        acting.put(NOISELESS, [True] * 2)
        acting.shown_to(comparison)
    for _ in range(2):
        acting.put(LEARNED, [True] * 4)
        acting.put(NOISELESS, [True] * 2)
        acting.shown_to(comparison)
    assert comparison.proved
    acting.put(LEARNED, [True, False, False] * 4)  # soon it is seen that it has changed
    acting.shown_to(comparison)
    assert not comparison.proved


def test_episodes_without_noise_decide_where_exploring_ones_leave_it_open(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [True, False, False] * 4)
    assert comparison.noiseless_share == 0.0
    acting.put(LEARNED, [True, False, False] * 4)
    acting.shown_to(comparison)
    assert comparison.noiseless_share == pytest.approx(1 / 3)
    assert not comparison.proved
    acting.put([NOISELESS, LEARNED], [True] * 6)  # half of an episode says nothing
    acting.shown_to(comparison)
    assert not comparison.proved
    acting.put(NOISELESS, [True] * 6)
    acting.shown_to(comparison)
    assert comparison.proved
    assert comparison.metrics["learned_success"] == 1.0
    acting.put(LEARNED, [False] * 12)
    acting.shown_to(comparison)
    assert (comparison.proved, comparison.noiseless_share) == (False, 0.0)  # it has changed since


def test_what_was_lost_is_forgotten_when_it_begins_again(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [True] * 6)
    acting.put(LEARNED, [True, True, True, False])
    acting.shown_to(comparison)
    assert not comparison.lost
    acting.put(LEARNED, [False] * 4)
    acting.shown_to(comparison)
    assert comparison.lost
    comparison.restart(version=7)
    assert comparison.metrics == {"base_success": 1.0}
    assert not comparison.lost


def test_episodes_of_two_ways_and_of_an_operator_do_not_count(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(LEARNED, [True] * 3, helped=True)
    acting.put([CLONE] * 2 + [LEARNED] * 29, [True])
    acting.shown_to(comparison)
    assert comparison.metrics == {}


def test_a_resumed_trial_goes_on_as_the_uninterrupted_one(acting):
    comparison, again = OnlineComparison(acting.rows), OnlineComparison(acting.rows)
    acting.put(CLONE, [True, False, False])
    acting.put(LEARNED, [True, False])
    acting.shown_to(comparison)
    again.load_state_dict(json.loads(json.dumps(comparison.state_dict())))
    acting.put(LEARNED, [True, True])
    for each in (comparison, again):
        acting.shown_to(each)
    assert comparison.metrics == again.metrics
    assert again.metrics["exploring_success"] == 0.75


def test_where_nothing_tells_success_the_return_decides(acting):
    comparison = OnlineComparison(acting.rows)
    acting.put(CLONE, [False] * 6, reward=-1.0)
    acting.put(LEARNED, [False] * 6, reward=-0.5)
    acting.shown_to(comparison)
    assert comparison.proved
    assert comparison.metrics == {"exploring_success": 1.0, "base_success": 0.0}


def test_the_chance_is_that_of_two_beta_distributions():
    rng = np.random.default_rng(0)
    for more, of_more, less, of_less in [(7, 13, 2, 8), (20, 20, 17, 20), (0, 0, 3, 4)]:
        drawn = rng.beta(more + 1, of_more - more + 1, 10**6)
        other = rng.beta(less + 1, of_less - less + 1, 10**6)
        expected = float((drawn > other).mean())
        assert chance_of_more(more, of_more, less, of_less) == pytest.approx(expected, abs=2e-3)
