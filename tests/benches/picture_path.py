"""Counts full-size pictures from a camera's node to a subscription of depth 5."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
from omegaconf import DictConfig, OmegaConf
from sensor_msgs.msg import Image
from topics import NAMESPACE, BenchFailed, over_topics

from policies import places
from robot_rl.commands.preparation import robot_nodes
from robot_rl.ros import qos
from robot_rl.ros.conversions import image_array, to_nanoseconds
from robot_rl.ros.ros_client import RosClient

RATE_HZ = 30.0
_CAMERA = "robot_rl.env.sim.cameras.CameraOptions"
_DRIVER = "pattern_camera.PatternCamera"
_DEPTH = 5
_SETTLING_FRAMES = 30
_PATIENCE = 3.0  # times as long as it should take


def count_pictures(config: DictConfig, logs: Path) -> dict[str, object]:
    """Receive `bench.frames` pictures of 640x480 at 30 Hz from a node, with nothing beside it.

    Returns:
        `frames` that were sent from the first to the last that came; `sequence_gaps` and
        `frames_lost` among them; `picture_age_p50_ms` and `…_p99_ms` from stamp to receipt.

    Raises:
        BenchFailed: They did not come.
    """
    places.add_folder(str(Path(__file__).parent))
    camera = f"{{_target_:{_CAMERA},name:front,width:640,height:480}}"
    settings = over_topics(config, f"observation.cameras=[{camera}]")
    OmegaConf.set_struct(settings, False)
    settings.nodes = {"cameras": settings.nodes.cameras}
    settings.nodes.cameras.parameters.driver = {"_target_": _DRIVER, "rate_hz": RATE_HZ}
    frames = int(config.bench.frames)
    numbers: list[int] = []
    ages: list[int] = []
    enough = threading.Event()

    def take(message: Image) -> None:
        ages.append(time.time_ns() - to_nanoseconds(message.header.stamp))
        numbers.append(int.from_bytes(image_array(message).reshape(-1)[:8].tobytes(), "little"))
        if len(numbers) >= frames + _SETTLING_FRAMES:
            enough.set()

    client = RosClient("counter", NAMESPACE)
    try:
        profile = qos.sensor_subscription(_DEPTH)
        client.node.create_subscription(Image, "front/color/image_raw", take, profile)
        with robot_nodes(settings, logs):
            came = enough.wait(30.0 + _PATIENCE * frames / RATE_HZ)
    finally:
        client.close()
    client.check()
    if not came:
        raise BenchFailed("pictures are missing", got=len(numbers), expected=frames)
    steps = np.diff(numbers[_SETTLING_FRAMES : _SETTLING_FRAMES + frames])
    milliseconds = 1e-6 * np.array(ages[_SETTLING_FRAMES:])
    return {
        "frames": int(steps.sum()) + 1,
        "sequence_gaps": int((steps > 1).sum()),
        "frames_lost": int((steps - 1).sum()),
        "picture_age_p50_ms": float(np.percentile(milliseconds, 50)),
        "picture_age_p99_ms": float(np.percentile(milliseconds, 99)),
    }
