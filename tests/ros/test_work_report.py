"""A policy at work over topics: watchers hear its progress, and each fault is kept."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from geometry_msgs.msg import PoseStamped
from listening import Listener
from ros_cell import arm_node, configuration
from std_msgs.msg import Bool
from untrained_policy import untrained

from robot_rl.commands.deployment import Deployment
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.processes.signals import StopEvent
from robot_rl.ros import qos
from robot_rl.run import RunDirectory


def test_outcomes_and_counters_are_published_and_a_stop_of_the_arm_is_a_fault(tmp_path):
    config = configuration(
        "/deployed",
        "reward=human",
        "task.tracked.reports_success=false",
        "task.environment.time_limit_steps=600",
    )
    behaviour = untrained(make_env(compose(["task=reach"])).schema, largest=0.01)
    stop, run = StopEvent(), RunDirectory(tmp_path)
    arm, listener = arm_node(config), Listener("/deployed")
    outcomes = listener.hear("attempt/success", Bool, qos.latched(10))
    targets = listener.hear("target_pose", PoseStamped)

    def say_while_it_acts(word):
        heard = len(targets)
        listener.until(lambda: len(targets) > heard + 5)
        assert listener.trigger(word)[0]

    def counters():
        heard = [status for one in listener.heard["/diagnostics"] for status in one.status]
        own = [status for status in heard if status.name == "deployed/run"]
        return {item.key: item.value for item in own[-1].values} if own else {}

    try:
        with closing(Deployment(config, run, stop)) as deployed:
            working = threading.Thread(target=deployed.work, args=[behaviour])
            working.start()
            try:
                say_while_it_acts("success")
                say_while_it_acts("stop")
                listener.until(lambda: counters().get("faults") == "1")
                assert listener.trigger("clear_errors")[0]
            finally:
                stop.set()
                working.join()
        listener.until(lambda: len(outcomes) == 2)
    finally:
        listener.close()
        arm.close()
    assert [outcome.data for outcome in outcomes] == [True, False]
    (fault,) = run.read_jsonl("faults")
    assert fault["kind"] == "ArmStopped"
    assert "/deployed/mode" in fault["problem"]
