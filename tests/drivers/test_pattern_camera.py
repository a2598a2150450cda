"""The camera that tests the way of pictures."""

from __future__ import annotations

import time

import pytest

from drivers.camera.pattern import PatternCamera
from drivers.errors import DriverTimeout


def test_pictures_carry_their_number_and_one_that_nobody_read_is_left_out():
    camera = PatternCamera(width=8, height=6, rate_hz=20.0)
    camera.connect()
    frames = [camera.read(1.0)]
    time.sleep(0.12)  # two pictures
    frames.append(camera.read(1.0))
    assert frames[0].color.shape == (6, 8, 3)
    assert frames[1].sequence >= frames[0].sequence + 2
    for frame in frames:
        assert int.from_bytes(frame.color.tobytes()[:8], "little") == frame.sequence
    camera.close()


def test_a_picture_that_is_not_due_is_waited_for_no_longer_than_asked():
    camera = PatternCamera(rate_hz=0.01)
    camera.connect()
    camera.read(1.0)
    with pytest.raises(DriverTimeout, match="due"):
        camera.read(0.01)
