"""ROS 2 node for any camera, with the topic names of realsense-ros.

    <camera>/color/image_raw                   sensor_msgs/Image, rgb8
    <camera>/color/camera_info                 sensor_msgs/CameraInfo; K is 0 if uncalibrated
    <camera>/aligned_depth_to_color/image_raw  sensor_msgs/Image, 16UC1 [mm], if depth is on

Each image is published once, stamped with its capture time. Old images are never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from sensor_msgs.msg import CameraInfo, Image

from drivers.base import DriverTimeout
from drivers.camera.base import RATES, Camera, Crop, Frame, Intrinsics
from robot_rl.ros import qos
from robot_rl.ros.conversions import header, image_message
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.node_process import run_node

# A poll waits up to this long for an image, so that it is published on arrival [s].
_WAIT_S = 0.02
# An image may arrive early by this fraction of a period; two are at least half a period apart.
_JITTER = 0.25


class CameraNode(DeviceNode):
    """Lifecycle node for a `drivers.camera.base.Camera`.

    ROS parameters, besides those of `DeviceNode`: `camera`, its name in topics and frames;
    `frame_rate_hz`, the expected rate and the upper limit for publishing; `crop` and `size`, as in
    `Crop`; `first_frame_s`, the startup timeout.
    """

    driver_family = Camera
    default_rate_hz = 200.0

    def __init__(self, name: str = "camera_node", **options: Any) -> None:
        super().__init__(name, **options)
        self._camera: str = self.parameter("camera", "camera", "its name in topics and frames")
        self._frame_rate: float = self.parameter(
            "frame_rate_hz",
            30.0,
            "pictures per second that it should give",
            low=RATES[0],
            high=RATES[1],
        )
        crop = self.parameter("crop", [], "left, top, width, height of the part to publish")
        size = self.parameter("size", [], "width and height in which that is published")
        self._view = Crop([*map(int, crop)], [*map(int, size)])
        self._first_frame: float = self.parameter(
            "first_frame_s", 5.0, "time until its first picture", low=0.0, high=60.0
        )
        self._stale_after: float = self.get_parameter("stale_after_s").value
        self._patient_until = 0.0
        self._last_sequence: int | None = None
        self._intrinsics: Intrinsics | None = None
        self._gaps = self._missed = 0
        self._due_ns = 0.0  # stamp at which the next image is due

    def make_topics(self) -> None:
        """Create the publishers."""
        self._frame_id = f"{self._camera}_color_optical_frame"
        profile = qos.sensor_publisher(self._frame_rate)
        color = f"{self._camera}/color"
        self._image = self.create_publisher(Image, f"{color}/image_raw", profile)
        self._info = self.create_publisher(CameraInfo, f"{color}/camera_info", profile)
        depth = f"{self._camera}/aligned_depth_to_color/image_raw"
        self._depth = self.create_publisher(Image, depth, profile)

    def connected(self) -> None:
        """Allow the camera its startup time, and restart the frame count."""
        self._patient_until = time.monotonic() + self._first_frame
        self._last_sequence = None
        intrinsics = self.driver.intrinsics()
        self._intrinsics = None if intrinsics is None else self._view.intrinsics(intrinsics)

    def poll(self) -> None:
        """Wait briefly for a new image and publish it."""
        try:
            frame: Frame = self.driver.read(_WAIT_S)
        except DriverTimeout:
            if time.monotonic() < self._patient_until:
                return
            raise
        self._patient_until = time.monotonic() + self._stale_after
        if self.freshness.is_new(frame.stamp_ns):
            last, self._last_sequence = self._last_sequence, frame.sequence
            if last is not None and frame.sequence > last + 1:
                self._gaps += 1
                self._missed += frame.sequence - last - 1
            if self._is_due(frame.stamp_ns):
                self._publish(self._view.of(frame))

    def facts(self) -> Mapping[str, object]:
        """Return the counts of sequence gaps and missed images."""
        return {"sequence_gaps": self._gaps, "frames_missed": self._missed}

    def _is_due(self, stamp_ns: int) -> bool:
        """Return whether to publish; limits a faster camera to `frame_rate_hz`."""
        period = 1e9 / self._frame_rate
        early = self._due_ns - stamp_ns
        # An image more than two periods early means that a clock was set back: publish it.
        if _JITTER * period < early < 2 * period:
            return False
        self._due_ns = max(self._due_ns, stamp_ns - _JITTER * period) + period
        return True

    def _publish(self, frame: Frame) -> None:
        stamp = frame.stamp_ns
        self._image.publish(image_message(frame.color, stamp, self._frame_id))
        if self._intrinsics is not None:
            info = camera_info_message(self._intrinsics, stamp, self._frame_id)
        else:  # REP 104: an uncalibrated camera has zeros
            height, width = frame.color.shape[:2]
            info = CameraInfo(header=header(stamp, self._frame_id), width=width, height=height)
        self._info.publish(info)
        if frame.depth is not None:
            self._depth.publish(image_message(frame.depth, stamp, self._frame_id))


def camera_info_message(lens: Intrinsics, stamp_ns: int, frame: str) -> CameraInfo:
    """Return the CameraInfo of an image with this stamp [ns] and optical frame."""
    fx, fy, cx, cy = lens.fx, lens.fy, lens.cx, lens.cy
    message = CameraInfo(header=header(stamp_ns, frame), width=lens.width, height=lens.height)
    message.distortion_model = "plumb_bob"
    message.d = [float(value) for value in lens.distortion]
    message.k = [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0]
    message.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    message.p = [fx, 0.0, cx, 0.0, 0.0, fy, cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    return message


main = partial(run_node, CameraNode, sends_pictures=True)  # parameter `driver` sets the driver

if __name__ == "__main__":
    raise SystemExit(main())
