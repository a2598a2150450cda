"""Webcams and films through PyAV; a film without losses stands for a camera."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("av", reason="needs the extra uvc")

import av

from drivers.base import DriverError, DriverTimeout
from drivers.camera.uvc import UvcCamera, live_frames
from robot_rl.errors import RobotRLError

SIZE = {"width": 32, "height": 24}


def picture(number):
    image = np.zeros((24, 32, 3), np.uint8)
    image[:, :, 0], image[:12, :, 1], image[:, :16, 2] = number, 200, 100
    return image


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """20 pictures, 50 a second; number n has red n."""
    path = tmp_path_factory.mktemp("film") / "film.mkv"
    with av.open(str(path), "w") as target:
        stream = target.add_stream("ffv1", rate=Fraction(50))
        stream.width, stream.height, stream.pix_fmt = 32, 24, "bgr0"
        for number in range(20):
            target.mux(stream.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
        target.mux(stream.encode())
    return str(path)


@pytest.fixture
def playing(connected):
    return lambda *arguments, **options: connected(UvcCamera(*arguments, **{**SIZE, **options}))


def test_pictures_come_in_rgb_with_number_and_stamp(film, playing):
    camera = playing(film)
    frames = [camera.read(5.0) for _ in range(4)]
    for frame in frames:
        np.testing.assert_array_equal(frame.color, picture(frame.sequence % 20))
        assert abs(time.time_ns() - frame.stamp_ns) < 2e9
    numbers = [frame.sequence for frame in frames]
    assert numbers == sorted(set(numbers))
    assert camera.intrinsics() is None


def test_the_newest_picture_wins(film, playing):
    camera = playing(film)
    first = camera.read(5.0).sequence
    time.sleep(0.3)  # 15 pictures pass
    assert camera.read(5.0).sequence > first + 3


def read_for_ever(camera, timeout=5.0):
    while True:
        camera.read(timeout)


def test_a_film_begins_again_or_ends(film, playing):
    camera = playing(film)
    while camera.read(5.0).sequence < 21:
        pass
    once = playing(film, repeat=False)
    with pytest.raises(DriverError, match="it is at its end"):
        read_for_ever(once)
    once.connect()
    assert once.read(5.0).color.shape == (24, 32, 3)


def test_another_size_is_an_error_that_names_both(film, playing):
    camera = playing(film, width=64, height=48)
    with pytest.raises(DriverError, match=r"film.mkv.*another size.*got: 32×24.*64×48 uint8 RGB"):
        camera.read(5.0)


def test_no_picture_in_time_is_a_timeout(film, playing):
    camera = playing(film)
    camera.close()
    with pytest.raises(DriverTimeout, match="gave no picture"):
        read_for_ever(camera, 0.01)  # one may have been waiting


def test_what_cannot_be_opened_is_named(tmp_path, playing):
    with pytest.raises(DriverError, match=r"there is no camera /dev/video99; .*by-id"):
        playing("/dev/video99")
    (tmp_path / "film.mkv").write_bytes(b"no film")
    with pytest.raises(DriverError, match=r"film.mkv cannot be opened; .*expected: a film"):
        playing(str(tmp_path / "film.mkv"))
    with pytest.raises(DriverError, match=r"/dev/null cannot be opened; .*32×24 at 30 Hz as mjpeg"):
        playing("/dev/null")


@pytest.fixture
def sent(tmp_path, opened):
    """Makes the packets of a camera that stamps its pictures so long after now [s]."""
    milliseconds, path = Fraction(1, 1000), str(tmp_path / "sent.mkv")

    def make(*times):
        with av.open(path, "w") as target:
            stream = target.add_stream("mjpeg", rate=30)
            stream.width, stream.height, stream.pix_fmt = 32, 24, "yuvj420p"
            stream.codec_context.time_base = milliseconds
            began = time.time()
            for number, after in enumerate(times):
                frame = av.VideoFrame.from_ndarray(picture(10 * number), format="rgb24")
                frame = frame.reformat(format="yuvj420p")
                frame.pts, frame.time_base = round(1e3 * (began + after)), milliseconds
                target.mux(stream.encode(frame))
        return [packet for packet in opened(av.open(path)).demux(video=0) if packet.size]

    return make


def test_a_damaged_or_empty_packet_of_a_camera_costs_one_picture(sent):
    packets = sent(-0.5, -0.4, -0.3, -0.2)
    damaged = av.Packet(bytes(packets[1])[:200])
    damaged.stream = packets[1].stream
    frames = list(live_frames([packets[0], damaged, av.Packet(), *packets[2:]], "webcam"))
    assert [frame.sequence for frame in frames] == [0, 3, 4]
    assert all(frame.color.shape == (24, 32, 3) for frame in frames)
    with pytest.raises(DriverError, match=r"webcam gives no usable picture; got: 30 in a row"):
        list(live_frames([packets[0], *[damaged] * 30], "webcam"))


def test_pictures_that_waited_are_not_taken_for_new_ones(sent):
    frames = live_frames(sent(0.0, 0.1, 0.2, 1.5), "webcam")
    first = next(frames)
    time.sleep(1.5)  # as a process that stood still
    last = next(frames)
    assert last.sequence == 3
    assert last.stamp_ns - first.stamp_ns == pytest.approx(1.5e9, abs=2e6)


def test_stamps_of_another_clock_are_not_believed(sent):
    for frame in live_frames(sent(-3600.0, -3599.9, -3599.8), "webcam"):
        assert abs(time.time_ns() - frame.stamp_ns) < 1e9


def test_intrinsics_come_from_the_configuration(film):
    known = {"width": 32, "height": 24, "fx": 30.0, "fy": 30.0, "cx": 16.0, "cy": 12.0}
    camera = UvcCamera(film, **SIZE, intrinsics={**known, "distortion": [0.1, 0, 0, 0, 0]})
    assert camera.intrinsics().fx == 30.0
    assert camera.intrinsics().distortion[0] == 0.1
    with pytest.raises(DriverError, match="of another size; got: 64×24; expected: 32×24"):
        UvcCamera(film, **SIZE, intrinsics={**known, "width": 64})
    with pytest.raises(RobotRLError, match=r"does not hold a camera's intrinsics; got: .*focal"):
        UvcCamera(film, **SIZE, intrinsics={**known, "focal": 1.0})
