"""Twin cell node: runs the world of the simulated devices, and injects faults.

It has the topics of `robot_rl.ros.sim_topics`; `sim/reset` puts the objects back and leaves the arm
in place. Each event of the cell is a service (Trigger):

    sim/protective_stop     stop the arm, as after a collision
    sim/emergency_stop      press the emergency stop
    sim/switch_on           release the emergency stop, switch on, open the brakes
    sim/cut_connection      unplug the network cable
    sim/restore_connection  plug it in again
    sim/delay_packets       stall the network for the parameter `delay_s`, then deliver all packets
    sim/silence_gripper     stop the gripper's answers, as if its cable were unplugged
    sim/jam_gripper         block the fingers
    sim/restore_gripper     end both gripper faults
    sim/silence_cameras     stop the images
    sim/freeze_cameras      repeat the same image
    sim/restore_cameras     end both camera faults
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
    """Twin node. ROS parameters, besides those of `DeviceNode`: `episode_seed`, `delay_s`."""

    driver_family = UrController
    default_rate_hz: ClassVar[float] = 50.0

    def __init__(self, name: str = "twin", **options: Any) -> None:
        super().__init__(name, **options)
        self._scene_topics = SceneTopics(self)
        text = "how long sim/delay_packets holds the packets back [s]"
        self.parameter("delay_s", 1.0, text, low=0.01, high=60.0, read_only=False)

    def make_topics(self) -> None:
        """Create the scene topics and the fault services."""
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
        """Publish the scene if it is new."""
        self.driver.check_running()
        if self.freshness.is_new(self.driver.stamp_ns):
            self._scene_topics.publish()

    def warning(self) -> str | None:
        """Return why the arm is stopped."""
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


main = partial(run_node, TwinNode)  # the parameter `driver` selects the driver

if __name__ == "__main__":
    raise SystemExit(main())
