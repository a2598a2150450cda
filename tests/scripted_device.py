"""Teleoperation devices that a test plays, configured like real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drivers.base import DriverError
from drivers.teleop.base import Axes, TeleopDevice


@dataclass
class ScriptedDevice(TeleopDevice):
    """Plays one entry of `script` at each read: axes (6,), the name of a button, or `gone`.

    Attributes:
        script: What to play; at its end the device is at rest.
        connections: How often it was connected.
    """

    script: Sequence[Any] = ()
    connections: int = field(default=0, init=False)
    _at: int = field(default=0, init=False)

    def connect(self) -> None:
        self.connections += 1

    def axes(self) -> Axes:
        entry = self.script[self._at] if self._at < len(self.script) else [0.0] * 6
        self._at += 1
        if entry == "gone":
            raise DriverError("the device was pulled out")
        if isinstance(entry, str):
            return Axes(np.zeros(6), frozenset([entry]))
        return Axes(np.array(entry, np.float64), frozenset())

    def close(self) -> None:
        pass


@dataclass
class HandheldDevice(TeleopDevice):
    """Keeps what is pressed until somebody reads it, as real devices do.

    Attributes:
        held: Axes (6,) as they are held now.
        pressed: Buttons that nobody has read yet.
        gone: Whether it is pulled out: reading it and connecting it both fail.
    """

    held: Sequence[float] = (0.0,) * 6
    pressed: set[str] = field(default_factory=set)
    gone: bool = False

    def connect(self) -> None:
        if self.gone:
            raise DriverError("there is no such device")

    def axes(self) -> Axes:
        if self.gone:
            raise DriverError("the device was pulled out")
        pressed = frozenset(self.pressed)
        self.pressed.clear()
        return Axes(np.array(self.held, np.float64), pressed)

    def close(self) -> None:
        pass
