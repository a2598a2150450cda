"""The gripper node over the Robotiq driver and a real Modbus server."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("pymodbus", reason="needs the extra robotiq")
sys.path.append(str(Path(__file__).parents[1] / "drivers"))

from gripper_server import Gripper2F, serve
from listening import Listener, Running
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

from drivers.gripper.node import GripperNode
from robot_rl.ros import qos
from robot_rl.ros.conversions import to_nanoseconds


class Bench:
    """A running node, the gripper behind it, and somebody who commands it."""

    def __init__(self, namespace, gripper, address):
        self.gripper = gripper
        self.listener = Listener(namespace)
        self.states = self.listener.hear("gripper/state", JointState)
        self.commands = self.commander()
        driver = {"_target_": "drivers.gripper.robotiq.Robotiq2F", "address": address}
        driver |= {"timeout_s": 1.0}
        self.node = Running(GripperNode, namespace, driver, reconnect_after_s=0.2)
        self.listener.until(lambda: self.states and self.commands.get_subscription_count())

    def commander(self):
        return self.listener.client.node.create_publisher(
            Float64, "gripper/command", qos.command_publisher(10.0)
        )

    def command(self, position):
        self.commands.publish(Float64(data=position))

    def asker(self, name):
        client = self.listener.client.node.create_client(Trigger, name)
        self.listener.until(client.service_is_ready)
        return lambda: client.call_async(Trigger.Request())

    def position(self):
        return self.states[-1].position[0]

    def reaches(self, position):
        return self.listener.until(lambda: self.position() == position)

    def close(self):
        self.node.close()
        self.listener.close()


@pytest.fixture
def bench(request):
    gripper = Gripper2F()
    namespace = f"/gripper{abs(hash(request.node.name)) % 10**6}"
    with serve(gripper, "tcp") as address:
        made = Bench(namespace, gripper, address)
        yield made
        made.close()


def test_commands_move_it_and_its_state_is_published(bench):
    assert bench.states[0].name == ["gripper"]
    assert bench.position() == 0.0
    bench.gripper.object_at = 200
    bench.command(1.0)
    bench.listener.until(lambda: bench.position() > 0.8)
    bench.listener.reports("object_held", "true")
    bench.command(0.0)
    bench.reaches(0.0)
    stamps = [to_nanoseconds(state.header.stamp) for state in bench.states]
    assert stamps == sorted(set(stamps))
    assert float(bench.listener.reported("running")["rate_hz"]) > 10.0


@pytest.mark.parametrize("bad", [math.nan, 1.5])
def test_an_impossible_command_is_refused_and_counted(bench, bad):
    sent = len(bench.gripper.commands)
    bench.command(bad)
    facts = bench.listener.reported("a gripper cannot go there")
    assert facts["commands_refused"] == "1"
    assert len(bench.gripper.commands) == sent
    bench.command(1.0)
    bench.reaches(1.0)
    bench.listener.reported("running")


def test_two_publishers_of_commands_stop_it_by_name_until_a_person_clears_it(bench):
    bench.command(1.0)
    bench.reaches(1.0)
    other = bench.commander()

    def complained():
        # Not at the same moment: of two messages that wait, a subscription keeps the newer.
        for publisher, position in ((bench.commands, 1.0), (other, 0.0)):
            publisher.publish(Float64(data=position))
            time.sleep(0.05)
        return "several publishers" in bench.listener.diagnostics()["message"]

    bench.listener.until(lambda: bench.listener.heard["/diagnostics"])
    bench.listener.until(complained)
    assert bench.listener.diagnostics()["message"].count("/listener_") == 2
    states = len(bench.states)
    for _ in range(10):  # the other one alone
        other.publish(Float64(data=0.0))
        time.sleep(0.1)
    assert bench.gripper.position > 200  # counts of 255
    assert len(bench.states) <= states + 1  # so that who waits for it holds
    bench.listener.client.node.destroy_publisher(other)
    assert bench.listener.trigger("gripper/clear_errors")[0]
    bench.command(0.5)
    bench.listener.until(lambda: len(bench.states) > states + 2)


def test_stop_keeps_the_fingers_where_they_are(bench):
    bench.gripper.object_at = 100
    bench.command(1.0)
    bench.listener.until(lambda: bench.position() > 0.1)
    assert bench.listener.trigger("gripper/stop") == (True, "stop done")
    bench.gripper.object_at = None
    time.sleep(0.3)
    assert bench.position() < 0.5
    bench.command(1.0)
    bench.reaches(1.0)


def test_a_person_opens_and_closes_while_nobody_else_commands(bench, monkeypatch):
    def refused(why):
        before = bench.gripper.request
        success, message = bench.listener.trigger("gripper/close")
        assert (success, why in message) == (False, True), message
        assert bench.gripper.request == before

    assert bench.listener.trigger("gripper/close") == (True, "sent: the fingers move now")
    bench.reaches(1.0)
    bench.command(0.5)
    bench.listener.until(lambda: bench.gripper.request < 255)
    assert bench.listener.trigger("gripper/stop")[0]
    bench.command(0.0)
    bench.reaches(0.0)
    monkeypatch.setattr("drivers.gripper.node.SILENCE_S", 60.0)
    refused("somebody commands the gripper; next: end that")
    monkeypatch.setattr("drivers.gripper.node.SILENCE_S", 0.0)
    assert bench.listener.trigger("gripper/stop")[0]
    refused("the fingers were stopped; next: look at the gripper")
    assert bench.listener.trigger("gripper/clear_errors")[0]
    bench.listener.until(lambda: bench.gripper.activations == 2)
    bench.listener.reported("running")
    bench.gripper.silent = True
    bench.listener.reported("does not")
    refused("does not")


def test_no_clear_of_before_a_stop_is_carried_out_after_it(bench):
    ask = {name: bench.asker(f"gripper/{name}") for name in ("clear_errors", "stop")}
    with bench.node.busy():
        clear, stop = ask["clear_errors"](), ask["stop"]()
        time.sleep(1.0)  # both have come in
    bench.listener.until(lambda: clear.done() and stop.done())
    assert stop.result().success
    assert not clear.result().success
    assert "a stop came meanwhile; next: look at the gripper" in clear.result().message
    assert bench.gripper.activations == 1


def test_a_stop_ends_the_activation_that_a_person_asked_for(bench):
    bench.gripper.activation_polls = 10**6
    assert bench.listener.trigger("gripper/clear_errors")[0]
    bench.listener.until(lambda: bench.gripper.activations == 2)
    assert bench.listener.trigger("gripper/stop") == (True, "stop done")
    assert not bench.gripper.active
    bench.listener.reported("clear_errors")
    time.sleep(0.5)  # in which the node connects again
    assert bench.gripper.activations == 2


def test_a_gripper_that_was_switched_off_waits_for_a_person(bench):
    bench.command(1.0)
    bench.reaches(1.0)
    bench.gripper.write([0, 0, 0])
    facts = bench.listener.reported("activation")
    assert "clear_errors" in facts["fault"]
    count = len(bench.states)
    time.sleep(0.3)
    assert len(bench.states) == count
    assert bench.gripper.activations == 1
    success, message = bench.listener.trigger("gripper/clear_errors")
    assert success, message
    bench.listener.until(lambda: len(bench.states) > count)
    bench.listener.reported("running")
    assert bench.gripper.activations == 2
    time.sleep(0.2)
    assert bench.gripper.request == 0  # the command before the fault is forgotten


def test_a_silent_gripper_is_reported_and_comes_back_by_itself(bench):
    bench.gripper.silent = True
    facts = bench.listener.reported("does not")
    assert facts["level"] == b"\x02"
    bench.gripper.silent = False
    count = len(bench.states)
    bench.listener.until(lambda: len(bench.states) > count)
    bench.listener.reported("running")
    assert bench.gripper.activations == 1


def test_a_command_to_a_node_that_is_not_active_moves_nothing_later(bench):
    bench.node.do("deactivate")
    before = bench.gripper.request
    bench.command(1.0)
    time.sleep(0.5)
    bench.node.do("activate")
    bench.listener.reports("commands_refused", "0")
    time.sleep(0.5)
    assert bench.gripper.request == before
    bench.command(1.0)
    bench.reaches(1.0)


def test_a_service_of_a_node_that_is_not_configured_says_so(bench):
    bench.node.do("deactivate", "cleanup")
    for name in ("stop", "clear_errors"):
        success, message = bench.listener.trigger(f"gripper/{name}")
        assert not success
        assert message == "the gripper's node is not configured; next: configure it first"
