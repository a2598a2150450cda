"""A virtual display and the keys that are struck on it, as a person's would be."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from robot_rl.errors import RobotRLError, installing

_END_SECONDS = 20.0


class VirtualKeyboard:
    """Strikes keys on a display through X's test extension: all who listen there hear them.

    Args:
        display: Its name, such as `:1`.
        server: The process id of the display.
    """

    def __init__(self, display: str, server: int = 0) -> None:
        """See the class."""
        from Xlib import XK, X  # of the extra keyboard
        from Xlib import display as displays
        from Xlib.ext import xtest

        self.server = server
        self._display: Any = displays.Display(display)
        self._symbol, self._fake = XK.string_to_keysym, xtest.fake_input
        self._down, self._up = X.KeyPress, X.KeyRelease

    def hold(self, name: str, seconds: float) -> int:
        """Hold a key down for a while; returns when it went down, system clock [ns].

        Args:
            name: X's name of the key, such as `w` or `Escape`.
            seconds: How long.
        """
        struck = time.time_ns()
        self.press(name)
        time.sleep(seconds)
        self.release(name)
        return struck

    def press(self, name: str) -> None:
        """Press a key down; see `hold`."""
        self._strike(self._down, name)

    def release(self, name: str) -> None:
        """Let a key go; see `hold`."""
        self._strike(self._up, name)

    def close(self) -> None:
        """Leave the display."""
        self._display.close()

    def _strike(self, kind: int, name: str) -> None:
        code = self._display.keysym_to_keycode(self._symbol(name))
        self._fake(self._display, kind, code)
        self._display.sync()


@contextmanager
def virtual_keyboard() -> Iterator[VirtualKeyboard]:
    """A display of this process and its children alone, and its keyboard.

    Raises:
        RobotRLError: Xvfb or the extra keyboard is missing, or the display does not start.
    """
    if shutil.which("Xvfb") is None:
        raise RobotRLError(
            "there is no virtual display", got="no Xvfb", hint="apt install xvfb (Debian)"
        )
    if importlib.util.find_spec("Xlib") is None:
        raise RobotRLError(
            "nothing can strike a key",
            got="no python-xlib",
            hint=f"{installing('keyboard')}, with which it comes",
        )
    before = os.environ.get("DISPLAY")
    reader, writer = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer), "-screen", "0", "320x240x8", "-nolisten", "tcp"],
        pass_fds=[writer],
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    try:
        with os.fdopen(reader) as file:
            number = file.readline().strip()
        if not number:
            raise RobotRLError("Xvfb has ended", got=f"exit code {server.wait()}")
        os.environ["DISPLAY"] = f":{number}"
        keyboard = VirtualKeyboard(os.environ["DISPLAY"], server.pid)
        try:
            yield keyboard
        finally:
            keyboard.close()
    finally:
        os.environ.pop("DISPLAY", None)
        if before is not None:
            os.environ["DISPLAY"] = before
        server.terminate()
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
