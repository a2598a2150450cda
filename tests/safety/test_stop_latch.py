"""What keeps a stop over the end of its process."""

from __future__ import annotations

import os

import pytest

from robot_rl.safety import StopLatch, StopNotKept, default_stop_folder, kept_stop


def test_the_first_reason_stays_until_it_is_released(tmp_path):
    latch = StopLatch(tmp_path / "new", "/arm")
    assert latch.reason() is None
    latch.set("the service stop was called")
    latch.set("another")
    assert kept_stop(tmp_path / "new", "/arm") == "the service stop was called"
    begun_anew = StopLatch(tmp_path / "new", "/arm")
    assert begun_anew.reason() == "the service stop was called"
    assert StopLatch(tmp_path / "new", "/other_arm").reason() is None
    begun_anew.release()
    begun_anew.release()
    assert latch.reason() is None
    assert kept_stop(tmp_path / "new", "/arm") is None
    assert kept_stop(tmp_path / "never_made", "/arm") is None


def file(folder):
    return folder / f"stop.{os.environ.get('ROS_DOMAIN_ID', '0')}.arm"


def test_a_process_that_was_killed_before_it_wrote_the_reason_is_stopped(tmp_path):
    file(tmp_path).touch()
    assert StopLatch(tmp_path, "/arm").reason() == "a stop"


def test_what_cannot_be_kept_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StopNotKept, match=r"cannot be made.*stop_folder"):
        StopLatch(tmp_path / "file", "/arm")
    file(tmp_path).mkdir()
    with pytest.raises(StopNotKept, match="cannot be read"):
        StopLatch(tmp_path, "/arm").reason()


def test_it_is_kept_for_the_user(state_home):
    assert default_stop_folder() == state_home / "robot_rl"
