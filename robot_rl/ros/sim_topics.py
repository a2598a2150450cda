"""Topics of a simulated world, published by its owner and mirrored by other processes.

Names are relative to the arm's namespace:

publishes   sim/state (JointState with the stamp; frame_id is the model's fingerprint, and
            position is the vector of `robot_rl.env.sim.world.SceneState`), object_poses
            (PoseArray), task/success (Bool)
subscribes  sim/gripper_command (Float64: 0 open to 1 closed)
services    sim/reset (Trigger): starts the episode of the parameter `episode_seed`
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from geometry_msgs.msg import PoseArray
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64

from robot_rl.env.sim.task import put_in_world
from robot_rl.env.sim.world import GripperMotor, SceneState
from robot_rl.env.task import Task
from robot_rl.ros import conversions, qos
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.ros_client import RosClient
from robot_rl.ros.sensors import Sensor
from robot_rl.safety.rotations import Vector


class SceneTopics:
    """Topics of a node whose driver is a `drivers.live_world.LiveWorld`."""

    def __init__(self, node: DeviceNode) -> None:
        self._node = node
        text = "seed of the next episode, taken by sim/reset"
        node.parameter("episode_seed", 0, text, low=0, high=2**63 - 1, read_only=False)

    @property
    def seed(self) -> int:
        """Seed of the next episode."""
        return int(self._node.get_parameter("episode_seed").value or 0)

    def make(self, begin_episode: Callable[[], str]) -> None:
        """Create the topics; `begin_episode` handles sim/reset and returns its message."""
        node, sensors = self._node, qos.sensor_publisher(self._node.rate_hz)
        self._scene = node.create_publisher(JointState, "sim/state", sensors)
        self._objects = node.create_publisher(PoseArray, "object_poses", sensors)
        self._success = node.create_publisher(Bool, "task/success", sensors)
        node.subscribe_to_commands(
            Float64, "sim/gripper_command", lambda m: node.driver.command_gripper(m.data)
        )
        node.serve("sim/reset", begin_episode)

    def publish(self) -> None:
        """Publish the current scene."""
        driver = self._node.driver
        scene = driver.scene()
        message = conversions.joint_state_message((), scene.state, None, scene.stamp_ns)
        message.header.frame_id = driver.fingerprint
        self._scene.publish(message)
        self._objects.publish(conversions.poses_message(scene.object_poses, scene.stamp_ns))
        self._success.publish(Bool(data=scene.success))


class SceneMirror:
    """A copy of the world that the simulated arm's node owns, with the task in it.

    Task, model and gripper must match the arm's. Only one thread may use it. World states arrive in
    another thread, at `sensor`, which is None before `listen`.
    """

    def __init__(self, task: Task, model: str, gripper: GripperMotor) -> None:
        self.task = put_in_world(task, model, gripper)
        self.sensor: Sensor | None = None
        self._scene = SceneState(self.task.world)

    def listen(self, client: RosClient, limit_s: float) -> None:
        """Start following the world; a state older than `limit_s` [s] is too old."""
        self.sensor = Sensor(client, JointState, "sim/state", limit_s, self._state)

    def update(self) -> int:
        """Load the latest state, if subscribed; returns its stamp [ns], else 0."""
        if self.sensor is None:
            return 0
        newest = self.sensor.newest()
        self._scene.restore(self.sensor.value(newest))
        return newest.stamp_ns

    def _state(self, message: JointState) -> Vector:
        if message.header.frame_id != self._scene.fingerprint:
            raise conversions.MessageError(
                "the state is of another simulated model",
                got=message.header.frame_id,
                expected=self._scene.fingerprint,
                hint="give this process and the simulated arm's node the same task and model",
            )
        return np.asarray(message.position, np.float64)
