"""Input devices of an operator, read in the loop's own process."""

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


class InputDevice(Protocol):
    """A device in the loop's own process, or a simulated operator."""

    def begin(self, seed: int) -> None:
        """An episode begins."""

    def watch(self, observation: Observation) -> None:
        """Before a step: look at the robot or at a device, and write to the inbox.

        Raises:
            RobotInterrupted: The device has failed; the robot holds still.
        """

    def listen(self, observation: Observation) -> None:
        """Between episodes: pass on what is said, without a robot to move. As `watch`."""

    def close(self) -> None:
        """Release what it holds."""


class Device(Protocol):
    """A driver for such a device, of `drivers.teleop.base` or `drivers.teleop.leader`."""

    events: Mapping[str, str]  # what its buttons say

    def connect(self) -> None:
        """Open it."""

    def read(self) -> Any:
        """The present input of the person; never waits."""

    def close(self) -> None:
        """Release it."""


class TeleopInput:
    """Writes what a `drivers.teleop.base.TeleopDevice` says to the inbox, when the loop reads that.

    Where the device fails the robot holds still, and no episode begins before it is connected
    again. It is connected here, or raises `RobotRLError`.
    """

    def __init__(self, device: Any, inbox: OperatorInbox) -> None:
        self._device, self._inbox, self._lost = device, inbox, False
        device.connect()

    def begin(self, seed: int) -> None:
        """Connect the device again if it was lost."""
        if self._lost:
            self._or_lost(self._device.connect)
            self._lost = False

    def watch(self, observation: Observation) -> None:
        """Read the device; raises `RobotInterrupted` where it has failed."""
        pose = observation.get("state/tcp_pose")
        orientation = None if pose is None else np.asarray(pose[3:], np.float64)
        state = self._or_lost(lambda: self._device.read(orientation, self._inbox.gripper))
        for button in sorted(state.buttons):
            if button in self._device.events:
                self._inbox.post(self._device.events[button])
        self._inbox.jog(state.motion, state.gripper, source="device")

    def listen(self, observation: Observation) -> None:
        """As `watch`; a device that was lost is connected again first."""
        self.begin(0)
        # Unknown before the first episode; any orientation tells whether the operator moves.
        downward = np.concatenate([np.zeros(3), rotations.DOWNWARD])
        self.watch({"state/tcp_pose": downward, **observation})

    def close(self) -> None:
        """Release the device."""
        self._device.close()

    def _or_lost(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RobotRLError as error:
            self._lost = True
            self._inbox.jog(np.zeros(6), source="device")
            if isinstance(error, RobotInterrupted) and error.needs_start:
                raise  # the device is there, and another one with it
            raise RobotInterrupted(
                "the operator's device is gone, so nobody could correct the robot",
                got=error,
                hint="connect it again",
            ) from error


class LeaderInput(TeleopInput):
    """The same for a leader arm (`drivers.teleop.leader`), which moves joints.

    Attributes:
        steps: What an action of 1 changes each joint's target by (n,) [rad].
    """

    def __init__(self, device: Any, inbox: OperatorInbox, steps: npt.NDArray[np.float64]) -> None:
        super().__init__(device, inbox)
        self.steps = steps

    def begin(self, seed: int) -> None:
        """As of any device; the robot follows no leader into an episode."""
        super().begin(seed)
        self._device.let_go()
        self._inbox.lead(np.zeros(len(self.steps)), source="device")

    def watch(self, observation: Observation) -> None:
        """Read the leader; raises `RobotInterrupted` where it has failed."""
        measured, lead = observation["state/joint_positions"], observation["state/joint_lead"]
        target = measured.astype(np.float64) + lead
        state = self._or_lost(lambda: self._device.read(target, self.steps))
        self._inbox.advice = self._device.hint
        self._inbox.lead(state.motion, state.gripper, source="device")

    def listen(self, observation: Observation) -> None:
        """Check that the leader is there; between episodes it does not move the robot."""
        if self._lost:
            self.begin(0)
        self._or_lost(self._device.read)
