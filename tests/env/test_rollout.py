"""The one loop that runs episodes: seeds, slots, rows, and a stop in the middle."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from scenes import environment, replay

from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.rollout import rollout, training_seed
from robot_rl.env.session import Session

SEEDS = range(100, 109)


class Decision(NamedTuple):
    action: np.ndarray
    base_action: np.ndarray
    chunk_index: np.ndarray
    version: np.ndarray
    base_alone: np.ndarray
    noiseless: np.ndarray
    features: dict


def proposals(observation):
    wanted = observation["state/relative_pose"] / [0.01, 0.01, 0.01, 0.05, 0.05, 0.05]
    return np.clip(wanted, -1, 1).astype(np.float32)


class Servo:
    """Goes where the observation says, at a pace drawn from the episode's seed."""

    def __init__(self, slots, version=7):
        self.pace = np.zeros(slots)
        self.begun = []
        self.version = version

    def reset(self, slots=None, *, seeds, instructions=None):
        for slot, seed in zip(slots, seeds, strict=True):
            self.pace[slot] = np.random.default_rng(seed).uniform(0.02, 0.6)
            self.begun.append((slot, seed))

    def act(self, observation, active=None):
        base = proposals(observation)
        return self.decision((base * self.pace[:, None]).astype(np.float32), base)

    def conclude(self, observation, active=None):
        base = proposals(observation)
        return self.decision(base, base)

    def decision(self, action, base):
        size = len(base)
        version = np.full(size, self.version)
        alone = np.ones(size, bool)
        return Decision(action, base, np.full(size, 3, np.int16), version, alone, alone, {})


def run(slots, seeds=SEEDS, **options):
    sessions = [Session(environment("reach")) for _ in range(slots)]
    controller = Servo(slots)
    recorder = RowBuilder(sessions[0].schema, SOURCE_POLICY)
    results = list(rollout(sessions, controller, iter(seeds), recorder=recorder, **options))
    return results, controller, sessions[0].schema


def test_every_seed_runs_once_and_free_slots_take_the_next():
    results, controller, _ = run(4)
    assert Counter(result.seed for result in results) == Counter(SEEDS)
    assert Counter(seed for _, seed in controller.begun) == Counter(SEEDS)
    assert controller.begun[:4] == list(enumerate(SEEDS[:4]))
    assert {slot for slot, _ in controller.begun[4:]} <= set(range(4))


def test_results_do_not_depend_on_the_number_of_slots():
    def rows_by_seed(slots):
        results, _, schema = run(slots)
        facts = {r.seed: (r.success, r.steps, r.total_reward, r.seconds) for r in results}
        packed = {r.seed: b"".join(schema.pack(row) for row in r.rows) for r in results}
        return facts, packed

    alone = rows_by_seed(1)
    assert {success for success, *_ in alone[0].values()} == {True, False}
    assert rows_by_seed(3) == alone
    assert rows_by_seed(20) == alone  # more slots than episodes


def test_an_episode_of_t_steps_has_t_plus_one_rows_that_fit_the_schema():
    results, _, schema = run(2)
    for result in results:
        rows = schema.unpack(b"".join(schema.pack(row) for row in result.rows))
        assert len(rows) == result.steps + 1
        np.testing.assert_array_equal(rows["episode_step"], np.arange(result.steps + 1))
        np.testing.assert_array_equal(np.flatnonzero(rows["is_last"]), [result.steps])
        last = rows[-1]
        assert not last["action"].any()
        assert not last["policy_action"].any()
        assert (last["terminated"], last["truncated"], last["reward"]) == (False, False, 0.0)
        end = rows[-2]
        assert end["terminated"] == end["success"] == end["reward"] == result.success
        assert end["truncated"] == (not result.success)
        assert not rows["terminated"][:-2].any()
        assert not rows["truncated"][:-2].any()
        assert set(rows["source"]) == {SOURCE_POLICY}
        assert set(rows["policy_version"][:-1]) == {7}
        assert result.policy_version == 7
        assert len(result.decision_seconds) == len(result.lateness_seconds) == result.steps
        assert result.seconds == pytest.approx(0.1 * result.steps)


def test_a_row_holds_what_was_seen_before_its_action():
    results, _, schema = run(2)
    result = results[-1]
    rows = schema.unpack(b"".join(schema.pack(row) for row in result.rows))
    seen, rewards = replay(environment("reach"), result.seed, rows["action"][:-1])
    assert list(rows["reward"][:-1]) == rewards
    for row, observation in zip(rows, seen, strict=True):
        for name, value in observation.items():
            np.testing.assert_array_equal(row[name], value)
    stacked = {name: np.stack([o[name] for o in seen]) for name in seen[0]}
    np.testing.assert_array_equal(rows["base_action"], proposals(stacked))
    np.testing.assert_array_equal(rows["policy_action"], rows["action"])
    np.testing.assert_array_equal(rows["last_command"][1:], rows["action"][:-1])
    assert not rows["last_command"][0].any()


def test_stopping_ends_running_episodes_as_truncated_and_begins_none():
    asked = []

    def stop():
        asked.append(None)
        return len(asked) >= 5

    results, controller, _ = run(3, stop=stop)
    assert len(asked) == 5
    assert len(controller.begun) == 3
    assert [result.steps for result in results] == [5, 5, 5]
    for result in results:
        end, last = result.rows[-2:]
        assert (bool(end["truncated"]), bool(end["terminated"])) == (True, False)
        assert last["is_last"]
        assert not result.success


def test_rows_go_to_the_listener_as_they_are_made():
    heard = []
    results, *_ = run(2, seeds=range(3), on_row=lambda row, result: heard.append((row, result)))
    assert all(result.rows == [] for result in results)
    for result in results:
        steps = [int(row["episode_step"]) for row, of in heard if of is result]
        assert steps == list(range(result.steps + 1))


def test_without_a_recorder_no_rows_are_made():
    sessions = [Session(environment("reach"))]
    results = list(rollout(sessions, Servo(1), iter([1])))
    assert [len(result.rows) for result in results] == [0]


def test_no_seeds_no_episodes():
    assert list(rollout([Session(environment("reach"))], Servo(1), iter([]))) == []


def test_training_seeds_are_reproducible_distinct_and_never_those_of_evaluation():
    seeds = [
        training_seed(run, stream, e) for run in (0, 1) for stream in (0, 1) for e in range(500)
    ]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 1 << 31
    assert training_seed(1, 1, 7) == training_seed(1, 1, 7)


def test_the_observation_of_one_robot_reaches_the_controller_uncopied():
    seen = []

    class Watching(Servo):
        def act(self, observation, active=None):
            seen.append(observation)
            return super().act(observation, active)

    env = environment("reach")
    recorder = RowBuilder(env.schema, SOURCE_POLICY)
    (result,) = rollout([Session(env)], Watching(1), iter([100]), recorder=recorder)
    env.close()
    name = "state/tcp_pose"
    for observation, row in zip(seen, result.rows, strict=False):
        assert observation[name].shape == (1, 7)
        assert np.shares_memory(observation[name], row[name])
