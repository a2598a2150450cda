"""An evaluation over topics has the robot while it lasts, and not longer."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from geometry_msgs.msg import PoseStamped
from listening import Listener
from ros_cell import arm_node, configuration
from untrained_policy import untrained

from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.evaluation.evaluator import Evaluator
from robot_rl.evaluation.statistics import Labels
from robot_rl.run import RunDirectory


def ros_threads():
    return [thread for thread in threading.enumerate() if thread.name == "ros"]


def test_an_evaluation_leaves_ros_at_its_end(tmp_path):
    trained = ["reset=backward_policy", "operator=simulated", "+robot.discovery_s=0.1"]
    config = compose(["robot=ros_sim", "task=peg_insert", "evaluation.slots=1", *trained])
    before = len(ros_threads())
    with closing(Evaluator(config, RunDirectory(tmp_path), print)):
        assert len(ros_threads()) == before + 1
    assert len(ros_threads()) == before


class Person:
    """Puts the scene back, and says things while an episode runs."""

    def __init__(self, namespace, words):
        self._listener = Listener(namespace)
        self._targets = self._listener.hear("target_pose", PoseStamped)
        self._thread = threading.Thread(target=self._attend, args=(words,))
        self._thread.start()

    def _attend(self, words):
        for said in words:
            heard = len(self._targets)
            while len(self._targets) < heard + 5:  # the policy acts
                self._listener.trigger("start")
            for word in said:
                assert self._listener.trigger(word)[0]

    def close(self):
        self._thread.join()
        self._listener.close()


def test_a_robot_without_a_detector_is_evaluated_by_the_person_who_puts_the_scene_back(
    tmp_path, opened
):
    config = configuration(
        "/judged",
        "reset=human",
        "reward=human",
        "task.tracked.reports_success=false",
        "task.environment.time_limit_steps=30",
        "evaluation.final_episodes=3",
    )
    noted = []
    opened(arm_node(config))
    # A success; one that was driven, which is none of the policy's; one that does not count, and in
    # its place one that nobody calls a success.
    words = [["success"], ["take_over", "success"], ["discard"], []]
    evaluator = opened(Evaluator(config, RunDirectory(tmp_path), noted.append))
    behaviour = untrained(make_env(compose(["task=reach"])).schema, largest=0.01)
    with closing(Person("/judged", words)):
        result = evaluator.evaluate(behaviour, 0, "final")
    assert (result.episodes, result.successes, result.failures) == (3, 1, (1, 2))
    assert result.made_again == {"discard": 1}
    assert result.operated == 1
    assert result.labels == Labels(None, 2, 0, ())  # nothing but the person judges here
    assert [note for note in noted if "the operator said discard" in note]
