"""RealSense twin: librealsense's software device, fed with images of the world.

Frames take the same path through the library as a real camera's, from the sensors on: matching into
framesets, profile, intrinsics, stamp, and alignment. Only the library's pipeline is bypassed:
version 2.59 does not find software devices.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.base import DriverError, DriverTimeout
from drivers.camera.base import Frame, Image
from drivers.camera.realsense import RealSenseCamera
from drivers.camera.sim import SimCamera
from robot_rl.env.sim.world import GripperMotor
from robot_rl.env.task import Task

if TYPE_CHECKING:
    from robot_rl.ros.ros_client import RosClient

# Topic of camera faults, published by the cell's node; empty for no fault.
CAMERAS_TOPIC = "sim/cameras"
SILENT, FROZEN = "silent", "frozen"

_WAIT_SECONDS = 0.5
_MILLIMETRE = 1e-3
_UNMOVED = ([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0])
# librealsense does not copy images: keep this many until it has forwarded them.
_KEPT_FRAMES = 16


@dataclass(eq=False, kw_only=True)
class _Scene(SimCamera):
    """The camera's view of the world, and its `fault`."""

    fault = ""

    def listen(self, name: str = "twin_camera") -> RosClient:
        """Subscribe to the world and to the camera faults."""
        from std_msgs.msg import String

        from robot_rl.ros import qos

        client = super().listen(name)
        client.node.create_subscription(String, CAMERAS_TOPIC, self._take, qos.latched())
        return client

    def _take(self, message: Any) -> None:
        self.fault = str(message.data)


@dataclass(eq=False, kw_only=True)
class TwinRealSense(RealSenseCamera):
    """One camera of the twin's model, through `pyrealsense2`.

    Adds noise to the lowest colour bit, because a real sensor never repeats an image.
    """

    task: Task  # the twin's simulated task
    model: str  # path of the arm's MJCF, under `hardware/`
    gripper: GripperMotor  # same as the twin's
    camera: str  # camera name in the model
    namespace: str = ""  # namespace of the twin's node

    def __post_init__(self) -> None:
        self.serial = self.serial or self.camera
        super().__post_init__()
        self._scene = _Scene(
            task=self.task,
            model=self.model,
            gripper=self.gripper,
            namespace=self.namespace,
            camera=self.camera,
            width=self.width,
            height=self.height,
            rate_hz=float(self.rate_hz),
            depth=self.depth,
        )
        self._noise = np.random.default_rng(0)
        self._sensors: list[tuple[Any, Any]] = []  # colour, and optional depth; their profiles
        self._kept: deque[Any] = deque(maxlen=_KEPT_FRAMES)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Create the device and start feeding it."""
        self.close()
        rs = self._rs
        device = rs.software_device()
        device.register_info(rs.camera_info.serial_number, self.serial)
        device.register_info(rs.camera_info.name, f"twin of a RealSense, {self.camera}")
        made = [("RGB Camera", rs.stream.color, rs.format.rgb8, 3)]
        if self.depth:
            made.append(("Stereo Module", rs.stream.depth, rs.format.z16, 2))
        for number, (name, kind, encoding, size) in enumerate(made):
            sensor = device.add_sensor(name)
            stream = rs.video_stream()
            stream.type, stream.fmt, stream.bpp, stream.uid = kind, encoding, size, number
            stream.width, stream.height, stream.fps = self.width, self.height, self.rate_hz
            stream.intrinsics = self._lens()
            self._sensors.append((sensor, sensor.add_video_stream(stream)))
        if self.depth:
            self._relate()
        device.create_matcher(rs.matchers.default)
        syncer = rs.syncer(1)
        for sensor, profile in self._sensors:
            sensor.open([profile])
            sensor.start(syncer)
        self._problem: Exception | None = None  # why the image feed ended

        def next_frames(milliseconds: int) -> Any:
            if self._problem is not None:
                raise DriverError("the twin's camera cannot see", got=repr(self._problem))
            return syncer.wait_for_frames(milliseconds)

        self._next_frames, self._last = next_frames, None
        self._ending.clear()
        self._scene.connect()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()
        self._set_up(device, self._sensors[0][1])

    def close(self) -> None:
        """Stop the streams and the rendering."""
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        for sensor, _ in self._sensors:
            with contextlib.suppress(RuntimeError):  # it was never started
                sensor.stop()
                sensor.close()
        self._sensors.clear()
        self._next_frames = None

    def _relate(self) -> None:
        """Place depth at the colour camera, in millimetres."""
        (_, color), (stereo, depth) = self._sensors
        stereo.add_read_only_option(self._rs.option.depth_units, _MILLIMETRE)
        together = self._rs.extrinsics()
        together.rotation, together.translation = _UNMOVED
        color.register_extrinsics_to(depth, together)
        depth.register_extrinsics_to(color, together)

    def _lens(self) -> Any:
        lens, ours = self._rs.intrinsics(), self._scene.intrinsics()
        lens.width, lens.height, lens.fx, lens.fy = ours.width, ours.height, ours.fx, ours.fy
        lens.ppx, lens.ppy, lens.coeffs = ours.cx, ours.cy, [0.0] * 5
        lens.model = self._rs.distortion.brown_conrady
        return lens

    def _feed(self) -> None:
        """Render until closed; OpenGL needs one thread throughout."""
        shown: Frame | None = None
        try:
            while not self._ending.is_set():
                with contextlib.suppress(DriverTimeout):  # no new image while the world is paused
                    seen = self._scene.read(_WAIT_SECONDS)
                    if shown is None or self._scene.fault != FROZEN:
                        shown = replace(seen, color=self._noisy(seen.color))
                    if self._scene.fault != SILENT:
                        self._send(replace(shown, stamp_ns=seen.stamp_ns, sequence=seen.sequence))
        except Exception as problem:  # raised by the next read
            self._problem = problem
        finally:
            self._scene.close()

    def _noisy(self, color: Image) -> Image:
        noisy: Image = color ^ self._noise.integers(0, 2, color.shape, np.uint8)
        return noisy

    def _send(self, seen: Frame) -> None:
        # Depth first, because colour completes the set.
        for (sensor, profile), picture in reversed(
            list(zip(self._sensors, (seen.color, seen.depth), strict=False))
        ):
            assert picture is not None  # a depth sensor implies depth
            pixels = np.ascontiguousarray(picture)
            self._kept.append(pixels)
            frame = self._rs.software_video_frame()
            frame.pixels, frame.bpp = pixels, pixels.nbytes // (self.width * self.height)
            frame.stride = self.width * frame.bpp
            frame.timestamp = seen.stamp_ns * 1e-6
            frame.domain = self._rs.timestamp_domain.system_time
            frame.frame_number, frame.profile = seen.sequence, profile.as_video_stream_profile()
            frame.depth_units = _MILLIMETRE
            sensor.on_video_frame(frame)
