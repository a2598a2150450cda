"""The keyboard as a teleoperation device, through pynput: it hears keys whichever window has focus.

The motion is that of the keys that are held down. On Linux it needs X11 (or XWayland).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drivers.errors import DriverError
from drivers.teleop.base import Axes, TeleopDevice
from robot_rl.errors import require

# Key → axis and direction, as the operator sees it: front, left, up, and turns about these.
KEYS: Mapping[str, tuple[int, float]] = {
    key: (axis, direction)
    for axis, pair in enumerate(("ws", "ad", "rf", "lj", "ik", "qe"))
    for key, direction in zip(pair, (1.0, -1.0), strict=True)
}


@dataclass
class Keyboard(TeleopDevice):
    """Moves with the keys of `KEYS`; other keys are buttons under pynput's names for them.

    A key that is neither of `KEYS` nor has another meaning here ends the motion, until a key of
    `KEYS` is pressed again.
    """

    speed: float = 1.0  # what a held key counts, as a share of the largest action
    slow_key: str = "shift"  # while it is held, keys count a fifth
    _down: set[str] = field(default_factory=set, init=False, repr=False)
    _pressed: set[str] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _listener: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Look for pynput and a display, before anything else of a robot is started."""
        if not os.environ.get("DISPLAY") and os.name == "posix" and os.uname().sysname == "Linux":
            raise DriverError(
                "the keyboard needs a display",
                got="DISPLAY is not set",
                hint="start from a terminal of the desktop, or take another device: teleop=gamepad",
            )
        require("pynput.keyboard", "keyboard")

    def connect(self) -> None:
        """Begin to listen."""
        keyboard = require("pynput.keyboard", "keyboard")
        self.close()
        self._listener = keyboard.Listener(on_press=self._press, on_release=self._release)
        self._listener.start()
        self._listener.wait()

    def axes(self) -> Axes:
        """The keys that are down, and those that went down."""
        if self._listener is None or not self._listener.running:
            raise DriverError(
                "nobody listens to the keyboard", hint="was the display closed? Connect anew"
            )
        with self._lock:
            down, pressed = set(self._down), frozenset(self._pressed - KEYS.keys())
            # A key that was tapped between two looks counts once.
            down |= self._pressed
            self._pressed.clear()
        values = np.zeros(6)
        speed = self.speed * (0.2 if self.slow_key in down else 1.0)
        for key in down & KEYS.keys():
            axis, direction = KEYS[key]
            values[axis] += direction * speed
        return Axes(values, pressed)

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        with self._lock:
            self._down.clear()
            self._pressed.clear()

    def _press(self, key: Any) -> None:
        name = _name(key)
        with self._lock:
            if not self._has_meaning(name):
                self._let_go()
            if name not in self._down:  # the desktop repeats a key that is held
                self._pressed.add(name)
            self._down.add(name)

    def _release(self, key: Any) -> None:
        name = _name(key)
        with self._lock:
            if name not in self._down or not self._has_meaning(name):
                self._let_go()
            self._down.discard(name)

    def _has_meaning(self, name: str) -> bool:
        others = {self.slow_key, self.shaping.gripper_button}
        return name in KEYS or name in self.events or name in others

    def _let_go(self) -> None:
        """Hold no motion key: it may be called otherwise when it is released.

        AltGr and what changes the layout rename every key; neither has a meaning here, nor have
        most of the new names.
        """
        self._down -= KEYS.keys()


def _name(key: Any) -> str:
    """`a` of the key A with or without shift, `space` of a named one."""
    character = getattr(key, "char", None)
    if character:
        return str(character).lower()
    return str(getattr(key, "name", None) or key).removesuffix("_r").removesuffix("_l")
