"""What guard, limiter and reset promise to an arm that takes joint targets."""

import math
from dataclasses import replace

import numpy as np
import pytest
from guarded_arm import SMALL, Arm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from robot_rl.errors import RobotRLError
from robot_rl.safety import (
    ActionLimiter,
    ArmGuard,
    CommandRefused,
    JointActionLimits,
    JointArmLimits,
    JointResets,
    Mode,
    ResetOptions,
    checked_reset_joints,
)

LIMITS = JointArmLimits(joint_low=(-1.0, -2.0, 0.5), joint_high=(1.0, 2.0, 2.5))
MIDDLE = np.array([0.0, 0.0, 1.5])
PERIOD = 0.02


def outside(joints, limits):
    """How far joints are out of their ranges."""
    low = np.array(limits.joint_low) + limits.joint_margin
    high = np.array(limits.joint_high) - limits.joint_margin
    return np.maximum(np.maximum(low - joints, joints - high), 0.0)


class JointBench:
    """A guard, joints that follow their targets at once, and the time."""

    def __init__(self, limits=LIMITS, joints=MIDDLE):
        self.limits, self.guard = limits, ArmGuard(limits)
        unknown = {"tcp_pose": np.full(7, np.nan), "tcp_wrench": np.full(6, np.nan)}
        self.arm = Arm(joint_positions=np.array(joints), joint_velocities=np.zeros(3), **unknown)
        self.now, self.stamp = 100.0, 10**18
        self.accepted_at = -math.inf
        self.before = None
        self.seen = []  # where the joints have been since they hold
        for _ in range(3):
            self.tick()

    @property
    def joints(self):
        return self.arm.joint_positions

    def send(self, target):
        self.stamp += 10**6
        self.guard.command(target, self.stamp, self.now, self.stamp)
        self.accepted_at = self.now

    def tick(self, seconds=PERIOD, follows=True):
        """Let time pass, and check what must hold of the target whatever came before."""
        self.now += seconds
        self.arm.stamp_ns += 1 + max(0, round(seconds * 1e9))
        target = self.guard.tick(self.now, self.arm)
        if target is None:
            self.before = None
            return None
        self.check(target, max(seconds, 0.0))
        self.before = target.copy()
        if follows:
            self.arm.joint_positions = target.copy()
        return target

    def check(self, target, seconds):
        limits = self.limits
        assert np.isfinite(target).all()
        if self.now - self.accepted_at > limits.command_deadline:
            assert self.guard.mode in (Mode.HOLD, Mode.STOPPED, Mode.RESET)
        if self.before is None:
            assert (np.abs(target - self.joints) <= limits.max_lead_joints + 0.021).all()
            return
        elapsed, step = min(seconds, 0.05), np.abs(target - self.before).max()
        if self.guard.mode is Mode.HOLD:  # of which several measurements agree
            self.seen.append(self.joints.copy())
            ahead = target - np.array(self.seen[-10:])
            near = np.maximum(ahead.min(axis=0), (-ahead).min(axis=0)).max()
            lead = near - limits.max_lead_joints - limits.unpushed[0]
            lead = lead if len(self.seen) >= 10 else 0.0
        else:
            self.seen.clear()
            lead = np.abs(target - self.joints).max() - limits.max_lead_joints
        assert lead <= SMALL or step >= limits.max_arm_joints * elapsed - SMALL
        pushed = np.abs(self.before - self.joints).max() > limits.max_lead_joints - SMALL
        speed = limits.max_arm_joints if pushed else limits.max_speed_joints
        assert step <= speed * elapsed + SMALL
        # Inside, or no further out than the target was, or than the joints are.
        least = np.maximum(outside(self.before, limits), outside(self.joints, limits))
        assert (outside(target, limits) <= least + SMALL).all()

    def check_not_locked_in(self):
        """Joints come back from wherever they are, when they are asked to."""
        self.arm.joint_velocities = np.zeros(3)
        self.guard.clear()
        self.guard.forget("a person has looked", elsewhere=True)
        self.now, self.before = self.now + 10.0, None
        for _ in range(3):
            self.tick(0.01)
        before = np.abs(self.joints - MIDDLE)
        for _ in range(3):
            self.send(MIDDLE)
            self.tick(0.03)
        pace = min(self.limits.max_speed_joints, self.limits.max_step_joints) * 0.03
        farthest = np.abs(self.joints - MIDDLE).max()
        assert farthest <= max(before.max() - 0.9 * pace, SMALL)
        assert (np.abs(self.joints - MIDDLE) <= before + SMALL).all()


places = arrays(np.float64, 3, elements=st.floats(-3.0, 3.0))
small = arrays(np.float64, 3, elements=st.floats(-0.05, 0.05))
wild = arrays(np.float64, 3, elements=st.floats(allow_nan=True, allow_infinity=True))
limits_drawn = st.builds(
    lambda speed, lead, step, margin: replace(
        LIMITS,
        max_speed_joints=speed,
        max_lead_joints=lead,
        max_step_joints=step,
        joint_margin=margin,
    ),
    st.floats(0.05, 4.0),
    st.floats(0.01, 0.5),
    st.floats(0.01, 0.5),
    st.floats(0.0, 0.3),
)
events = st.one_of(
    st.tuples(st.just("command"), places | wild),
    st.tuples(st.just("command by"), small),
    st.tuples(st.just("tick"), st.sampled_from([0.0, 0.002, 0.01, 0.03, 0.15, 0.5, -1.0])),
    st.tuples(st.just("blocked"), st.just(0.02)),  # the joints do not follow
    st.tuples(st.just("push"), small),
    st.tuples(st.just("jump"), places),
    st.tuples(st.just("velocity"), arrays(np.float64, 3, elements=st.floats(-3.0, 3.0))),
    st.tuples(st.sampled_from(["stop", "clear", "two publishers", "silence"]), st.none()),
)


def try_a_sequence(limits, joints, sequence):
    bench = JointBench(limits, joints)
    guard = bench.guard
    for kind, value in sequence:
        if kind == "command by":
            kind, value = "command", (bench.joints if guard.goal is None else guard.goal) + value
        if kind == "command":
            stopped = guard.mode is Mode.STOPPED
            try:
                bench.send(value)
            except CommandRefused:
                continue
            assert not stopped
            assert np.isfinite(value).all()
        elif kind in ("tick", "blocked"):
            bench.tick(value, follows=kind == "tick")
        elif kind == "push":
            bench.arm.joint_positions = bench.joints + value
        elif kind == "jump":
            bench.arm.joint_positions = value
        elif kind == "velocity":
            bench.arm.joint_velocities = value
        elif kind == "stop":
            guard.stop("a person pressed stop")
        elif kind == "clear":
            guard.clear()
        elif kind == "silence":
            guard.forget("the arm was silent")
        else:
            guard.refuse("publishers", "two publishers")
        if guard.mode is Mode.STOPPED or kind == "silence":
            bench.before = None
    bench.check_not_locked_in()


sequences = st.lists(events, min_size=1, max_size=40)


@given(limits_drawn, st.just(MIDDLE) | places, sequences)
@settings(max_examples=75)
def test_whatever_happens_joint_targets_keep_the_limits(limits, joints, sequence):
    try_a_sequence(limits, joints, sequence)


@pytest.mark.slow
@given(limits_drawn, st.just(MIDDLE) | places, sequences)
@settings(max_examples=10_000, deadline=None)
def test_joint_targets_keep_the_limits_in_ten_thousand_sequences(limits, joints, sequence):
    try_a_sequence(limits, joints, sequence)


@given(limits_drawn, places, st.booleans())
@settings(max_examples=60)
def test_no_joint_limit_moves_an_arm_wherever_it_is(limits, joints, asked_to_stay):
    bench = JointBench(limits, joints)
    for _ in range(30):
        if asked_to_stay:
            bench.send(joints)
        np.testing.assert_allclose(bench.tick(), joints, atol=1e-12)


def test_a_joint_outside_its_range_may_come_back_and_go_no_further_out():
    bench = JointBench(joints=[1.3, 0.0, 1.5])
    out, back = np.array([1.4, 0.0, 1.5]), np.array([1.2, 0.0, 1.5])
    for _ in range(20):
        bench.send(out)
        bench.tick()
    assert bench.joints[0] == 1.3
    for _ in range(20):
        bench.send(back)
        bench.tick()
    assert bench.joints[0] == pytest.approx(1.2)
    assert bench.guard.counts["range"] > 0


@pytest.mark.parametrize(
    ("target", "reason"),
    [([0.0, math.nan, 1.5], "not_finite"), ([0.0, 0.0], "malformed"), ("here", "malformed")],
)
def test_what_is_no_joint_target_is_refused_and_moves_nothing(target, reason):
    bench = JointBench()
    with pytest.raises(CommandRefused) as refusal:
        bench.send(target)
    assert refusal.value.reason == reason
    assert bench.guard.counts[reason] == 1
    np.testing.assert_array_equal(bench.tick(), MIDDLE)


def test_joints_hold_when_commands_fail_to_come_and_after_a_stop():
    bench = JointBench()
    for _ in range(5):
        bench.send(MIDDLE + 0.3)
        bench.tick()
    for _ in range(15):
        bench.tick()
    assert bench.guard.mode is Mode.HOLD
    assert "no command for 200 ms" in bench.guard.reason
    held = bench.joints.copy()
    bench.guard.stop("a person pressed stop")
    for _ in range(3):
        assert bench.tick() is None
    with pytest.raises(CommandRefused, match="stopped"):
        bench.send(MIDDLE)
    bench.guard.clear()
    for _ in range(4):
        bench.tick()
    np.testing.assert_allclose(bench.joints, held)


def test_a_measured_joint_that_jumps_stops_the_arm_and_is_named():
    bench = JointBench()
    bench.arm.joint_positions = MIDDLE + np.array([0.0, 0.8, 0.0])
    assert bench.tick() is None
    assert bench.guard.mode is Mode.STOPPED
    assert "the measured joint 1 jumped by 0.80 rad" in bench.guard.reason


def test_a_reset_goes_slowly_through_the_waypoints_and_says_when_it_is_there():
    bench, options = JointBench(), ResetOptions()
    resets = JointResets(bench.guard, options)
    ways = checked_reset_joints([0.5, 0.5, 1.0, -0.5, 1.0, 2.0], 3, LIMITS)
    resets.begin(ways)
    nearest, outcome = np.inf, None
    for _ in range(3000):
        before = bench.joints.copy()
        bench.tick()
        assert np.abs(bench.joints - before).max() <= options.speed_joints * PERIOD + SMALL
        nearest = min(nearest, np.abs(bench.joints - ways[0]).max())
        if (outcome := resets.poll()) is not None:
            break
    assert outcome is not None
    assert outcome.success, outcome.message
    assert nearest <= options.tolerance_joints
    assert np.abs(bench.joints - ways[1]).max() <= options.tolerance_joints
    with pytest.raises(CommandRefused, match="beyond the limits of joint 2"):
        checked_reset_joints([0.0, 0.0, 0.0], 3, LIMITS)


ACTIONS = JointActionLimits(
    joint_low=LIMITS.joint_low, joint_high=LIMITS.joint_high, step=(0.05, 0.1, 0.02)
)


@given(st.lists(arrays(np.float64, 3, elements=st.floats(-1.0, 1.0)), max_size=40), places)
@settings(max_examples=75)
def test_actions_move_the_last_target_by_a_step_per_joint_and_never_further_out(actions, joints):
    limiter = ActionLimiter(ACTIONS)
    limiter.reset(joints)
    for action in actions:
        before = limiter.target.copy()
        target, clamped = limiter.advance(action, before, None)
        assert (np.abs(target - before) <= np.array(ACTIONS.step) + SMALL).all()
        assert (outside(target, ACTIONS) <= outside(before, ACTIONS) + SMALL).all()
        if not clamped:
            np.testing.assert_allclose(target, before + np.array(ACTIONS.step) * action)


def test_the_target_of_actions_leads_blocked_joints_by_a_bounded_way():
    limiter = ActionLimiter(ACTIONS)
    limiter.reset(MIDDLE)
    for _ in range(50):
        limiter.advance(np.ones(3), MIDDLE, None)
    assert (np.abs(limiter.target - MIDDLE) <= ACTIONS.max_lead_joints + SMALL).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"joint_low": (), "joint_high": ()}, "needs the range of each joint"),
        ({"joint_low": (-1.0,)}, "differ in length"),
        ({"joint_high": (1.0, -2.0, 2.5)}, "range of joint 1 is empty"),
        ({"step": (0.1,)}, "'step' has another number of joints"),
        ({"step": (0.1, 0.0, 0.1)}, "'step' of joint 1 is not a positive number"),
        ({"max_lead_joints": math.nan}, "max_lead_joints"),
    ],
)
def test_limits_that_could_not_hold_are_refused(changed, words):
    with pytest.raises(RobotRLError, match=words):
        replace(ACTIONS, **changed)
