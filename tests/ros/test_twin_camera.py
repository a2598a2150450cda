"""The twin's RealSense: pictures of its world come through the vendor's library."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
# Not pyrealsense2 itself: where the system has no libusb, the driver loads this one first.
pytest.importorskip("libusb_package", reason="needs the extra realsense")

from listening import Listener, Running
from omegaconf import OmegaConf

from drivers.base import DriverError, DriverTimeout
from drivers.camera.base import Camera
from drivers.twin.node import TwinNode
from policies import registry
from robot_rl.config import compose
from robot_rl.env.sim.cameras import SceneRenderer

SIZE = {"width": 424, "height": 240}


def read_on(camera, timeout):
    while True:
        camera.read(timeout)


def test_the_library_gives_pictures_and_depth_of_the_world_as_it_is_until_they_freeze():
    words = [
        "robot=twin_ur5e",
        "task=peg_insert",
        f"simulation.host=127.3.0.{1 + os.getpid() % 250}",
    ]
    config = OmegaConf.to_container(compose(words), resolve=True)
    place = {"namespace": "/twin_camera"}
    node = Running(TwinNode, place["namespace"], config["nodes"]["twin"]["parameters"]["driver"])
    scene = {key: config["simulation"][key] for key in ("task", "model", "gripper")}
    camera = registry.make(
        {"_target_": "drivers.twin.realsense_camera.TwinRealSense", **scene, **place, **SIZE},
        Camera,
        camera="wrist",
        depth=True,
        rate_hz=6,
    )
    try:
        camera.connect()
        frames = [camera.read(20.0) for _ in range(3)]
        assert all((a.color != b.color).any() for a, b in pairwise(frames))
        faults = Listener(place["namespace"])
        faults.trigger("sim/freeze_cameras")
        with pytest.raises(DriverError, match="gives the same picture again and again"):
            read_on(camera, 2.0)
        faults.trigger("sim/restore_cameras")
        frames.append(camera.read(20.0))
        faults.trigger("sim/silence_cameras")
        with pytest.raises(DriverTimeout, match="gave no new picture in time"):
            read_on(camera, 2.0)
        faults.close()
        renderer = SceneRenderer(node.node.driver._world, *SIZE.values())
        there, far = renderer.color("wrist"), renderer.depth("wrist")[..., 0]
        renderer.close()
    finally:
        camera.close()
        node.close()
    seen = frames[-1]
    assert [frame.color.shape for frame in frames] == [(240, 424, 3)] * 4
    assert np.abs(seen.color.astype(int) - there).mean() < 2.0
    assert np.abs(seen.depth.astype(int) - far).mean() < 20.0
    stamps = [frame.stamp_ns for frame in frames]
    assert stamps == sorted(set(stamps))
    lens = camera.intrinsics()
    assert (lens.width, lens.fx) == (424, pytest.approx(120.0 / np.tan(np.deg2rad(30.0))))
    camera.connect()  # once more
    camera.close()
