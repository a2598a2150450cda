"""Node of the simulated arm, which owns the world of all simulated devices.

Its topics are those of `drivers.arm.node` and `robot_rl.ros.sim_topics`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from drivers.arm.node import ArmNode
from drivers.arm.sim import SimArm
from drivers.base import DriverError
from robot_rl.ros.node_process import run_node
from robot_rl.ros.sim_topics import SceneTopics
from robot_rl.safety import ArmState, Mode


class SimArmNode(ArmNode):
    """The arm's node, plus the topics of its world."""

    driver_family = SimArm

    def __init__(self, name: str = "arm", **options: Any) -> None:
        super().__init__(name, **options)
        self._scene_topics = SceneTopics(self)

    def make_topics(self) -> None:
        """Add the simulation's topics and services."""
        super().make_topics()
        self._scene_topics.make(self._begin_episode)

    def publish_state(self, state: ArmState) -> None:
        """Publish the state of the arm and the scene."""
        super().publish_state(state)
        self._scene_topics.publish()

    def _begin_episode(self) -> str:
        if not self.is_configured:
            raise DriverError("the arm's node is not configured", hint="configure it first")
        if self.guard.mode is Mode.STOPPED:
            raise DriverError(f"stopped: {self.guard.reason}", hint="clear_errors")
        seed = self._scene_topics.seed
        self.driver.reset(seed)
        self.guard.forget("a new episode", elsewhere=True)
        self._scene_topics.publish()
        return f"episode {seed}"


main = partial(run_node, SimArmNode)  # the parameter `driver` selects the driver

if __name__ == "__main__":
    raise SystemExit(main())
