"""Features of point clouds, in place of those of images."""

from __future__ import annotations

import json

import numpy as np
import pytest

from policies.errors import PolicyError
from policies.networks import seeded
from policies.vision import build_image_encoder
from robot_rl.extras.points.point_encoder import PointEncoder


@pytest.mark.parametrize("columns", [3, 6])
def test_a_point_cloud_becomes_features_whatever_the_order_of_its_points(columns):
    cameras = {"points/front": (20, columns), "images/front": (24, 32, 3)}
    backbone = {"class": "robot_rl.extras.points.point_encoder.PointNet", "hidden": [8, 16]}
    options = {"hidden": 7, "features": 5, "motion_scale": [0.05, 0.3], "fine_scale": 0.004}
    region = [[0.3, -0.2, 0.0], [0.6, 0.2, 0.3]]
    made = PointEncoder(cameras, backbone, region, **options, generator=seeded(0))
    assert list(made.cameras) == ["points/front"]
    clouds = np.random.default_rng(0).random((3, 20, columns), np.float32)
    features = made.encode({"points/front": clouds})
    assert (features.shape, features.dtype) == ((3, made.features), np.float16)
    np.testing.assert_array_equal(made.encode({"points/front": clouds[:, ::-1].copy()}), features)
    histories = {"points/front": clouds[None]}
    np.testing.assert_allclose(made.encode(histories)[0], features, atol=2e-3)
    moved = clouds + np.float32([0.01] * columns)
    assert (made.encode({"points/front": moved}) != features).any()
    again = build_image_encoder(json.loads(json.dumps(made.config)))
    again.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(again.encode({"points/front": clouds}), features)
    with pytest.raises(
        PolicyError, match=r"lacks the camera 'points/front'; got: \['images/front'"
    ):
        made.encode({"images/front": np.zeros((3, 24, 32, 3), np.uint8)})
    with pytest.raises(PolicyError, match=r"needs a camera; got: \['images/fr.*points/<camera>"):
        PointEncoder(
            {"images/front": (24, 32, 3)}, backbone, region, **options, generator=seeded(0)
        )
    for wrong in (region[:1], region[::-1]):
        with pytest.raises(PolicyError, match="region of the points is no box"):
            PointEncoder(cameras, backbone, wrong, **options, generator=seeded(0))
    with pytest.raises(PolicyError, match=r"gives no points; got: \(20, 4\)"):
        PointEncoder({"points/f": (20, 4)}, backbone, region, **options, generator=seeded(0))
