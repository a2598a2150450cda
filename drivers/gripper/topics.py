"""A gripper with its own ROS 2 controller, such as one from `ros2_control`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivers.base import DriverError, DriverTimeout, TopicDriver
from drivers.gripper.base import Fingers, GripperState, check_position
from robot_rl.processes.waiting import wait_until

_STALE_S = 0.5
_RATE_HZ = 50.0
_KINDS = {"float64": "std_msgs/msg/Float64", "float64_array": "std_msgs/msg/Float64MultiArray"}


@dataclass(eq=False)
class TopicsGripper(TopicDriver):
    """Drive a gripper through its controller's topics.

    Joint positions from `open_at` to `closed_at` map to 0 to 1.
    """

    joint: str  # joint name in the state messages
    open_at: float  # open joint position, in the controller's unit
    closed_at: float  # closed joint position
    state_topic: str = "joint_states"  # JointState topic
    command_topic: str = "gripper_controller/commands"  # in the controller's unit
    command_type: str = "float64_array"  # for `forward_command_controller`; or `float64`
    namespace: str = ""  # prefix of topics without a leading slash
    timeout_s: float = 5.0  # timeout for the first state [s]

    def __post_init__(self) -> None:
        if self.command_type not in _KINDS:
            problem = "command_type of the gripper"
            raise DriverError(problem, got=self.command_type, expected=" or ".join(_KINDS))
        self._fingers = Fingers(self.joint, self.open_at, self.closed_at)
        self._sensor: Any = None
        self._commands: Any = None

    def examine(self) -> str:
        """Check that states are published, without sending; raises `DriverError` if not."""
        return self.published(self.state_topic)

    def connect(self) -> None:
        """Subscribe and wait for the first state."""
        from sensor_msgs.msg import JointState

        from robot_rl.ros import qos
        from robot_rl.ros.conversions import joint_positions
        from robot_rl.ros.ros_client import message_type
        from robot_rl.ros.sensors import Sensor

        client = self.listen("topics_gripper")
        self._sensor = Sensor(
            client,
            JointState,
            self.state_topic,
            _STALE_S,
            lambda message: joint_positions(message, [self.joint]),
            # Several controllers may publish, each with its own joints.
            accepts=lambda message: self.joint in message.name,
        )
        self._kind = message_type(_KINDS[self.command_type])
        profile = qos.command_publisher(_RATE_HZ)
        self._commands = client.node.create_publisher(self._kind, self.command_topic, profile)
        if not wait_until(lambda: self._sensor.count, self.timeout_s):
            raise DriverTimeout(
                f"no state of the joint {self.joint!r} on {self._sensor.topic}",
                got=f"none within {self.timeout_s:g} s",
                hint="does the gripper's controller run, and is the joint's name right?",
            )

    def read(self) -> GripperState:
        """Return the latest state; raises `RobotInterrupted` if it is too old or unusable."""
        self.check_connected("the gripper")
        newest = self._sensor.newest()
        (value,) = self._sensor.value(newest)
        return GripperState(newest.stamp_ns, self._fingers.share(float(value)))

    def command(self, position: float) -> None:
        """Publish a position in the controller's unit."""
        self.check_connected("the gripper")
        value = self._fingers.position(check_position(position))
        data = [value] if self.command_type == "float64_array" else value
        self._commands.publish(self._kind(data=data))

    def stop(self) -> None:
        """Command the current position."""
        self.command(self.read().position)

    def clear_errors(self) -> None:
        """No-op: the controller handles its own faults."""
