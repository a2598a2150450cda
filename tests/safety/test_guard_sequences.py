"""What the arm's guard promises for every sequence of commands, measurements, times and stops."""

import math

import numpy as np
import pytest
from guarded_arm import DOWN, LIMITS, SMALL, START, Arm, Bench, angle, moved, shifted
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.transform import Rotation

from robot_rl.safety import ArmGuard, ArmLimits, CommandRefused, MeasurementRefused, Mode

REFUSALS = ("not_finite", "malformed", "stale_stamp", "clock_jump", "stopped", "measurement")


def outside(position):
    """How far a position is out of the workspace, per axis."""
    low, high = np.array(LIMITS.workspace_low), np.array(LIMITS.workspace_high)
    return np.maximum(np.maximum(low - position, position - high), 0.0)


wild = st.floats(allow_nan=True, allow_infinity=True)
turns = arrays(np.float64, 3, elements=st.floats(-3.0, 3.0))
small_turns = arrays(np.float64, 3, elements=st.floats(-0.02, 0.02))
small = arrays(np.float64, 3, elements=st.floats(-0.01, 0.01))
rotations_ = turns.map(lambda turn: Rotation.from_rotvec(turn) * Rotation.from_quat(DOWN))
poses = st.builds(
    lambda position, turn: np.concatenate([position, turn.as_quat()]),
    arrays(np.float64, 3, elements=st.floats(-0.3, 0.9)),
    rotations_,
)
limits_drawn = st.builds(
    lambda speed, turning, lead, lead_turn, tilt, yaw, reference: ArmLimits(
        workspace_low=LIMITS.workspace_low,
        workspace_high=LIMITS.workspace_high,
        joint_low=LIMITS.joint_low,
        joint_high=LIMITS.joint_high,
        max_speed_translation=speed,
        max_speed_rotation=turning,
        max_lead_translation=lead,
        max_lead_rotation=lead_turn,
        max_tilt=tilt,
        max_yaw=yaw,
        reference_orientation=tuple(reference.as_quat()),
    ),
    st.floats(0.02, 1.0),
    st.floats(0.1, 4.0),
    st.floats(0.002, 0.1),
    st.floats(0.01, 0.5),
    st.floats(0.05, 3.1),
    st.floats(0.1, 4.0),
    rotations_,
)
events = st.one_of(
    st.tuples(st.just("command"), poses | arrays(np.float64, 7, elements=wild)),
    st.tuples(st.just("command by"), st.tuples(small, small_turns)),
    st.tuples(st.just("tick"), st.sampled_from([0.0, 0.002, 0.01, 0.03, 0.15, 0.5, -1.0])),
    st.tuples(st.just("arrive"), st.none()),  # the arm is where its target is
    st.tuples(st.just("push"), st.tuples(small, small_turns)),
    st.tuples(st.sampled_from(["jump", "outlier"]), poses),
    st.tuples(st.just("force"), st.floats(0.0, 200.0) | st.just(math.nan)),
    st.tuples(st.just("joint"), st.tuples(st.floats(-2.2, 2.2), st.floats(-3.0, 3.0))),
    st.tuples(st.sampled_from(["stop", "clear", "two publishers", "silence"]), st.none()),
)


class Trial:
    """Applies events, and checks after each what must hold after all."""

    def __init__(self, limits, pose=START):
        self.limits = limits
        self.guard = ArmGuard(limits)
        self.arm = Arm(tcp_pose=pose.copy())
        self.now, self.stamp = 50.0, 10**18
        self.accepted_at = -math.inf
        self.stopped = False
        self.before = None  # the last target that was sent
        self.seen = []  # where the arm has been since it holds

    def settle(self):
        for _ in range(3):
            self.apply(("tick", 0.01))

    def apply(self, event):
        kind, value = event
        if kind == "command":
            self.command(value)
        elif kind == "command by":
            anchor = self.arm.tcp_pose if self.guard.goal is None else self.guard.goal
            self.command(moved(anchor, *value))
        elif kind == "tick":
            self.tick(value)
        elif kind == "arrive":
            if self.guard.target is not None:
                self.arm.tcp_pose = self.guard.target.copy()
        elif kind == "push":
            self.arm.tcp_pose = moved(self.arm.tcp_pose, *value)
        elif kind == "jump":
            self.arm.tcp_pose = value
        elif kind == "outlier":
            true, self.arm.tcp_pose = self.arm.tcp_pose, value
            self.tick(0.01)
            self.arm.tcp_pose = true
        elif kind == "force":
            self.arm.tcp_wrench = np.array([0, 0, value, 0, 0, 0])
        elif kind == "joint":
            self.arm.joint_positions[3], self.arm.joint_velocities[3] = value
        elif kind == "stop":
            self.guard.stop("a person pressed stop")
        elif kind == "clear":
            self.guard.clear()
        elif kind == "silence":
            self.guard.forget("the arm was silent")
            self.before = None
        else:
            self.guard.refuse("publishers", "two publishers")
            assert self.guard.mode is not Mode.FOLLOW
        if self.guard.mode is Mode.STOPPED:
            self.before = None

    def command(self, target):
        self.stamp += 1
        refusals = sum(self.guard.counts[name] for name in REFUSALS)
        stopped = self.guard.mode is Mode.STOPPED
        try:
            self.guard.command(target, self.stamp, self.now, self.stamp)
        except CommandRefused:
            refusals += 1
        else:
            assert not stopped
            assert np.isfinite(target).all()
            self.accepted_at = self.now
        assert sum(self.guard.counts[name] for name in REFUSALS) == refusals

    def tick(self, seconds):
        self.now += seconds
        self.arm.stamp_ns += 1 + max(0, round(seconds * 1e9))
        stopped = self.guard.mode is Mode.STOPPED
        try:
            target = self.guard.tick(self.now, self.arm)
        except MeasurementRefused:
            assert np.isnan(self.arm.tcp_wrench).any()
            assert self.guard.mode in (Mode.HOLD, Mode.STOPPED)
            return
        if target is None:
            self.before = None
            return
        if stopped:  # it comes to rest where it is measured, and nowhere else
            goal = self.guard.goal
            assert np.linalg.norm(goal[:3] - self.arm.tcp_pose[:3]) < 0.2
        self.check(target, max(seconds, 0.0))
        self.before = target.copy()

    def check(self, target, seconds):
        arm, limits = self.arm.tcp_pose, self.limits
        assert np.isfinite(target).all()
        assert abs(np.linalg.norm(target[3:]) - 1.0) < SMALL
        if self.now - self.accepted_at > limits.command_deadline:
            assert self.guard.mode in (Mode.HOLD, Mode.STOPPED)
        if self.before is None:  # where the arm is, or where it held before it was not measured
            assert np.all(np.abs(target[:3] - arm[:3]) <= limits.max_lead_translation + 0.003)
            return
        # Ahead of the arm by at most the lead, also of one that is pushed out of the workspace: or
        # on its way there, as fast as an arm can be pushed. One that holds is not led by noise.
        before = self.before
        elapsed = min(seconds, 0.05)
        if self.guard.mode is Mode.HOLD:  # of which several measurements agree
            self.seen.append(arm[:3].copy())
            ahead = target[:3] - np.array(self.seen[-10:])
            near = np.maximum(ahead.min(axis=0), (-ahead).min(axis=0)).max()
            lead = near - limits.max_lead_translation - limits.unpushed[0]
            lead = lead if len(self.seen) >= 10 else 0.0
        else:
            self.seen.clear()
            lead = np.abs(target[:3] - arm[:3]).max() - limits.max_lead_translation
        step = np.linalg.norm(target[:3] - before[:3])
        assert lead <= SMALL or step >= limits.max_arm_speed * elapsed - SMALL
        # At most at its speed or, where the arm is pushed away from it, as fast as an arm can be.
        pushed = np.abs(before[:3] - arm[:3]).max() > limits.max_lead_translation - SMALL
        speed = limits.max_arm_speed if pushed else limits.max_speed_translation
        assert step <= speed * elapsed + SMALL
        assert angle(target[3:], before[3:]) <= limits.max_arm_turning * elapsed + 1e-6
        if np.linalg.norm(self.arm.tcp_wrench[:3]) > limits.max_force:
            return  # it may go back to wherever it came from
        # Inside, or no further out than the target was, or than the arm is.
        least = np.maximum(outside(before[:3]), outside(arm[:3]))
        assert np.all(outside(target[:3]) <= least + SMALL)

    def check_not_locked_in(self):
        """An arm that presses on nothing comes back from wherever it is, when it is asked to."""
        self.arm.tcp_wrench = np.zeros(6)
        self.arm.joint_positions, self.arm.joint_velocities = np.zeros(7), np.zeros(7)
        self.guard.clear()
        self.guard.forget("a person has looked", elsewhere=True)
        self.now += 10.0  # also where the clock went back
        self.before = None
        self.settle()
        middle = np.array([0.45, 0.0, 0.2, *self.limits.reference_orientation])
        before = np.linalg.norm(self.arm.tcp_pose[:3] - middle[:3])
        tilt = angle(self.arm.tcp_pose[3:], middle[3:])
        for _ in range(3):
            self.command(middle)
            self.tick(0.03)
            self.apply(("arrive", None))
        pace = min(self.limits.max_speed_translation * 0.03, 0.002)
        assert np.linalg.norm(self.arm.tcp_pose[:3] - middle[:3]) <= max(before - pace, SMALL)
        assert angle(self.arm.tcp_pose[3:], middle[3:]) <= max(tilt - 1e-4, 1e-6)


def try_a_sequence(limits, pose, sequence):
    trial = Trial(limits, pose)
    trial.settle()
    for event in sequence:
        trial.apply(event)
    trial.apply(("tick", 0.01))
    trial.check_not_locked_in()


sequences = st.lists(events, min_size=1, max_size=40)


@given(limits_drawn, st.just(START) | poses, sequences)
@settings(max_examples=75)
def test_whatever_happens_the_target_keeps_the_limits(limits, pose, sequence):
    try_a_sequence(limits, pose, sequence)


@pytest.mark.slow
@given(limits_drawn, st.just(START) | poses, sequences)
@settings(max_examples=10_000, deadline=None)
def test_the_target_keeps_the_limits_in_ten_thousand_sequences(limits, pose, sequence):
    try_a_sequence(limits, pose, sequence)


@given(limits_drawn, poses, st.booleans())
@settings(max_examples=60)
def test_no_limit_moves_an_arm_wherever_it_is(limits, pose, asked_to_stay):
    """Outside of every limit: workspace, tilt and yaw."""
    bench = Bench(limits, pose)
    for _ in range(30):
        if asked_to_stay:
            bench.send(pose)
        np.testing.assert_allclose(bench.tick(), pose, atol=1e-9)


@given(arrays(np.float64, 7, elements=st.sampled_from([math.nan, math.inf, 1e308, -1e308, 0.0])))
@settings(max_examples=50)
def test_what_is_no_pose_never_moves_the_arm(target):
    bench = Bench()
    reason, _ = bench.refused(target)
    assert reason in ("not_finite", "malformed")
    for _ in range(30):
        np.testing.assert_array_equal(bench.tick(), START)


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.19))
@settings(max_examples=25)
def test_the_deadline_holds_whenever_the_client_dies(alive, period):
    bench = Bench()
    died = bench.now + alive
    while bench.now < died:
        bench.send(shifted(x=0.1))
        bench.tick(period)
    last = bench.now - period  # the newest command was sent just before the last tick
    while bench.now - last <= LIMITS.command_deadline:
        bench.tick(0.02)
    bench.tick(0.02)
    held = bench.tick(0.02).copy()
    assert bench.guard.mode is Mode.HOLD
    assert "no command for 200 ms" in bench.guard.reason
    for _ in range(20):
        np.testing.assert_array_equal(bench.tick(), held)
    assert bench.guard.counts["deadline"] == 1


@given(sequences, arrays(np.float64, 3, elements=st.floats(-90.0, 90.0)))
@settings(max_examples=75)
def test_an_arm_that_presses_too_hard_is_never_locked_in(sequence, force):
    trial = Trial(LIMITS)
    trial.settle()
    for event in sequence:
        trial.apply(event)
    trial.check_not_locked_in()
    guard, arm = trial.guard, trial.arm
    for height in (0.21, 0.22, 0.23):  # it comes from somewhere
        trial.command(np.array([0.45, 0.0, height, *DOWN]))
        trial.tick(0.02)
        trial.apply(("arrive", None))
    arm.tcp_wrench = np.array([*force, 0, 0, 0])
    if np.linalg.norm(force) <= LIMITS.max_force + 1.0:
        arm.tcp_wrench[0] = math.copysign(100.0, arm.tcp_wrench[0])
    before = arm.tcp_pose.copy()
    # Some motion leads back; enough tries, with turns too, find one.
    for way in np.random.default_rng(0).normal(size=(500, 6)):
        trial.command(moved(arm.tcp_pose, 0.003 * way[:3], 0.03 * way[3:]))
        trial.tick(0.01)
        trial.apply(("arrive", None))
        if np.abs(arm.tcp_pose - before).max() > 1e-4:
            return
    pytest.fail(f"locked in at {before}, pressed by {arm.tcp_wrench}; {guard.reason}")
