"""3Dconnexion SpaceMouse, read from its HID reports."""

from __future__ import annotations

import struct
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drivers.base import DriverError
from drivers.teleop.base import Axes, TeleopDevice, Vector
from robot_rl.errors import require

# Vendors with this protocol: 3Dconnexion, and formerly Logitech.
VENDORS = (0x256F, 0x046D)
_NAMES = ("space", "3dconnexion")
# The hidapi module. On Linux its `hid` uses libusb, which the udev rule does not cover and which
# detaches the device from the kernel; `hidraw` opens /dev/hidraw….
_MODULE = "hidraw" if sys.platform == "linux" else "hid"
_FULL = 350.0  # largest reading of an axis
_TRANSLATION, _ROTATION, _BUTTONS = 1, 2, 3
_READ_BYTES = 64
_READ_MS = 100
# A deflected device reports every 8 ms (measured on a SpaceNavigator:
# github.com/FreeSpacenav/spacenavd/issues/108). After this many reads without a report, the device
# is gone or its last report was lost.
_SILENT_READS = 2
# Device axes: x to the right, y to the operator, z down; ours: front, left, up.
_TO_OPERATOR = np.array([[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])


class Reports:
    """State decoded from a stream of HID reports.

    Report 1 has three int16 of translation, followed by three of rotation on newer devices; report
    2 has rotation only; report 3 has one bit per button.
    """

    def __init__(self) -> None:
        self._translation = np.zeros(3)
        self._rotation = np.zeros(3)
        self._down = 0
        self._silent_reads = 0

    @property
    def values(self) -> Vector:
        """Axes (6,), as in `drivers.teleop.base.Axes`."""
        parts = (_TO_OPERATOR @ self._translation, _TO_OPERATOR @ self._rotation)
        return np.clip(np.concatenate(parts) / _FULL, -1.0, 1.0)

    def take(self, report: bytes) -> frozenset[str]:
        """Process one report; returns the buttons that it pressed.

        Other reports, such as battery level, are ignored. An empty report means that a read timed
        out: several in a row reset the axes to rest.
        """
        self._silent_reads = 0 if report else self._silent_reads + 1
        if self._silent_reads >= _SILENT_READS:
            self._translation, self._rotation = np.zeros(3), np.zeros(3)
        if not report:
            return frozenset()
        kind, body = report[0], report[1:]
        if kind == _TRANSLATION and len(body) >= 6:
            self._translation = np.array(struct.unpack_from("<3h", body))
            if len(body) >= 12:
                self._rotation = np.array(struct.unpack_from("<3h", body, 6))
        elif kind == _ROTATION and len(body) >= 6:
            self._rotation = np.array(struct.unpack_from("<3h", body))
        elif kind == _BUTTONS:
            before, self._down = self._down, int.from_bytes(body[:4], "little")
            new = self._down & ~before
            return frozenset(f"button_{i}" for i in range(new.bit_length()) if new >> i & 1)
        return frozenset()


@dataclass
class SpaceMouse(TeleopDevice):
    """A SpaceMouse on this machine; its buttons are `button_0`, `button_1`, …."""

    # HID device path, such as /dev/hidraw0; None uses the first one found.
    path: str | None = None
    _reports: Reports = field(default_factory=Reports, init=False, repr=False)
    _pressed: set[str] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _device: Any = field(default=None, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)
    _ending: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _problem: Exception | None = field(default=None, init=False, repr=False)

    def connect(self) -> None:
        """Open the device and start reading; raises like `TeleopDevice.connect`."""
        hid = require(_MODULE, "spacemouse")
        self.close()
        path = self.path.encode() if self.path is not None else _found(hid)
        device = hid.device()
        try:
            device.open_path(path)
        except OSError as error:
            raise DriverError(
                f"the SpaceMouse {path.decode()} cannot be opened",
                got=error,
                hint="run robot-rl doctor, and install the udev rule from hardware/",
            ) from error
        self._device, self._reports, self._problem = device, Reports(), None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="spacemouse", daemon=True)
        self._thread.start()

    def axes(self) -> Axes:
        """Return the latest state; raises like `TeleopDevice.axes`."""
        if self._problem is not None:
            raise DriverError(
                "the SpaceMouse is gone",
                got=self._problem,
                hint="was it pulled out? Connect it again",
            ) from self._problem
        if self._thread is None:
            raise DriverError("the SpaceMouse is not connected", hint="call connect() first")
        with self._lock:
            pressed = frozenset(self._pressed)
            self._pressed.clear()
            return Axes(self._reports.values, pressed)

    def close(self) -> None:
        """Stop reading and release the device."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._device.close()
        self._thread = self._device = None

    def _listen(self) -> None:
        try:
            while not self._ending.is_set():
                report = bytes(self._device.read(_READ_BYTES, _READ_MS))
                with self._lock:
                    self._pressed |= self._reports.take(report)
        except (OSError, ValueError) as problem:  # raised by `axes`
            self._problem = problem


def _found(hid: Any) -> bytes:
    devices = [d for vendor in VENDORS for d in hid.enumerate(vendor, 0)]
    for device in devices:
        if any(name in str(device["product_string"]).lower() for name in _NAMES):
            return bytes(device["path"])
    names = sorted({str(device["product_string"]) for device in devices})
    raise DriverError(
        "there is no SpaceMouse",
        got=f"of its vendors: {', '.join(names) or 'nothing'}",
        hint="plug it in; robot-rl doctor lists HID devices and says which may be opened",
    )
