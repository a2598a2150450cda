"""A camera whose pictures are already on ROS 2 topics, for example of a realsense-ros node."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.camera.base import Depth, Frame, Image, Intrinsics, check_color
from drivers.camera.newest import NewestFrame
from drivers.errors import DriverError, DriverTimeout
from robot_rl.errors import RobotRLError

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient

_FIRST_PICTURE_S = 5.0
_UNMATCHED = 10  # pictures that wait for their depth, or depths for their picture


class TopicsCamera:
    """Takes pictures from topics.

    Args:
        topic: Of the pictures, rgb8 or bgr8.
        depth_topic: Of depth aligned to them, 16UC1 in millimetres with the same stamps; None
            for none.
        info_topic: Of their CameraInfo; None: beside the pictures.
        width: Pixels that pictures must have.
        height: Pixels.
        namespace: Below which topics that do not begin with a slash are.
    """

    def __init__(
        self,
        topic: str = "camera/color/image_raw",
        depth_topic: str | None = None,
        info_topic: str | None = None,
        width: int = 640,
        height: int = 480,
        namespace: str = "",
    ) -> None:
        """See the class."""
        self._topic, self._depth_topic = topic, depth_topic
        self._info_topic = info_topic or f"{topic.rpartition('/')[0]}/camera_info"
        self._size = (width, height)
        self._namespace = namespace
        self._client: RosClient | None = None
        self._newest = NewestFrame(topic)
        self._first = threading.Event()
        self._info: Any = None
        self._colors: OrderedDict[int, tuple[int, Image]] = OrderedDict()
        self._depths: OrderedDict[int, Depth] = OrderedDict()

    def connect(self) -> None:
        """Subscribe, and wait for the first picture."""
        from rclpy.executors import SingleThreadedExecutor
        from sensor_msgs.msg import CameraInfo
        from sensor_msgs.msg import Image as ImageMessage

        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        self._newest, self._first = NewestFrame(self._topic), threading.Event()
        self._colors.clear()
        self._depths.clear()
        self._client = RosClient("topics_camera", self._namespace, SingleThreadedExecutor)
        subscribe: Any = self._client.node.create_subscription
        profile = qos.sensor_subscription(2)
        subscribe(ImageMessage, self._topic, self._take_color, profile)
        subscribe(CameraInfo, self._info_topic, self._take_info, profile)
        if self._depth_topic is not None:
            subscribe(ImageMessage, self._depth_topic, self._take_depth, profile)
        if not self._first.wait(_FIRST_PICTURE_S):
            depth = "" if self._depth_topic is None else f" with depth on {self._depth_topic}"
            raise DriverTimeout(
                f"no picture on {self._client.topic(self._topic)}{depth}",
                got=f"none within {_FIRST_PICTURE_S:g} s",
                hint="does the camera's node run? See ros2 topic hz",
            )

    def read(self, timeout_s: float) -> Frame:
        """Wait for a new frame."""
        if self._client is not None:
            self._client.check()
        return self._newest.take(timeout_s)

    def intrinsics(self) -> Intrinsics | None:
        """Those of the newest CameraInfo; None without one, or where it says uncalibrated.

        Raises:
            DriverError: They are of another size, or of a model other than plumb_bob.
        """
        info = self._info
        if info is None or not info.k[0]:
            return None
        if info.distortion_model not in ("plumb_bob", "") or len(info.d) not in (0, 4, 5):
            raise DriverError(
                f"{self._info_topic} has a model of lenses that is not supported",
                got=f"{info.distortion_model or 'none'} with {len(info.d)} coefficients",
                expected="plumb_bob with up to 5",
            )
        if (info.width, info.height) != self._size:
            raise DriverError(
                f"{self._info_topic} is of another size",
                got=f"{info.width}×{info.height}",
                expected="{}×{}".format(*self._size),
            )
        k1, k2, p1, p2, k3 = list(info.d) + [0.0] * (5 - len(info.d))
        fx, fy, cx, cy = info.k[0], info.k[4], info.k[2], info.k[5]
        return Intrinsics(info.width, info.height, fx, fy, cx, cy, (k1, k2, p1, p2, k3))

    def close(self) -> None:
        """Unsubscribe."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _take_info(self, message: Any) -> None:
        self._info = message

    def _take_color(self, message: Any, info: Mapping[str, Any]) -> None:
        try:
            picture = self._picture(message, self._topic)
            if picture.shape[2:] != (3,):
                raise self._wrong(message, self._topic, "rgb8 or bgr8")
            check_color(self._topic, np.asarray(picture, np.uint8), *self._size)
        except RobotRLError as error:
            self._fail(error)
            return
        number = int(info["publication_sequence_number"])
        self._keep(self._colors, _stamp_ns(message), (number, picture))

    def _take_depth(self, message: Any) -> None:
        try:
            picture = self._picture(message, str(self._depth_topic))
            if picture.dtype != np.uint16 or picture.shape[1::-1] != self._size:
                raise self._wrong(message, str(self._depth_topic), "16UC1")
        except RobotRLError as error:
            self._fail(error)
            return
        self._keep(self._depths, _stamp_ns(message), picture[..., 0])

    def _keep(self, place: OrderedDict[int, Any], stamp: int, content: Any) -> None:
        """Keep a part, and pass on what is complete."""
        place[stamp] = content
        while len(place) > _UNMATCHED:
            place.popitem(last=False)
        if stamp not in self._colors:
            return
        if self._depth_topic is not None and stamp not in self._depths:
            return
        number, color = self._colors.pop(stamp)
        self._newest.put(Frame(stamp, number, color, self._depths.pop(stamp, None)))
        self._first.set()

    def _fail(self, error: RobotRLError) -> None:
        """Let the reader meet what is wrong with a message."""
        self._newest.fail(DriverError(f"{self._topic}: {error}"))
        self._first.set()

    def _picture(self, message: Any, topic: str) -> Any:
        from robot_rl.ros.messages import MessageError, image_array

        try:
            return image_array(message)
        except MessageError as error:
            raise DriverError(f"{topic}: {error}") from error

    def _wrong(self, message: Any, topic: str, encoding: str) -> DriverError:
        return DriverError(
            f"{topic} gives pictures of another kind",
            got=f"{message.encoding} {message.width}×{message.height}",
            expected=f"{encoding} {'{}×{}'.format(*self._size)}",
            hint="set width and height in its configuration, or the format of the camera's node",
        )


def _stamp_ns(message: Any) -> int:
    from robot_rl.ros.stamps import to_nanoseconds

    return to_nanoseconds(message.header.stamp)
