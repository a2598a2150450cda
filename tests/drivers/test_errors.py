"""What a user reads when an SDK is missing or a measurement is old."""

import sys

import pytest

from drivers.base import DriverError, Stale
from policies import registry
from robot_rl.errors import MissingExtra, RobotRLError, require


def test_a_missing_sdk_names_the_extra_to_install():
    with pytest.raises(MissingExtra, match=r"no_such_sdk.*next: \.venv/bin/pip .* '\.\[franka\]'"):
        require("no_such_sdk", "franka")


@pytest.mark.parametrize(
    ("module", "driver", "arguments", "extra"),
    [
        ("rtde_control", "arm.ur.UrArm", {"host": "h"}, "ur"),
        ("franky", "arm.franka.FrankaArm", {"host": "h"}, "franka"),
        ("xarm.wrapper", "arm.xarm.XArm", {"host": "h"}, "xarm"),
        ("franky", "gripper.franka.FrankaHand", {"host": "h"}, "franka"),
        ("pymodbus.client", "gripper.robotiq.Robotiq2F", {"address": "tcp://h"}, "robotiq"),
        ("pyrealsense2", "camera.realsense.RealSenseCamera", {}, "realsense"),
        ("av", "camera.uvc.UvcCamera", {"device": "/dev/video0"}, "uvc"),
    ],
)
def test_every_driver_names_its_extra(monkeypatch, module, driver, arguments, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{extra}\]' in the clone"):
        registry.make({"_target_": f"drivers.{driver}", **arguments}, object)


def test_an_sdk_that_does_not_load_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_sdk.py").write_text("raise ImportError('libusb-1.0.so.0: not found')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtra, match=r"does not load.*libusb-1.0.so.0"):
        require("broken_sdk", "realsense")


def test_an_installed_module_is_returned():
    assert require("json", "nothing").loads("[1]") == [1]


def test_stale_names_what_and_how_old():
    problem = Stale("current_pose", 0.25, 0.1)
    assert "current_pose is too old; got: 250 ms; expected: at most 100 ms" in str(problem)
    assert isinstance(problem, DriverError)
    assert isinstance(problem, RobotRLError)
