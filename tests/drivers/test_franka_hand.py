"""The Franka Hand without a hand: the real library's errors, and what a configuration may say."""

from __future__ import annotations

import sys

import pytest

from drivers.errors import DriverError, DriverTimeout, MissingExtra
from drivers.gripper.franka import FrankaHand


def test_nobody_at_the_address_is_a_timeout_that_names_it():
    pytest.importorskip("franky", reason="needs the extra franka")
    hand = FrankaHand("127.0.0.1")
    with pytest.raises(DriverTimeout, match=r"Hand at 127.0.0.1 does not answer.*FCI"):
        hand.connect()
    with pytest.raises(DriverError, match="not connected"):
        hand.read()
    hand.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speed": 1.0}, "speed of the Franka Hand; got: 1.0; expected: over 0, at most 0.2"),
        ({"force": float("nan")}, "force of the Franka Hand; got: nan"),
    ],
)
def test_numbers_out_of_range_are_refused(options, words):
    with pytest.raises(DriverError, match=words):
        FrankaHand("arm", **options)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "franky", None)
    with pytest.raises(MissingExtra, match=r"pip install 'robot_rl\[franka\]'"):
        FrankaHand("arm")


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("pymodbus.client", "drivers.gripper.robotiq.Robotiq2F", "robotiq"),
        ("pyrealsense2", "drivers.camera.realsense.RealSenseCamera", "realsense"),
        ("av", "drivers.camera.uvc.UvcCamera", "uvc"),
    ],
)
def test_every_driver_names_its_extra(monkeypatch, module, make, extra):
    from robot_rl.devices import make as made

    monkeypatch.setitem(sys.modules, module, None)
    arguments = {"address": "tcp://h"} if extra == "robotiq" else {}
    arguments |= {"device": "/dev/video0"} if extra == "uvc" else {}
    with pytest.raises(MissingExtra, match=rf"pip install 'robot_rl\[{extra}\]'"):
        made({"_target_": make, **arguments})
