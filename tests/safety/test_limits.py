"""What the limiter promises for every sequence of actions and measurements."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.transform import Rotation

from robot_rl.errors import RobotRLError
from robot_rl.safety import (
    ActionLimiter,
    ActionRefused,
    CartesianLimits,
    MeasurementRefused,
    check_action,
)

LIMITS = CartesianLimits(
    workspace_low=(0.30, -0.20, 0.0),
    workspace_high=(0.65, 0.20, 0.45),
    max_tilt=0.6,
    translation_step=0.01,
    rotation_step=0.05,
    max_lead_translation=0.02,
    max_lead_rotation=0.15,
    max_force=60.0,
)
DOWN = np.array([1.0, 0.0, 0.0, 0.0])
START = np.array([0.45, 0.0, 0.2, *DOWN])
NO_FORCE = np.zeros(3)
PRESSED = np.array([0.0, 0.0, 20.0])
NAMES = ("x", "y", "z", "rotation_x", "rotation_y", "rotation_z")
SMALL = 1e-9


def pose(shift, rotation):
    turn = Rotation.from_rotvec(rotation) * Rotation.from_quat(DOWN)
    return np.concatenate([START[:3] + shift, turn.as_quat()])


motions = arrays(np.float64, 6, elements=st.floats(-1.0, 1.0))
near = st.builds(
    pose,
    arrays(np.float64, 3, elements=st.floats(-0.03, 0.03)),
    arrays(np.float64, 3, elements=st.floats(-0.1, 0.1)),
)
anywhere = st.builds(
    pose,
    arrays(np.float64, 3, elements=st.floats(-1.0, 1.0)),
    arrays(np.float64, 3, elements=st.floats(-3.0, 3.0)),
)
forces = arrays(np.float64, 3, elements=st.floats(-60.0, 60.0))
sequences = st.lists(st.tuples(motions, near | anywhere, forces), min_size=1, max_size=12)


def angle(left, right):
    return (Rotation.from_quat(left[3:]) * Rotation.from_quat(right[3:]).inv()).magnitude()


def outside(position):
    """How far a position is out of the workspace, per axis."""
    low, high = np.array(LIMITS.workspace_low), np.array(LIMITS.workspace_high)
    return np.maximum(np.maximum(low - position, position - high), 0.0)


@given(sequences)
def test_whatever_is_asked_and_measured_the_target_keeps_the_limits(sequence):
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    for motion, measured, force in sequence:
        before = limiter.target.copy()
        target, clamped = limiter.advance(motion, measured, force)
        assert target is limiter.target
        assert abs(np.linalg.norm(target[3:]) - 1.0) < SMALL
        # Never further from the arm than the lead.
        assert np.all(np.abs(target[:3] - measured[:3]) <= LIMITS.max_lead_translation + SMALL)
        assert angle(target, measured) <= LIMITS.max_lead_rotation + 1e-6
        if np.linalg.norm(force) > LIMITS.max_force:
            assert clamped
            continue
        # Inside, or no further out than the target was, or than the arm is pushed.
        least = np.maximum(outside(before[:3]), outside(measured[:3]))
        assert np.all(outside(target[:3]) <= least + SMALL)
        # No further than asked for, or pulled towards the arm that moved away by itself.
        asked = LIMITS.translation_step * np.abs(motion[:3]) + SMALL
        pulled = np.abs(before[:3] - measured[:3]) > LIMITS.max_lead_translation - asked
        assert np.all((np.abs(target[:3] - before[:3]) <= asked) | pulled)


@given(anywhere)
def test_no_limit_moves_an_arm_wherever_it_is(measured):
    limiter = ActionLimiter(LIMITS)
    limiter.reset(measured)
    for _ in range(10):
        target, clamped = limiter.advance(np.zeros(6), measured, NO_FORCE)
        np.testing.assert_allclose(target, measured, atol=1e-9)
        assert not clamped


def test_what_leads_back_is_followed_and_what_leads_further_out_is_not():
    limiter = ActionLimiter(LIMITS)
    start = pose([0.3, 0.0, 0.0], [0.0, 0.9, 0.0])  # 10 cm beyond the workspace, and tilted by 0.9
    limiter.reset(start)
    out = np.array([1.0, 0, 0, 0, 1.0, 0])
    assert following(limiter, out, 5)
    np.testing.assert_allclose(limiter.target, start, atol=1e-9)
    assert not following(limiter, -out, 5)
    assert limiter.target[0] == pytest.approx(start[0] - 0.05)
    assert angle(limiter.target, START) == pytest.approx(0.65)


def test_an_arm_that_presses_too_hard_may_go_back_along_the_way_it_came():
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    down = np.array([0, 0, -1.0, 0, 0, 0])
    following(limiter, down, 5)
    low, hard = limiter.target.copy(), np.array([50.0, 0.0, 50.0])
    for motion in (down, np.array([1.0, 0, 0, 0, 0, 0]), np.zeros(6)):
        np.testing.assert_allclose(limiter.advance(motion, low, hard)[0], low)
    target, clamped = limiter.advance(-down, low, hard)
    assert clamped
    assert target[2] == pytest.approx(low[2] + 0.01)
    np.testing.assert_allclose(target[:2], low[:2], atol=1e-9)


@given(motions)
def test_an_unhindered_action_moves_the_target_by_its_step(motion):
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    target, clamped = limiter.advance(motion, START, NO_FORCE)
    assert not clamped
    np.testing.assert_allclose(target[:3], START[:3] + 0.01 * motion[:3], atol=1e-12)
    turn = Rotation.from_quat(target[3:]) * Rotation.from_quat(DOWN).inv()
    np.testing.assert_allclose(turn.as_rotvec(), 0.05 * motion[3:], atol=1e-9)


def following(limiter, motion, steps):
    """An arm that follows at once; returns whether any step was clamped."""
    clamped = [limiter.advance(motion, limiter.target.copy(), NO_FORCE)[1] for _ in range(steps)]
    return any(clamped)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_workspace_is_the_end_and_is_reported(axis, sign):
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    assert following(limiter, sign * np.eye(6)[axis], 60)
    bound = LIMITS.workspace_high if sign > 0 else LIMITS.workspace_low
    assert limiter.target[axis] == bound[axis]


@pytest.mark.parametrize(("axis", "name"), [(3, "tilt"), (4, "tilt"), (5, "yaw")])
def test_tilt_and_yaw_end_and_are_reported(axis, name):
    limiter = ActionLimiter(dataclasses.replace(LIMITS, max_yaw=0.5))
    limiter.reset(START)
    assert following(limiter, np.eye(6)[axis], 60)
    most = {"tilt": LIMITS.max_tilt, "yaw": 0.5}[name]
    assert angle(limiter.target, START) == pytest.approx(most, abs=1e-9)


def test_the_yaw_is_free_without_a_range():
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    assert not following(limiter, np.eye(6)[5], 200)


def test_an_arm_that_is_held_back_does_not_store_up_motion():
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    down = np.array([0, 0, -1.0, 0, 0, 0])
    for _ in range(50):
        target, clamped = limiter.advance(down, START, PRESSED)
        assert not clamped  # pressing is normal motion
    assert START[2] - target[2] == pytest.approx(LIMITS.max_lead_translation)
    for _ in range(2):
        target, _ = limiter.advance(-down, START, PRESSED)
    assert target[2] == pytest.approx(START[2])


def test_too_much_force_holds():
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    elsewhere = pose([0.01, 0.0, -0.02], [0.05, 0.0, 0.0])
    target, clamped = limiter.advance(np.ones(6), elsewhere, np.array([0.0, -60.1, 0.0]))
    np.testing.assert_array_equal(target, elsewhere)
    assert clamped
    assert not limiter.advance(np.zeros(6), elsewhere, np.array([0.0, 60.0, 0.0]))[1]


def test_a_force_is_needed_where_it_is_limited_and_only_there():
    limiter = ActionLimiter(LIMITS)
    with pytest.raises(MeasurementRefused, match="force None"):
        limiter.advance(np.ones(6), START, None)
    unlimited = ActionLimiter(dataclasses.replace(LIMITS, max_force=None))
    unlimited.reset(START)
    target, _ = unlimited.advance(np.ones(6), START, None)
    assert (target[:3] > START[:3]).all()
    with pytest.raises(MeasurementRefused, match=r"force .*nan"):
        unlimited.advance(np.ones(6), START, np.array([0.0, np.nan, 0.0]))


@pytest.mark.parametrize("column", [0, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_measurement_that_is_not_finite_is_refused(column, bad):
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    before = limiter.target.copy()
    broken = START.copy()
    broken[column] = bad
    for measured, force in ((broken, NO_FORCE), (START, np.array([0.0, bad, 0.0]))):
        with pytest.raises(MeasurementRefused, match=r"got: .*expected: finite"):
            limiter.advance(np.ones(6), measured, force)
    np.testing.assert_array_equal(limiter.target, before)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"workspace_low": (0.65, -0.2, 0.0)}, "along x"),
        ({"workspace_high": (0.65, 0.2, -0.1)}, "along z"),
        ({"workspace_low": (0.3, float("nan"), 0.0)}, "workspace_low"),
        ({"workspace_high": (0.65, 0.2)}, "workspace_high"),
        ({"workspace_high": (0.65, 0.2, float("inf"))}, "workspace_high"),
        *[
            ({name: value}, name)
            for name in (
                "max_tilt",
                "translation_step",
                "rotation_step",
                "max_lead_translation",
                "max_lead_rotation",
                "max_force",
            )
            for value in (0.0, -1.0, float("nan"), float("inf"))
        ],
    ],
)
def test_limits_that_cannot_hold_are_refused_by_name(change, named):
    with pytest.raises(RobotRLError, match=f"{named}.*got: .*expected: "):
        dataclasses.replace(LIMITS, **change)


@given(arrays(np.float32, 6, elements=st.floats(-1.0, 1.0, width=32)))
def test_a_good_action_passes_unchanged(action):
    checked = check_action(action, NAMES)
    assert checked.dtype == np.float32
    np.testing.assert_array_equal(checked, action)
    checked[:] = 0.5  # a copy: the caller's array is its own
    assert check_action(action.tolist(), NAMES).dtype == np.float32


@given(
    arrays(np.float64, 6, elements=st.floats(-1.0, 1.0)),
    st.integers(0, 5),
    st.floats().filter(lambda value: not abs(value) <= 1.0),
)
def test_a_bad_action_is_refused_by_the_name_of_its_column(action, column, bad):
    action[column] = bad
    with pytest.raises(ActionRefused) as refusal:
        check_action(action, NAMES)
    message = str(refusal.value)
    assert repr(NAMES[column]) in message
    assert f"got: {np.float64(bad)}" in message
    assert "expected: a number in [-1, 1]" in message
    assert "next:" in message


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_the_smallest_integer_is_no_action(dtype):
    action = np.zeros(6, dtype)
    action[2] = np.iinfo(dtype).min
    with pytest.raises(ActionRefused, match="'z'"):
        check_action(action, NAMES)


@pytest.mark.parametrize(
    "action",
    [np.zeros(5), np.zeros((6, 1)), 0.0, ["a"] * 6, np.zeros(6, bool), [[1], [1, 2]], None],
)
def test_another_shape_or_dtype_is_refused_with_the_columns(action):
    with pytest.raises(ActionRefused, match="rotation_z") as refusal:
        check_action(action, NAMES)
    assert "got:" in str(refusal.value)
    assert "(6,)" in str(refusal.value)


@pytest.mark.parametrize("offset", [(0, 0.04, 0), (0, 0, -0.021)])
def test_an_arm_that_goes_away_from_where_the_actions_lead_is_noticed(offset):
    """Measured wrongly by more than the lead, it takes its target along for ever."""
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    true = START.copy()
    for _ in range(200):
        measured = pose(true[:3] - START[:3] + np.array(offset), [0, 0, 0])
        true, _ = limiter.advance(np.zeros(6), measured, NO_FORCE)
        if limiter.straying.problem(measured) is not None:
            break
    assert "gone away from where it was asked to be" in limiter.straying.problem(measured)
    assert np.linalg.norm(true[:3] - START[:3]) < 0.1


def test_an_arm_that_is_blocked_does_not_stray_however_long_it_is_pushed_on():
    limiter = ActionLimiter(LIMITS)
    limiter.reset(START)
    for down in (-1.0, 1.0):
        for _ in range(100):
            limiter.advance(np.array([0, 0, down, 0, 0, 0]), START, NO_FORCE)
            assert limiter.straying.problem(START) is None
