"""The example of an arm of one's own, which is outside of robot_rl."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import PATIENT

from robot_rl.commands.preparation import robot_nodes
from robot_rl.config import compose
from robot_rl.env.factory import make_inbox, make_session
from robot_rl.processes.waiting import wait_until


@pytest.mark.slow
def test_an_arm_of_ones_own_is_moved_and_guarded_as_any(
    tmp_path, checkout, monkeypatch, robot_rl_command, opened
):
    monkeypatch.setenv("ROBOT_RL_PATH", "")
    cell = f"cell={checkout / 'examples/7_arm'}"
    looked = robot_rl_command("doctor", cell)
    assert looked.returncode == 0, looked.stderr
    assert "Gantry, a gantry that goes 0.25 m/s" in looked.stdout
    limits = "+nodes.arm.parameters.limits.max_stamp_age=5.0"
    config = compose([cell, "robot.namespace=gantry", limits, *PATIENT])
    inbox = make_inbox(config)
    with robot_nodes(config, tmp_path):
        env = opened(make_session(config, inbox=inbox))
        assert wait_until(lambda: not env.robot.missing(), 15.0), env.robot.missing()
        inbox.post("start")
        seen, _ = env.reset(seed=1)
        np.testing.assert_allclose(seen["state/tcp_pose"][:3], [0.45, 0.0, 0.2], atol=0.006)
        for _ in range(30):  # further to the left than the workspace goes
            seen, *_ = env.step(np.array([0, 1, 0, 0, 0, 0], np.float32))
    assert 0.18 < seen["state/tcp_pose"][1] < 0.201
