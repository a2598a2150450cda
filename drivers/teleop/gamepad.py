"""Gamepad or joystick, through SDL (pygame)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drivers.base import DriverError
from drivers.teleop.base import Axes, TeleopDevice, chosen
from robot_rl.errors import require

_RELEASED = -0.9  # a trigger is valid only after it was seen below this


@dataclass
class Gamepad(TeleopDevice):
    """Two sticks and two triggers; its buttons are `button_0`, `button_1`, ….

    Defaults for an Xbox pad on Linux: left stick moves forward and left, triggers move up (right)
    and down (left), right stick turns about the vertical and tilts.
    """

    index: int = 0  # pad number, from 0
    still_s: float = 3.0  # how long a stick may rest at its end stop without a tremble [s]
    # Pad axis for each of front, left, up, and the rotations about them; -1 for none.
    sticks: Sequence[int] = (1, 0, -1, -1, 4, 3)
    signs: Sequence[float] = (-1.0, -1.0, 1.0, 1.0, -1.0, -1.0)  # sign of each axis
    # Axes that move down and up, which rest at -1; empty for none.
    triggers: Sequence[int] = (2, 5)
    _pygame: Any = field(default=None, init=False, repr=False)
    _pad: Any = field(default=None, init=False, repr=False)
    _released: set[int] = field(default_factory=set, init=False, repr=False)

    def connect(self) -> None:
        """Open the pad; raises like `TeleopDevice.connect`."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window is opened
        os.environ.setdefault("SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS", "1")
        pygame = require("pygame", "gamepad")
        self.close()
        pygame.display.init()  # SDL delivers events only with a display
        pygame.joystick.init()
        count = pygame.joystick.get_count()
        if not 0 <= self.index < count:
            pygame.joystick.quit()
            raise DriverError(
                f"there is no gamepad {self.index}",
                got=f"{count} gamepads",
                hint="plug it in and press a button; robot-rl doctor lists them",
            )
        self._pygame, self._pad = pygame, pygame.joystick.Joystick(self.index)
        self._released.clear()

    def axes(self) -> Axes:
        """Read the sticks and the pressed buttons; raises like `TeleopDevice.axes`."""
        if self._pad is None:
            raise DriverError(
                "the gamepad is not connected", hint="plug it in, and call connect() first"
            )
        pressed = set()
        for event in self._pygame.event.get():
            if getattr(event, "instance_id", None) != self._pad.get_instance_id():
                continue
            if event.type == self._pygame.JOYDEVICEREMOVED:
                self.close()  # SDL reports the removal once, and then a pad at rest
                raise DriverError("the gamepad is gone", hint="plug it in and connect again")
            if event.type == self._pygame.JOYBUTTONDOWN:
                pressed.add(f"button_{event.button}")
        axes = [float(self._pad.get_axis(n)) for n in range(self._pad.get_numaxes())]
        values = chosen(axes, self.sticks, self.signs)
        if self.triggers:
            down, up = (self._trigger(number, axes) for number in self.triggers)
            values[2] += up - down
        return Axes(np.clip(values, -1.0, 1.0), frozenset(pressed))

    def close(self) -> None:
        """Release the pad."""
        if self._pad is not None:
            self._pad.quit()
            self._pad = None

    def _trigger(self, number: int, axes: Sequence[float]) -> float:
        """Return 0 to 1. Many pads report 0 before the first touch, which is not a half pull."""
        level = float(chosen(axes, [number], [1.0])[0])
        if level < _RELEASED:
            self._released.add(number)
        return 0.5 * (level + 1.0) if number in self._released else 0.0
