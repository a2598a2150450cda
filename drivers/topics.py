"""Drivers that reach their device over ROS topics: what they share, and the simulated devices.

The node of the simulated arm owns the world (`drivers/arm/sim_node.py`); what moves in it arrives
as one vector, so that a simulated gripper or camera can be killed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivers.errors import DriverError, DriverTimeout
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from robot_rl.env.sim.world import GripperMotor
    from robot_rl.env.task import Task
    from robot_rl.ros.client import RosClient
    from robot_rl.ros.sensors import Sensor

_STALE_S = 0.5
_FOUND_S = 5.0  # what runs is found within


class OverTopics:
    """A driver with a ROS node of its own, while it is connected."""

    namespace: str  # below which its topics are that do not begin with a slash
    _client: RosClient | None = None

    def listen(self, name: str) -> RosClient:
        """Begin anew, with a node of this name, which is returned."""
        from robot_rl.ros.client import RosClient

        self.close()
        self._client = RosClient(name, self.namespace)
        return self._client

    def published(self, *topics: str) -> str:
        """Say that all these are published, and send nothing; raises `DriverError` if not."""
        client = self.listen("examining")
        names = [client.topic(topic) for topic in topics if topic]

        def silent() -> list[str]:
            return [n for n in names if not client.node.get_publishers_info_by_topic(n)]

        try:
            wait_until(lambda: not silent(), _FOUND_S)
            if silent():
                hint = "start its controller; or correct the namespace and the topics in the cell"
                raise DriverError(f"nobody publishes {', '.join(silent())}", hint=hint)
        finally:
            self.close()
        return f"published: {', '.join(names)}"

    def check_connected(self, device: str) -> None:
        """Check that its node runs, or raise `DriverError` or `RosUnavailable`."""
        if self._client is None:
            raise DriverError(f"{device} is not connected", hint="call connect first")
        self._client.check()

    def close(self) -> None:
        """Leave ROS; a controller keeps what it was told last."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


@dataclass(eq=False, kw_only=True)
class SimDevice(OverTopics):
    """A device whose world looks like the one that the simulated arm's node owns."""

    task: Task  # the simulated one, the same as the arm's
    model: str  # path of the arm's MJCF, beginning with `hardware/`
    # What moves the fingers where the task's action has a gripper column; in other tasks they do
    # not move.
    gripper: GripperMotor
    namespace: str = ""  # of the arm's node

    def __post_init__(self) -> None:
        from robot_rl.ros.episodes import SceneMirror

        self._mirror = SceneMirror(self.task, self.model, self.gripper)
        self._world = self._mirror.task.world

    def listen(self, name: str = "sim_device") -> RosClient:
        """Begin to listen to the world anew."""
        client = super().listen(name)
        self._mirror.listen(client, _STALE_S)
        return client

    def wait(self, timeout_s: float) -> int:
        """Show the next state of the world, and return its stamp [ns].

        Raises `DriverTimeout`, or `MeasuredTwice` where several nodes tell the state.
        """
        sensor = self._sensor()
        seen = sensor.count
        if not wait_until(lambda: sensor.count != seen, timeout_s, every_s=0.001):
            raise sensor.conflict() or DriverTimeout(
                f"no new simulated state on {sensor.topic}",
                got=f"none within {timeout_s:g} s",
                hint="does the simulated arm's node run, in the same namespace?",
            )
        return self._mirror.update()

    def update(self) -> int:
        """Show the newest state, waiting for the first one; returns and raises as `wait`."""
        return self._mirror.update() if self._sensor().count else self.wait(_STALE_S)

    def _sensor(self) -> Sensor:
        self.check_connected("the simulated device")
        assert self._mirror.sensor is not None  # since it listens
        return self._mirror.sensor
