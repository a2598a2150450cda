"""A RealSense that is none: made with the library's software device, recorded to a file.

The library lists a loaded recording as a connected camera, so `load_device` plugs it in and
`unload_device` pulls it out.
"""

from __future__ import annotations

import time

import numpy as np

WIDTH, HEIGHT, RATE = 64, 48, 30


def record(
    path,
    serial,
    frames=60,
    depth_unit=1e-3,
    coefficients=(0.0,) * 5,
    depth_every=1,
    sensors=2,
    own_clock=False,
):
    """Record `frames` pictures: number n is all n in colour, and 500 + n in depth.

    Depth is there for every `depth_every`-th only. With one sensor it is a camera like the D405,
    whose stereo module takes the colour pictures too. With a clock of its own it counts from 0.

    Returns the stamp of number 0 [ns].
    """
    from drivers.camera.realsense import load_library

    rs = load_library()
    device = rs.software_device()
    device.register_info(rs.camera_info.serial_number, serial)
    names = ("RGB Camera", "Stereo Module")[-sensors:]
    made = [device.add_sensor(name) for name in names]
    sensors = made[0], made[-1]
    streams = (
        (rs.stream.color, rs.format.rgb8, 3),
        (rs.stream.depth, rs.format.z16, 2),
    )
    profiles = []
    for number, (sensor, (kind, encoding, size)) in enumerate(zip(sensors, streams, strict=True)):
        stream = rs.video_stream()
        stream.type, stream.fmt, stream.bpp = kind, encoding, size
        stream.uid, stream.index, stream.fps = number, 0, RATE
        stream.width, stream.height = WIDTH, HEIGHT
        stream.intrinsics = _intrinsics(rs, coefficients)
        profiles.append(sensor.add_video_stream(stream).as_video_stream_profile())
    sensors[1].add_read_only_option(rs.option.depth_units, depth_unit)
    together = rs.extrinsics()
    together.rotation, together.translation = [1, 0, 0, 0, 1, 0, 0, 0, 1], [0, 0, 0]
    profiles[0].register_extrinsics_to(profiles[1], together)
    profiles[1].register_extrinsics_to(profiles[0], together)
    device.create_matcher(rs.matchers.default)

    recorder, syncer = rs.recorder(str(path), device), rs.syncer()
    for sensor in recorder.query_sensors():
        sensor.open(sensor.get_stream_profiles()[: 3 - len(names)])
        sensor.start(syncer)
    began, kept = 0.0 if own_clock else time.time() * 1e3, []
    domains = rs.timestamp_domain
    for number in range(1, frames + 1):
        pictures = (
            np.full((HEIGHT, WIDTH, 3), number, np.uint8),
            np.full((HEIGHT, WIDTH), 500 + number, np.uint16),
        )
        kept.extend(pictures)  # the library does not copy them
        for place in (1, 0) if number % depth_every == 0 else (0,):
            frame = rs.software_video_frame()
            frame.pixels, frame.bpp = pictures[place], streams[place][2]
            frame.stride = WIDTH * frame.bpp
            frame.timestamp = began + number * 1e3 / RATE
            frame.domain = domains.hardware_clock if own_clock else domains.system_time
            frame.frame_number, frame.profile = number, profiles[place]
            frame.depth_units = depth_unit
            sensors[place].on_video_frame(frame)
        time.sleep(1 / RATE if own_clock else 0.002)  # a recording is played as it was made
    time.sleep(0.1)
    for sensor in recorder.query_sensors():
        sensor.stop()
        sensor.close()
    return round(began * 1e6)


def _intrinsics(rs, coefficients):
    made = rs.intrinsics()
    made.width, made.height, made.fx, made.fy = WIDTH, HEIGHT, 60.0, 61.0
    made.ppx, made.ppy, made.model = 32.0, 24.0, rs.distortion.brown_conrady
    made.coeffs = list(coefficients)
    return made
