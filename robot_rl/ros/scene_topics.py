"""What the node that owns a simulated world adds to ROS, for the rest of the cell.

Names are relative to the arm's namespace:

publishes   sim/state (JointState: the stamp; frame_id is the model's fingerprint, and position
            is the vector of `robot_rl.env.sim.world.SceneState`), object_poses (PoseArray),
            task/success (Bool)
subscribes  sim/gripper_command (Float64: 0 open to 1 closed)
services    sim/reset (Trigger): begins the episode of the parameter `episode_seed`
"""

from __future__ import annotations

from collections.abc import Callable

from geometry_msgs.msg import PoseArray
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64

from robot_rl.ros import messages, qos
from robot_rl.ros.device_node import DeviceNode


class SceneTopics:
    """Topics of a node whose driver is a `drivers.live_world.LiveWorld`."""

    def __init__(self, node: DeviceNode) -> None:
        self._node = node
        text = "seed of the next episode, taken by sim/reset"
        node.parameter("episode_seed", 0, text, low=0, high=2**63 - 1, read_only=False)

    @property
    def seed(self) -> int:
        """Of the next episode."""
        return int(self._node.get_parameter("episode_seed").value or 0)

    def make(self, begin_episode: Callable[[], str]) -> None:
        """Make them all; `begin_episode` does what sim/reset asks for, and says what it did."""
        node, sensors = self._node, qos.sensor_publisher(self._node.rate_hz)
        self._scene = node.create_publisher(JointState, "sim/state", sensors)
        self._objects = node.create_publisher(PoseArray, "object_poses", sensors)
        self._success = node.create_publisher(Bool, "task/success", sensors)
        node.subscribe_to_commands(Float64, "sim/gripper_command", self._on_gripper)
        node.serve("sim/reset", begin_episode)

    def publish(self) -> None:
        """Publish the scene as it is now."""
        driver = self._node.driver
        scene = driver.scene()
        message = messages.joint_state_message((), scene.state, None, scene.stamp_ns)
        message.header.frame_id = driver.fingerprint
        self._scene.publish(message)
        self._objects.publish(messages.poses_message(scene.object_poses, scene.stamp_ns))
        self._success.publish(Bool(data=scene.success))

    def _on_gripper(self, message: Float64) -> None:
        self._node.driver.command_gripper(message.data)
