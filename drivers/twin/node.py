"""The node of a twin cell: owns the world in which the vendors' devices live, and their faults.

It has the topics of `robot_rl.ros.sim_topics`; `sim/reset` puts the objects back, and leaves the
arm where it is. What happens to the cell are services (Trigger):

    sim/protective_stop     the controller stops the arm, as after a collision
    sim/emergency_stop      somebody presses the button
    sim/switch_on           somebody releases it, switches the arm on and opens its brakes
    sim/cut_connection      the network's cable is pulled
    sim/restore_connection  and plugged in again
    sim/delay_packets       the network delivers nothing for the parameter `delay_s`, then all
    sim/silence_gripper     the gripper answers nothing, as without its cable
    sim/jam_gripper         something holds its fingers
    sim/restore_gripper     both are over
    sim/silence_cameras     no pictures come any more
    sim/freeze_cameras      the same picture comes again and again
    sim/restore_cameras     both are over
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from std_msgs.msg import String

from drivers.base import DriverError
from drivers.twin.realsense_camera import CAMERAS_TOPIC, FROZEN, SILENT
from drivers.twin.ur_controller import UrController
from robot_rl.ros import qos
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.node_process import run_node
from robot_rl.ros.sim_topics import SceneTopics


class TwinNode(DeviceNode):
    """The twin's node. Parameters, beside those of `DeviceNode`: `episode_seed`, `delay_s`."""

    driver_family = UrController
    default_rate_hz: ClassVar[float] = 50.0

    def __init__(self, name: str = "twin", **options: Any) -> None:
        super().__init__(name, **options)
        self._scene_topics = SceneTopics(self)
        text = "how long sim/delay_packets holds the packets back [s]"
        self.parameter("delay_s", 1.0, text, low=0.01, high=60.0, read_only=False)

    def make_topics(self) -> None:
        """Make the topics of the scene and the services of the faults."""
        self._scene_topics.make(self._begin_episode)
        for name in (
            *("protective_stop", "emergency_stop", "switch_on"),
            *("cut_connection", "restore_connection"),
            *("silence_gripper", "jam_gripper", "restore_gripper"),
        ):
            self.serve(f"sim/{name}", partial(self._let, name))
        self._cameras = self.create_publisher(String, CAMERAS_TOPIC, qos.latched())
        for name, fault in (("silence", SILENT), ("freeze", FROZEN), ("restore", "")):
            self.serve(f"sim/{name}_cameras", partial(self._tell_cameras, fault))
        self.serve("sim/delay_packets", self._delay_packets)

    def poll(self) -> None:
        """Publish the scene where it is new."""
        self.driver.check_running()
        if self.freshness.is_new(self.driver.stamp_ns):
            self._scene_topics.publish()

    def warning(self) -> str | None:
        """Why the arm is held."""
        fault: str | None = self.driver.fault
        return fault or super().warning()

    def _begin_episode(self) -> str:
        seed = self._scene_topics.seed
        self._connected().reset(seed)
        self.forget_commanders()
        self._scene_topics.publish()
        return f"the scene of episode {seed}"

    def _let(self, name: str) -> str:
        happen: Callable[[], None] = getattr(self._connected(), name)
        happen()
        return name.replace("_", " ")

    def _delay_packets(self) -> str:
        seconds = float(self.get_parameter("delay_s").value)
        self._connected().delay_packets(seconds)
        return f"packets are {seconds:g} s late"

    def _tell_cameras(self, fault: str) -> str:
        self._cameras.publish(String(data=fault))
        return f"the cameras are {fault or 'as they should be'}"

    def _connected(self) -> UrController:
        if not self.is_connected:
            raise DriverError("the twin does not run", hint="see its diagnostics")
        controller: UrController = self.driver
        return controller


main = partial(run_node, TwinNode)  # its driver is in the parameter `driver`

if __name__ == "__main__":
    raise SystemExit(main())
