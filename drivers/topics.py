"""What drivers share that reach their device over ROS topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.errors import DriverError
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient

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
