"""The RealSense driver with the real library: recordings of its software device are the cameras."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("libusb_package", reason="needs the extra realsense")

from realsense_recording import HEIGHT, RATE, WIDTH, record

from drivers.base import DriverError, DriverTimeout
from drivers.camera.realsense import RealSenseCamera, load_library, set_color_options

SIZE = {"width": WIDTH, "height": HEIGHT, "rate_hz": RATE}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("realsense")
    distortion = (0.1, -0.2, 0.001, 0.002, 0.05)
    stamps = {
        "111": record(folder / "111.db3", "111", coefficients=distortion),
        "222": record(folder / "222.db3", "222", depth_unit=1e-4, frames=20),
    }
    return folder, stamps


@pytest.fixture
def plugged(recorded):
    """The library's context, with both cameras plugged in."""
    context = load_library().context()
    files = [str(recorded[0] / f"{serial}.db3") for serial in ("111", "222")]
    devices = [context.load_device(file) for file in files]
    yield context
    del devices
    for file in files:
        context.unload_device(file)


@pytest.fixture
def camera(plugged, opened):
    return lambda **options: opened(RealSenseCamera(context=lambda: plugged, **{**SIZE, **options}))


def test_colour_and_depth_of_the_camera_with_this_serial(camera, recorded):
    here = camera(serial="111", depth=True)
    here.connect()
    frames = [here.read(2.0) for _ in range(4)]
    for frame in frames:
        assert (frame.color.dtype, frame.color.shape) == (np.uint8, (HEIGHT, WIDTH, 3))
        assert (frame.depth.dtype, frame.depth.shape) == (np.uint16, (HEIGHT, WIDTH))
        assert (frame.color == frame.sequence).all()
        assert set(np.unique(frame.depth)) - {0} == {500 + frame.sequence}  # in millimetres
        taken = recorded[1]["111"] + frame.sequence * 1e9 / RATE
        assert abs(frame.stamp_ns - taken) < 1e6
    numbers = [frame.sequence for frame in frames]
    assert numbers == sorted(set(numbers))


def test_a_clock_of_the_cameras_own_is_related_to_the_systems(tmp_path):
    file = str(tmp_path / "own.db3")
    record(file, "444", own_clock=True)
    context = load_library().context()
    device = context.load_device(file)
    here = RealSenseCamera(serial="444", context=lambda: context, **SIZE)
    here.connect()
    try:
        frames = []
        for number in range(8):
            time.sleep(0.05 * (number % 2))  # a late reader gets the time of the picture
            frames.append(here.read(5.0))
        now = time.time_ns()
        assert all(now - 5e9 < frame.stamp_ns <= now for frame in frames)
        first, last = frames[-2:]  # by now one of them came without delay
        taken = (last.sequence - first.sequence) / RATE
        assert abs((last.stamp_ns - first.stamp_ns) / 1e9 - taken) < 0.005
    finally:
        here.close()
        del device
        context.unload_device(file)


def test_a_picture_is_not_given_the_depth_of_another(tmp_path, opened):
    file = tmp_path / "sparse.db3"
    record(file, "333", depth_every=3)
    here = opened(RealSenseCamera(recording=str(file), depth=True, **SIZE))
    here.connect()
    for _ in range(6):
        frame = here.read(5.0)
        assert set(np.unique(frame.depth)) - {0} == {500 + frame.sequence}


def test_depth_in_another_unit_comes_in_millimetres(camera):
    here = camera(serial=222, depth=True)
    here.connect()
    frame = here.read(2.0)
    seen = frame.depth[frame.depth > 0]  # aligning leaves holes
    assert seen.size > frame.depth.size / 2
    assert (seen == round((500 + frame.sequence) / 10)).all()


def test_the_newest_frame_wins_and_frames_can_be_kept(camera):
    here = camera(serial="111")
    here.connect()
    first = here.read(2.0)
    kept = first.color.copy()
    time.sleep(0.5)  # some 15 pictures pass
    second = here.read(2.0)
    assert second.sequence > first.sequence + 3
    np.testing.assert_array_equal(first.color, kept)
    assert first.depth is None


def test_intrinsics_are_those_of_the_device(camera):
    here = camera(serial="111")
    assert here.intrinsics() is None
    here.connect()
    found = here.intrinsics()
    assert (found.width, found.height, found.fx, found.fy) == (WIDTH, HEIGHT, 60.0, 61.0)
    assert (found.cx, found.cy) == (32.0, 24.0)
    assert found.distortion == pytest.approx((0.1, -0.2, 0.001, 0.002, 0.05))


def read_to_the_end(camera, last):
    while True:
        frame = camera.read(1.0)
        assert frame.sequence != last
        last = frame.sequence


def test_an_unplugged_camera_gives_nothing_until_it_is_back(camera, plugged, recorded):
    here = camera(serial="222")
    here.connect()
    last = here.read(2.0)
    file = str(recorded[0] / "222.db3")
    plugged.unload_device(file)
    with pytest.raises(DriverTimeout, match="RealSense 222 gave no new picture"):
        read_to_the_end(here, last.sequence)
    here.close()
    with pytest.raises(DriverError, match="there is no RealSense 222; got: there: 111"):
        here.connect()
    device = plugged.load_device(file)
    here.connect()
    assert here.read(2.0).color.shape == (HEIGHT, WIDTH, 3)
    del device


def test_a_camera_that_cannot_be_asked_does_not_keep_another_from_working(tmp_path):
    context = load_library().context()
    files = [tmp_path / "111.db3", tmp_path / "222.db3"]
    devices = [
        record(file, file.stem, frames=20) and context.load_device(str(file)) for file in files
    ]
    files[1].unlink()  # the library fails at this device from now on, as at one that is busy
    here = RealSenseCamera(serial="111", context=lambda: context, **SIZE)
    try:
        here.connect()
        assert here.read(2.0).color.shape == (HEIGHT, WIDTH, 3)
    finally:
        here.close()
    mute = r"there: 111, one that cannot be asked \(.*222.db3"
    with pytest.raises(DriverError, match=f"there is no RealSense 222; got: {mute}"):
        RealSenseCamera(serial="222", context=lambda: context, **SIZE).connect()
    with pytest.raises(DriverError, match=f"which RealSense is meant.*{mute}"):
        RealSenseCamera(context=lambda: context, **SIZE).connect()
    del devices


def test_an_unreadable_recording_is_an_error_of_the_driver(tmp_path):
    (tmp_path / "none.db3").write_bytes(b"no recording")
    with pytest.raises(DriverError, match=r"none.db3"):
        RealSenseCamera(recording=str(tmp_path / "none.db3"), **SIZE).connect()


def test_which_of_several_must_be_said(camera):
    with pytest.raises(DriverError, match=r"which RealSense is meant.*there: 111, 222"):
        camera().connect()


def test_without_a_camera_it_says_so():
    with pytest.raises(DriverError, match=r"there is no RealSense; got: there: none.*USB 3"):
        RealSenseCamera().connect()


@pytest.mark.parametrize("wrong", [{"width": 640, "height": 480}, {"rate_hz": 90}])
def test_a_size_that_it_lacks_is_answered_with_those_that_it_has(camera, wrong):
    with pytest.raises(DriverError, match=r"does not start.*it has 64×48 30 Hz"):
        camera(serial="111", **wrong).connect()


def test_an_option_that_it_lacks_is_named(camera):
    with pytest.raises(DriverError, match=r"refuses Enable Auto Exposure.*it lacks this"):
        camera(serial="111", exposure_us=8000).connect()


def options_of(sensor, *settable):
    """Options like those of a real sensor: name, lowest, highest and first value."""
    option, limits = load_library().option, load_library().option_range
    for name, low, high, value in settable:
        span = limits()
        span.min, span.max, span.step, span.default = low, high, 1.0, value
        sensor.add_option(getattr(option, name), span, True)


def device_with(*sensors):
    """The library's software device with these sensors: name, kinds of pictures, exposures [1]."""
    rs = load_library()
    formats = {"color": (rs.format.rgb8, 3), "depth": (rs.format.z16, 2)}
    device = rs.software_device()
    for number, (name, kinds, exposures) in enumerate(sensors):
        sensor = device.add_sensor(name)
        for kind in kinds:
            stream = rs.video_stream()
            stream.type, (stream.fmt, stream.bpp) = getattr(rs.stream, kind), formats[kind]
            stream.uid, stream.width, stream.height = 10 * number + len(kind), WIDTH, HEIGHT
            stream.fps = RATE
            sensor.add_video_stream(stream)
        if "depth" in kinds:
            sensor.add_read_only_option(rs.option.depth_units, 1e-3)
        options_of(
            sensor,
            ("enable_auto_exposure", 0.0, 1.0, 1.0),
            ("exposure", *exposures),
            ("gain", 0.0, 128.0, 64.0),
            ("enable_auto_white_balance", 0.0, 1.0, 1.0),
            ("white_balance", 2800.0, 6500.0, 4600.0),
        )
    return device


STEREO = (1.0, 165_000.0, 8_500.0)  # µs
RGB = (1.0, 10_000.0, 156.0)  # hundreds of µs
D435 = (("Stereo Module", ["depth"], STEREO), ("RGB Camera", ["color"], RGB))
D405 = (("Stereo Module", ["color", "depth"], STEREO),)


@pytest.mark.parametrize(("sensors", "counted"), [(D435, 83.0), (D405, 8300.0)])
def test_an_exposure_is_in_microseconds_whatever_its_sensor_counts_in(sensors, counted):
    option, device = load_library().option, device_with(*sensors)
    set_color_options("RealSense 1", device, 8300, 32, 4000)
    *others, seeing = device.query_sensors()
    for kind, value in (
        (option.enable_auto_exposure, 0.0),
        (option.exposure, counted),
        (option.gain, 32.0),
        (option.enable_auto_white_balance, 0.0),
        (option.white_balance, 4000.0),
    ):
        assert seeing.get_option(kind) == value
    assert all(other.get_option(option.exposure) == STEREO[2] for other in others)
    set_color_options("RealSense 1", device, None, None, None)
    assert seeing.get_option(option.exposure) == counted


@pytest.mark.parametrize(
    ("sensors", "limits"),
    [
        (D435, "RGB Camera of RealSense 1 refuses.*got: 2000000; expected: 100 to 1000000 in"),
        (D405, "Stereo Module of RealSense 1 refuses.*got: 2000000; expected: 1 to 165000 in"),
    ],
)
def test_an_exposure_that_no_sensor_takes_is_answered_in_microseconds(sensors, limits):
    with pytest.raises(DriverError, match=limits):
        set_color_options("RealSense 1", device_with(*sensors), 2_000_000, None, None)


def test_a_camera_whose_stereo_module_takes_the_colour_is_no_camera_that_was_lost(tmp_path):
    file = tmp_path / "405.db3"
    record(file, "405", sensors=1)
    context = load_library().context()
    device = context.load_device(str(file))
    plain = RealSenseCamera(serial="405", depth=True, context=lambda: context, **SIZE)
    exposed = RealSenseCamera(serial="405", exposure_us=8000, context=lambda: context, **SIZE)
    try:
        plain.connect()
        assert plain.read(5.0).depth is not None
        plain.close()
        with pytest.raises(DriverError, match=r"Stereo Module of RealSense 405 .*it lacks this"):
            exposed.connect()  # a recording lacks what it was not recorded with
    finally:
        exposed.close()
        del device


def test_a_recording_plays_in_place_of_a_camera_again_and_again(recorded):
    here = RealSenseCamera(recording=str(recorded[0] / "222.db3"), **SIZE)
    here.connect()
    numbers = []
    for _ in range(25):  # it has 20
        frame = here.read(2.0)
        assert abs(frame.stamp_ns - time.time_ns()) < 1e9
        numbers.append(frame.sequence)
    assert sorted(numbers) != numbers
    here.close()
    with pytest.raises(DriverError, match=r"the recording cannot be read.*nothing.db3"):
        RealSenseCamera(recording="nothing.db3", **SIZE).connect()
    with pytest.raises(DriverError, match="either a serial number or a recording"):
        RealSenseCamera(serial="1", recording="x.db3")


START_AND_STOP = """
import sys
from drivers.camera.realsense import RealSenseCamera
for number in range(600):
    camera = RealSenseCamera(width=64, height=48, rate_hz=30, recording=sys.argv[1])
    camera.connect()
    for _ in range(1 + number % 3):
        camera.read(10.0)
    camera.close()
"""


@pytest.mark.slow
def test_stopping_a_recording_again_and_again_does_not_end_the_process(recorded):
    """On a busy machine two of three processes died within 1,200 stops before it was paused."""
    path = str(recorded[0] / "222.db3")
    processes = [
        subprocess.Popen([sys.executable, "-c", START_AND_STOP, path], stderr=subprocess.PIPE)
        for _ in range(6)
    ]
    said = [process.communicate(timeout=450)[1].decode()[-1000:] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, said
