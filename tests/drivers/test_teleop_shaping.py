"""From the axes and buttons of any device to a motion in the base frame."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scripted_device import ScriptedDevice

from drivers.base import DriverError
from drivers.teleop.base import Shaping
from robot_rl.safety import rotations

FRONT = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
HALF_UP = (0.0, 0.0, 0.5, 0.0, 0.0, 0.0)


def moved(shaping, axes, tool=None):
    return shaping.motion(np.array(axes), tool)


def test_within_the_dead_zone_nothing_moves_and_beyond_it_motion_begins_from_zero():
    shaping = Shaping(dead_zone=0.2)
    assert not moved(shaping, (0.1, 0.1, 0.1, 0.0, 0.15, 0.0)).any()
    assert moved(shaping, (0.21, 0, 0, 0, 0, 0))[0] == pytest.approx(0.0125)
    np.testing.assert_allclose(moved(shaping, FRONT), FRONT)


def test_translation_and_rotation_have_dead_zones_of_their_own():
    shaping = Shaping(dead_zone=0.2)
    turned = moved(shaping, (0.1, 0.0, 0.0, 0.0, 0.0, -1.0))
    np.testing.assert_allclose(turned, (0, 0, 0, 0, 0, -1.0))


def test_an_operator_who_faces_the_robot_sees_it_move_as_their_hand_does():
    facing = Shaping(rotation=math.pi, dead_zone=0.0)
    np.testing.assert_allclose(moved(facing, FRONT), (-1, 0, 0, 0, 0, 0), atol=1e-12)
    np.testing.assert_allclose(moved(facing, HALF_UP), HALF_UP, atol=1e-12)


def test_scales_slow_down_turn_round_and_switch_off():
    shaping = Shaping(dead_zone=0.0, scale=(0.5, -1.0, 0.0, 1.0, 1.0, 1.0))
    np.testing.assert_allclose(
        moved(shaping, (0.4, 0.4, 0.4, 0.0, 0.0, 0.0)), (0.2, -0.4, 0, 0, 0, 0)
    )


def test_in_the_tools_frame_the_motion_turns_with_the_tool():
    shaping = Shaping(frame="tool", dead_zone=0.0)
    down = rotations.DOWNWARD
    np.testing.assert_allclose(moved(shaping, FRONT, down), FRONT, atol=1e-12)
    quarter = rotations.multiply(rotations.about_z(math.pi / 2), down)
    np.testing.assert_allclose(moved(shaping, FRONT, quarter), (0, 1, 0, 0, 0, 0), atol=1e-12)
    with pytest.raises(DriverError, match="frame=base"):
        moved(shaping, FRONT)
    assert not moved(shaping, (0.0,) * 6).any()  # at rest no frame is needed


@pytest.mark.parametrize(
    "wrong", [{"frame": "world"}, {"dead_zone": 1.0}, {"scale": (1.0, 1.0)}, {"dead_zone": -0.1}]
)
def test_settings_that_cannot_be_are_named(wrong):
    with pytest.raises(DriverError, match=next(iter(wrong))):
        Shaping(**wrong)


def test_the_gripper_button_closes_and_opens_in_turn_and_counts_as_moving():
    device = ScriptedDevice(Shaping(gripper_button="g"), script=["g", [0.0] * 6, "x", "g"])
    states = [device.read() for _ in range(4)]
    assert [state.gripper for state in states] == [1.0, None, None, -1.0]
    assert [state.moving for state in states] == [True, False, False, True]
    assert states[2].buttons == {"x"}


def test_the_gripper_button_starts_from_the_newest_command():
    device = ScriptedDevice(Shaping(gripper_button="g"), script=["g", "g", "g"])
    assert device.read(gripper=1.0).gripper == -1.0
    assert device.read(gripper=0.2).gripper == -1.0
    assert device.read(gripper=-1.0).gripper == 1.0


def test_a_deflection_that_no_longer_changes_counts_as_let_go_until_it_does():
    device = ScriptedDevice(script=[FRONT] * 2 + [(0.9, *FRONT[1:])], still_s=0.05)
    device.connect()
    assert device.read().moving
    time.sleep(0.1)
    assert not device.read().moving  # the pad has lost its connection
    assert device.read().moving
