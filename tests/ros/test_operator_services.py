"""What an operator says through ROS services reaches the loop that moves the robot."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import Listener
from test_ros_robot import arm_node, configuration

from robot_rl.env.factory import make_env, make_inbox, make_intervention

NAMESPACE = "/served"


@pytest.fixture(scope="module")
def operated():
    """An environment with an operator, and the node of its arm."""
    config = configuration(NAMESPACE)
    arm, listener = arm_node(config), Listener(NAMESPACE)
    env = make_intervention(config, make_env(config), make_inbox(config))
    yield env, listener
    env.close()
    listener.close()
    arm.close()


def step(env):
    *_, truncated, info = env.step(np.zeros(len(env.schema.action_names), np.float32))
    return truncated, info


@pytest.mark.parametrize("said", ["success", "failure", "take_over", "hand_back", "resume"])
def test_what_a_service_is_told_is_in_the_info_of_the_next_step(operated, said):
    env, listener = operated
    env.reset(seed=1)
    assert listener.trigger(said) == (True, f"the loop was told: {said}")
    truncated, info = step(env)
    assert info["operator"].events == (said,)
    assert info["intervened"] == (said == "take_over")
    assert not truncated


@pytest.mark.parametrize(
    ("said", "afterwards"), [("pause", "resume"), ("episode/reset", None), ("discard", None)]
)
def test_services_end_the_episode_with_the_robot_holding(operated, said, afterwards):
    env, listener = operated
    env.reset(seed=1)
    listener.trigger(said)
    truncated, info = step(env)
    assert truncated
    assert info["intervened"]
    assert set(env.waits_for) == ({afterwards} - {None})
    if afterwards is not None:
        listener.trigger(afterwards)
        env.hear()
        assert not env.waits_for


def test_an_arm_that_is_stopped_ends_the_episode_and_nothing_goes_on_before_it_is_cleared(operated):
    env, listener = operated
    env.reset(seed=1)
    listener.trigger("stop")
    deadline = time.monotonic() + 30.0
    while not (truncated := step(env)[0]):
        assert time.monotonic() < deadline
    assert truncated
    assert set(env.waits_for) == {"clear_errors"}
    listener.trigger("clear_errors")
    env.wait_until_free(lambda: time.monotonic() > deadline, lambda text: None)
    assert not env.waits_for
    env.reset(seed=1)
    assert not step(env)[0]
