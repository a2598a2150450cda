"""A guard whose measurements are corrupted, and an arm that holds: nothing moves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from guarded_arm import DOWN, LIMITS, START, Arm, Bench, moved, shifted
from scipy.spatial.transform import Rotation

from robot_rl.safety import (
    ActionLimiter,
    ArmGuard,
    CartesianLimits,
    CommandRefused,
    JointArmLimits,
    MeasurementRefused,
    Mode,
)

WILD = (
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    1e-310,
    1e154,
    20.0,
    2000.0,
)
PARTS = ("tcp_pose", "tcp_velocity", "tcp_wrench", "joint_positions", "joint_velocities")
JOINTS = JointArmLimits(joint_low=(-2.0,) * 7, joint_high=(2.0,) * 7)


def corrupt(arm, rng):
    """Change one of what is measured; a quaternion's sign is none that a rotation has."""
    part = PARTS[rng.integers(len(PARTS))]
    values, kind = getattr(arm, part).copy(), rng.integers(4)
    if kind == 0:
        values[:] = rng.choice(WILD)
    elif kind == 1:
        values[rng.integers(len(values))] = rng.choice(WILD)
    elif kind == 2:
        values = rng.choice(WILD, rng.integers(0, 9))
    else:
        part, values = "tcp_pose", arm.tcp_pose * ([1.0] * 3 + [-1.0] * 4)
    setattr(arm, part, values)


def try_a_sequence(rng, steps=12):
    """Each measurement may be corrupted, commands come now and then; returns how often it held."""
    limits = LIMITS if rng.random() < 0.7 else JOINTS
    by_joints, guard, held, now = limits is JOINTS, ArmGuard(limits), 0, 100.0
    place = START.copy()
    if not by_joints and rng.random() < 0.3:  # beyond the limits
        place = moved(START, rng.uniform(-0.3, 0.3, 3), rng.normal(size=3) * 1.5)
    last, stamp, resting, forces = None, 10**18, False, 0
    for step in range(steps):
        now, stamp = now + 0.01, stamp + 10**7
        arm = Arm(stamp_ns=stamp, tcp_pose=place + np.append(rng.normal(size=3) * 1e-4, [0] * 4))
        arm.joint_positions = rng.normal(size=7) * 1e-4
        if step > 3 and rng.random() < 0.6:
            corrupt(arm, rng)
        if rng.random() < 0.15:
            way = rng.normal(size=7) * 0.02
            target = way if by_joints else moved(place, way[:3], way[3:6])
            try:
                guard.command(target, stamp, now, stamp)
            except CommandRefused:
                pass
            else:
                assert np.isfinite(guard.goal).all()
                resting = False
        if guard.mode is Mode.FOLLOW and rng.random() < 0.2:
            now += 0.3  # its client fell silent
        try:
            target = guard.tick(now, arm)
        except MeasurementRefused:
            target = None
        if target is not None:
            assert np.isfinite(target).all()
        if guard.counts["force"] != forces:  # what presses too hard is yielded to
            forces, resting = guard.counts["force"], False
        if guard.target is not None:
            assert np.isfinite(guard.target).all()
            if resting and guard.mode is Mode.HOLD:
                np.testing.assert_array_equal(guard.target, last)
                held += 1
            resting = guard.mode is Mode.HOLD and np.array_equal(guard.target, guard.goal)
            last = guard.target.copy()
        else:
            resting = False
    return held


@pytest.mark.parametrize(
    ("count", "seed"), [(600, 0), pytest.param(20_000, 1, marks=pytest.mark.slow)]
)
def test_corrupted_measurements_never_move_an_arm_that_holds_nor_become_a_target(count, seed):
    rng = np.random.default_rng(seed)
    held = sum(try_a_sequence(rng) for _ in range(count))
    assert held > 2 * count


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("part", ["position", "quaternion"])
def test_what_is_no_pose_is_refused_by_guard_and_limiter(value, part):
    bench = Bench()
    bench.arm.tcp_pose[slice(0, 3) if part == "position" else slice(3, 7)] = value
    if part == "position" and abs(value) <= 10.0:
        return  # it is one, of an arm that is somewhere else
    before = bench.guard.target.copy()
    with pytest.raises(MeasurementRefused, match="measured pose"):
        bench.tick()
    np.testing.assert_array_equal(bench.guard.target, before)
    limiter = ActionLimiter(
        CartesianLimits(
            workspace_low=LIMITS.workspace_low,
            workspace_high=LIMITS.workspace_high,
            translation_step=0.01,
            rotation_step=0.05,
            max_force=None,
        )
    )
    limiter.reset(START)
    with pytest.raises(MeasurementRefused, match="measured pose"):
        limiter.advance(np.zeros(6), bench.arm.tcp_pose, None)
    np.testing.assert_array_equal(limiter.target, START)


@pytest.mark.parametrize(
    ("part", "shape"), [("tcp_pose", 6), ("tcp_velocity", 3), ("joint_velocities", 6)]
)
def test_a_measurement_of_another_shape_is_refused(part, shape):
    bench = Bench()
    setattr(bench.arm, part, np.zeros(shape))
    with pytest.raises(MeasurementRefused, match="another number of values"):
        bench.tick()


# -- holding is not moving ------------------------------------------------------------------------


def held_with_noise(limits, pose, sigma, turn, seconds, follows):
    """How many targets differ from the first that is held, and the farthest [m, rad]."""
    rng, bench = np.random.default_rng(3), Bench(limits, pose)
    first, others, farthest = bench.guard.target.copy(), 0, np.zeros(2)
    for _ in range(round(seconds / 0.01)):
        bench.now += 0.01
        bench.arm.stamp_ns += 10**7
        true = bench.guard.target if follows else pose
        bench.arm.tcp_pose = moved(true, rng.normal(size=3) * sigma, rng.normal(size=3) * turn)
        target = bench.guard.tick(bench.now, bench.arm)
        others += not np.array_equal(target, first)
        farthest = np.maximum(farthest, limits.apart(first, target))
    return others, farthest


@pytest.mark.parametrize("seconds", [20.0, pytest.param(120.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("follows", [False, True])
def test_a_held_arm_does_not_creep_after_the_noise_of_its_pose(follows, seconds):
    limits = replace(LIMITS, max_lead_translation=0.005, max_lead_rotation=0.05)
    assert held_with_noise(limits, START, 0.002, 0.015, seconds, follows)[0] == 0


@pytest.mark.parametrize("tilt", [0.7, 2.6, 3.1])
@pytest.mark.parametrize("yaw", [0.0, 1.5, -3.0])
def test_a_held_target_beyond_tilt_or_yaw_does_not_turn(tilt, yaw):
    limits = replace(LIMITS, max_yaw=0.5, max_lead_rotation=0.03)
    turn = Rotation.from_rotvec([tilt, 0, 0]) * Rotation.from_rotvec([0, 0, yaw])
    pose = np.concatenate([START[:3], (Rotation.from_quat(DOWN) * turn).as_quat()])
    assert held_with_noise(limits, pose, 0.0005, 0.008, 2.0, follows=False)[0] == 0


def test_a_hold_beyond_the_tilt_limit_turns_the_tool_no_farther_than_the_arm_is():
    """The arm lags behind its target, and a limit lies between."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        limits = replace(LIMITS, max_yaw=0.5)
        bench = Bench(limits, moved(START, [0, 0, 0], rng.normal(size=3) * 1.5))
        held = bench.guard.target.copy()
        bench.send(held)
        bench.arm.tcp_pose = moved(held, [0, 0, 0], rng.normal(size=3) * 0.02)
        way = limits.apart(held, bench.arm.tcp_pose)[1]
        bench.guard.refuse("publishers", "two publishers")
        for _ in range(30):
            target = bench.measure()
        assert limits.apart(held, target)[1] <= way + 1e-8
        np.testing.assert_array_equal(target, bench.guard.goal)  # it has come to rest


def test_an_arm_that_is_pushed_slowly_takes_its_target_along_and_stays_there():
    bench = Bench()
    for y in np.linspace(0.0, 0.05, 200):
        target = bench.measure(shifted(y=y))
        assert y - target[1] <= LIMITS.max_lead_translation + LIMITS.unpushed[0] + 0.001
    for _ in range(100):
        bench.arm.tcp_pose[1] = max(bench.arm.tcp_pose[1] - 0.005, target[1])  # it springs back
        np.testing.assert_array_equal(bench.measure(), target)
    bench.send(target + np.array([0, 0, 0.01, 0, 0, 0, 0]))  # the next command begins there
    step = bench.guard.tick(bench.now + 0.01, bench.arm) - target
    assert np.linalg.norm(step[:3]) <= LIMITS.max_speed_translation * 0.01 + 1e-9


def test_joint_noise_and_speeds_that_flicker_do_not_move_an_arm_that_holds():
    bench, rng = Bench(), np.random.default_rng(0)
    for _ in range(500):
        bench.now += 0.01
        bench.arm.stamp_ns += 10**7
        bench.arm.tcp_pose = moved(START, rng.normal(size=3) * 0.001, [0, 0, 0])
        bench.arm.joint_velocities = rng.normal(size=7) * 1.5  # now and then too fast
        bench.arm.joint_positions = np.full(7, 1.96)
        np.testing.assert_array_equal(bench.guard.tick(bench.now, bench.arm), START)
    assert bench.guard.counts["joint_speed"] > 10
