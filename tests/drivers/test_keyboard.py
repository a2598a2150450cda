"""The keyboard, with real key events on a virtual display."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from virtual_keyboard import virtual_keyboard

from drivers.base import DriverError

if importlib.util.find_spec("pynput") is None:  # it cannot be imported without a display
    pytest.skip("needs the extra keyboard", allow_module_level=True)

# In a process of its own: pynput binds to the display that it finds when it is imported.
_PROGRAM = """
import os
import time
from drivers.teleop.base import Shaping
from drivers.teleop.keyboard import Keyboard
from virtual_keyboard import VirtualKeyboard

keyboard = Keyboard(Shaping(dead_zone=0.0, gripper_button="space"))
keyboard.connect()
hands = VirtualKeyboard(os.environ["DISPLAY"])

def until(found):
    deadline = time.monotonic() + 20.0
    while True:
        state = keyboard.read()
        if found(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.01)

assert not keyboard.read().moving
hands.press("w")
hands.press("a")
until(lambda s: s.moving and s.motion[0] == s.motion[1])  # to the front and left
hands.release("a")
until(lambda s: s.motion.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
hands.press("Shift_L")
until(lambda s: abs(s.motion[0] - 0.2) < 1e-9)
hands.release("Shift_L")
hands.release("w")
until(lambda s: not s.moving)
hands.hold("space", 0.05)
assert until(lambda s: s.gripper is not None).gripper == 1.0
hands.hold("Return", 0.05)
until(lambda s: "enter" in s.buttons)
assert not keyboard.read().buttons
keyboard.close()
print("done")
"""

# With AltGr the key of Q has another name, which it is let go under, and repeated under.
_ALT_GR = """
import os
import time
from drivers.teleop.base import Shaping
from drivers.teleop.keyboard import Keyboard
from virtual_keyboard import VirtualKeyboard

keyboard = Keyboard(Shaping(dead_zone=0.0))
keyboard.connect()
hands = VirtualKeyboard(os.environ["DISPLAY"])
alt_gr = "ISO_Level3_Shift"
for struck, let_go in ((("q", alt_gr), ("q", alt_gr)), ((alt_gr, "q"), (alt_gr, "q"))):
    for seconds in (0.1, 1.0):  # the desktop repeats a key after 0.7 s
        for key in struck:
            hands.press(key)
            time.sleep(seconds)
        for key in let_go:
            hands.release(key)
            time.sleep(seconds)
        time.sleep(0.2)
        keyboard.read()  # has a tap, which counts once
        if keyboard.read().moving:
            print("still moving after", struck, seconds)
print("done")
"""


@pytest.fixture
def display():
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb (Debian's package xvfb)")
    with virtual_keyboard() as keyboard:
        yield keyboard


def ran(program, display):
    return subprocess.run(
        [sys.executable, "-c", program, str(display.server)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_held_keys_move_and_pressed_ones_count_once(display):
    done = ran(_PROGRAM, display)
    assert done.stdout.strip() == "done", done.stderr


def test_a_key_that_is_let_go_under_another_name_does_not_stay_held(display):
    if shutil.which("setxkbmap") is None:
        pytest.skip("needs setxkbmap (Debian's package x11-xkb-utils)")
    subprocess.run(["setxkbmap", "us,fr"], check=True)  # AltGr with Q is then A
    done = ran(_ALT_GR, display)
    assert done.stdout.strip() == "done", done.stderr


# The display hangs with a key held, and is let go of the key before it goes on.
_SILENT = """
import os
import signal
import sys
import time
from drivers.teleop.base import Shaping
from drivers.teleop.keyboard import Keyboard
from virtual_keyboard import VirtualKeyboard

server = int(sys.argv[1])
keyboard = Keyboard(Shaping(dead_zone=0.0))
keyboard.connect()
hands = VirtualKeyboard(os.environ["DISPLAY"])

def until(moving):
    deadline = time.monotonic() + 20.0
    while keyboard.read().moving != moving:
        assert time.monotonic() < deadline
        time.sleep(0.01)

hands.press("w")
until(moving=True)
time.sleep(1.0)  # held for longer than any answer takes
assert keyboard.read().moving
os.kill(server, signal.SIGSTOP)
try:
    until(moving=False)
finally:
    os.kill(server, signal.SIGCONT)
time.sleep(1.5)  # the key is still down, and is repeated: it must be struck again
held = keyboard.read().moving
hands.release("w")
until(moving=False)
hands.press("w")
until(moving=True)
hands.release("w")
until(moving=False)
keyboard.close()
print("moved by itself" if held else "done")
"""


def test_a_held_key_does_not_outlast_a_display_that_falls_silent(display):
    done = ran(_SILENT, display)
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.parametrize("session", ["WAYLAND_DISPLAY", "XDG_SESSION_TYPE"])
def test_a_session_of_wayland_is_refused_with_what_to_use(session, monkeypatch):
    from drivers.teleop.keyboard import Keyboard

    monkeypatch.setenv("DISPLAY", ":0")  # that of XWayland
    monkeypatch.setenv(session, "wayland")
    with pytest.raises(DriverError, match=r"Wayland.*console.*teleop=spacemouse"):
        Keyboard()


def test_without_a_display_it_says_what_to_do(monkeypatch):
    from drivers.teleop.keyboard import Keyboard

    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(DriverError, match=r"DISPLAY.*teleop=gamepad"):
        Keyboard()
