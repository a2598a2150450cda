"""`observation.vision_training.reconstruction_weight` and `kl_weight`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from policies import registry
from policies.columns import FEATURES
from policies.diffusion import DiffusionPolicy
from policies.networks import seeded
from policies.points import PointEncoder
from policies.vision import ImageEncoder, observed_keys
from robot_rl.config import compose
from robot_rl.learning.stages.vision import (
    REMAINING_MOTION,
    Regulariser,
    SeeingPolicy,
    VisionTraining,
)

STATES = {"state/tcp_pose": 7}
ROWS = 16


def encoder(kind):
    rest = {"hidden": 32, "features": 8, "motion_scale": [0.05, 0.3], "fine_scale": 0.004}
    if kind == "images":
        backbone = {"class": "policies.backbones.SmallConvolutional", "channels": [8, 8]}
        return ImageEncoder({"images/front": (32, 32, 3)}, backbone, **rest, generator=seeded(0))
    backbone = {"class": "policies.points.PointNet", "hidden": [16, 32]}
    region = [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
    cameras = {"points/front": (64, 3)}
    return PointEncoder(cameras, backbone, region, **rest, generator=seeded(0))


def batch(kind):
    """Scenes in which one thing is at another place each time."""
    rng = np.random.default_rng(0)
    at = rng.uniform(-0.7, 0.7, (ROWS, 1, 2)).astype("f4")
    if kind == "images":
        seen = np.zeros((ROWS, 32, 32, 3), np.uint8)
        for image, (row, column) in zip(seen, (16 + 14 * at[:, 0]).astype(int), strict=True):
            image[row - 5 : row + 5, column - 5 : column + 5] = 255
    else:
        cloud = rng.uniform(-0.1, 0.1, (ROWS, 64, 3)).astype("f4")
        seen = cloud + np.pad(at, ((0, 0), (0, 0), (0, 1)))
    return {
        f"{kind}/front": seen[:, None],
        "state/tcp_pose": rng.uniform(-1, 1, (ROWS, 1, 7)).astype("f4"),
        "action": np.repeat(np.pad(at, ((0, 0), (0, 0), (0, 2))), 4, 1),
        "valid": np.ones((ROWS, 4), bool),
        REMAINING_MOTION: np.zeros((ROWS, 6), "f4"),
    }


def student(kind, **weights):
    vision, data, generator = encoder(kind), batch(kind), seeded(1)
    columns = {"state/tcp_pose": data["state/tcp_pose"][:, 0], "action": data["action"][:, 0]}
    policy = DiffusionPolicy.create(
        columns,
        observed_keys(STATES, vision),
        generator=generator,
        observation_steps=1,
        horizon=4,
        identity=(FEATURES,),
        denoiser={"hidden": [16]},
    )
    options = registry.make(
        compose(["observation=pixels"]).observation.vision_training, VisionTraining
    )
    options = replace(options, **weights)
    return SeeingPolicy(policy, vision, options, Regulariser(vision, options, generator))


@pytest.mark.parametrize("kind", ["images", "points"])
def test_the_features_come_to_tell_what_the_camera_saw(kind):
    taught, data, generator = student(kind, reconstruction_weight=1.0), batch(kind), seeded(2)

    def error():
        images = {f"{kind}/front": data[f"{kind}/front"]}
        return float(taught.regulariser(taught.vision(images), images, generator)[1].detach())

    optimizer = torch.optim.Adam(taught.parameters(), 3e-3)
    before = error()
    for _ in range(150):
        optimizer.zero_grad()
        taught.loss(data, generator).backward()
        optimizer.step()
    assert error() < 0.4 * before


def test_kl_draws_the_features_near_to_standard_normal_ones():
    spread = {}
    for weight in (1e-6, 1.0):
        taught, data, generator = student("images", kl_weight=weight), batch("images"), seeded(2)
        optimizer = torch.optim.Adam(taught.parameters(), 3e-3)
        for _ in range(100):
            optimizer.zero_grad()
            taught.loss(data, generator).backward()
            optimizer.step()
        features = taught.vision({"images/front": data["images/front"]})[..., :8]
        spread[weight] = float(features.detach().square().mean())
    # What is deployed has no noise: of a mean of N(0, 1) nothing but 0 is the nearest.
    assert spread[1.0] < 0.5 * spread[1e-6]
