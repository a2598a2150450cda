"""Our rotations against SciPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from robot_rl.safety import rotations

finite = st.floats(-10.0, 10.0)
vectors = st.tuples(finite, finite, finite).map(np.array)
quaternions = (
    st.tuples(*[st.floats(-1.0, 1.0)] * 4)
    .map(np.array)
    .filter(lambda q: np.linalg.norm(q) > 1e-3)
    .map(lambda q: q / np.linalg.norm(q))
)
poses = st.tuples(vectors, quaternions).map(np.concatenate)


def same_rotation(ours, theirs):
    """Quaternions q and -q are one rotation."""
    np.testing.assert_allclose((Rotation.from_quat(ours) * theirs.inv()).magnitude(), 0, atol=1e-7)


@given(quaternions, quaternions)
def test_multiply_applies_the_right_one_first(left, right):
    same_rotation(
        rotations.multiply(left, right), Rotation.from_quat(left) * Rotation.from_quat(right)
    )


@given(quaternions, vectors)
def test_rotate(quaternion, vector):
    expected = Rotation.from_quat(quaternion).apply(vector)
    np.testing.assert_allclose(rotations.rotate(quaternion, vector), expected, atol=1e-9)
    back = rotations.rotate(rotations.conjugate(quaternion), expected)
    np.testing.assert_allclose(back, vector, atol=1e-9)


@given(vectors)
def test_from_rotation_vector(rotation):
    quaternion = rotations.from_rotation_vector(rotation)
    same_rotation(quaternion, Rotation.from_rotvec(rotation))
    assert abs(np.linalg.norm(quaternion) - 1.0) < 1e-9


@given(quaternions)
def test_to_rotation_vector_takes_the_shorter_way(quaternion):
    vector = rotations.to_rotation_vector(quaternion)
    assert np.linalg.norm(vector) <= np.pi + 1e-9
    same_rotation(quaternion, Rotation.from_rotvec(vector))


@given(vectors, st.floats(1e-15, 1e-3))
def test_small_rotations_keep_their_digits(axis, size):
    small = axis * size / 10
    there = rotations.to_rotation_vector(rotations.from_rotation_vector(small))
    np.testing.assert_allclose(there, small, rtol=1e-6, atol=1e-17)


@given(poses, poses)
def test_relative_undoes_compose(parent, child):
    together = rotations.compose(parent, child)
    turn = Rotation.from_quat(parent[3:])
    np.testing.assert_allclose(together[:3], parent[:3] + turn.apply(child[:3]), atol=1e-8)
    same_rotation(together[3:], turn * Rotation.from_quat(child[3:]))
    back = rotations.relative(parent, together)
    np.testing.assert_allclose(back[:3], child[:3], atol=1e-8)
    same_rotation(back[3:], Rotation.from_quat(child[3:]))


@given(st.floats(-6.0, 6.0))
def test_about_z(angle):
    same_rotation(rotations.about_z(angle), Rotation.from_euler("z", angle))


@given(quaternions, st.floats(1e-3, 1e3))
def test_normalize(quaternion, scale):
    np.testing.assert_allclose(rotations.normalize(quaternion * scale), quaternion, atol=1e-12)


def test_downward_points_the_tool_at_the_table_and_its_x_forward():
    np.testing.assert_allclose(
        rotations.rotate(rotations.DOWNWARD, np.array([0, 0, 1.0])), [0, 0, -1]
    )
    np.testing.assert_allclose(
        rotations.rotate(rotations.DOWNWARD, np.array([1.0, 0, 0])), [1, 0, 0]
    )
