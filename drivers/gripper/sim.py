"""Simulated gripper: reads the fingers from a copy of the world, and commands the world's."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.gripper.base import GripperState, check_position
from drivers.live_world import SimDevice
from robot_rl.env.sim.robot import FINGER_STROKE

_RATE_HZ = 50.0


@dataclass(eq=False, kw_only=True)
class SimGripper(SimDevice):
    """Fingers of the simulated arm, which runs in another node's process."""

    def connect(self) -> None:
        """Subscribe to the world and create the command publisher."""
        from std_msgs.msg import Float64

        from robot_rl.ros import qos

        profile = qos.command_publisher(_RATE_HZ)
        node, self._kind = self.listen().node, Float64
        self._commands = node.create_publisher(Float64, "sim/gripper_command", profile)

    def read(self) -> GripperState:
        """Measure the finger position."""
        stamp = self.update()
        share = 1.0 - self._world.finger_opening() / FINGER_STROKE
        return GripperState(stamp, min(max(share, 0.0), 1.0))

    def command(self, position: float) -> None:
        """Command the world's fingers."""
        self._commands.publish(self._kind(data=check_position(position)))

    def stop(self) -> None:
        """Hold the current position."""
        self.command(self.read().position)

    def clear_errors(self) -> None:
        """No-op: a simulated gripper has no faults."""
