"""A coach that tells the operator when the policy needs help."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import configuration

from robot_rl.env.coach import Coach
from robot_rl.env.factory import make_session

LIMIT = 20
ADVICE = "help now: 6 of 6 episodes that ran so long failed"
UP = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def coached(*overrides, **arguments):
    config = configuration("task=reach", f"task.environment.time_limit_steps={LIMIT}", *overrides)
    session = make_session(config, coach=Coach(**arguments))
    return session, session.inbox


def episode(env, seed=0, *, reach=False, steps=LIMIT):
    """Stand still, or go to the target; gives the infos of the steps."""
    observation, _ = env.reset(seed=seed)
    infos = []
    for _ in range(steps):
        way = observation["state/relative_pose"] / [0.01, 0.01, 0.01, 0.05, 0.05, 0.05]
        action = np.clip(way, -1, 1) if reach else np.zeros(6)
        observation, _, terminated, _, info = env.step(action.astype(np.float32))
        infos.append(info)
        if terminated:
            break
    return infos


def test_help_is_advised_once_enough_episodes_that_ran_so_long_have_failed():
    notes = []
    env, inbox = coached(note=notes.append)
    for _ in range(6):
        assert not any(info["advice"] for info in episode(env))
        assert (env.result.facts["advices"], env.result.facts["alone_steps"]) == (0, LIMIT)
    advices = [info["advice"] for info in episode(env)]
    assert advices == [ADVICE] * (LIMIT - 1) + [""]
    assert notes == [ADVICE]
    assert env.result.facts["advices"] == 1
    env.reset(seed=0)
    assert inbox.advice == ""


def test_what_succeeds_soon_leads_to_advice_only_for_what_runs_longer():
    env, _ = coached()
    lengths = [len(episode(env, seed, reach=True)) for seed in range(1, 13)]
    for _ in range(6):
        episode(env)
    advices = [info["advice"] for info in episode(env)]
    assert not any(advices[: min(lengths) - 1])
    assert any(advices)


@pytest.mark.parametrize("helped", [True, False])
def test_episodes_that_somebody_helped_or_cut_say_nothing(helped):
    env, inbox = coached()
    for _ in range(8):
        inbox.jog(UP if helped else (0.0,) * 6)
        episode(env, steps=LIMIT if helped else LIMIT - 1)
        assert env.result.facts["alone_steps"] == 0
    inbox.jog((0.0,) * 6)
    assert not any(info["advice"] for info in episode(env))


def test_an_operator_who_drives_is_told_nothing_and_a_policy_is_tried_again_later():
    env, inbox = coached()
    for _ in range(6):
        episode(env)
    inbox.jog(UP)
    for _ in range(40):
        assert not any(info["advice"] for info in episode(env))
    inbox.jog((0.0,) * 6)
    assert not any(info["advice"] for info in episode(env))


def test_a_coach_goes_on_from_the_records_of_an_earlier_process():
    records = [{"success": False, "alone_steps": LIMIT}] * 6 + [{"success": True}]
    env, _ = coached(episodes=records)
    assert episode(env)[0]["advice"] == ADVICE


@pytest.mark.parametrize("follows", [True, False])
def test_a_simulated_operator_who_looks_elsewhere_helps_only_if_following_the_coach(follows):
    habits = "operator.simulated.habits"
    words = ("operator=simulated", f"{habits}.attention=0", f"{habits}.follows_coach={follows}")
    env, _ = coached(*words)
    for seed in range(6):
        assert not any(info["intervened"] for info in episode(env, seed))
    assert any(info["intervened"] for info in episode(env, 6)) == follows
