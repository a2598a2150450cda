"""When an episode begins, so that pictures are young at every tick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.ros.phase import Rhythm, best_moment, rhythm_of

_PERIOD = 1.0 / 30.0
_TICK = 0.1
_offsets = st.floats(0.0, _PERIOD)


def _ages(rhythm: Rhythm, begin: float, ticks: int) -> list[float]:
    """Age of the newest picture at each tick, pictures arriving exactly in their rhythm."""
    return [(begin + tick * _TICK - rhythm.last) % rhythm.period for tick in range(ticks)]


def test_a_camera_is_seen_just_after_it_has_looked_at_every_tick() -> None:
    camera = rhythm_of([10.0, 10.0 + _PERIOD])
    begin = best_moment([camera], now=10.05)
    assert 10.05 <= begin <= 10.05 + _PERIOD + 0.005
    assert max(_ages(camera, begin, 100)) < 0.006


@given(first=_offsets, second=_offsets, now=st.floats(5.0, 6.0))
def test_the_older_of_two_pictures_is_about_half_a_period_old_at_most(
    first: float, second: float, now: float
) -> None:
    cameras = [Rhythm(first, _PERIOD), Rhythm(second, _PERIOD)]
    begin = best_moment(cameras, now)
    assert now <= begin <= now + _PERIOD + 0.005
    assert max(max(_ages(camera, begin, 100)) for camera in cameras) < _PERIOD / 2 + 0.006


def test_a_picture_that_may_come_just_after_the_tick_is_not_counted_on() -> None:
    steady, other = Rhythm(0.0, _PERIOD), Rhythm(0.002, _PERIOD)
    begin = best_moment([steady, other], now=1.0)
    assert min(*_ages(steady, begin, 1), *_ages(other, begin, 1)) > 0.003


def test_the_period_is_that_of_all_arrivals() -> None:
    assert rhythm_of([1.0, 1.03, 1.07, 1.1]).period == pytest.approx(0.1 / 3)


def test_without_cameras_an_episode_begins_at_once() -> None:
    assert best_moment([], now=3.0) == 3.0
