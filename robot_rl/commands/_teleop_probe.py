"""What `robot-rl doctor teleop=DEVICE` runs in a process of its own: a look at a device.

    python -m robot_rl.commands._teleop_probe DEVICE SECONDS

shows the axes on the standard error output for so long where that is a terminal, reads them once
where it is not, and prints a `robot_rl.commands.doctor.Finding` as JSON in its last line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO

import numpy as np

from policies import registry
from robot_rl.config import compose
from robot_rl.env.device_attendant import Device
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

_PERIOD = 0.05
_AXES = ("front", "left", "up", "turn x", "turn y", "turn z")


def watch(device: Device, seconds: float, live: TextIO) -> str:
    """Read a connected device for some time, once at least, and say what it did.

    Args:
        device: The device.
        seconds: How long.
        live: Where each reading is shown, if this is a terminal; if not, it is read only once.

    Raises:
        RobotRLError: The device has failed.
    """
    largest, buttons = 0.0, set[str]()
    until = time.monotonic() + (seconds if live.isatty() else 0.0)
    while True:
        state = device.read(rotations.DOWNWARD)
        largest = max(largest, float(np.abs(state.motion).max()))
        buttons |= state.buttons
        if time.monotonic() >= until:
            break
        shown = "  ".join(f"{n} {v:+.2f}" for n, v in zip(_AXES, state.motion, strict=True))
        live.write(f"\r{shown}  {' '.join(sorted(buttons))}\x1b[K")
        live.flush()
        time.sleep(_PERIOD)
    if live.isatty():
        live.write("\n")
    pressed = f", buttons {', '.join(sorted(buttons))}" if buttons else ""
    return f"connected; largest motion {largest:.2f} of 1{pressed}"


def look_at(choice: str, seconds: float) -> str:
    """Connect a device of `configs/teleop` and watch it.

    Raises:
        RobotRLError: There is no such device, or it cannot be used.
    """
    configured = compose([f"teleop={choice}"]).teleop.device
    if configured is None:
        raise RobotRLError(
            "there is no device to look at",
            got=f"teleop={choice}",
            expected="a device, such as teleop=keyboard",
        )
    device: Device = registry.make(configured)
    device.connect()
    try:
        return watch(device, seconds, sys.stderr)
    finally:
        device.close()


def main(choice: str, seconds: float) -> None:
    """Look at a device and print what was found."""
    answer: dict[str, object]
    try:
        answer = {"works": True, "found": f"{choice}, {look_at(choice, seconds)}"}
    except RobotRLError as error:
        problem, _, mend = str(error).partition("; next: ")
        answer = {"works": False, "found": problem, "mend": mend or f"see configs/teleop/{choice}"}
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
