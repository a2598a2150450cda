"""A SpaceMouse, from the reports that it sends."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from drivers.base import DriverError
from drivers.teleop.spacemouse import Reports, SpaceMouse
from robot_rl.errors import MissingExtra


def after(*reports):
    state = Reports()
    pressed = [state.take(bytes.fromhex(report)) for report in reports]
    return state.values, pressed


def test_a_push_to_the_front_moves_to_the_front():
    values, _ = after("01 0000 a2fe 0000")  # y = -350: away from the operator
    np.testing.assert_allclose(values, (1, 0, 0, 0, 0, 0))


def test_a_push_to_the_right_and_a_pull_up():
    values, _ = after("01 af00 0000 51ff")  # x = 175, z = -175
    np.testing.assert_allclose(values, (0, -0.5, 0.5, 0, 0, 0))


def test_rotation_comes_in_a_report_of_its_own_or_behind_the_translation():
    apart, _ = after("01 0000 a2fe 0000", "02 0000 0000 5e01")
    together, _ = after("01 0000a2fe0000 000000005e01")
    np.testing.assert_allclose(apart, (1, 0, 0, 0, 0, -1))
    np.testing.assert_allclose(together, apart)


def test_it_comes_to_rest_when_it_says_so():
    values, _ = after(
        "01 5e01 5e01 5e01", "02 5e01 5e01 5e01", "01 000000000000", "02 000000000000"
    )
    assert not values.any()


def test_a_device_that_falls_silent_while_it_is_deflected_is_at_rest():
    pushed = "01 0000a2fe0000 000000005e01"
    brief, _ = after(pushed, "")
    assert brief.any()
    interrupted, _ = after(pushed, "", "17 ffff", "")
    assert interrupted.any()
    silent, _ = after(pushed, "", "")
    assert not silent.any()


def test_buttons_count_when_they_go_down():
    _, pressed = after("03 01000000", "03 03000000", "03 00000000", "03 0200")
    assert pressed == [{"button_0"}, {"button_1"}, set(), {"button_1"}]


def test_other_and_broken_reports_tell_nothing():
    values, pressed = after("01 5e01", "17 ffff", "")
    assert not values.any()
    assert pressed == [frozenset()] * 3


def test_more_than_full_deflection_is_full():
    values, _ = after("01 0000 00f0 0000")
    assert values[0] == 1.0


def test_what_it_opens_is_the_device_file_that_the_udev_rule_serves(tmp_path):
    """A pipe in its place tells by its writer, who waits until somebody opens it for reading."""
    pytest.importorskip("hidraw", reason="needs the extra spacemouse")
    path, opened = tmp_path / "hidraw0", threading.Event()
    os.mkfifo(path)

    def wait():
        path.open("wb").close()
        opened.set()

    writer = threading.Thread(target=wait, daemon=True)
    writer.start()
    deadline = time.monotonic() + 20.0
    while not opened.wait(0.1):  # for the writer, who may begin after it was opened and closed
        assert time.monotonic() < deadline
        with pytest.raises(DriverError, match=r"hidraw0 cannot be opened.*udev rule"):
            SpaceMouse(path=str(path)).connect()


def test_without_a_device_it_says_so():
    mouse = SpaceMouse()
    with pytest.raises(DriverError, match="connect"):
        mouse.axes()
    with pytest.raises((DriverError, MissingExtra), match=r"SpaceMouse|extra|pip install"):
        mouse.connect()
