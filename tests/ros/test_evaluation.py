"""An evaluation over topics has the robot while it lasts, and not longer."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from robot_rl.config import compose
from robot_rl.evaluation.evaluate import Evaluator


def ros_threads():
    return [thread for thread in threading.enumerate() if thread.name == "ros"]


def test_an_evaluation_leaves_ros_at_its_end():
    config = compose(["robot=ros_sim", "task=reach", "evaluation.slots=1"])
    before = len(ros_threads())
    with closing(Evaluator(config)):
        assert len(ros_threads()) == before + 1
    assert len(ros_threads()) == before
