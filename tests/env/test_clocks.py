"""The two clocks. Bounds are one-sided, so that a busy machine cannot fail them."""

import time

import pytest

from robot_rl.env.robot_env import RealtimeClock, SteppedClock, make_clock
from robot_rl.errors import RobotRLError

MARGIN = 1e-3


def test_the_stepped_clock_counts_and_never_sleeps():
    clock = SteppedClock(10.0)
    for _ in range(2):  # every episode has the same stamps
        clock.start()
        stamps = []
        for _ in range(1000):
            stamps.append(clock.now_ns())
            assert clock.wait() == 0.0
            assert clock.since_tick() == 0.0
        assert stamps == [tick * 100_000_000 for tick in range(1000)]


def test_realtime_ticks_are_never_early():
    clock = RealtimeClock(200.0)
    begun = time.monotonic()
    clock.start()
    for tick in range(1, 11):
        assert clock.wait() >= 0.0
        assert time.monotonic() - begun >= tick * clock.period - MARGIN


def test_a_missed_tick_is_not_made_up_for():
    clock = RealtimeClock(50.0)
    clock.start()
    time.sleep(3.5 * clock.period)
    lateness = clock.wait()
    late_tick = time.monotonic()
    assert lateness >= 2.5 * clock.period - MARGIN
    assert clock.since_tick() >= lateness
    clock.wait()
    assert time.monotonic() - late_tick >= clock.period - MARGIN


def test_two_ticks_are_at_least_half_a_period_apart():
    clock = RealtimeClock(50.0)
    clock.start()
    time.sleep(1.8 * clock.period)
    clock.wait()
    late_tick = time.monotonic()
    clock.wait()
    assert time.monotonic() - late_tick >= 0.5 * clock.period - MARGIN


def test_a_small_lateness_does_not_move_the_later_ticks():
    """Deadlines are absolute: the ticks are those of the start, or missed and said to be late."""
    clock = RealtimeClock(20.0)
    begun = time.monotonic()
    clock.start()
    for _ in range(3):
        time.sleep(1.05 * clock.period)
        lateness = clock.wait()
        assert lateness >= 0.0
    ticks = (time.monotonic() - begun - lateness) / clock.period
    assert ticks >= 3 - MARGIN / clock.period


def test_stamps_are_system_time():
    before = time.time_ns()
    assert before <= RealtimeClock(10.0).now_ns() <= time.time_ns()


@pytest.mark.parametrize(
    ("name", "rate", "named"),
    [
        ("simulated", 10.0, "stepped"),
        ("stepped", 0.0, "control_rate_hz"),
        ("realtime", -1.0, "control_rate_hz"),
        ("realtime", float("nan"), "control_rate_hz"),
    ],
)
def test_a_clock_that_cannot_be_says_what_is_valid(name, rate, named):
    with pytest.raises(RobotRLError, match=named) as problem:
        make_clock(name, rate)
    assert "got:" in str(problem.value)
    assert "expected:" in str(problem.value)
