"""ROS 2 node for any teleoperation device.

publishes   teleop/command (TwistStamped, base frame): the motion, at every poll
            gripper/command (Float64: 0 open to 1 closed): only if `drives_gripper` is set
subscribes  current_pose (PoseStamped): for a device that moves in the tool's frame
calls       the Trigger services of its buttons: success, failure, stop, ...
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped
from rclpy.task import Future
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

from drivers.teleop.base import TeleopDevice, TeleopState, Vector
from robot_rl.env.operator import OperatorEvent
from robot_rl.ros import qos
from robot_rl.ros.conversions import MessageError, pose_array, twist_message
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.node_process import run_node
from robot_rl.ros.operator_services import StopCall, service_of
from robot_rl.ros.sole_source import SoleSubscription


class TeleopNode(DeviceNode):
    """Lifecycle node for a `drivers.teleop.base.TeleopDevice`.

    ROS parameters, besides those of `DeviceNode`: `full_translation` and `full_rotation`, the
    velocities of the largest action; `drives_gripper`, whether the node commands the gripper
    itself.
    """

    driver_family = TeleopDevice
    default_rate_hz = 50.0
    highest_rate_hz = 250.0

    def __init__(self, name: str = "teleop_node", **options: Any) -> None:
        super().__init__(name, **options)
        self._full_translation: float = self.parameter(
            "full_translation", 0.1, "velocity of the largest action [m/s]", low=0.001, high=1.0
        )
        self._full_rotation: float = self.parameter(
            "full_rotation", 0.5, "the same for turns [rad/s]", low=0.001, high=6.0
        )
        self._drives_gripper: bool = self.parameter(
            "drives_gripper", False, "whether gripper/command is published"
        )
        self._orientation: Vector | None = None
        self._newest: TeleopState | None = None
        self._stop = StopCall(self)
        self._unheard = self._bad_pose = ""

    def make_topics(self) -> None:
        """Create the topics, and the service clients for the device's buttons."""
        profile = qos.command_publisher(self.rate_hz)
        self._motion_command = self.create_publisher(TwistStamped, "teleop/command", profile)
        # Only one node may command the gripper: create this publisher only if configured.
        self._gripper_command: Any = None
        if self._drives_gripper:
            self._gripper_command = self.create_publisher(Float64, "gripper/command", profile)
        self._poses = SoleSubscription(
            self, PoseStamped, "current_pose", self._take_pose, qos.sensor_subscription(1),
            refused=self._lose_pose,
        )  # fmt: skip
        self._event_clients = {
            event: self.create_client(Trigger, service_of(event))
            for event in {*self.driver.events.values()} - {OperatorEvent.STOP}
        }

    def poll(self) -> None:
        """Read the device and publish the operator's input."""
        state: TeleopState = self.driver.read(self._orientation)
        self.freshness.is_new(state.stamp_ns)
        self._newest = state
        full = np.repeat([self._full_translation, self._full_rotation], 3)
        self._motion_command.publish(twist_message(full * state.motion, state.stamp_ns))
        if state.gripper is not None and self._gripper_command is not None:
            self._gripper_command.publish(Float64(data=0.5 * (1.0 + state.gripper)))
        for button in sorted(state.buttons):
            if button in self.driver.events:
                self._call(self.driver.events[button])

    def disconnected(self) -> None:
        """Discard the operator's last input."""
        self._newest = None
        self._poses.forget()

    def facts(self) -> Mapping[str, object]:
        """Return the motion and the buttons of the last poll."""
        newest = self._newest
        if newest is None:
            return {"motion": "unknown"}
        return {
            "motion": " ".join(f"{value:+.2f}" for value in newest.motion),
            "buttons": " ".join(sorted(newest.buttons)),
        }

    def warning(self) -> str | None:
        """Return a failed stop or other event, or an unusable arm pose."""
        return self._stop.problem or self._unheard or self._bad_pose or None

    def _take_pose(self, message: PoseStamped) -> None:
        try:
            self._orientation, self._bad_pose = pose_array(message)[3:], ""
        except MessageError as error:
            self._lose_pose(f"{self._poses.topic}: {error}")

    def _lose_pose(self, problem: str) -> None:
        # with frame=tool the driver then raises an error
        self._orientation, self._bad_pose = None, problem

    def _call(self, event: str) -> None:
        if event == OperatorEvent.STOP:
            self._stop.begin()
            return
        if event == OperatorEvent.CLEAR_ERRORS:
            self._stop.give_up()
        client = self._event_clients[event]
        if client.service_is_ready():
            client.call_async(Trigger.Request()).add_done_callback(self._take_answer)
        else:
            self._note(f"nobody serves {client.service_name}")

    def _take_answer(self, call: Future) -> None:
        answer = call.result()
        self._note("" if answer.success else answer.message)

    def _note(self, unheard: str) -> None:
        if unheard:
            self.get_logger().warning(unheard)
        self._unheard = unheard


main = partial(run_node, TeleopNode)  # the parameter `driver` selects the driver

if __name__ == "__main__":
    raise SystemExit(main())
