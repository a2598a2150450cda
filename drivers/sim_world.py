"""A copy of the simulated world for devices in processes of their own, fed from `sim/state`.

The node of the simulated arm owns the world (`drivers/arm/sim_node.py`); what moves in it arrives
as one vector, so that a simulated gripper or camera can be killed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.errors import DriverError, DriverTimeout
from robot_rl.env.sim.task import put_in_world
from robot_rl.env.sim.world import GripperMotor, SceneState
from robot_rl.env.task import Task
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient
    from robot_rl.ros.sensors import Sensor

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
    """

    def __init__(self, task: Task, model: str, gripper: GripperMotor, namespace: str) -> None:
        self.world = put_in_world(task, model, gripper).world
        self._client: RosClient | None = None
        self._sensor: Sensor | None = None
        self._scene = SceneState(self.world)
        self._namespace = namespace

    def connect(self, name: str) -> RosClient:
        """Begin to listen; `name` is that of the device."""
        from robot_rl.ros.client import RosClient
        from robot_rl.ros.episodes import scene_sensor

        self.close()
        self._client = RosClient(name, self._namespace)
        self._sensor = scene_sensor(self._client, self._scene, _STALE_S)
        return self._client

    def close(self) -> None:
        """Stop listening."""
        client, self._client, self._sensor = self._client, None, None
        if client is not None:
            client.close()

    def wait(self, timeout_s: float) -> int:
        """Wait for the next state, and show it; returns its stamp [ns].

        Raises:
            DriverTimeout: None came in time.
            RobotInterrupted: It is the state of another model.
        """
        sensor = self._connected()
        seen = sensor.count
        if not wait_until(lambda: sensor.count != seen, timeout_s, every_s=0.001):
            raise DriverTimeout(
                f"no new simulated state on {sensor.topic}",
                got=f"none within {timeout_s:g} s",
                hint="does the simulated arm's node run, in the same namespace?",
            )
        return self.update()

    def update(self) -> int:
        """Show the newest state, waiting for the first one; returns its stamp [ns].

        Raises:
            DriverTimeout: There is none yet.
            RobotInterrupted: It is too old, or of another model.
        """
        sensor = self._connected()
        if not sensor.count:
            return self.wait(_STALE_S)
        newest = sensor.newest()
        self._scene.restore(sensor.value(newest))
        return newest.stamp_ns

    def _connected(self) -> Sensor:
        if self._client is None or self._sensor is None:
            raise DriverError("the simulated device is not connected", hint="call connect first")
        self._client.check()
        return self._sensor
