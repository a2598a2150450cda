"""Intel RealSense cameras through pyrealsense2, live or from a recording (.db3, .bag).

Tested with librealsense's software device and its recordings, not yet on a real camera.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from drivers.base import DriverError, DriverTimeout, check_ranges
from drivers.camera.base import RATES, Depth, Frame, Image, Intrinsics, check_color
from robot_rl.errors import MissingExtra, require

_UNPLUGGED = "is it still plugged into USB 3?"
_MILLIMETRES = 1000.0
# Unsynchronised colour and depth of one moment are at most half a period apart.
_MOMENT = 0.75
# Sensor noise makes every image different. After this many identical images it is stuck.
_SAME_PICTURES = 3
# Frames used to compare the camera clock with the system clock: 20 s at 30 Hz, in which clocks that
# differ by 50 ppm drift apart by 1 ms.
_CLOCK_FRAMES = 600
# Exposure unit of an RGB sensor; a stereo module uses 1 µs (librealsense issue 8243).
_RGB_TICK_US = 100.0


@dataclass(eq=False)
class RealSenseCamera:
    """RealSense colour stream, with optional depth aligned to colour.

    The library queues one frame, so a slow reader gets the latest.
    """

    serial: str | int | None = None  # as listed by `robot-rl doctor`; None selects the only camera
    width: int = 640  # pixels, colour and depth
    height: int = 480  # pixels
    rate_hz: int = 30  # frames per second
    depth: bool = False  # whether to stream depth, aligned to colour
    # Exposure of the sensor that captures colour [µs]; an RGB sensor rounds it to 100 µs. None
    # leaves it to the camera.
    exposure_us: int | None = None
    gain: int | None = None  # gain of the same sensor; only with an exposure
    white_balance_k: int | None = None  # colour temperature [K]; None leaves it to the camera
    recording: str | None = None  # RealSense viewer or SDK recording to play instead of a camera
    context: Callable[[], Any] | None = None  # factory for the librealsense context

    def __post_init__(self) -> None:
        check_ranges("camera", self, rate_hz=RATES)
        if self.serial is not None and self.recording is not None:
            raise DriverError(
                "a camera is either a serial number or a recording",
                got=f"serial {self.serial} and recording {self.recording}",
                expected="one of the two",
            )
        self._rs = load_library()
        self._serial = None if self.serial is None else str(self.serial)
        self._size = (self.width, self.height)
        self._context = (self.context or self._rs.context)()
        self._pipeline: Any = None
        # Waits up to this many milliseconds for the next frameset in the library's queue.
        self._next_frames: Callable[[int], Any] | None = None
        self._intrinsics: Intrinsics | None = None
        self._depth_unit = 1e-3  # m
        self._last: int | None = None
        self._picture: Image | None = None  # latest image
        self._repeats = 0  # times the latest image was repeated
        self._offsets: deque[int] = deque(maxlen=_CLOCK_FRAMES)

    @property
    def name(self) -> str:
        """Camera name used in errors."""
        return self.recording or f"RealSense {self._serial or ''}".strip()

    def connect(self) -> None:
        """Find the camera, start its streams and set its exposure."""
        self.close()
        rs = self._rs
        config = rs.config()
        if self.recording is not None:
            try:
                open(self.recording, "rb").close()
            except OSError as error:
                raise DriverError("the recording cannot be read", got=error) from error
            rs.config.enable_device_from_file(config, self.recording, repeat_playback=True)
        else:
            config.enable_device(self._found()[0])
        config.enable_stream(rs.stream.color, *self._size, rs.format.rgb8, self.rate_hz)
        if self.depth:
            config.enable_stream(rs.stream.depth, *self._size, rs.format.z16, self.rate_hz)
        queue, pipeline = rs.frame_queue(1), rs.pipeline(self._context)
        try:
            profile = pipeline.start(config, queue)
        except RuntimeError as error:
            raise DriverError(
                f"{self.name} does not start",
                got=error,
                expected=f"colour {'and depth ' if self.depth else ''}of"
                f" {self.width}×{self.height} at {self.rate_hz} Hz; {self._abilities()}",
                hint="choose one of these, and use no other program with it at the same time",
            ) from error
        self._pipeline, self._next_frames, self._last = pipeline, queue.wait_for_frame, None
        self._offsets.clear()  # its clock may have restarted
        try:
            self._set_up(profile.get_device(), profile.get_stream(rs.stream.color))
        except RuntimeError as error:
            problem = f"{self.name} was lost while it was started"
            raise DriverError(problem, got=error, hint=_UNPLUGGED) from error

    def read(self, timeout_s: float) -> Frame:
        """Wait for a new frame, with depth of the same moment if depth is enabled.

        An image equal to the previous one is skipped; several in a row raise `DriverError`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            frames = self._wait(deadline)
            color = frames.get_color_frame()
            depth = frames.get_depth_frame() if self.depth else None
            fresh = color and color.get_frame_number() != self._last
            if fresh and (not self.depth or self._are_of_one_moment(color, depth)):
                number = self._last = int(color.get_frame_number())
                picture = np.array(color.get_data())  # copy: the library reuses its memory
                if self._picture is None or not np.array_equal(picture, self._picture):
                    break
                self._repeats += 1
        self._picture, self._repeats = picture, 0
        stamp = self._stamp_ns(color)
        if self.depth:
            aligned = self._align.process(frames)
            depth = aligned.get_depth_frame()
        check_color(self.name, picture, *self._size)
        return Frame(stamp, number, picture, self._millimetres(depth) if depth else None)

    def intrinsics(self) -> Intrinsics | None:
        """Return the intrinsics at this size; None before the first connection."""
        return self._intrinsics

    def close(self) -> None:
        """Stop the streams."""
        pipeline, self._pipeline, self._next_frames = self._pipeline, None, None
        if pipeline is not None:
            try:
                device = pipeline.get_active_profile().get_device()
                # `stop` can crash the process if the library's playback thread is still reading
                # (librealsense issue 9446). Pausing ends that thread first.
                if device.is_playback():
                    device.as_playback().pause()
                pipeline.stop()
            except RuntimeError:
                return  # unplugged: no device to stop

    def _set_up(self, device: Any, color: Any) -> None:
        """Read the intrinsics and depth scale of a started camera, and set its exposure."""
        self._intrinsics = _intrinsics(color.as_video_stream_profile().get_intrinsics())
        if self.depth:
            self._align = self._rs.align(self._rs.stream.color)
            self._depth_unit = device.first_depth_sensor().get_depth_scale()
        if self.recording is None:
            options = (self.exposure_us, self.gain, self.white_balance_k)
            set_color_options(self.name, device, *options)

    def _wait(self, deadline: float) -> Any:
        if self._next_frames is None:
            raise DriverError(f"{self.name} is not connected", hint="connect first")
        left = max(1, round((deadline - time.monotonic()) * 1e3))
        try:
            return self._next_frames(left).as_frameset()
        except RuntimeError as error:
            if self._repeats >= _SAME_PICTURES:
                problem = f"{self.name} gives the same picture again and again"
                hint = "is its lens covered? Else pull it out, and plug it in again"
                raise DriverError(problem, hint=hint) from error
            problem = f"{self.name} gave no new picture in time"
            raise DriverTimeout(problem, got=error, hint=_UNPLUGGED) from error

    def _are_of_one_moment(self, color: Any, depth: Any) -> bool:
        """Return whether depth belongs to an image; after a loss the library repeats an old one."""
        if not depth:
            return False
        if color.get_frame_timestamp_domain() != depth.get_frame_timestamp_domain():
            return True  # different clocks: the stamps cannot be compared
        apart = abs(color.get_timestamp() - depth.get_timestamp())  # ms
        return bool(apart <= _MOMENT * 1e3 / self.rate_hz)

    def _stamp_ns(self, frame: Any) -> int:
        """Return the capture time on the system clock.

        If the camera does not relate its own clock to the system clock, the fastest of the recent
        frames sets the offset. A delayed frame then still gets its capture time.
        """
        now, taken = time.time_ns(), int(frame.get_timestamp() * 1e6)
        if self.recording is not None:
            return now
        if frame.get_frame_timestamp_domain() != self._rs.timestamp_domain.hardware_clock:
            return taken
        self._offsets.append(now - taken)
        return taken + min(self._offsets)

    def _millimetres(self, depth: Any) -> Depth:
        raw = np.array(depth.get_data())
        scale = self._depth_unit * _MILLIMETRES
        if abs(scale - 1.0) < 1e-6:
            return raw
        scaled = np.rint(raw * scale)
        return np.where(scaled > np.iinfo(np.uint16).max, 0, scaled).astype(np.uint16)

    def _found(self) -> tuple[str, Any]:
        """Return the serial number and library device of the camera to use."""
        number = self._rs.camera_info.serial_number
        cameras: dict[str, Any] = {}  # by serial number
        mute = []  # problems of cameras whose serial number cannot be read
        try:
            devices = self._context.query_devices()
        except RuntimeError as error:
            raise DriverError("the RealSense library cannot list cameras", got=error) from error
        for index in range(len(devices)):
            # A camera that is starting or in use elsewhere does not affect another one.
            try:
                device = devices[index]
                if device.supports(number):
                    cameras[str(device.get_info(number))] = device
            except RuntimeError as error:
                mute.append(f"one that cannot be asked ({error})")
        if self._serial is not None and self._serial in cameras:
            return self._serial, cameras[self._serial]
        if self._serial is None and len(cameras) == 1 and not mute:
            return next(iter(cameras.items()))
        there = [*cameras, *mute]
        raise DriverError(
            f"there is no RealSense {self._serial}"
            if self._serial
            else "which RealSense is meant must be said with serial"
            if there
            else "there is no RealSense",
            got=f"there: {', '.join(there) or 'none'}",
            hint="plug it into USB 3, install the udev rules of hardware/udev; robot-rl doctor"
            " lists what it sees",
        )

    def _abilities(self) -> str:
        try:
            if self.recording is not None:
                device = self._context.load_device(self.recording)
            else:
                device = self._found()[1]
            profiles = [p for one in device.query_sensors() for p in one.get_stream_profiles()]
        except (RuntimeError, DriverError) as error:
            return f"what it has it does not say ({error})"
        videos = [p for p in profiles if p.stream_type() == self._rs.stream.color]
        sizes = {(p.as_video_stream_profile(), p.fps()) for p in videos}
        found = ", ".join(sorted({f"{v.width()}×{v.height()} {fps} Hz" for v, fps in sizes}))
        return f"it has {found or 'no colour at all'}"


def set_color_options(
    name: str,
    device: Any,
    exposure_us: float | None,
    gain: float | None,
    white_balance_k: float | None,
) -> None:
    """Set exposure, gain and white balance of the sensor that captures colour.

    None leaves an option to the camera. Raises `DriverError` if the sensor lacks an option or
    rejects its value.
    """
    library = load_library()
    option, color = library.option, library.stream.color
    seeing = [
        sensor
        for sensor in device.query_sensors()
        if any(profile.stream_type() == color for profile in sensor.get_stream_profiles())
    ]
    # A D405 has no separate colour sensor: its stereo module captures colour.
    sensor = min(seeing, key=lambda one: bool(one.is_depth_sensor()))
    tick = 1.0 if sensor.is_depth_sensor() else _RGB_TICK_US
    wanted = {
        option.enable_auto_exposure: (None if exposure_us is None else 0.0, 1.0),
        option.exposure: (exposure_us, tick),
        option.gain: (gain, 1.0),
        option.enable_auto_white_balance: (None if white_balance_k is None else 0.0, 1.0),
        option.white_balance: (white_balance_k, 1.0),
    }
    for kind, (value, unit) in wanted.items():
        if value is None:
            continue
        try:
            sensor.set_option(kind, float(round(value / unit)))
        except RuntimeError as error:
            limits = sensor.get_option_range(kind) if sensor.supports(kind) else None
            raise DriverError(
                f"the {sensor.get_info(library.camera_info.name)} of {name} refuses {kind}",
                got=value,
                expected="another camera: it lacks this"
                if limits is None
                else f"{limits.min * unit:.9g} to {limits.max * unit:.9g} in steps of"
                f" {limits.step * unit:.9g}",
            ) from error


def load_library() -> ModuleType:
    """Import pyrealsense2 and libusb, both in the extra `realsense`, or raise `MissingExtra`."""
    try:
        return require("pyrealsense2", "realsense")
    except MissingExtra as error:
        if "libusb" not in str(error):
            raise
    path = require("libusb_package", "realsense").get_library_path()
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return require("pyrealsense2", "realsense")


def _intrinsics(values: Any) -> Intrinsics:
    """Convert the library's intrinsics as realsense-ros does.

    librealsense labels colour coefficients inverse Brown-Conrady; they are used as forward ones.
    """
    k1, k2, p1, p2, k3 = (float(value) for value in values.coeffs)
    lens = (values.fx, values.fy, values.ppx, values.ppy, (k1, k2, p1, p2, k3))
    return Intrinsics(values.width, values.height, *lens)
