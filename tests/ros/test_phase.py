"""When an episode begins, so that what is seen at its ticks is young."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.ros.phase import Arrival, best_moment

_CAMERA = 1.0 / 30.0
_TICK = 0.1
_START = 5.0


def _stream(offset: float, period: float = _CAMERA, delay: float = 0.01) -> list[Arrival]:
    """Arrivals in an exact rhythm, from a while before the start until after the control period."""
    taken = _START - 0.2 + offset + np.arange(0.0, 0.4, period)
    return [Arrival(float(t), float(t) + delay) for t in taken]


def _oldest(streams: list[list[Arrival]], begin: float) -> float:
    """Largest age of what has been received at a moment [s]."""
    return max(begin - max(a.taken for a in s if a.received <= begin) for s in streams)


@given(offset=st.floats(0.0, _CAMERA), delay=st.floats(0.0, 0.03))
def test_a_loop_begins_just_after_a_camera_has_looked(offset: float, delay: float) -> None:
    stream = _stream(offset, delay=delay)
    begin = best_moment([stream], _START, _TICK)
    assert _START <= begin < _START + _TICK
    assert _oldest([stream], begin) < delay + 0.006


@given(first=st.floats(0.0, _CAMERA), second=st.floats(0.0, _CAMERA))
def test_the_older_of_two_pictures_is_hardly_more_than_half_a_period_old(
    first: float, second: float
) -> None:
    streams = [_stream(first, delay=0.0), _stream(second, delay=0.0)]
    assert _oldest(streams, best_moment(streams, _START, _TICK)) < _CAMERA / 2 + 0.006


@given(offset=st.floats(0.0, _CAMERA))
def test_what_comes_just_before_the_tick_is_not_counted_on(offset: float) -> None:
    stream = _stream(offset)
    begin = best_moment([stream], _START, _TICK)
    assert all(abs(begin - arrival.received) > 0.0029 for arrival in stream)


def test_a_sensor_that_was_silent_before_does_not_count() -> None:
    late = [Arrival(_START + 0.02, _START + 0.02)]
    steady = _stream(0.013)
    assert best_moment([late, steady], _START, _TICK) == best_moment([steady], _START, _TICK)


@pytest.mark.parametrize("streams", [[], [[]], [[Arrival(_START + 0.05, _START + 0.06)]]])
def test_without_anything_to_go_by_a_loop_begins_at_once(streams: list[list[Arrival]]) -> None:
    assert best_moment(streams, _START, _TICK) == _START
