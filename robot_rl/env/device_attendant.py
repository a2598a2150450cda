"""A teleoperation device at the machine that runs the loop: it is read at every tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Observation
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import RobotInterrupted
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

_SOURCE = "device"
_POSE = "state/tcp_pose"


class Device(Protocol):
    """What is used of a teleoperation device; see `drivers.teleop.base.TeleopDevice`."""

    events: Mapping[str, str]

    def connect(self) -> None:
        """Open the device."""

    def read(
        self, tool_orientation: npt.NDArray[np.float64] | None = None, gripper: float | None = None
    ) -> Any:
        """What the operator does now: motion, gripper and buttons; never waits."""

    def close(self) -> None:
        """Release the device."""


class DeviceAttendant:
    """Writes what a device says to the inbox, at the tick at which the loop reads that.

    A device that fails takes the operator's hand from the robot: the robot then holds still, and no
    episode begins before the device is connected again. It is connected here, or raises
    `RobotRLError`.
    """

    def __init__(self, device: Device, inbox: OperatorInbox) -> None:
        self._device, self._inbox, self._lost = device, inbox, False
        device.connect()

    def begin(self, seed: int) -> None:
        """Connect the device anew if it was lost."""
        if self._lost:
            self._or_lost(self._device.connect)
            self._lost = False

    def watch(self, observation: Observation) -> None:
        """Read the device; raises `RobotInterrupted` where it has failed."""
        pose = observation.get(_POSE)
        orientation = None if pose is None else np.asarray(pose[3:], np.float64)
        state = self._or_lost(lambda: self._device.read(orientation, self._inbox.gripper))
        for button in sorted(state.buttons):
            if button in self._device.events:
                self._inbox.post(self._device.events[button])
        self._inbox.jog(state.motion, state.gripper, source=_SOURCE)

    def listen(self, observation: Observation) -> None:
        """As `watch`; a device that was lost is connected anew first.

        Before the first episode the tool's orientation is not known. Nothing moves then, so that
        any will do to tell whether the operator moves.
        """
        self.begin(0)
        downward = np.concatenate([np.zeros(3), rotations.DOWNWARD])
        self.watch({_POSE: downward, **observation})

    def close(self) -> None:
        """Release the device."""
        self._device.close()

    def _or_lost(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RobotRLError as error:
            self._lost = True
            self._inbox.jog(np.zeros(6), source=_SOURCE)
            raise RobotInterrupted(
                "the operator's device is gone, so nobody could correct the robot",
                got=error,
                hint="connect it again",
            ) from error
