"""A gamepad through the real SDL, with one of SDL's virtual pads: no kernel device is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("pygame", reason="needs the extra gamepad")

# In a process of its own: SDL is initialised once in each.
_PROGRAM = """
import ctypes, time
import numpy as np
from pathlib import Path
from drivers.base import DriverError
from drivers.teleop.base import Shaping
from drivers.teleop.gamepad import Gamepad

shaping = Shaping(dead_zone=0.15, gripper_button="button_0")
pad = Gamepad(shaping, sticks=(1, 0, -1, -1, 3, 2), triggers=(4, 5))  # as SDL's virtual pad
try:
    pad.connect()
except DriverError as error:
    print(error)

import pygame
files = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
sdl = ctypes.CDLL(next(name for name in files if "libSDL2-2" in name))
pygame.joystick.init()
index = sdl.SDL_JoystickAttachVirtual(1, 6, 10, 1)  # 1: a game controller
sdl.SDL_JoystickOpen.restype = ctypes.c_void_p
handle = ctypes.c_void_p(sdl.SDL_JoystickOpen(index))
pad.connect()

def axis(number, value):
    sdl.SDL_JoystickSetVirtualAxis(handle, number, ctypes.c_int16(round(value * 32767)))

def button(number, down):
    sdl.SDL_JoystickSetVirtualButton(handle, number, ctypes.c_uint8(down))

def until(found):
    deadline = time.monotonic() + 20.0
    while True:
        state = pad.read()
        if found(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.01)

assert not pad.read().moving  # triggers that were never touched are not half pulled
axis(1, -1.0)
until(lambda s: np.allclose(s.motion, [1, 0, 0, 0, 0, 0], atol=1e-3))
axis(1, 0.1)  # a stick that does not come back to its centre
until(lambda s: not s.moving)
axis(5, 1.0)
until(lambda s: s.motion[2] > 0.98)
axis(5, -1.0)
until(lambda s: not s.moving)
button(0, 1)
assert until(lambda s: s.gripper is not None).gripper == 1.0
button(7, 1)
until(lambda s: "button_7" in s.buttons)
assert not pad.read().buttons
sdl.SDL_JoystickDetachVirtual(index)
try:
    until(lambda s: False)
except DriverError as error:
    print(error)
try:
    pad.read()  # the fault lasts, so that a node connects the pad again
except DriverError as error:
    print(error)
index = sdl.SDL_JoystickAttachVirtual(1, 6, 10, 1)
handle = ctypes.c_void_p(sdl.SDL_JoystickOpen(index))
pad.connect()
button(3, 1)
until(lambda s: "button_3" in s.buttons)
pad.close()
print("done")
"""


def test_sticks_triggers_and_buttons_and_a_pad_that_is_pulled_out_and_comes_back():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYGAME_HIDE_SUPPORT_PROMPT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    absent, gone, still_gone, end = done.stdout.strip().splitlines()
    assert "there is no gamepad 0; got: 0 gamepads" in absent
    assert "the gamepad is gone" in gone
    assert "the gamepad is not connected" in still_gone
    assert end == "done"
