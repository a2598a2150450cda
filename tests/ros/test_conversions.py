"""Messages carry arrays there and back, and what they lack is an error that names it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from robot_rl.ros import conversions
from robot_rl.ros.conversions import MessageError, to_nanoseconds

NAMES = ("shoulder", "elbow", "wrist")


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 5, 3), np.uint8), ((4, 5), np.uint16), ((4, 5, 1), np.uint16)]
)
def test_a_picture_comes_back_as_it_was_sent(shape, dtype):
    picture = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype)
    message = conversions.image_message(picture, 12_345_678_901, "front")
    assert to_nanoseconds(message.header.stamp) == 12_345_678_901
    seen = conversions.image_array(message)
    assert seen.dtype == dtype
    np.testing.assert_array_equal(seen, picture.reshape(4, 5, -1))


def test_padded_rows_swapped_colours_and_swapped_bytes_are_honoured():
    picture = np.random.default_rng(0).integers(0, 255, (3, 4, 3), np.uint8)
    message = conversions.image_message(picture, 0, "front")
    padded = np.concatenate([picture.reshape(3, 12), np.zeros((3, 5), np.uint8)], axis=1)
    message.step, message.data = 17, padded.tobytes()
    np.testing.assert_array_equal(conversions.image_array(message), picture)
    message.encoding = "bgr8"
    np.testing.assert_array_equal(conversions.image_array(message), picture[..., ::-1])

    depth = np.arange(6, dtype=np.uint16).reshape(2, 3) * 300
    message = conversions.image_message(depth, 0, "front")
    message.is_bigendian, message.data = 1, depth.byteswap().tobytes()
    np.testing.assert_array_equal(conversions.image_array(message)[..., 0], depth)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoding": "yuv422"}, "yuv422"),
        ({"step": 3}, "step 3"),
        ({"height": 9}, "data does not fit"),
        ({"width": 0}, "data does not fit"),
    ],
)
def test_a_picture_that_does_not_add_up_is_refused(changes, named):
    message = conversions.image_message(np.zeros((4, 5, 3), np.uint8), 0, "front")
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(MessageError, match=named):
        conversions.image_array(message)


def test_an_array_that_is_no_picture_is_refused():
    with pytest.raises(MessageError, match="float64"):
        conversions.image_message(np.zeros((4, 5, 3)), 0, "front")


def test_joints_are_taken_by_name_and_a_missing_one_is_named():
    message = conversions.joint_state_message(NAMES, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 7)
    order = ("wrist", "shoulder")
    np.testing.assert_array_equal(conversions.joint_positions(message, order), [3.0, 1.0])
    np.testing.assert_array_equal(conversions.joint_states(message, order)[1], [6.0, 4.0])
    with pytest.raises(MessageError, match="'finger' is missing"):
        conversions.joint_positions(message, ("wrist", "finger"))
    with pytest.raises(MessageError, match="no velocity of every joint"):
        conversions.joint_states(conversions.joint_state_message(NAMES, [0.0] * 3, None, 7), NAMES)
    broken = conversions.joint_state_message(NAMES, [0.0, np.nan, 0.0], None, 7)
    with pytest.raises(MessageError, match="'elbow' is not finite"):
        conversions.joint_positions(broken, NAMES)


def test_poses_velocities_and_forces_come_back():
    pose = np.array([0.1, -0.2, 0.3, 0.0, 0.6, 0.0, 0.8])
    six = np.arange(6) - 2.5
    np.testing.assert_allclose(conversions.pose_array(conversions.pose_message(pose, 1)), pose)
    np.testing.assert_array_equal(conversions.twist_array(conversions.twist_message(six, 1)), six)
    np.testing.assert_array_equal(conversions.wrench_array(conversions.wrench_message(six, 1)), six)
    poses = np.stack([pose, pose])
    np.testing.assert_allclose(
        conversions.poses_array(conversions.poses_message(poses, 1), 2), poses
    )
    with pytest.raises(MessageError, match="another number of poses"):
        conversions.poses_array(conversions.poses_message(poses, 1), 3)


@pytest.mark.parametrize(
    ("pose", "named"),
    [
        ([0, 0, 0, 0, 0, 0, 0], "is no rotation"),  # what an unset message holds
        ([0, np.inf, 0, 0, 0, 0, 1], "'y' is not finite"),
        ([1e308, 0, 0, 0, 0, 0, 1], "no arm is there"),
        ([0, 0, 0, 1e308, 1e308, 0, 1e308], "is no rotation|no arm is there"),
    ],
)
def test_a_malformed_pose_is_refused(pose, named):
    with pytest.raises(MessageError, match=named):
        conversions.pose_array(conversions.pose_message(pose, 1))


def test_stamps_keep_every_nanosecond():
    for stamp in (0, 999_999_999, 1_790_000_000_123_456_789):
        assert to_nanoseconds(conversions.header(stamp).stamp) == stamp
