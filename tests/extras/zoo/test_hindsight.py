"""Learning from goals that were reached, in an environment that knows the reward of any goal."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from robot_rl.data.schema import SOURCE_INTERVENTION
from robot_rl.env.gym import GymRobot, GymTask
from robot_rl.extras.zoo.hindsight import Hindsight, columns, goal_reward_of, judgements
from robot_rl.learning.workbench import Rows
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SampleSpec

FIELDS = ("state/observation", "state/achieved_goal", "state/desired_goal")
ENDS, GOES_ON, DENSE = "ends at the goal", "-1 until it is there", "dense"


class Point(gymnasium.Env):
    """A point on a plane moves to a goal."""

    def __init__(self, form=GOES_ON):
        box = {name: spaces.Box(-9.0, 9.0, (2,)) for name in ("achieved_goal", "desired_goal")}
        self.observation_space = spaces.Dict({"observation": spaces.Box(-9.0, 9.0, (1,)), **box})
        self.action_space = spaces.Box(-1.0, 1.0, (2,))
        self.form = form

    def seen(self):
        return {
            "observation": self.at[:1].copy(),
            "achieved_goal": self.at.copy(),
            "desired_goal": self.goal,
        }

    def compute_reward(self, achieved, desired, info):
        far = float(np.linalg.norm(achieved - desired))
        return -far if self.form == DENSE else -float(far > 0.5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self.seen(), {}

    def step(self, action):
        self.at = (self.at + 0.4 * action).astype(np.float32)
        reward = self.compute_reward(self.at, self.goal, {})
        if self.form == ENDS:
            return self.seen(), reward + 1.0, reward == 0.0, False, {}
        return self.seen(), reward, False, False, {}


gymnasium.register("Point-v0", Point, max_episode_steps=12)


def walk(form, episodes=30):
    """Columns of episodes with random actions, as they are recorded, and their ends."""
    env, rng = gymnasium.make("Point-v0", form=form), np.random.default_rng(0)
    rows = []
    ends = []
    for seed in range(episodes):
        seen, _ = env.reset(seed=seed)
        reward, over, cut, step = 0.0, False, False, 0
        while True:
            last = over or cut
            action = np.zeros(2) if last else rng.uniform(-1, 1, 2)
            state = {f"state/{name}": value for name, value in seen.items()}
            if not last:
                seen, reward, over, cut, _ = env.step(action.astype(np.float32))
            said = {"reward": 0.0 if last else reward, "terminated": over and not last}
            rows.append({**state, "action": action, **said, "is_last": last, "episode_step": step})
            step += 1
            if last:
                break
        ends.append(len(rows))
    kinds = {"terminated": bool, "is_last": bool, "episode_step": np.int32}
    arrays = {n: np.array([r[n] for r in rows], kinds.get(n, np.float32)) for n in rows[0]}
    return arrays, ends


def source(form, spec):
    arrays, ends = walk(form)
    arrays["source"] = np.zeros(len(arrays["reward"]), np.uint8)
    return Sampler(EpisodeRows(arrays, ends), spec, np.random.default_rng(0))


def goal_reward(form):
    robot = GymRobot(GymTask("point", "", None), "Point-v0", {"form": form}, None, None)
    return goal_reward_of(robot)


def episodes(rows, spec):
    return (episode for _, episode in rows.episodes(columns(spec), demonstrations=True))


def hindsight(form, spec, share=1.0):
    reward = goal_reward(form)
    rows = Rows(source(form, spec))
    made = Hindsight(rows, spec, share, reward, judgements(episodes(rows, spec), reward), seed=3)
    made.count()
    return made


@pytest.mark.parametrize("form", [ENDS, GOES_ON])
def test_what_was_reached_is_rewarded_as_the_environment_would(form):
    spec = SampleSpec((*FIELDS, "action"), 400, discount=0.9, demonstration_share=1.0)
    drawn = source(form, spec).sample()
    batch = hindsight(form, spec).mixed(drawn)
    wanted, reached = batch["state/desired_goal"], batch["next/state/achieved_goal"]
    assert (wanted == batch["next/state/desired_goal"]).all()
    moved = reached - batch["state/achieved_goal"]
    np.testing.assert_allclose(moved, 0.4 * batch["action"], atol=1e-5)

    own = goal_reward(form)(reached, wanted)
    there = own == 0.0
    np.testing.assert_array_equal(batch["reward"], own + (1.0 if form == ENDS else 0.0))
    np.testing.assert_allclose(batch["discount"], np.where(there & (form == ENDS), 0.0, 0.9))
    rate = goal_reward(form)(drawn["next/state/achieved_goal"], drawn["state/desired_goal"]) == 0
    assert there.mean() > 2 * rate.mean()


def test_a_return_of_several_steps_ends_where_the_goal_is_reached():
    spec = SampleSpec((*FIELDS, "action"), 400, 3, 0.9, demonstration_share=1.0)
    batch = hindsight(ENDS, spec).mixed(source(ENDS, spec).sample())
    there = goal_reward(ENDS)(batch["next/state/achieved_goal"], batch["state/desired_goal"]) == 0.0
    assert there.any()
    np.testing.assert_allclose(batch["reward"], there * 0.9 ** (batch["steps"] - 1.0), rtol=1e-5)
    np.testing.assert_allclose(batch["discount"], ~there * 0.9 ** batch["steps"], rtol=1e-5)


def test_chunks_and_histories_are_those_of_the_shortened_episode():
    spec = SampleSpec(
        FIELDS,
        400,
        demonstration_share=1.0,
        observation_steps=2,
        chunk_fields=("action",),
        chunk_steps=3,
    )
    batch = hindsight(ENDS, spec).mixed(source(ENDS, spec).sample())
    before, at = batch["state/achieved_goal"][:, 0], batch["state/achieved_goal"][:, 1]
    action, valid = batch["chunk/action"], batch["chunk/valid"]
    reached = batch["next/state/achieved_goal"][:, 1]
    np.testing.assert_allclose(reached - at, 0.4 * action[:, 0], atol=1e-5)
    np.testing.assert_array_equal(batch["next/state/achieved_goal"][:, 0], at)
    assert (np.abs(at - before) < 0.4 + 1e-5).all()
    ended = batch["discount"] == 0.0
    assert ended.any()
    assert valid[:, 0].all()
    assert not valid[ended, 1:].any()
    repeated = ~valid[:, 2]
    np.testing.assert_array_equal(action[repeated, 2], action[repeated, 1])


def test_only_the_share_is_exchanged_and_a_resumed_run_draws_the_same():
    spec = SampleSpec((*FIELDS, "action"), 400, demonstration_share=1.0)
    drawn = source(GOES_ON, spec).sample()
    first = hindsight(GOES_ON, spec, share=0.5)
    same = (first.mixed(drawn)["state/desired_goal"] == drawn["state/desired_goal"]).all(1)
    assert 0.4 < same.mean() < 0.6
    state = json.loads(json.dumps(first.state_dict()))
    resumed = hindsight(GOES_ON, spec, share=0.5)
    resumed.load_state_dict(state)
    expected, got = first.mixed(drawn), resumed.mixed(drawn)
    for name, column in expected.items():
        np.testing.assert_array_equal(got[name], column)


def test_a_reward_that_does_not_follow_from_the_goal_alone_is_left_as_it_is():
    spec = SampleSpec((*FIELDS, "action"), 400)
    dense, ends = (episodes(Rows(source(form, spec)), spec) for form in (DENSE, ENDS))
    assert judgements(dense, goal_reward(DENSE)) is None
    assert judgements(ends, lambda a, b: np.zeros(len(a))) is None


def test_what_an_operator_did_stays_as_it_is():
    spec = SampleSpec((*FIELDS, "action"), 400, demonstration_share=1.0)
    drawn = source(GOES_ON, spec).sample()
    drawn["source"][::2] = SOURCE_INTERVENTION
    batch = hindsight(GOES_ON, spec).mixed(drawn)
    same = (batch["state/desired_goal"] == drawn["state/desired_goal"]).all(1)
    assert same[::2].all()
    assert not same[1::2].any()
