"""A reset: back along the tool, across, forward; stopped at once; given up after two failures."""

from dataclasses import replace

import numpy as np
import pytest
from test_guard import LIMITS, START, Bench, shifted
from test_reset_sequences import joints_at, kinematics

from robot_rl.errors import RobotRLError
from robot_rl.safety import CommandRefused, Mode, ResetOptions, Resets, checked_reset_joints
from robot_rl.safety.reset_way import share_of_way

OPTIONS = ResetOptions(retract_distance=0.1)
GOAL = shifted(x=0.1, y=-0.1)


def run(bench, resets, seconds=60.0, poses=None):
    for _ in range(int(seconds / 0.02)):
        bench.tick(0.02)
        if poses is not None:
            poses.append(bench.arm.tcp_pose.copy())
        outcome = resets.poll()
        if outcome is not None:
            return outcome
    raise AssertionError("the reset did not end")


def test_it_retracts_first_and_arrives_from_above_slowly():
    bench, poses = Bench(), []
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    outcome = run(bench, resets, poses=poses)
    assert outcome.success, outcome
    assert not resets.busy
    way = np.array(poses)[:, :3]
    aside = np.linalg.norm(way[:, :2] - START[:2], axis=1)
    assert way[aside > 0.006][0, 2] > START[2] + 0.09  # up before aside: the tool points down
    np.testing.assert_allclose(way[-1], GOAL[:3], atol=OPTIONS.tolerance_translation)
    speeds = np.linalg.norm(np.diff(way, axis=0), axis=1) / 0.02
    assert speeds.max() <= OPTIONS.speed_translation + 1e-9
    bench.send(bench.arm.tcp_pose)
    assert bench.guard.mode is Mode.FOLLOW


def test_commands_are_refused_meanwhile_and_so_is_a_second_reset():
    bench = Bench()
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    bench.tick()
    assert bench.refused()[0] == "resetting"
    with pytest.raises(CommandRefused, match="under way"):
        resets.begin(GOAL)


def test_a_stop_ends_it_at_once():
    bench = Bench()
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    bench.tick()
    bench.guard.stop("the operator pressed stop")
    bench.tick()  # to where the arm was measured
    assert bench.tick() is None
    outcome = resets.poll()
    assert not outcome.success
    assert "the operator pressed stop" in outcome.message
    with pytest.raises(CommandRefused, match="clear_errors"):
        resets.begin(GOAL)
    bench.guard.clear()
    for _ in range(3):
        bench.tick()
    resets.begin(GOAL)
    assert run(bench, resets).success


def test_one_that_was_given_up_on_its_way_is_gone_on_with_and_draws_nothing_back_again():
    bench, poses = Bench(), []
    resets = Resets(bench.guard, OPTIONS)
    for share in (0.3, 0.5, 0.7):
        resets.begin(GOAL)
        while bench.arm.tcp_pose[0] < START[0] + share * 0.1:
            bench.tick(0.02)
            assert resets.poll() is None
            poses.append(bench.arm.tcp_pose.copy())
        assert not resets.give_up("a camera fell silent").success
        bench.tick(0.02)
    resets.begin(GOAL)
    assert run(bench, resets, poses=poses).success
    assert np.array(poses)[:, 2].max() < START[2] + OPTIONS.retract_distance + 0.006
    resets.begin(GOAL)  # from the start of an episode the tool is drawn back
    run(bench, resets, poses=(again := []))
    assert np.array(again)[:, 2].max() > GOAL[2] + OPTIONS.retract_distance - 0.006


def test_one_that_was_given_up_while_it_drew_the_tool_back_draws_it_back_no_farther():
    bench, poses = Bench(), []
    resets = Resets(bench.guard, OPTIONS)
    for share in (0.2, 0.5, 0.8):
        resets.begin(GOAL)
        while bench.arm.tcp_pose[2] < START[2] + share * OPTIONS.retract_distance:
            bench.tick(0.02)
            assert resets.poll() is None
        assert not resets.give_up("a camera fell silent").success
        bench.tick(0.02)
    resets.begin(GOAL)
    assert run(bench, resets, poses=poses).success
    assert np.array(poses)[:, 2].max() < START[2] + OPTIONS.retract_distance + 0.006


def test_where_somebody_moved_the_arm_meanwhile_the_tool_is_drawn_back_again():
    bench, poses = Bench(), []
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    while bench.arm.tcp_pose[2] < START[2] + 0.05:
        bench.tick(0.02)
    resets.give_up("a camera fell silent")
    bench.arm.tcp_pose[2] -= 0.03
    bench.tick(0.02)
    resets.begin(GOAL)
    assert run(bench, resets, poses=poses).success
    assert np.array(poses)[:, 2].max() > START[2] + 0.02 + OPTIONS.retract_distance - 0.006


def test_after_it_hit_something_it_stops_and_asks_and_does_not_hit_it_again():
    bench = Bench()
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    contacts = 0
    for _ in range(5_000):
        bench.tick(0.02)
        # Something stands in the way aside, and pushes back when it is met.
        blocked = bench.arm.tcp_pose[0] > START[0] + 0.05
        contacts += blocked and not bench.arm.tcp_wrench.any()
        bench.arm.tcp_wrench[0] = -80.0 if blocked else 0.0
        if blocked:
            bench.arm.tcp_pose[0] -= 0.0002  # what yields is pushed back
        if (outcome := resets.poll()) is not None:
            break
    assert not outcome.success
    assert "the reset failed: force 80.0 N" in outcome.message
    assert "clear_errors" in outcome.message
    assert bench.guard.mode is Mode.STOPPED
    assert contacts == 1


def test_a_reset_without_room_to_draw_the_tool_back_is_refused():
    bench = Bench(pose=shifted(z=0.24))  # 1 cm below the ceiling
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    bench.tick()
    outcome = resets.poll()
    assert not outcome.success
    assert "only 10 of 100 mm fit into the workspace" in outcome.message


def test_an_arm_that_does_not_follow_is_noticed():
    bench = Bench()
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(GOAL)
    for _ in range(5_000):
        bench.now += 0.02
        bench.guard.tick(bench.now, bench.arm)  # the arm stays where it is
        if (outcome := resets.poll()) is not None:
            break
    assert "failed twice, at last: the arm did not get there in time" in outcome.message
    np.testing.assert_array_equal(bench.arm.tcp_pose, START)


def test_a_pose_outside_the_workspace_ends_at_its_edge():
    bench = Bench()
    resets = Resets(bench.guard, OPTIONS)
    resets.begin(shifted(x=1.0))
    assert run(bench, resets).success
    assert bench.arm.tcp_pose[0] == pytest.approx(LIMITS.workspace_high[0], abs=0.006)


def by_joints(start, ends, forward=kinematics):
    """A reset through waypoints, of an arm whose joints are where the tool says; and its poses."""
    bench, poses = Bench(replace(LIMITS, joint_low=(), joint_high=()), start), []
    bench.arm.joint_positions = joints_at(start)
    bench.arm.joint_velocities = np.zeros(4)
    resets = Resets(bench.guard, OPTIONS, forward)
    resets.begin(np.array([joints_at(end) for end in ends]))
    for _ in range(5_000):
        bench.tick(0.02)
        bench.arm.joint_positions = joints_at(bench.arm.tcp_pose)
        poses.append(bench.arm.tcp_pose.copy())
        if (outcome := resets.poll()) is not None:
            return outcome, np.array(poses), bench
    raise AssertionError("the reset did not end")


def test_it_goes_by_joints_through_its_waypoints_after_it_has_retracted():
    waypoint, end = shifted(x=0.1, y=0.15, z=0.1), shifted(y=-0.15, z=0.15)
    outcome, poses, bench = by_joints(START, [waypoint, end])
    assert outcome.success, outcome
    np.testing.assert_allclose(bench.arm.joint_positions, joints_at(end), atol=0.02)
    away = np.linalg.norm(poses[:, :3] - waypoint[:3], axis=1)
    assert away.min() < OPTIONS.tolerance_translation
    # Between both an arm that turns about its base keeps its reach: a straight way would not.
    reach = np.hypot(*poses[away.argmin() :, :2].T)
    assert reach.min() > np.hypot(*end[:2]) - 0.005
    speeds = np.linalg.norm(np.diff(poses[:, :3], axis=0), axis=1) / 0.02
    assert 0.9 * OPTIONS.speed_translation < speeds.max() < 1.001 * OPTIONS.speed_translation
    assert np.abs(np.diff(speeds)).max() / 0.02 < 1.5 * OPTIONS.speed_translation / 0.4


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 3.0, 60.0])
def test_a_way_goes_from_rest_to_rest_with_bounded_speed_acceleration_and_jerk(seconds):
    step = 1e-3
    shares = [share_of_way(step * i, seconds) for i in range(int((seconds + 0.7) / step))]
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    speed = np.diff(shares) / step
    longest = max(seconds, 0.4)
    assert speed.min() >= -1e-6
    assert speed.max() <= 1.0 / longest + 1e-6
    assert np.abs(np.diff(speed)).max() / step <= 1.0 / (longest * 0.2) + 1e-3


OUTSIDE = [shifted(z=0.4)]
BOWED = [shifted(x=0.19, y=0.18), shifted(x=0.19, y=-0.18)]  # the way between bows out


@pytest.mark.parametrize("ends", [OUTSIDE, BOWED])
def test_a_way_by_joints_out_of_the_limits_is_refused_before_it_moves(ends):
    start = shifted(x=0.15)
    outcome, poses, bench = by_joints(start, ends)
    assert not outcome.success
    assert (
        f"the way to waypoint {len(ends)} of reset.joints leads out of the limits (workspace)"
        in (outcome.message)
    )
    np.testing.assert_allclose(poses[-1], start, atol=1e-9)
    assert bench.guard.mode is Mode.STOPPED


def test_an_arm_that_is_not_as_its_kinematics_say_is_noticed_soon():
    longer = lambda joints: kinematics(joints * [1.0, 1.0, 1.5, 1.0])  # noqa: E731
    outcome, poses, _ = by_joints(START, [shifted(z=0.15)], longer)
    assert "does not move as its kinematics say, by 2" in outcome.message
    assert np.linalg.norm(poses[-1, :3] - START[:3]) < OPTIONS.retract_distance + 0.05


@pytest.mark.parametrize("values", [[], [0.1] * 8, [np.nan] * 7, [0.0] * 6 + [1.96]])
def test_joint_positions_that_are_none_are_refused(values):
    with pytest.raises(CommandRefused, match=r"reset\.joints"):
        checked_reset_joints(values, 7, LIMITS)


def test_options_out_of_range_are_named():
    with pytest.raises(RobotRLError, match="speed_translation"):
        ResetOptions(speed_translation=0.0)
