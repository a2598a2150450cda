"""A copy of the simulated world for devices in processes of their own, fed from `sim/state`.

The node of the simulated arm owns the world (`drivers/arm/sim_node.py`); what moves in it arrives
as one vector, so that a simulated gripper or camera can be killed alone.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.errors import DriverError, DriverTimeout, Stale
from robot_rl.env.sim.scene import GripperMotor, SceneState, make_world, simulated
from robot_rl.env.task import Task

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient

TOPIC = "sim/state"
_STALE_S = 0.5


class WorldCopy:
    """A world that looks like the one that the simulated arm's node owns.

    One thread uses it; messages arrive in another.

    Args:
        task: The simulated task, the same as the arm's.
        model: Path of the arm's MJCF, beginning with `hardware/`.
        gripper: What moves the fingers where the task's action has a gripper column.
        namespace: Of the arm's node.

    Attributes:
        world: The copy, as it was at the newest `update` or `wait`.
        client: The ROS node; None while it is not connected.
    """

    def __init__(self, task: Task, model: str, gripper: GripperMotor, namespace: str) -> None:
        self.world = make_world(simulated(task), model, gripper)
        self.client: RosClient | None = None
        self._scene = SceneState(self.world)
        self._namespace = namespace
        self._arrived = threading.Condition()
        self._message: Any = None
        self._stamp = 0
        self._received = 0.0

    def connect(self, name: str) -> RosClient:
        """Begin to listen; `name` is that of the device."""
        from sensor_msgs.msg import JointState

        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        self.client = RosClient(name, self._namespace)
        self.client.node.create_subscription(
            JointState, TOPIC, self._take, qos.sensor_subscription(1)
        )
        return self.client

    def close(self) -> None:
        """Stop listening."""
        client, self.client = self.client, None
        if client is not None:
            client.close()
        self._message, self._stamp = None, 0

    def wait(self, timeout_s: float) -> int:
        """Wait for the next state, and show it; returns its stamp [ns].

        Raises:
            DriverTimeout: None came in time.
            DriverError: It is the state of another model.
        """
        with self._arrived:
            last = self._stamp
            newer = self._arrived.wait_for(lambda: self._stamp != last, timeout_s)
        self._check()
        if not newer:
            raise DriverTimeout(
                f"no new simulated state on {TOPIC}",
                got=f"none within {timeout_s:g} s",
                hint="does the simulated arm's node run, in the same namespace?",
            )
        return self._show()

    def update(self) -> int:
        """Show the newest state; returns its stamp [ns].

        Raises:
            DriverTimeout: There is none yet.
            Stale: It is too old.
            DriverError: It is the state of another model.
        """
        if self._message is None:
            return self.wait(_STALE_S)
        self._check()
        age = time.monotonic() - self._received
        if age > _STALE_S:
            raise Stale(f"the state on {TOPIC}", age, _STALE_S, "the simulated arm's node is gone")
        return self._show()

    def _check(self) -> None:
        if self.client is None:
            raise DriverError("the simulated device is not connected", hint="call connect first")
        self.client.check()

    def _take(self, message: Any) -> None:
        from robot_rl.ros.messages import to_nanoseconds

        with self._arrived:
            self._message, self._received = message, time.monotonic()
            self._stamp = to_nanoseconds(message.header.stamp)
            self._arrived.notify_all()

    def _show(self) -> int:
        with self._arrived:
            message, stamp = self._message, self._stamp
        model = message.header.frame_id
        if model != self._scene.fingerprint:
            raise DriverError(
                f"the state on {TOPIC} is of another model",
                got=model,
                expected=self._scene.fingerprint,
                hint="give all simulated nodes the same task and model",
            )
        self._scene.restore(np.asarray(message.position, np.float64))
        return stamp
