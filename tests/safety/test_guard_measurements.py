"""What the arm's guard makes of measurements that are missing, jump or cannot be true."""

import math

import numpy as np
import pytest
from guarded_arm import LIMITS, SMALL, START, Arm, Bench, angle, moved, shifted

from robot_rl.safety import (
    ArmGuard,
    ArmLimits,
    CommandRefused,
    MeasurementRefused,
    Mode,
    ResetOptions,
    Resets,
)


def test_nothing_is_accepted_before_the_arm_is_measured():
    guard = ArmGuard(LIMITS)
    with pytest.raises(CommandRefused, match="not been measured"):
        guard.command(START, 10**18, 1.0, 10**18)


@pytest.mark.parametrize("what", ["tcp_pose", "joint_positions", "joint_velocities", "tcp_wrench"])
def test_a_measurement_that_is_missing_is_named_and_nothing_is_sent(what):
    bench = Bench()
    bench.send(shifted(x=0.01))
    getattr(bench.arm, what)[1] = math.nan
    with pytest.raises(MeasurementRefused, match="is not finite") as problem:
        bench.tick()
    named = {"tcp_pose": "pose", "tcp_wrench": "force"}.get(what, what.replace("_", " "))
    assert f"measured {named} " in str(problem.value)
    assert bench.guard.mode is Mode.HOLD
    assert bench.guard.counts["measurement"] == 1


def test_an_arm_without_a_wrench_sensor_has_no_limit_for_it():
    bench = Bench(
        ArmLimits(
            workspace_low=LIMITS.workspace_low,
            workspace_high=LIMITS.workspace_high,
            max_force=None,
            max_torque=None,
        )
    )
    bench.arm.tcp_wrench[:] = math.nan
    bench.send(shifted(x=0.01))
    assert bench.tick()[0] > START[0]


@pytest.mark.parametrize("mode", ["hold", "follow"])
def test_a_measured_jump_stops_the_arm_and_moves_nothing(mode):
    bench = Bench()
    if mode == "follow":
        bench.send(shifted(x=0.01))
        bench.tick()
    bench.arm.tcp_pose = bench.arm.tcp_pose + np.array([0, 0.1, 0, 0, 0, 0, 0])
    assert bench.tick() is None
    assert bench.guard.mode is Mode.STOPPED
    assert "jumped by 100 mm in 10 ms, from [0.4" in bench.guard.reason
    assert "0.1, 0.2] m; an arm moves at 1.5 m/s at most" in bench.guard.reason
    assert bench.refused()[0] == "stopped"
    bench.arm.tcp_pose = START.copy()  # it was one sample
    for _ in range(100):
        assert bench.tick() is None
    bench.guard.clear()
    bench.tick()
    bench.tick()
    np.testing.assert_allclose(bench.tick(), START, atol=0.003)  # where it held


def test_an_arm_that_is_elsewhere_after_its_measurements_were_lost_stops():
    bench = Bench()
    bench.guard.forget("one late sample")
    bench.arm.tcp_pose = shifted(y=0.15)
    assert [bench.tick() for _ in range(5)] == [None] * 5
    assert bench.guard.mode is Mode.STOPPED
    assert "is measured 150 mm and 0 degrees from its last target (one late sample)" in (
        bench.guard.reason
    )
    bench.guard.clear()
    bench.tick()
    bench.tick()
    np.testing.assert_allclose(bench.tick(), shifted(y=0.15), atol=1e-9)


def lost(bench):
    bench.guard.forget("the arm is not connected")
    bench.guard.forget("connected", unheld=True)


def stopped_and_cleared(bench):
    bench.guard.stop("a protective stop")
    bench.guard.forget("late")
    bench.guard.clear()


@pytest.mark.parametrize("happened", [lost, stopped_and_cleared])
def test_an_arm_that_came_to_rest_beside_its_target_is_not_pulled_back_there(happened):
    bench = Bench()
    happened(bench)
    bench.arm.tcp_pose = shifted(y=0.015)  # it coasted, and its controller keeps it here
    for _ in range(50):
        target = bench.tick()
    np.testing.assert_allclose(target, shifted(y=0.015), atol=1e-9)


def test_a_jump_that_lasts_is_not_believed_because_it_was_cleared_once():
    bench = Bench()
    bench.arm.tcp_pose = shifted(y=0.15)
    for words in ("jumped by 150 mm", "is measured 150 mm"):
        assert [bench.tick() for _ in range(5)] == [None] * 5
        assert words in bench.guard.reason
        bench.guard.clear()
    bench.tick()
    bench.tick()
    np.testing.assert_allclose(bench.tick(), shifted(y=0.15), atol=1e-9)


@pytest.mark.parametrize("fault", ["not finite", "late"])
def test_an_arm_that_holds_does_not_sag_with_every_fault_that_passes(fault):
    bench = Bench()
    for _ in range(20):
        sagged = bench.guard.target - np.array([0, 0, 0.005, 0, 0, 0, 0])
        if fault == "late":
            bench.guard.forget("the measurement is late")
        else:
            bench.arm.tcp_pose = sagged * np.nan
            with pytest.raises(MeasurementRefused):
                bench.tick()
        bench.arm.tcp_pose = sagged
        for _ in range(4):
            bench.measure()
    np.testing.assert_allclose(bench.guard.target, START, atol=1e-9)


def test_one_sample_that_is_far_off_and_yet_plausible_pulls_the_target_no_faster_than_an_arm():
    bench = Bench()
    bench.now += 0.033  # pictures of a tracker, for example
    bench.arm.stamp_ns += 33 * 10**6
    bench.arm.tcp_pose = shifted(y=0.046)
    bench.guard.tick(bench.now, bench.arm)
    before = bench.guard.target.copy()
    for _ in range(3):
        target = bench.guard.tick(bench.now + 0.01, bench.arm)
        bench.now += 0.01
        assert np.linalg.norm(target[:3] - before[:3]) <= 0.015 + SMALL
        before = target.copy()


def test_a_stopped_arm_does_not_go_on_pressing():
    bench = Bench()
    bench.send(shifted(z=-0.015))
    for _ in range(20):  # it cannot follow: something is below
        bench.measure()
    assert bench.guard.target[2] < START[2] - 0.01
    bench.guard.stop("the operator pressed stop")
    for _ in range(20):
        bench.now += 0.01
        last = bench.guard.tick(bench.now, bench.arm)
    assert last is None
    np.testing.assert_allclose(bench.guard.target, START, atol=1e-9)


def test_commands_are_refused_while_measurements_cannot_be_used():
    bench = Bench()
    bench.arm.tcp_pose = START * np.nan
    with pytest.raises(MeasurementRefused):
        bench.tick()
    assert bench.refused()[0] == "measurement"


def test_a_measured_turn_that_no_arm_makes_stops_it():
    bench = Bench()
    bench.arm.tcp_pose = moved(START, np.zeros(3), [0.0, 0.0, 0.5])
    assert bench.tick() is None
    assert "orientation jumped by 29 degrees in 10 ms" in bench.guard.reason


def test_one_sample_that_is_off_by_less_than_a_jump_moves_nothing_that_stands():
    bench = Bench()
    bench.arm.tcp_pose = shifted(y=0.012)
    np.testing.assert_array_equal(bench.guard.tick(bench.now + 0.01, bench.arm), START)


def test_many_small_jumps_are_a_large_one():
    bench = Bench()
    for _ in range(200):  # 4 m/s
        bench.now += 0.001
        bench.arm.stamp_ns += 10**6
        bench.arm.tcp_pose = bench.arm.tcp_pose + np.array([0, 0.004, 0, 0, 0, 0, 0])
        bench.guard.tick(bench.now, bench.arm)
    assert bench.guard.mode is Mode.STOPPED
    assert bench.guard.target[1] < 0.15


def test_nothing_is_sent_before_some_measurements_agree():
    guard, arm = ArmGuard(LIMITS), Arm(tcp_pose=shifted(x=0.1))
    assert guard.tick(1.00, arm) is None
    arm.stamp_ns, arm.tcp_pose = arm.stamp_ns + 1, START.copy()
    assert guard.tick(1.01, arm) is None
    assert guard.mode is Mode.HOLD
    assert "jumped by 100 mm" in guard.reason
    for tick in (2, 3):
        arm.stamp_ns += 1
        target = guard.tick(1.0 + 0.01 * tick, arm)
    np.testing.assert_array_equal(target, START)


def test_the_same_measurement_again_is_not_one_that_agrees():
    guard, arm = ArmGuard(LIMITS), Arm()
    assert all(guard.tick(1.0 + 0.01 * n, arm) is None for n in range(10))


@pytest.mark.parametrize("mode", ["hold", "follow", "reset"])
@pytest.mark.parametrize("offset", [(0, 0.04, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0.2)])
def test_an_arm_whose_pose_is_measured_wrongly_does_not_run_away(mode, offset):
    """Its tool centre was changed while it stood, for example: by less than counts as a jump."""
    bench = Bench()
    resets = Resets(bench.guard, ResetOptions())
    if mode == "reset":
        resets.begin(shifted(z=0.05))
    true = START.copy()
    for _ in range(1_000):
        if mode == "follow" and bench.guard.mode is not Mode.STOPPED:
            bench.send(START)
        target = bench.measure(moved(true, np.array(offset[:3]), offset[3:]), seconds=0.02)
        true = true if target is None else target.copy()
        resets.poll()
    assert np.linalg.norm(true[:3] - START[:3]) < 0.15
    assert angle(true[3:], START[3:]) < 0.6
    assert bench.guard.mode is Mode.STOPPED
    assert "gone away from where it was asked to be" in bench.guard.reason
