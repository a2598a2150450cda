"""Operator input devices, read in the control loop's process."""

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
    """A device in the loop's process, or a simulated operator."""

    def begin(self, seed: int) -> None:
        """Start an episode."""

    def watch(self, observation: Observation) -> None:
        """Read the robot or the device before a step, and write to the inbox.

        Raises:
            RobotInterrupted: The device has failed; the robot holds still.
        """

    def listen(self, observation: Observation) -> None:
        """Forward input between episodes, without moving the robot. Raises as `watch`."""

    def close(self) -> None:
        """Release the device's resources."""


class Device(Protocol):
    """A device driver, as in `drivers.teleop.base` or `drivers.teleop.leader`."""

    events: Mapping[str, str]  # button -> operator event

    def connect(self) -> None:
        """Open the device."""

    def read(self) -> Any:
        """Return the current input; never blocks."""

    def close(self) -> None:
        """Release the device."""


class TeleopInput:
    """Reads a `drivers.teleop.base.TeleopDevice` before each loop poll and writes to the inbox.

    If the device fails the robot holds still, and no episode starts until it is reconnected. The
    constructor connects it, or raises `RobotRLError`.
    """

    def __init__(self, device: Any, inbox: OperatorInbox) -> None:
        self._device, self._inbox, self._lost = device, inbox, False
        device.connect()

    def begin(self, seed: int) -> None:
        """Reconnect the device if it was lost."""
        if self._lost:
            self._or_lost(self._device.connect)
            self._lost = False

    def watch(self, observation: Observation) -> None:
        """Read the device; raises `RobotInterrupted` if it has failed."""
        pose = observation.get("state/tcp_pose")
        orientation = None if pose is None else np.asarray(pose[3:], np.float64)
        state = self._or_lost(lambda: self._device.read(orientation, self._inbox.gripper))
        for button in sorted(state.buttons):
            if button in self._device.events:
                self._inbox.post(self._device.events[button])
        self._inbox.jog(state.motion, state.gripper, source="device")

    def listen(self, observation: Observation) -> None:
        """Do the same as `watch`, but reconnect a lost device first."""
        self.begin(0)
        # Unknown before the first episode; any orientation shows whether the operator moves.
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
                raise  # the device is there, and another one too
            raise RobotInterrupted(
                "the operator's device is gone, so nobody could correct the robot",
                got=error,
                hint="connect it again",
            ) from error


class LeaderInput(TeleopInput):
    """Reads a leader arm (`drivers.teleop.leader`), which moves joints.

    Attributes:
        steps: Change of each joint's target for an action of 1 (n,) [rad].
    """

    def __init__(self, device: Any, inbox: OperatorInbox, steps: npt.NDArray[np.float64]) -> None:
        super().__init__(device, inbox)
        self.steps = steps

    def begin(self, seed: int) -> None:
        """Reconnect if needed and disengage, so the leader does not drive the episode's start."""
        super().begin(seed)
        self._device.let_go()
        self._inbox.lead(np.zeros(len(self.steps)), source="device")

    def watch(self, observation: Observation) -> None:
        """Read the leader; raises `RobotInterrupted` if it has failed."""
        measured, lead = observation["state/joint_positions"], observation["state/joint_lead"]
        target = measured.astype(np.float64) + lead
        state = self._or_lost(lambda: self._device.read(target, self.steps))
        self._inbox.advice = self._device.hint
        self._inbox.lead(state.motion, state.gripper, source="device")

    def listen(self, observation: Observation) -> None:
        """Check the leader's connection; it does not move the robot between episodes."""
        if self._lost:
            self.begin(0)
        self._or_lost(self._device.read)
