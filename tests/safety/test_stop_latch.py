"""What keeps a stop over the end of its process."""

from __future__ import annotations

import os

import pytest

from robot_rl.safety import StopLatch, StopNotKept, default_stop_folder, kept_stop

UR = {"_target_": "drivers.arm.ur.UrArm", "host": "192.168.1.10"}


def test_the_first_reason_stays_until_it_is_released(tmp_path):
    latch = StopLatch(tmp_path / "new", "/arm", UR)
    assert latch.reason() is None
    latch.set("the service stop was called")
    latch.set("another")
    assert kept_stop(tmp_path / "new", "/arm", UR) == "the service stop was called"
    begun_anew = StopLatch(tmp_path / "new", "/arm", UR)
    assert begun_anew.reason() == "the service stop was called"
    assert StopLatch(tmp_path / "new", "/other_arm", UR).reason() is None
    begun_anew.release()
    begun_anew.release()
    assert latch.reason() is None
    assert kept_stop(tmp_path / "new", "/arm", UR) is None
    assert kept_stop(tmp_path / "never_made", "/arm", UR) is None


def file(folder):
    return folder / f"stop.{os.environ.get('ROS_DOMAIN_ID', '0')}.arm.UrArm.192.168.1.10"


def test_a_stop_is_that_of_one_arm_whatever_its_node_is_called(tmp_path):
    """Whoever clears a simulated arm, or a twin at another address, does not clear a real one."""
    StopLatch(tmp_path, "/arm", UR).set("the service stop was called")
    others = {"_target_": "drivers.arm.sim.SimArm"}, {**UR, "host": "127.0.0.1"}
    for driver in others:
        other = StopLatch(tmp_path, "/arm", driver)
        assert other.reason() is None
        other.release()
    again = {**UR, "rate_hz": 125.0}  # the same arm with other settings
    assert StopLatch(tmp_path, "/arm", again).reason() == "the service stop was called"


def test_a_process_that_was_killed_before_it_wrote_the_reason_is_stopped(tmp_path):
    file(tmp_path).touch()
    assert StopLatch(tmp_path, "/arm", UR).reason() == "a stop"


def test_what_cannot_be_kept_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StopNotKept, match=r"cannot be made.*stop_folder"):
        StopLatch(tmp_path / "file", "/arm", UR)
    file(tmp_path).mkdir()
    with pytest.raises(StopNotKept, match="cannot be read"):
        StopLatch(tmp_path, "/arm", UR).reason()


def test_it_is_kept_for_the_user(state_home):
    assert default_stop_folder() == state_home / "robot_rl"
