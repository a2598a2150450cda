"""ROS 2 node for any gripper.

    publishes   gripper/state (JointState, one joint `gripper`: 0 open to 1 closed)
    subscribes  gripper/command (Float64: 0 open to 1 closed)
    services    gripper/stop (Trigger): stop the fingers and keep the grip;
                gripper/clear_errors (Trigger): for a person after a check; the fingers may move;
                gripper/open, gripper/close (Trigger): manual, if no client is commanding

`/diagnostics` reports refused commands and whether an object is held.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from sensor_msgs.msg import JointState
from std_msgs.msg import Float64

from drivers.base import DriverError
from drivers.gripper.base import Gripper, GripperState, check_position
from robot_rl.ros import qos
from robot_rl.ros.conversions import joint_state_message
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.node_process import run_node

JOINT = "gripper"
SILENCE_S = 1.0  # without a command for this long, no client is commanding [s]


class GripperNode(DeviceNode):
    """Lifecycle node for a `drivers.gripper.base.Gripper`.

    A changed command is sent at the next poll. A lost device or `stop` discards the command, so a
    gripper that reconnects does not move by itself.
    """

    driver_family = Gripper
    default_rate_hz = 50.0
    highest_rate_hz = 200.0

    def __init__(self, name: str = "gripper_node", **options: Any) -> None:
        super().__init__(name, **options)
        self._wanted: float | None = None
        self._sent: float | None = None
        self._newest: GripperState | None = None
        self._heard = -math.inf  # time of a client's last command, steady clock [s]
        self._conflict = ""  # error about several command publishers, until a person clears it
        self._stopped = False  # since a stop, no command and no clear_errors

    def make_topics(self) -> None:
        """Create the topics and services."""
        profile = qos.sensor_publisher(self.rate_hz)
        self._state = self.create_publisher(JointState, "gripper/state", profile)
        self.subscribe_to_commands(Float64, "gripper/command", self._take)
        self.serve("gripper/stop", self._stop)
        self._clearing = self.serve("gripper/clear_errors", self._clear_errors)
        self.serve("gripper/open", partial(self._send, 0.0))
        self.serve("gripper/close", partial(self._send, 1.0))

    def poll(self) -> None:
        """Send the latest command, measure and publish."""
        if self._wanted is not None and self._wanted != self._sent:
            self.driver.command(self._wanted)
            self._sent = self._wanted
        state: GripperState = self.driver.read()
        if self.freshness.is_new(state.stamp_ns):
            self._newest = state
            if not self._conflict:  # with no state, a waiting robot holds
                message = joint_state_message([JOINT], [state.position], None, state.stamp_ns)
                self._state.publish(message)

    def disconnected(self) -> None:
        """Discard the command and the state."""
        self._wanted = self._sent = self._newest = None

    def deactivated(self) -> None:
        """Discard the command, so that a later activation moves nothing."""
        self._wanted = self._sent = None

    def commanded_by_several(self, problem: str) -> None:
        """Stop the fingers; publish no state, so that the loop holds, until a person clears it."""
        if not self._conflict:
            self._conflict = f"{problem}; next: end the other, then call gripper/clear_errors"
            self._stopped, self._wanted, self._sent = True, None, None
            with contextlib.suppress(DriverError):  # the next poll fails too, and reports it
                self.driver.stop()

    def warning(self) -> str | None:
        """Return the conflict between command publishers, or the latest refusal."""
        return self._conflict or super().warning()

    def facts(self) -> Mapping[str, object]:
        """Return position, grip and refused commands."""
        newest = self._newest
        held = None if newest is None else newest.object_held
        return {
            "position": "unknown" if newest is None else f"{newest.position:.3f}",
            "object_held": "unknown" if held is None else str(held).lower(),
            "commands_refused": self.refusals,
            "last_refusal": self.last_refusal,
        }

    def _take(self, message: Float64) -> None:
        self._heard = time.monotonic()
        self._wanted = check_position(message.data)
        self._stopped = False

    def _send(self, position: float) -> str:
        problem, hint = None, "look at the gripper, then call gripper/clear_errors"
        if self._stopped:
            problem = "the fingers were stopped"
        elif not (self.is_connected and self.is_polling) or self.fault:
            problem = self.fault or "the gripper's node is not connected, or not active"
        elif time.monotonic() - self._heard <= SILENCE_S:
            problem, hint = "somebody commands the gripper", "end that command first"
        if problem is not None:
            raise DriverError("nothing was sent to the gripper", got=problem, hint=hint)
        self._wanted, self._sent = position, None
        return "sent: the fingers move now"

    def _stop(self) -> str:
        self._stopped = True
        with self.refusing(self._clearing, "gripper"):
            self._forget()
            self.driver.stop()
        return "stop done"

    def _clear_errors(self) -> str:
        self._forget()
        self._stopped, self._conflict = False, ""
        self.forget_commanders()
        self.driver.clear_errors()
        return "taken: the fingers may move now"

    def _forget(self) -> None:
        self._wanted = self._sent = None
        if not self.is_configured:
            raise DriverError("the gripper's node is not configured", hint="configure it first")


main = partial(run_node, GripperNode)  # the parameter `driver` selects the driver

if __name__ == "__main__":
    raise SystemExit(main())
