"""A coach that tells the operator when the policy needs help."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import configuration

from robot_rl.env.coach import Coach
from robot_rl.env.factory import make_session

LIMIT = 20
ADVICE = "help now: 6 of 6 episodes that ran so long failed"


def episode(coach, steps=LIMIT, *, helped=False, success=False):
    """What the coach says at each step of an episode, which runs for LIMIT steps or to success."""
    coach.begin()
    said = []
    for step in range(1, steps + 1):
        reached = success and step == steps
        over = reached or step == LIMIT
        said.append(coach.step(intervened=helped, over=over, success=reached))
    return said


def test_help_is_advised_once_enough_episodes_that_ran_so_long_have_failed():
    notes = []
    coach = Coach(note=notes.append)
    for _ in range(6):
        assert not any(episode(coach))
        assert coach.facts == {"advices": 0, "alone_steps": LIMIT}
    assert episode(coach) == [ADVICE] * (LIMIT - 1) + [""]
    assert notes == [ADVICE]
    assert coach.facts["advices"] == 1


def test_what_succeeds_soon_leads_to_advice_only_for_what_runs_longer():
    coach = Coach()
    for _ in range(12):
        episode(coach, 10, success=True)
    for _ in range(6):
        episode(coach)
    advices = episode(coach)
    assert not any(advices[:9])
    assert advices[9] == ADVICE


@pytest.mark.parametrize("helped", [True, False])
def test_episodes_that_somebody_helped_or_cut_say_nothing(helped):
    coach = Coach()
    for _ in range(8):
        episode(coach, LIMIT if helped else LIMIT - 1, helped=helped)
        assert coach.facts["alone_steps"] == 0
    assert not any(episode(coach))


def test_an_operator_who_drives_is_told_nothing_and_a_policy_is_tried_again_later():
    coach = Coach()
    for _ in range(6):
        episode(coach)
    for _ in range(40):
        assert not any(episode(coach, helped=True))
    assert not any(episode(coach))


def test_a_coach_goes_on_from_the_records_of_an_earlier_process():
    records = [{"success": False, "alone_steps": LIMIT}] * 6 + [{"success": True}]
    assert episode(Coach(records))[0] == ADVICE


@pytest.mark.parametrize("follows", [True, False])
def test_a_simulated_operator_who_looks_elsewhere_helps_only_if_following_the_coach(follows):
    habits, limit = "operator.simulated.habits", f"task.environment.time_limit_steps={LIMIT}"
    words = ("operator=simulated", f"{habits}.attention=0", f"{habits}.follows_coach={follows}")
    records = [{"success": False, "alone_steps": LIMIT}] * 6
    session = make_session(configuration("task=reach", limit, *words), coach=Coach(records))
    session.reset(seed=6)
    still = np.zeros(6, np.float32)
    infos = [session.step(still)[-1] for _ in range(LIMIT)]
    assert infos[0]["advice"] == ADVICE
    assert any(info["intervened"] for info in infos) == follows
    assert session.result.facts["advices"] >= 1
    session.reset(seed=7)
    assert session.inbox.advice == ""
