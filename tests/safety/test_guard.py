"""Each limit of the arm's guard, its stop, and the settings that it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from guarded_arm import DOWN, LIMITS, SMALL, START, Bench, angle, shifted
from scipy.spatial.transform import Rotation

from robot_rl.errors import RobotRLError
from robot_rl.safety import ArmLimits, Mode, refuse_stiff_contact


def test_a_command_is_reached_at_the_speed_limit_and_no_faster():
    bench = Bench()
    bench.send(shifted(x=0.015))
    before = START
    for _ in range(8):
        target = bench.tick(0.01)
        assert np.linalg.norm(target[:3] - before[:3]) <= 0.25 * 0.01 + SMALL
        before = target.copy()
    np.testing.assert_allclose(target, shifted(x=0.015), atol=1e-12)
    assert bench.guard.counts["speed"] == 1
    assert sum(bench.guard.counts.values()) == 1


def test_one_command_moves_the_target_by_one_step_at_most():
    bench = Bench()
    bench.send(shifted(x=0.2))
    np.testing.assert_allclose(bench.guard.goal[:3] - START[:3], [0.02, 0, 0], atol=1e-12)
    assert bench.guard.counts["step"] == 1
    assert bench.guard.counts["lead"] == 1


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_workspace_ends_every_way(axis, sign):
    bench = Bench()
    for _ in range(300):
        bench.send(bench.arm.tcp_pose + 0.02 * sign * np.eye(7)[axis])
        bench.tick(0.05)
    bound = LIMITS.workspace_high if sign > 0 else LIMITS.workspace_low
    assert bench.arm.tcp_pose[axis] == bound[axis]
    assert bench.guard.counts["workspace"] > 0


def test_the_tilt_ends_every_turn():
    bench = Bench()
    for _ in range(100):
        turn = Rotation.from_rotvec([0.1, 0, 0]) * Rotation.from_quat(bench.arm.tcp_pose[3:])
        bench.send(np.concatenate([START[:3], turn.as_quat()]))
        bench.tick(0.05)
    assert angle(bench.arm.tcp_pose[3:], DOWN) == pytest.approx(LIMITS.max_tilt, abs=1e-6)
    assert bench.guard.counts["tilt"] > 0


def test_an_arm_outside_holds_there_and_comes_back_slowly():
    bench = Bench(pose=shifted(z=0.35))  # 10 cm above the workspace
    before = bench.tick().copy()
    np.testing.assert_array_equal(before, shifted(z=0.35))
    for _ in range(100):
        bench.send(shifted(z=0.2))
        target = bench.tick()
        assert before[2] - target[2] <= 0.25 * 0.01 + SMALL
        before = target.copy()
    assert bench.arm.tcp_pose[2] <= LIMITS.workspace_high[2] + SMALL


def test_a_force_over_the_limit_yields_and_holds_until_the_next_command():
    bench = Bench()
    bench.send(shifted(z=-0.01))
    bench.tick()
    bench.arm.tcp_wrench[2] = 70.0
    for _ in range(5):
        measured = bench.arm.tcp_pose.copy()
        np.testing.assert_array_equal(bench.tick(), measured)
    assert bench.guard.counts["force"] == 1
    assert "force 70.0 N over its limit of 60.0 N" in bench.guard.reason
    bench.arm.tcp_wrench[2] = 10.0
    still = bench.tick().copy()
    np.testing.assert_array_equal(bench.tick(), still)
    bench.send(still + np.array([0, 0, 0.01, 0, 0, 0, 0]))
    assert bench.tick()[2] > still[2]


def test_a_joint_may_leave_its_limit_and_not_go_on_towards_it():
    bench = Bench()
    bench.arm.joint_positions[2] = 1.98
    bench.arm.joint_velocities[2] = -0.3
    bench.send(shifted(x=0.01))
    bench.tick()
    assert bench.guard.mode is Mode.FOLLOW
    bench.arm.joint_velocities[2] = 0.3
    bench.tick()
    assert bench.guard.mode is Mode.HOLD
    assert bench.guard.reason == "joint 2 at 1.980 rad moves to its limit"
    assert bench.guard.counts["joint"] == 1


def test_a_joint_that_is_too_fast_holds():
    bench = Bench()
    bench.send(shifted(x=0.01))
    bench.arm.joint_velocities[0] = -2.5
    bench.tick()
    assert bench.guard.mode is Mode.HOLD
    assert bench.guard.counts["joint_speed"] == 1


def test_a_stop_latches_until_it_is_cleared():
    bench = Bench()
    bench.send(shifted(x=0.01))
    bench.tick()
    bench.guard.stop("the operator pressed stop")
    bench.tick()  # to where the arm was measured
    for _ in range(3):
        reason, text = bench.refused(shifted(x=0.01))
        assert reason == "stopped"
        assert "the operator pressed stop" in text
        assert "clear_errors" in text
        assert bench.tick() is None
    bench.guard.stop("again")
    assert bench.guard.reason == "the operator pressed stop"
    bench.guard.clear()
    here = bench.arm.tcp_pose.copy()
    assert bench.tick() is None  # until some measurements agree on where it is
    bench.tick()
    np.testing.assert_allclose(bench.tick(), here, atol=1e-12)
    bench.send(here)
    assert bench.guard.mode is Mode.FOLLOW
    assert bench.guard.counts["stop"] == 1


def test_commands_of_another_time_are_refused():
    bench = Bench()
    assert bench.refused(age=0.6)[0] == "stale_stamp"
    assert "0.600 s before" in bench.refused(age=0.6)[1]
    assert bench.refused(age=-0.6)[0] == "stale_stamp"  # from the future
    assert bench.guard.mode is Mode.HOLD
    bench.send(START)
    bench.stamp -= 3_600 * 10**9  # all clocks go back by an hour
    reason, text = bench.refused()
    assert reason == "clock_jump"
    assert "3599.999 s earlier" in text
    bench.send(START)  # and go on from there
    assert bench.guard.mode is Mode.FOLLOW


def test_a_second_publisher_holds_the_arm():
    bench = Bench()
    bench.send(shifted(x=0.01))
    bench.guard.refuse("publishers", "two publishers on target_pose")
    assert bench.guard.mode is Mode.HOLD
    assert bench.guard.counts["publishers"] == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"workspace_low": (0.7, 0, 0)}, "workspace is empty along x"),
        ({"workspace_high": (0.7, 0, math.nan)}, "workspace_high"),
        ({"max_tilt": 0.0}, "max_tilt"),
        ({"max_speed_translation": -1.0}, "max_speed_translation"),
        ({"command_deadline": math.inf}, "command_deadline"),
        ({"max_force": 0.0}, "max_force"),
        ({"reference_orientation": (0.0, 0.0, 0.0, 0.0)}, "reference_orientation"),
        ({"joint_low": (0.0,)}, "differ in length"),
        ({"joint_low": (0.0,), "joint_high": (0.1,)}, "range of joint 0 is empty"),
        ({"joint_margin": -0.1}, "joint_margin"),
    ],
)
def test_limits_that_cannot_hold_are_refused(settings, named):
    corners = {"workspace_low": (0.3, -0.2, 0.0), "workspace_high": (0.6, 0.2, 0.4)}
    with pytest.raises(RobotRLError, match=named):
        ArmLimits(**{**corners, **settings})


def test_contact_needs_an_arm_that_yields_or_a_wrench_limit():
    blind = ArmLimits(
        workspace_low=LIMITS.workspace_low, workspace_high=LIMITS.workspace_high, max_force=None
    )
    with pytest.raises(RobotRLError, match=r"position-controlled.*next: set limits.max_force"):
        refuse_stiff_contact("position", blind)
    refuse_stiff_contact("position", LIMITS)
    refuse_stiff_contact("force_mode", blind)
    refuse_stiff_contact("impedance", blind)


def test_who_pushes_a_held_arm_out_of_the_workspace_meets_a_bounded_force_and_it_stays_there():
    bench = Bench(pose=np.array([0.64, 0.0, 0.2, *DOWN]))
    seen = [0.64] * 3  # of five measurements two may be wrong
    for x in np.append(np.arange(0.64, 0.69, 0.01), [0.69] * 10):
        target = bench.measure(np.array([x, 0.0, 0.2, *DOWN]))
        seen.append(x)
        assert seen[-3] - target[0] <= LIMITS.max_lead_translation + LIMITS.unpushed[0] + SMALL
    assert x - target[0] <= LIMITS.max_lead_translation + SMALL
    for _ in range(50):  # let go, it comes to where its spring is at rest, and no further
        bench.arm.tcp_pose[0] = max(bench.arm.tcp_pose[0] - 0.005, target[0])
        np.testing.assert_allclose(bench.measure(), target, atol=1e-9)


def test_who_pushes_a_held_arm_far_away_stops_it():
    bench = Bench()
    for y in np.arange(0.0, 0.085, 0.01):
        target = bench.measure(shifted(y=y))
    assert target is None
    assert bench.guard.mode is Mode.STOPPED
    assert "gone away from where it was asked to be: by 80 mm" in bench.guard.reason


# -- tilt and yaw --------------------------------------------------------------------------------


def yawed(angle_):
    turn = Rotation.from_quat(DOWN) * Rotation.from_rotvec([0, 0, angle_])
    return np.concatenate([START[:3], turn.as_quat()])


def test_a_tool_that_points_down_may_have_any_yaw():
    bench = Bench(pose=yawed(math.pi))
    for _ in range(50):
        bench.send(bench.arm.tcp_pose)
        bench.tick(0.03)
    np.testing.assert_allclose(bench.arm.tcp_pose, yawed(math.pi), atol=1e-9)
    for _ in range(100):
        turn = Rotation.from_rotvec([0, 0, 0.1]) * Rotation.from_quat(bench.arm.tcp_pose[3:])
        bench.send(np.concatenate([START[:3], turn.as_quat()]))
        bench.tick(0.05)
    assert bench.guard.counts["tilt"] == bench.guard.counts["yaw"] == 0


def test_the_yaw_has_a_range_of_its_own_around_the_reference():
    reference = yawed(2.0)
    limits = replace(LIMITS, max_yaw=0.5, reference_orientation=tuple(reference[3:]))
    bench = Bench(limits, pose=reference)
    for sign in (-1.0, 1.0):
        for _ in range(60):
            turn = Rotation.from_quat(bench.arm.tcp_pose[3:])
            turn = turn * Rotation.from_rotvec([0, 0, 0.1 * sign])
            bench.send(np.concatenate([START[:3], turn.as_quat()]))
            bench.tick(0.05)
        np.testing.assert_allclose(
            angle(bench.arm.tcp_pose[3:], yawed(2.0 + 0.5 * sign)[3:]), 0.0, atol=1e-6
        )
    assert bench.guard.counts["yaw"] > 0
    assert bench.guard.counts["tilt"] == 0


# -- a contact force that is too large -----------------------------------------------------------


def came_down():
    """A guard whose arm came down by 3 cm, and presses too hard."""
    bench = Bench()
    for _ in range(60):
        bench.send(bench.arm.tcp_pose - np.array([0, 0, 0.005, 0, 0, 0, 0]))
        bench.tick(0.01)
    for _ in range(3):
        bench.arm.tcp_wrench[:3] = [40.0, 0.0, 60.0]
        bench.tick()
    assert bench.guard.mode is Mode.HOLD
    assert "force 72.1 N over its limit" in bench.guard.reason
    return bench


def test_an_arm_that_presses_too_hard_backs_off_along_the_way_it_came():
    bench = came_down()
    low = bench.arm.tcp_pose.copy()
    for _ in range(20):
        bench.send(bench.arm.tcp_pose + np.array([0.001, 0, 0.005, 0, 0, 0, 0]))
        bench.tick()
    assert bench.arm.tcp_pose[2] > low[2] + 0.01
    np.testing.assert_allclose(bench.arm.tcp_pose[:2], low[:2], atol=1e-4)


@pytest.mark.parametrize("way", [(0, 0, -1), (1, 0, 0), (0, -1, 0)])
def test_an_arm_that_presses_too_hard_goes_nowhere_else(way):
    bench = came_down()
    low = bench.arm.tcp_pose.copy()
    for _ in range(20):
        bench.send(bench.arm.tcp_pose + np.array([*(0.005 * np.array(way)), 0, 0, 0, 0]))
        bench.tick()
    np.testing.assert_allclose(bench.arm.tcp_pose, low, atol=1e-4)


def test_an_arm_that_was_found_pressing_goes_where_it_is_pushed():
    bench = Bench()
    bench.arm.tcp_wrench[:3] = [0.0, 80.0, 0.0]
    bench.guard.forget("the node has just started")
    for _ in range(20):
        bench.tick()
    for _ in range(20):
        bench.send(bench.arm.tcp_pose + np.array([0, 0.005, 0, 0, 0, 0, 0]))
        bench.tick()
    assert bench.arm.tcp_pose[1] > 0.01
