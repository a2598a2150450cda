"""What stands between a classifier's mistakes and the reward."""

import numpy as np
import pytest

from robot_rl.rewards.classifier import RewardGuard


def seen(z):
    return {"state/tcp_pose": np.array([0, 0, z, 0, 0, 0, 1], "f4")}


def test_it_takes_frames_in_a_row():
    guard = RewardGuard(3, 0.0)
    guard.reset(seen(0.1))
    shown = [True, True, False, True, True, True, True]
    assert [guard.passes(s, seen(0.1)) for s in shown] == [False] * 5 + [True] * 2
    guard.reset(seen(0.1))
    assert not guard.passes(True, seen(0.1))


def test_a_success_without_motion_is_held_back_and_reported():
    guard = RewardGuard(2, 0.01)
    guard.reset(seen(0.1))
    assert not guard.passes(True, seen(0.1))
    assert guard.alarm is None
    assert not guard.passes(True, seen(0.105))
    assert "had moved 5.0 mm of at least 10.0 mm" in guard.alarm
    assert guard.passes(True, seen(0.12))
    assert guard.passes(True, seen(0.1)), "it has moved, and come back"
    guard.reset(seen(0.1))
    assert guard.alarm is None


@pytest.mark.parametrize("observation", [{}, {"state/x": np.zeros(3)}])
def test_a_robot_that_does_not_say_where_it_is_is_believed(observation):
    guard = RewardGuard(1, 0.01)
    guard.reset(observation)
    assert guard.passes(True, observation)
