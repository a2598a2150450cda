"""How training comes back to a start: by a person, by a backward behaviour, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import PERFECT, configuration

from robot_rl.config import ConfigError
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_expert, make_session
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.rollout import rollout
from robot_rl.errors import RobotRLError

_EXACT = "reset.backward.environment.tolerance=0.00001"


@pytest.fixture
def inbox():
    return OperatorInbox(float("inf"))


def resetting(inbox, task, reset, *overrides):
    config = configuration(f"task={task}", f"reset={reset}", *overrides)
    return make_session(config, inbox=inbox)


def socket(env):
    return env.robot.world.body_pose("socket").tolist()


def test_insert_and_remove_undo_each_other_without_anything_being_put_back(inbox):
    env = resetting(inbox, "peg_insert", "backward_policy")
    expert = ExpertController(make_expert(configuration("task=peg_insert"), env))
    recorder = RowBuilder(env.schema, SOURCE_POLICY)
    places, starts, rows = [], [], []
    for result in rollout([env], expert, iter(range(4)), recorder=recorder):
        places.append(socket(env))
        starts.append(result.rows[0]["state/tcp_pose"][:3])
        rows.append((len(result.rows), result.steps))
        assert result.facts["put_back"] == (len(places) == 1)
        assert (result.facts["reset_steps"] > 0) == (len(places) > 1)
    assert places == [places[0]] * 4
    assert len({start.tobytes() for start in starts}) == 4
    # As in scripted episodes: about the middle of the table, 6 cm over the socket.
    np.testing.assert_allclose(starts, [[0.45, 0.0, 0.15]] * 4, atol=0.016)
    # The motion back is in no row.
    assert all(count == steps + 1 for count, steps in rows)


def test_the_error_of_what_is_seen_is_drawn_anew_in_place(inbox):
    env = resetting(inbox, "peg_insert", "backward_policy")
    seen = [env.reset(seed=seed)[0]["state/object_poses"][0] for seed in (1, 2, 3)]
    assert len({pose.tobytes() for pose in seen}) == 3
    np.testing.assert_allclose(seen, [socket(env)] * 3, atol=0.04)


def test_what_cannot_be_brought_back_is_put_back(inbox):
    too_exact = ("reset.backward.environment.time_limit_steps=2", _EXACT)
    env = resetting(inbox, "peg_insert", "backward_policy", *too_exact)
    env.reset(seed=1)
    before = socket(env)
    _, info = env.reset(seed=2)
    assert info["facts"] == {"reset_steps": 4, "put_back": True}
    assert socket(env) != before


@pytest.mark.parametrize(("event", "way_on"), [("stop", "clear_errors"), ("pause", "resume")])
def test_the_operator_halts_the_motion_back(inbox, event, way_on):
    env = resetting(inbox, "peg_insert", "backward_policy")
    env.reset(seed=1)
    inbox.post(event)
    for _ in range(2):
        with pytest.raises(RobotInterrupted, match=way_on):
            env.reset(seed=2)
    inbox.post(way_on)
    assert env.reset(seed=2)[1]["facts"]["reset_steps"] > 1


def test_a_label_during_the_motion_back_is_about_the_episode_before(inbox):
    env = resetting(inbox, "peg_insert", "backward_policy")
    env.reset(seed=1)
    inbox.post("success")
    assert env.reset(seed=2)[1]["operator"].events == ("success",)


def test_a_person_says_when_the_scene_is_put_back(inbox):
    env = resetting(inbox, "peg_insert", "human")
    with pytest.raises(RobotInterrupted, match="say start"):
        env.reset(seed=1)
    inbox.post("start")
    env.reset(seed=1)
    with pytest.raises(RobotInterrupted):
        env.reset(seed=2)


def test_without_a_reset_the_arm_stays_where_it_is(inbox):
    env = resetting(inbox, "reach", "none")
    first, _ = env.reset(seed=1)
    for _ in range(5):
        last, *_ = env.step(np.full(6, 0.5, np.float32))
    second, _ = env.reset(seed=2)
    np.testing.assert_array_equal(second["state/tcp_pose"], last["state/tcp_pose"])
    assert (second["state/object_poses"] != first["state/object_poses"]).any()


def test_without_a_reset_a_goal_that_is_reached_is_put_back_and_one_that_is_not_is_left(inbox):
    """Every episode after the first success was one of a single step, and a success."""
    env = resetting(inbox, "peg_insert", "none")
    config = configuration("task=peg_insert", *PERFECT)
    expert = ExpertController(make_expert(config, env))
    one_step = np.zeros(6, np.float32)

    _, first = env.reset(seed=1)
    env.step(one_step)
    before = socket(env)
    _, second = env.reset(seed=2)
    assert socket(env) == before
    assert (first["in_place"], second["in_place"]) == (False, True)

    recorder = RowBuilder(env.schema, SOURCE_POLICY)
    (result,) = rollout([env], expert, iter([3]), recorder=recorder)
    assert result.success
    inbox.post("undo")
    _, third = env.reset(seed=4)
    assert not third["in_place"]
    assert socket(env) != before
    assert third["operator"].events == ("undo",)
    *_, terminated, _, info = env.step(one_step)
    assert not terminated
    assert not info["success"]


@pytest.mark.parametrize("task", ["pick_insert", "pick_cube"])
def test_a_task_that_needs_its_scene_put_back_says_so(inbox, task):
    env = resetting(inbox, task, "none")
    env.reset(seed=1)
    with pytest.raises(RobotRLError, match="reset=scripted"):
        env.reset(seed=2)


def test_a_backward_task_of_another_scene_is_refused(inbox):
    with pytest.raises(ConfigError, match="does not undo 'pick_insert'"):
        resetting(inbox, "pick_insert", "backward_policy")
    env = resetting(inbox, "reach", "backward_policy")
    env.reset(seed=1)
    with pytest.raises(RobotRLError, match="no such body"):
        env.reset(seed=2)
