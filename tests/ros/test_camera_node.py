"""The camera node with real drivers: a film stands for a webcam."""

from __future__ import annotations

import os
import time
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("av", reason="needs the extra uvc")

import av
from listening import PATIENT_NODES, Listener, Running
from sensor_msgs.msg import CameraInfo, Image

from drivers.camera.node import CameraNode
from robot_rl import read_episodes
from robot_rl.ros.conversions import image_array, to_nanoseconds

WIDTH, HEIGHT = 64, 48


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """60 pictures, 30 a second; number n is n all over."""
    path = tmp_path_factory.mktemp("film") / "film.mkv"
    with av.open(str(path), "w") as target:
        stream = target.add_stream("ffv1", rate=Fraction(30))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "bgr0"
        for number in range(60):
            image = np.full((HEIGHT, WIDTH, 3), (number, 100, 200), np.uint8)
            target.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        target.mux(stream.encode())
    return path


@pytest.fixture
def start(opened):
    """Run the node over a film in a namespace of its own; returns the listener."""

    def make(namespace, device, parameters=None, **options):
        driver = {"_target_": "drivers.camera.uvc.UvcCamera", "device": str(device)}
        driver |= {"width": WIDTH, "height": HEIGHT, **options}
        listener = opened(Listener(namespace))
        topics = {"image_raw": Image, "camera_info": CameraInfo}
        for topic, kind in topics.items():
            listener.hear(f"front/color/{topic}", kind)
        parameters = {"camera": "front", **(parameters or {})}
        opened(Running(CameraNode, namespace, driver, **parameters))
        return listener

    return make


def test_pictures_are_published_as_realsense_does(film, start):
    known = {"width": WIDTH, "height": HEIGHT, "fx": 50.0, "fy": 51.0, "cx": 32.0, "cy": 24.0}
    listener = start("/a", film, intrinsics=known)
    images = listener.heard["front/color/image_raw"]
    infos = listener.heard["front/color/camera_info"]
    listener.until(lambda: len(images) > 20 and len(infos) > 20)
    stamps = [to_nanoseconds(message.header.stamp) for message in images]
    assert stamps == sorted(set(stamps))
    assert abs(time.time_ns() - stamps[-1]) < 5e9
    for message in images:
        assert (message.encoding, message.header.frame_id) == ("rgb8", "front_color_optical_frame")
        picture = image_array(message)
        assert picture.shape == (HEIGHT, WIDTH, 3)
        assert (picture == [picture[0, 0, 0], 100, 200]).all()
    assert infos[-1].k.tolist() == [50.0, 0.0, 32.0, 0.0, 51.0, 24.0, 0.0, 0.0, 1.0]
    assert {to_nanoseconds(info.header.stamp) for info in infos[1:-1]} <= set(stamps)
    facts = listener.reported("running")
    assert float(facts["rate_hz"]) > 1.0
    assert set(facts) >= {"sequence_gaps", "frames_missed", "fault", "connection"}


def test_a_part_is_published_at_a_size_and_rate_of_its_own(film, start):
    known = {"width": WIDTH, "height": HEIGHT, "fx": 50.0, "fy": 51.0, "cx": 32.0, "cy": 24.0}
    shown = {"crop": [16, 8, 32, 24], "size": [16, 12], "frame_rate_hz": 10.0}
    listener = start("/e", film, shown, intrinsics=known)
    images = listener.heard["front/color/image_raw"]
    infos = listener.heard["front/color/camera_info"]
    listener.until(lambda: len(images) > 5 and len(infos) > 5)
    assert {(image.width, image.height) for image in images} == {(16, 12)}
    stamps = [to_nanoseconds(image.header.stamp) for image in images]
    assert min(np.diff(stamps)) > 0.049e9  # half a period; the film has 30 a second
    # Where a point 2 m before the camera is seen: in the whole picture, and in what is published.
    x, y, z = 0.2, -0.1, 2.0
    whole = np.array([50 * x / z + 32, 51 * y / z + 24])
    fx, _, cx, _, fy, cy, *_ = infos[-1].k
    found = [fx * x / z + cx, fy * y / z + cy]
    np.testing.assert_allclose(found, (whole - [16, 8] + 0.5) / 2 - 0.5)


def test_a_part_outside_of_the_pictures_is_reported_and_nothing_published(film, start):
    listener = start("/f", film, {"crop": [40, 0, 32, 24]})
    assert "got: 32×24 from (40, 0)" in listener.reported("not within")["fault"]
    assert listener.heard["front/color/image_raw"] == []


def test_an_unplugged_camera_is_reported_and_comes_back_by_itself(film, start, tmp_path):
    """The film's end is the cable that is pulled; its name is the socket."""
    device = tmp_path / "camera.mkv"
    os.link(film, device)
    listener = start("/b", device, {"reconnect_after_s": 0.2}, repeat=False)
    images = listener.heard["front/color/image_raw"]
    listener.until(lambda: images)
    device.unlink()
    facts = listener.reported("there is no camera")
    assert facts["level"] == b"\x02"
    assert "camera.mkv" in facts["fault"]
    count, last = len(images), to_nanoseconds(images[-1].header.stamp)
    time.sleep(0.5)
    assert len(images) == count  # no old picture again
    os.link(film, device)
    listener.until(lambda: len(images) > count + 3)
    assert all(to_nanoseconds(m.header.stamp) > last for m in images[count:])
    assert listener.reported("running")["fault"] == ""


def test_without_intrinsics_camera_info_says_uncalibrated(film, start):
    listener = start("/c", film)
    infos = listener.heard["front/color/camera_info"]
    listener.until(lambda: infos)
    assert (infos[0].width, infos[0].height, set(infos[0].k.tolist())) == (WIDTH, HEIGHT, {0.0})


def test_a_camera_of_another_size_is_reported_and_publishes_nothing(film, start):
    listener = start("/d", film, width=2 * WIDTH)
    facts = listener.reported("another size")
    assert f"got: {WIDTH}×{HEIGHT}" in facts["fault"]
    assert listener.heard["front/color/image_raw"] == []


@pytest.mark.slow
def test_a_camera_of_ones_own_is_recorded(tmp_path, checkout, robot_rl_command):
    """The example, which is outside of robot_rl: the camera's node finds it too."""
    done = robot_rl_command(
        "collect",
        "--config-dir",
        str(checkout / "examples/5_camera"),
        "robot=painted_camera",
        "task=reach",
        "demonstrations=1",
        *PATIENT_NODES,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (episode,) = read_episodes(tmp_path / "runs/latest/demonstrations.zarr")
    pictures = episode.rows["images/front"]
    assert pictures.shape[1:] == (48, 64, 3)
    # The square, and nothing else, in every picture; and it wanders.
    assert ((pictures == (255, 128, 0)).all(-1).sum((1, 2)) == 64).all()
    assert len({picture.tobytes() for picture in pictures}) > 3
