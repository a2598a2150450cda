"""Keyboard teleoperation through pynput, which receives keys whichever window has focus.

The keys held down set the motion. Only an X11 session lets a program receive other windows' keys
and query which keys are down. Wayland does neither.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drivers.base import DriverError
from drivers.teleop.base import Axes, TeleopDevice
from robot_rl.errors import require

# Key → axis and direction from the operator's view: front, left, up, and rotations about them.
KEYS: Mapping[str, tuple[int, float]] = {
    key: (axis, direction)
    for axis, pair in enumerate(("ws", "ad", "rf", "lj", "ik", "qe"))
    for key, direction in zip(pair, (1.0, -1.0), strict=True)
}

_ASK_S = 0.025  # interval between queries of the keys that are down
_SILENT_S = 0.25  # without an answer for this long, no key counts as held
_INSTEAD = "open the console (robot-rl console RUN), or take teleop=gamepad or teleop=spacemouse"


def check_session() -> str:
    """Return the X11 display that delivers keys whichever window has focus.

    Raises `DriverError` without one, as in a Wayland session.
    """
    display, wayland = os.environ.get("DISPLAY"), os.environ.get("WAYLAND_DISPLAY")
    if sys.platform != "linux":
        raise DriverError("the keyboard is heard on Linux alone", got=sys.platform, hint=_INSTEAD)
    if wayland or os.environ.get("XDG_SESSION_TYPE") == "wayland":
        raise DriverError(
            "a session of Wayland lets no program hear the keys of other windows",
            got=f"WAYLAND_DISPLAY={wayland}" if wayland else "XDG_SESSION_TYPE=wayland",
            expected="a session of X11 (choose Xorg at the log-in)",
            hint=_INSTEAD,
        )
    if not display:
        raise DriverError(
            "the keyboard needs a display",
            got="DISPLAY is not set",
            hint=f"start from a terminal of the desktop, or {_INSTEAD}",
        )
    return display


@dataclass
class Keyboard(TeleopDevice):
    """Moves with the keys of `KEYS`; other keys are buttons, under pynput's names.

    A key outside `KEYS` without another function ends the motion, until a key of `KEYS` is pressed
    again. So does a display that does not confirm that the key is still down: a release may be
    lost, or the display may hang.
    """

    speed: float = 1.0  # speed of a held key, as a fraction of the largest action
    slow_key: str = "shift"  # while held, keys move at a fifth of the speed
    # Keys that are down, and when they were pressed on the steady clock [s].
    _down: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _pressed: set[str] = field(default_factory=set, init=False, repr=False)
    # Keys that were down when the display stopped answering; ignored until released.
    _expired: set[str] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _listener: Any = field(default=None, init=False, repr=False)
    _answered: float = field(default=0.0, init=False, repr=False)  # last answer, steady clock [s]
    _problem: Exception | None = field(default=None, init=False, repr=False)
    _ending: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check for pynput and a display before any other part of a robot starts."""
        check_session()
        require("pynput.keyboard", "keyboard")

    def connect(self) -> None:
        """Start listening."""
        keyboard = require("pynput.keyboard", "keyboard")
        displays = require("Xlib.display", "keyboard")
        self.close()
        display = displays.Display(check_session())
        if display.has_extension("XWAYLAND"):
            display.close()
            raise DriverError(
                "the display is that of XWayland, which hears the windows of X11 programs alone",
                expected="a session of X11 (choose Xorg at the log-in)",
                hint=_INSTEAD,
            )
        self._listener = keyboard.Listener(on_press=self._press, on_release=self._release)
        self._listener.start()
        self._listener.wait()
        self._answered, self._problem, self._ending = time.monotonic(), None, threading.Event()
        asking = threading.Thread(
            target=self._ask, args=(display, self._ending), name="keyboard", daemon=True
        )
        asking.start()

    def axes(self) -> Axes:
        """Return the motion of the held keys, and the buttons pressed."""
        if self._problem is not None or self._listener is None or not self._listener.running:
            raise DriverError(
                "nobody listens to the keyboard",
                got=self._problem,
                hint="was the display closed? Connect again",
            ) from self._problem
        with self._lock:
            if time.monotonic() - self._answered > _SILENT_S:
                self._expired |= self._down.keys() & KEYS.keys()
                self._let_go()
            pressed = frozenset(self._pressed - KEYS.keys())
            # A key tapped between two reads counts once.
            down = self._down.keys() | self._pressed
            self._pressed.clear()
        values = np.zeros(6)
        speed = self.speed * (0.2 if self.slow_key in down else 1.0)
        for key in down & KEYS.keys():
            axis, direction = KEYS[key]
            values[axis] += direction * speed
        return Axes(values, pressed)

    def close(self) -> None:
        """Stop listening."""
        self._ending.set()
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        with self._lock:
            self._down.clear()
            self._pressed.clear()
            self._expired.clear()

    def _ask(self, display: Any, ending: threading.Event) -> None:
        """Query the keys that are down until the end; runs in a thread because it may hang."""
        try:
            while not ending.wait(_ASK_S):
                asked = time.monotonic()
                held = display.query_keymap()  # one bit per key
                codes = {key: display.keysym_to_keycodes(ord(key)) for key in KEYS}
                still = {k for k, found in codes.items() if any(_bit(held, c) for c, _ in found)}
                with self._lock:
                    self._answered = time.monotonic()
                    self._expired &= still
                    for key in (self._down.keys() & KEYS.keys()) - still:
                        if self._down[key] < asked:  # otherwise the answer predates the key press
                            del self._down[key]
            display.close()
        except Exception as problem:  # raised by `axes`
            self._problem = problem

    def _press(self, key: Any) -> None:
        name = _name(key)
        with self._lock:
            if not self._has_meaning(name):
                self._let_go()
            if (
                name not in self._down and name not in self._expired
            ):  # the desktop repeats a held key
                self._pressed.add(name)
                self._down[name] = time.monotonic()

    def _release(self, key: Any) -> None:
        name = _name(key)
        with self._lock:
            if name not in self._down or not self._has_meaning(name):
                self._let_go()
            self._down.pop(name, None)
            self._expired.discard(name)

    def _has_meaning(self, name: str) -> bool:
        others = {self.slow_key, self.shaping.gripper_button}
        return name in KEYS or name in self.events or name in others

    def _let_go(self) -> None:
        """Release the motion keys: their release events may have other names.

        AltGr or a layout change renames every key, mostly to names without a function here.
        """
        self._pressed -= KEYS.keys()
        for key in self._down.keys() & KEYS.keys():
            del self._down[key]


def _bit(held: Sequence[int], code: int) -> bool:
    return bool(held[code // 8] >> code % 8 & 1)


def _name(key: Any) -> str:
    """Return `a` for the key A with or without shift, `space` for a named key."""
    character = getattr(key, "char", None)
    if character:
        return str(character).lower()
    return str(getattr(key, "name", None) or key).removesuffix("_r").removesuffix("_l")
