"""Nodes under test in this process, and what they publish."""

from __future__ import annotations

import contextlib
import os
import threading
import time

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 200))

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from std_srvs.srv import Trigger

from robot_rl.processes.waiting import wait_until
from robot_rl.ros import device_node, qos
from robot_rl.ros.ros_client import RosClient

# A busy machine is late by chance; what is said of lateness is tested with nodes that are gone.
PATIENT = [
    *(f"robot.sensors.{of}_s=3.0" for of in ("arm", "image", "gripper", "tracker", "skew")),
    "robot.sensors.start_timeout_s=10.0",
]
# The arm's node too: one that is a process, and one of a test's own, for these words take long.
PATIENT_NODES = [
    *PATIENT,
    "+nodes.arm.parameters.driver.stale_after_s=5.0",
    "+nodes.arm.parameters.limits.max_stamp_age=5.0",
]
PATIENT_DRIVER, PATIENT_LIMITS = {"stale_after_s": 5.0}, {"limits.max_stamp_age": 5.0}
device_node._DIAGNOSTICS_SECONDS = 0.2  # of nodes in this process: tests wait for the next ones


class Running:
    """A device node that is configured, active, and spun by a thread of its own."""

    def __init__(self, kind, namespace, driver, **parameters):
        self.context = rclpy.Context()
        rclpy.init(args=[], context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        values = {"driver": yaml.safe_dump(driver), **parameters}
        self.node = kind(
            context=self.context,
            namespace=namespace,
            parameter_overrides=[Parameter(name, value=value) for name, value in values.items()],
        )
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self.node.trigger_configure()
        self.node.trigger_activate()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self):
        while not self._ending.is_set():
            self._executor.spin_once(timeout_sec=0.05)

    def do(self, *transitions):
        """Let the node's own thread go through these: a node is not for two threads at once."""
        for transition in transitions:
            task = self._executor.create_task(getattr(self.node, f"trigger_{transition}"))
            while not task.done():
                assert self._thread.is_alive()
                time.sleep(0.005)
            task.result()

    @contextlib.contextmanager
    def busy(self):
        """Keep the node's own thread from doing anything else, as a slow device does."""
        busy, goes_on = threading.Event(), threading.Event()

        def work():
            busy.set()
            goes_on.wait()

        self._executor.create_task(work)
        try:
            while not busy.wait(0.05):
                assert self._thread.is_alive()
            yield
        finally:
            goes_on.set()

    def close(self):
        self._ending.set()
        self._thread.join()
        self.node.trigger_shutdown()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)


class Listener:
    """Collects what is published in a namespace."""

    def __init__(self, namespace):
        self.client = RosClient("listener", namespace)
        self.heard = {}
        self.hear("/diagnostics", DiagnosticArray, 10)

    def hear(self, topic, kind, profile=None):
        messages = self.heard[topic] = []
        self.client.node.create_subscription(
            kind, topic, messages.append, profile or qos.sensor_subscription(20)
        )
        return messages

    def diagnostics(self):
        """The newest status as a mapping, with `level` and `message`."""
        status = self.heard["/diagnostics"][-1].status[0]
        facts = {item.key: item.value for item in status.values}
        return {**facts, "level": status.level, "message": status.message}

    def until(self, found, seconds=60.0):
        """Wait until `found()` is true, and return what it returns."""
        result = wait_until(found, seconds)
        assert result, self.heard["/diagnostics"][-1:]
        return result

    def reported(self, words, seconds=60.0):
        """Wait until the diagnostics' message holds these words; returns the diagnostics."""
        heard = self.heard["/diagnostics"]

        def found():
            facts = self.diagnostics() if heard else {"message": ""}
            return facts if words in facts["message"] else None

        return self.until(found, seconds)

    def reports(self, fact, value):
        """Wait until the diagnostics say this of a fact."""
        heard = self.heard["/diagnostics"]
        self.until(lambda: heard and self.diagnostics()[fact] == value)

    def trigger(self, name):
        """Call a service; returns success and message."""
        answer = self.client.call(Trigger, name, Trigger.Request(), 10.0)
        return answer.success, answer.message

    def close(self):
        self.client.close()
