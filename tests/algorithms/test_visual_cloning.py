"""What an image encoder is taught: the motion that is left, and that an episode has one end."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from policies.networks import seeded
from robot_rl.learning.stages.vision import Explored, remaining_motion
from robot_rl.safety import rotations

ENDS = np.array([4, 9])


@pytest.fixture
def poses():
    """Two episodes of 4 and 5 rows that move along x and turn about z."""
    rows = []
    for start, length in ((0.0, 4), (10.0, 5)):
        for step in range(length):
            turn = rotations.multiply(rotations.about_z(0.1 * step), rotations.DOWNWARD)
            rows.append([start + step, 2.0, 3.0, *turn])
    return np.array(rows, np.float32)


def test_the_remaining_motion_leads_to_the_end_of_the_own_episode(poses):
    motion = remaining_motion(poses, ENDS)
    np.testing.assert_allclose(motion[:, 0], [3, 2, 1, 0, 4, 3, 2, 1, 0], atol=1e-5)
    np.testing.assert_allclose(motion[:, 5], 0.1 * motion[:, 0], atol=1e-5)
    np.testing.assert_allclose(motion[:, [1, 2, 3, 4]], 0, atol=1e-5)


def test_explored_pairs_are_of_one_episode(poses):
    numbers = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1) * np.ones((1, 2, 2, 3), np.uint8)
    explored = Explored(poses, {"images/front": numbers}, ENDS)
    first, second, motion = explored.pairs(400, seeded(0))
    here, there = (part["images/front"][:, 0, 0, 0].astype(int) for part in (first, second))
    assert ((here < 4) == (there < 4)).all()
    assert {*zip(here, there, strict=True)} == {
        (a, b) for a in range(9) for b in range(9) if (a < 4) == (b < 4)
    }
    np.testing.assert_allclose(motion[:, 0], there - here, atol=1e-5)
    np.testing.assert_allclose(motion[:, 5], 0.1 * (there - here), atol=1e-5)
    again = explored.pairs(400, seeded(0))
    assert torch.equal(again[2], motion)
    assert copy.deepcopy(explored) is explored
