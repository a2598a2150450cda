"""A simulated arm's node under test, and somebody who commands it."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import replace

import numpy as np
from geometry_msgs.msg import PoseStamped
from lifecycle_msgs.msg import Transition
from listening import PATIENT_DRIVER, PATIENT_LIMITS, Listener, Running
from std_msgs.msg import Float64, String

from drivers.arm.sim import SimArm
from drivers.arm.sim_node import SimArmNode
from robot_rl.config import compose
from robot_rl.ros import conversions, qos
from robot_rl.safety import rotations

HOME = np.concatenate([[0.45, 0.0, 0.2], rotations.DOWNWARD])
CONFIGURE = Transition(id=Transition.TRANSITION_CONFIGURE)
DEACTIVATE = Transition(id=Transition.TRANSITION_DEACTIVATE)
ACTIVATE = Transition(id=Transition.TRANSITION_ACTIVATE)
WORKSPACE = {
    "limits.workspace_low": [0.30, -0.20, 0.0],
    "limits.workspace_high": [0.65, 0.20, 0.45],
    **PATIENT_LIMITS,
}


def sim_arm(task="reach", **options):
    """The configuration of the simulated arm's driver in a task."""
    config = compose([f"task={task}"])
    robot = config["robot"]
    return {
        "_target_": "drivers.arm.sim.SimArm",
        "task": dict(config["task"]["environment"]),
        "model": robot["model"],
        "home_joints": list(robot["home_joints"]),
        "gripper": dict(robot["gripper"]),
        **PATIENT_DRIVER,
        **options,
    }


class MisreadArm(SimArm):
    """A simulated arm whose stamps are `late_ns` too early."""

    late_ns = 0

    def read(self):
        state = super().read()
        return replace(state, stamp_ns=state.stamp_ns - self.late_ns)

    def true_position(self):
        return super().read().tcp_pose[:3]


class CountingArm(SimArm):
    """A simulated arm that counts its targets.

    Attributes:
        targets: How many it was given.
    """

    targets = 0

    def command(self, target_pose):
        self.targets += 1
        super().command(target_pose)


@dataclasses.dataclass(eq=False)
class AddressedArm(SimArm):
    """A simulated arm with an address, as if it were on the network."""

    host: str = ""


class UnstoppableArm(SimArm):
    """A simulated arm whose stop fails as a vendor's library may."""

    def stop(self):
        raise OSError("the cable is out")


class SlowlyStoppedArm(SimArm):
    """A simulated arm that takes its time to stop.

    Attributes:
        goes_on: Let it come to an end.
    """

    def connect(self):
        self.goes_on = threading.Event()
        super().connect()

    def stop(self):
        assert self.goes_on.wait(60.0)
        super().stop()


class UnholdableArm(SimArm):
    """A simulated arm that does not answer when it is asked to hold."""

    def hold(self):
        raise OSError("the cable is out")


class SlowlyClearedArm(SimArm):
    """A simulated arm that takes its time to clear errors, as real ones do.

    Attributes:
        clearing: How often it was asked to.
        goes_on: Let it come to an end.
    """

    def connect(self):
        self.clearing, self.goes_on = 0, threading.Event()
        super().connect()

    def clear_errors(self):
        self.clearing += 1
        assert self.goes_on.wait(60.0)
        super().clear_errors()


class DriftedArm(SimArm):
    """A simulated arm whose force sensor has drifted, and can be zeroed.

    Attributes:
        offset: What it reads with nothing at the tool [N].
        pressed: What presses on the tool, at each measurement in turn [N].
    """

    def connect(self):
        self.offset, self.pressed, self._at = 6.0, (0.0,), 0
        super().connect()

    def read(self):
        state = super().read()
        self._at += 1
        wrench = np.zeros(6)
        wrench[2] = self.offset + self.pressed[self._at % len(self.pressed)]
        return replace(state, tcp_wrench=wrench)

    def zero_ft(self):
        self.offset -= self.read().tcp_wrench[2]


class Commander:
    """Publishes targets."""

    def __init__(self, client):
        self._client = client
        self.topic = client.topic("target_pose")
        self._publisher = client.node.create_publisher(
            PoseStamped, "target_pose", qos.command_publisher(50.0)
        )

    def send(self, pose, age=0.0, frame="base"):
        stamp = time.time_ns() - round(age * 1e9)
        self._publisher.publish(conversions.pose_message(pose, stamp, frame))

    def leave(self):
        """As a process that ends."""
        self._client.node.destroy_publisher(self._publisher)


class ArmCell:
    """The node, its commander, and all that it publishes."""

    def __init__(self, namespace, driver, kind=SimArmNode, **parameters):
        self.namespace = namespace
        self.listener = Listener(namespace)
        hear = self.listener.hear
        self.poses = hear("current_pose", PoseStamped)
        self.applied = hear("applied_pose", PoseStamped)
        self.mode_at = 0.0
        self._mode = ""
        self.listener.client.node.create_subscription(
            String, "mode", self._take_mode, qos.latched()
        )
        self.commander = Commander(self.listener.client)
        self.gripper = self.listener.client.node.create_publisher(
            Float64, "sim/gripper_command", qos.command_publisher(10.0)
        )
        self.running = Running(kind, namespace, driver, **{**WORKSPACE, **parameters})
        self.listener.until(lambda: self.poses)

    def pose(self):
        return conversions.pose_array(self.poses[-1])

    def mode(self):
        return self._mode

    def _take_mode(self, message):
        self._mode, self.mode_at = message.data, time.monotonic()

    def stream(self, target_of, seconds, until=None, age=0.0):
        """Send `target_of(elapsed)` 50 times a second, for so long or until something is true."""
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds:
            if until is not None and until():
                return
            self.commander.send(target_of(elapsed), age)
            time.sleep(0.02)
        assert until is None, (self.mode(), self.listener.heard["/diagnostics"][-1:])

    def facts(self, **expected):
        """The next diagnostics that hold these values."""
        heard = self.listener.heard["/diagnostics"]
        heard.clear()
        self.listener.until(
            lambda: heard and expected.items() <= self.listener.diagnostics().items()
        )
        return self.listener.diagnostics()

    def count(self, name):
        """How often the guard has refused or limited something for this reason."""
        return self.running.node.guard.counts[name]

    def following(self):
        return self.mode().startswith("follow")

    def moved(self, since, limit):
        return np.abs(self.pose()[:3] - since[:3]).max() > limit

    def until_mode(self, words, seconds=60.0):
        self.listener.until(lambda: words in self.mode(), seconds)
        return self.mode()

    def close(self):
        self.running.close()
        self.listener.close()


def ahead(distance):
    """A target that moves away from home at 10 cm/s, up to a distance."""
    return lambda elapsed: HOME + np.array([min(0.1 * elapsed, distance), 0, 0, 0, 0, 0, 0])


def asker(cell, kind, name):
    """Sends requests, without the time that it takes to find a service first."""
    client = cell.listener.client.node.create_client(kind, name)
    assert client.wait_for_service(60.0)
    return lambda **fields: client.call_async(kind.Request(**fields))


def answer(cell, future):
    cell.listener.until(future.done, 20.0)
    return future.result()
