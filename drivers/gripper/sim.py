"""The simulated gripper: reports a copy of the world's fingers, and moves the world's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivers.gripper.base import GripperState, check_position
from drivers.sim_world import WorldCopy
from robot_rl.env.sim.robot import FINGER_STROKE
from robot_rl.env.sim.world import GripperMotor
from robot_rl.env.task import Task

_RATE_HZ = 50.0


@dataclass(eq=False)
class SimGripper:
    """The fingers of the simulated arm, in the process of another node."""

    task: Task  # the simulated one, the same as the arm's
    model: str  # path of the arm's MJCF, beginning with `hardware/`
    # What moves the fingers where the task's action has a gripper column; in other tasks they do
    # not move.
    gripper: GripperMotor
    namespace: str = ""  # of the arm's node

    def __post_init__(self) -> None:
        self._copy = WorldCopy(self.task, self.model, self.gripper, self.namespace)
        self._commands: Any = None

    def connect(self) -> None:
        """Listen to the world."""
        from std_msgs.msg import Float64

        from robot_rl.ros import qos

        client = self._copy.connect("sim_gripper")
        self._commands = client.node.create_publisher(
            Float64, "sim/gripper_command", qos.command_publisher(_RATE_HZ)
        )

    def read(self) -> GripperState:
        """Where the fingers are."""
        stamp = self._copy.update()
        share = 1.0 - self._copy.world.finger_opening() / FINGER_STROKE
        return GripperState(stamp, min(max(share, 0.0), 1.0))

    def command(self, position: float) -> None:
        """Ask the world to move the fingers."""
        from std_msgs.msg import Float64

        self._commands.publish(Float64(data=check_position(position)))

    def stop(self) -> None:
        """Let the fingers stay where they are."""
        self.command(self.read().position)

    def clear_errors(self) -> None:
        """A simulated gripper has no faults."""

    def close(self) -> None:
        """Stop listening."""
        self._copy.close()
