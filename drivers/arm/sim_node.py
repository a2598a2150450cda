"""The node of the simulated arm, which owns the world of all simulated devices.

Beside what `drivers.arm.node` does:

    publishes   sim/state (JointState: the stamp; frame_id is the model's fingerprint, and position
                is the vector of `robot_rl.env.sim.world.SceneState`), object_poses (PoseArray),
                task/success (Bool)
    subscribes  sim/gripper_command (Float64: 0 open to 1 closed)
    services    sim/reset (Trigger): begins the episode of the parameter `episode_seed`
"""

from __future__ import annotations

from functools import partial
from typing import Any

from geometry_msgs.msg import PoseArray
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64

from drivers.arm.node import ArmNode
from drivers.arm.sim import SimArm
from drivers.errors import DriverError
from robot_rl.ros import messages, qos
from robot_rl.ros.device_node import ParameterError
from robot_rl.ros.node_process import run_node
from robot_rl.safety import ArmState, Mode


class SimArmNode(ArmNode):
    """See the module."""

    def __init__(self, name: str = "arm", **options: Any) -> None:
        super().__init__(name, **options)
        text = "seed of the next episode, taken by sim/reset"
        self.parameter("episode_seed", 0, text, low=0, high=2**63 - 1, read_only=False)

    def setup(self) -> None:
        """Make the guard of the simulated arm; `ParameterError` where the driver is another."""
        if not isinstance(self.driver, SimArm):
            raise ParameterError(
                "the node of the simulated arm has another driver",
                got=type(self.driver).__name__,
                expected="drivers.arm.sim.SimArm",
                hint="use arm_node for this driver",
            )
        super().setup()

    def make_topics(self) -> None:
        """Add what only a simulation has."""
        super().make_topics()
        sensors = qos.sensor_publisher(self.rate_hz)
        self._scene = self.create_publisher(JointState, "sim/state", sensors)
        self._objects = self.create_publisher(PoseArray, "object_poses", sensors)
        self._success = self.create_publisher(Bool, "task/success", sensors)
        self.create_subscription(
            Float64, "sim/gripper_command", self._on_gripper, qos.command_subscription()
        )
        self.serve("sim/reset", self._begin_episode)

    def publish_state(self, state: ArmState) -> None:
        """Publish the arm's state and the scene's."""
        super().publish_state(state)
        self._publish_scene()

    def _publish_scene(self) -> None:
        scene = self.driver.scene()
        message = messages.joint_state_message((), scene.state, None, scene.stamp_ns)
        message.header.frame_id = self.driver.fingerprint
        self._scene.publish(message)
        if scene.object_poses is not None:
            self._objects.publish(messages.poses_message(scene.object_poses, scene.stamp_ns))
        self._success.publish(Bool(data=scene.success))

    def _on_gripper(self, message: Float64) -> None:
        if not self.is_configured:
            return
        try:
            self.driver.command_gripper(message.data)
        except DriverError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=1.0)

    def _begin_episode(self) -> str:
        if not self.is_configured:
            raise DriverError("the arm's node is not configured", hint="configure it first")
        if self.guard.mode is Mode.STOPPED:
            raise DriverError(f"stopped: {self.guard.reason}", hint="clear_errors")
        seed = int(self.get_parameter("episode_seed").value)
        self.driver.reset(seed)
        self.guard.forget("a new episode", elsewhere=True)
        self._publish_scene()
        return f"episode {seed}"


main = partial(run_node, SimArmNode)  # its driver is in the parameter `driver`

if __name__ == "__main__":
    raise SystemExit(main())
