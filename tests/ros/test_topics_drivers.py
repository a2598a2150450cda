"""Drivers over topics of somebody else's nodes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from listening import Listener
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import Float64, Float64MultiArray

from drivers.camera.topics import TopicsCamera
from drivers.errors import DriverError, DriverTimeout, Stale
from drivers.gripper.topics import TopicsGripper
from robot_rl.ros import messages, qos

WIDTH, HEIGHT = 32, 24
K = (40.0, 41.0), (16.0, 12.0)


class Publisher:
    """Somebody else's node, which publishes `make()` again and again."""

    def __init__(self, namespace):
        self.listener = Listener(namespace)
        self._made = []
        self._ending = threading.Event()
        self._thread = None

    def publish(self, period, **topics):
        """Publish what each function makes of a stamp, in turn."""
        node, profile = self.listener.client.node, qos.sensor_publisher(1.0 / period)
        made = [
            (make, node.create_publisher(kind, topic, profile))
            for topic, (kind, make) in topics.items()
        ]

        def run():
            while not self._ending.wait(period):
                stamp = time.time_ns()
                for make, publisher in made:
                    publisher.publish(make(stamp))

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def silence(self):
        self._ending.set()
        self._thread.join()

    def close(self):
        if self._thread is not None:
            self.silence()
        self.listener.close()


@pytest.fixture
def publisher(request):
    made = Publisher(f"/topics{abs(hash(request.node.name)) % 10**6}")
    yield made
    made.close()


def color(stamp, encoding="rgb8"):
    image = np.full((HEIGHT, WIDTH, 3), (10, 20, 30), np.uint8)
    message = messages.image_message(image, stamp, "frame")
    message.encoding = encoding
    return message


def depth(stamp):
    return messages.image_message(np.full((HEIGHT, WIDTH), 700, np.uint16), stamp, "frame")


def info(stamp):
    return messages.camera_info_message(WIDTH, HEIGHT, *K, (0.1, 0, 0, 0, 0), stamp, "frame")


def camera(publisher, **options):
    options = {"width": WIDTH, "height": HEIGHT, **options}
    return TopicsCamera("color/image_raw", namespace=publisher.listener.client.namespace, **options)


def read_for_ever(driver):
    while True:
        driver.read(0.2)


def test_pictures_depth_and_intrinsics_come_from_topics(publisher, connected):
    publisher.publish(
        0.02,
        **{
            "color/image_raw": (Image, color),
            "depth/image_raw": (Image, depth),
            "color/camera_info": (CameraInfo, info),
        },
    )
    driver = connected(camera(publisher, depth_topic="depth/image_raw"))
    frames = [driver.read(5.0) for _ in range(3)]
    for frame in frames:
        assert (frame.color == [10, 20, 30]).all()
        assert frame.depth.shape == (HEIGHT, WIDTH)
        assert (frame.depth == 700).all()
    assert frames[0].stamp_ns < frames[1].stamp_ns < frames[2].stamp_ns
    assert frames[0].sequence < frames[1].sequence < frames[2].sequence
    publisher.listener.until(driver.intrinsics)
    found = driver.intrinsics()
    assert ((found.fx, found.fy), (found.cx, found.cy), found.distortion[0]) == (*K, 0.1)
    publisher.silence()
    with pytest.raises(DriverTimeout, match="gave no picture"):
        read_for_ever(driver)  # one may be on its way


def test_blue_first_is_turned_round(publisher, connected):
    publisher.publish(0.02, **{"color/image_raw": (Image, lambda s: color(s, "bgr8"))})
    driver = connected(camera(publisher))
    assert (driver.read(5.0).color == [30, 20, 10]).all()
    assert driver.intrinsics() is None


@pytest.mark.parametrize(
    ("options", "make", "words"),
    [
        ({}, lambda s: color(s, "yuv422"), r"color/image_raw: .*encoding.*got: yuv422.*rgb8"),
        ({}, depth, r"color/image_raw gives pictures of another kind; got: 16UC1 32×24"),
        ({"width": 64}, color, r"color/image_raw gives.*another size.*got: 32×24.*64×24"),
    ],
)
def test_another_encoding_or_size_is_named(publisher, connected, options, make, words):
    publisher.publish(0.02, **{"color/image_raw": (Image, make)})
    driver = connected(camera(publisher, **options))
    with pytest.raises(DriverError, match=words):
        driver.read(5.0)


def gripper(publisher, **options):
    options = {"joint": "knuckle", "open_at": 0.0, "closed_at": 0.8, **options}
    return TopicsGripper(namespace=publisher.listener.client.namespace, **options)


def joints(position):
    return lambda s: messages.joint_state_message(["elbow", "knuckle"], [9.0, position], None, s)


def test_a_gripper_s_joint_becomes_zero_to_one_and_back(publisher, connected):
    publisher.publish(0.02, joint_states=(JointState, joints(0.6)))
    heard = publisher.listener.hear("gripper_controller/commands", Float64MultiArray, 10)
    driver = connected(gripper(publisher))
    assert driver.read().position == pytest.approx(0.75)
    publisher.listener.until(lambda: driver.command(0.5) or heard)
    assert list(heard[-1].data) == pytest.approx([0.4])
    with pytest.raises(DriverError, match="a gripper cannot go there"):
        driver.command(float("nan"))
    driver.stop()
    publisher.listener.until(lambda: list(heard[-1].data) == pytest.approx([0.6]))
    publisher.silence()
    time.sleep(0.6)
    with pytest.raises(Stale, match="joint_states is too old"):
        driver.read()


def test_a_controller_may_take_plain_numbers(publisher, connected):
    publisher.publish(0.02, joint_states=(JointState, joints(0.0)))
    heard = publisher.listener.hear("grip", Float64, 10)
    driver = connected(gripper(publisher, command_topic="grip", command_type="float64"))
    publisher.listener.until(lambda: driver.command(1.0) or heard)
    assert heard[-1].data == pytest.approx(0.8)


def test_what_is_not_there_is_named(publisher, connected, monkeypatch):
    monkeypatch.setattr("drivers.gripper.topics._FIRST_STATE_S", 0.5)
    monkeypatch.setattr("drivers.camera.topics._FIRST_PICTURE_S", 0.5)
    publisher.publish(0.02, joint_states=(JointState, joints(0.0)))
    with pytest.raises(DriverTimeout, match=r"joint 'finger' on /topics\d+/joint_states"):
        connected(gripper(publisher, joint="finger"))
    with pytest.raises(DriverTimeout, match=r"no picture on /topics\d+/color/image_raw"):
        connected(camera(publisher))
    with pytest.raises(DriverError, match="expected: float64 or float64_array"):
        gripper(publisher, command_type="action")
