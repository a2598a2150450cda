"""A ROS node inside a process that has other things to do."""

from __future__ import annotations

import io
import sys
import threading
import time
from functools import partial

import psutil
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import PoseStamped
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import SingleThreadedExecutor
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_rl.env.robot import RobotInterrupted
from robot_rl.ros.faults import RosUnavailable, ServiceFailed
from robot_rl.ros.ros_client import RosClient, ask, light_executor, newest_message

CYCLES = 20


@pytest.fixture
def talker():
    """A node that publishes 500 times a second on two topics and answers `ask`."""
    client = RosClient("talker", "/talk")

    def answer(request, response):
        response.success, response.message = True, "yes"
        return response

    client.node.create_service(Trigger, "ask", answer)
    publishers = [client.node.create_publisher(PoseStamped, t, 5) for t in ("one", "two")]
    ending = threading.Event()

    def talk():
        while not ending.wait(0.004):
            for publisher in publishers:
                publisher.publish(PoseStamped())

    thread = threading.Thread(target=talk)
    thread.start()
    yield client
    ending.set()
    thread.join()
    client.close()


def test_without_the_ros2_tool_a_person_calls_a_service_and_reads_a_topic(talker, robot_rl_command):
    called = robot_rl_command("doctor", "call=/talk/ask", "topic=/talk/one")
    assert called.returncode == 0, called.stderr
    assert called.stdout == "/talk/ask: yes\n[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]\n"


@pytest.mark.slow  # it listens for three seconds
def test_the_diagnostics_of_all_nodes_are_one_table(opened):
    client, said = opened(RosClient("ill", "/ill")), {"ill/arm": "running", "ill/eye": "no device"}
    publish = client.node.create_publisher(DiagnosticArray, "/ill/diagnostics", 5).publish
    for name, message in said.items():
        facts = {"rate_hz": "30.0", "fault": "", "missed": "0"} if message == "running" else {}
        values = [KeyValue(key=key, value=value) for key, value in facts.items()]
        status = [DiagnosticStatus(name=name, message=message, values=values)]
        client.node.create_timer(0.1, partial(publish, DiagnosticArray(status=status)))
    table = "ill/arm  running  rate_hz 30.0, missed 0\nill/eye  no device"
    assert newest_message("/ill/diagnostics") == table


@pytest.mark.slow  # it waits for ten seconds
def test_a_topic_on_which_nothing_comes_is_not_called_a_fault_of_its_node(opened):
    client = opened(RosClient("calm", "/calm"))
    client.node.create_publisher(String, "events", 5)
    said = r"no message on /calm/events; .*though /calm/calm_.* publ"
    with pytest.raises(RosUnavailable, match=said):
        newest_message("/calm/events")


def test_a_missing_service_is_named_with_the_page_that_says_what_to_start(opened):
    client = opened(RosClient("alone", "/alone"))
    said = r"^nobody serves /alone/stop; next: start the arm's node, .*docs/topics\.md"
    with pytest.raises(ServiceFailed, match=said):
        client.trigger("stop", 0.1)


@pytest.mark.slow
def test_a_mistyped_service_is_answered_with_the_one_that_is_meant(talker, robot_rl_command):
    called = robot_rl_command("doctor", "call=/talk/aks")
    assert called.returncode == 2
    assert "nobody serves /talk/aks; got: services /talk/ask" in called.stderr
    assert "did you mean /talk/ask?" in called.stderr


@pytest.mark.slow
def test_a_call_to_a_service_that_vanishes_before_it_answers_ends_soon():
    asked = threading.Event()

    async def answer(request, response):
        asked.set()
        await Future()  # never

    server = RosClient("leaving", "/leaving", SingleThreadedExecutor)
    server.node.create_service(Trigger, "ask", answer)

    def leave():
        asked.wait(30.0)
        server.close()

    threading.Thread(target=leave).start()
    began = time.monotonic()
    with pytest.raises(ServiceFailed, match="/leaving/ask is gone"):
        ask("/leaving/ask")
    assert time.monotonic() - began < 40.0  # and not the 60 s of an answer that may still come


def visit(executor):
    """Hear both topics, ask, stop hearing one, and leave."""
    client = RosClient("visitor", "/talk", executor)
    heard = {"one": threading.Event(), "two": threading.Event()}
    try:
        subscriptions = [
            client.node.create_subscription(PoseStamped, topic, lambda _, e=event: e.set(), 5)
            for topic, event in heard.items()
        ]
        client.trigger("ask", 20.0)
        assert all(event.wait(20.0) for event in heard.values())
        client.node.destroy_subscription(subscriptions[0])
        client.trigger("ask", 20.0)
        client.check()
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_runs_where_the_standard_error_is_no_file(talker, monkeypatch, opened):
    """As in a notebook, and in a test that reads what is printed."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    client = opened(RosClient("reader", "/talk"))
    client.trigger("ask", 20.0)


@pytest.mark.parametrize("executor", [light_executor, SingleThreadedExecutor])
@pytest.mark.slow
def test_nodes_come_and_go_beside_traffic_and_leave_nothing_behind(talker, executor):
    process = psutil.Process()
    visit(executor)
    time.sleep(1.0)  # for ROS's own threads
    before = process.num_threads(), process.num_fds()
    for _ in range(CYCLES):
        visit(executor)
    time.sleep(1.0)
    assert process.num_threads() <= before[0]
    assert process.num_fds() <= before[1]


@pytest.fixture
def forgetful(opened):
    """A node whose service `ask` answers no call but the third."""
    client = opened(RosClient("forgetful", "/forget", SingleThreadedExecutor))
    calls = []

    async def answer(request, response):
        calls.append(request)
        if len(calls) != 3:
            await Future()  # nobody ever answers this one
        response.message = f"call {len(calls)}"
        return response

    client.node.create_service(Trigger, "ask", answer, callback_group=ReentrantCallbackGroup())
    return


def test_a_lost_answer_is_asked_for_again_where_that_does_no_harm(forgetful, opened):
    asking = opened(RosClient("asking", "/forget"))
    asking.wait_for(asking.node.create_client(Trigger, "ask"), 20.0)
    with pytest.raises(ServiceFailed, match="/forget/ask does not answer"):
        asking.call(Trigger, "ask", Trigger.Request(), 1.0)
    answer = asking.call(Trigger, "ask", Trigger.Request(), 30.0, again_s=0.5)
    assert answer.message == "call 3"


def test_what_has_come_with_a_refusal_is_heard_before_the_refusal(opened):
    client, said = opened(RosClient("halted", "/halted")), []

    def stop_and_refuse(request, response):
        said.append("stop")
        response.success = False
        return response

    def attend():
        if said:
            raise RobotInterrupted("the operator has halted the robot")

    client.node.create_service(Trigger, "reset", stop_and_refuse)
    with pytest.raises(RobotInterrupted, match="the operator has halted"):
        client.trigger("reset", 20.0, attend)
