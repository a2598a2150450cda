"""What the arm's guard promises for every sequence of commands, measurements, times and stops."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.transform import Rotation

from robot_rl.errors import RobotRLError
from robot_rl.safety import (
    ArmGuard,
    ArmLimits,
    CommandRefused,
    MeasurementRefused,
    Mode,
    refuse_stiff_contact,
)

LIMITS = ArmLimits(
    workspace_low=(0.30, -0.20, 0.0),
    workspace_high=(0.65, 0.20, 0.45),
    joint_low=(-2.0,) * 7,
    joint_high=(2.0,) * 7,
)
DOWN = np.array([1.0, 0.0, 0.0, 0.0])
START = np.array([0.45, 0.0, 0.2, *DOWN])
SMALL = 1e-9
REFUSALS = ("not_finite", "malformed", "stale_stamp", "clock_jump", "stopped", "measurement")


@dataclass
class Arm:
    stamp_ns: int = 10**18
    tcp_pose: np.ndarray = field(default_factory=lambda: START.copy())
    tcp_wrench: np.ndarray = field(default_factory=lambda: np.zeros(6))
    joint_positions: np.ndarray = field(default_factory=lambda: np.zeros(7))
    joint_velocities: np.ndarray = field(default_factory=lambda: np.zeros(7))


class Bench:
    """A guard, an arm that follows its target at once, and the time."""

    def __init__(self, limits=LIMITS, pose=START):
        self.guard = ArmGuard(limits)
        self.arm = Arm(tcp_pose=pose.copy())
        self.now = 100.0
        self.stamp = 10**18
        for _ in range(3):
            self.tick()

    def tick(self, seconds=0.01):
        self.now += seconds
        self.arm.stamp_ns += round(seconds * 1e9)
        target = self.guard.tick(self.now, self.arm)
        if target is not None:
            self.arm.tcp_pose = target.copy()
        return target

    def send(self, target, age=0.0):
        self.stamp += 10**6
        self.guard.command(target, self.stamp, self.now, self.stamp + round(age * 1e9))

    def refused(self, target=START, age=0.0):
        with pytest.raises(CommandRefused) as problem:
            self.send(target, age)
        return problem.value.reason, str(problem.value)


def shifted(x=0.0, y=0.0, z=0.0):
    return START + np.array([x, y, z, 0, 0, 0, 0])


def angle(left, right):
    return (Rotation.from_quat(left) * Rotation.from_quat(right).inv()).magnitude()


def outside(position):
    """How far a position is out of the workspace, per axis."""
    low, high = np.array(LIMITS.workspace_low), np.array(LIMITS.workspace_high)
    return np.maximum(np.maximum(low - position, position - high), 0.0)


# -- every sequence -----------------------------------------------------------------------------

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
        # on its way there, as fast as an arm can be pushed.
        before = self.before
        elapsed = min(seconds, 0.05)
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


def moved(pose, way, turn):
    rotation = Rotation.from_rotvec(turn) * Rotation.from_quat(pose[3:])
    return np.concatenate([pose[:3] + way, rotation.as_quat()])


def try_a_sequence(limits, pose, sequence):
    trial = Trial(limits, pose)
    trial.settle()
    for event in sequence:
        trial.apply(event)
    trial.apply(("tick", 0.01))
    trial.check_not_locked_in()


sequences = st.lists(events, min_size=1, max_size=40)


@given(limits_drawn, st.just(START) | poses, sequences)
@settings(max_examples=150)
def test_whatever_happens_the_target_keeps_the_limits(limits, pose, sequence):
    try_a_sequence(limits, pose, sequence)


@pytest.mark.slow
@given(limits_drawn, st.just(START) | poses, sequences)
@settings(max_examples=10_000, deadline=None)
def test_the_target_keeps_the_limits_in_ten_thousand_sequences(limits, pose, sequence):
    try_a_sequence(limits, pose, sequence)


@given(limits_drawn, poses, st.booleans())
@settings(max_examples=300)
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


# -- each limit ---------------------------------------------------------------------------------


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


# -- settings -----------------------------------------------------------------------------------


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
    for x in np.arange(0.64, 0.76, 0.01):
        bench.arm.tcp_pose = np.array([x, 0.0, 0.2, *DOWN])
        bench.now += 0.01
        bench.arm.stamp_ns += 10**7
        target = bench.guard.tick(bench.now, bench.arm)
        assert x - target[0] <= LIMITS.max_lead_translation + SMALL
    for _ in range(50):  # let go, it comes to where its spring is at rest, and no further
        bench.arm.tcp_pose[0] = max(bench.arm.tcp_pose[0] - 0.005, target[0])
        bench.now += 0.01
        bench.arm.stamp_ns += 10**7
        np.testing.assert_allclose(bench.guard.tick(bench.now, bench.arm), target, atol=1e-9)


# -- what is measured ----------------------------------------------------------------------------


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
            bench.now += 0.01
            bench.arm.stamp_ns += 10**7
            bench.guard.tick(bench.now, bench.arm)
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
        bench.now += 0.01
        bench.arm.stamp_ns += 10**7
        bench.guard.tick(bench.now, bench.arm)
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
    bench.guard.forget("the node has just begun")
    for _ in range(20):
        bench.tick()
    for _ in range(20):
        bench.send(bench.arm.tcp_pose + np.array([0, 0.005, 0, 0, 0, 0, 0]))
        bench.tick()
    assert bench.arm.tcp_pose[1] > 0.01


@given(sequences, arrays(np.float64, 3, elements=st.floats(-90.0, 90.0)))
@settings(max_examples=150)
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
    # Some motion leads back; whoever tries enough of them, turns as well, finds one.
    for way in np.random.default_rng(0).normal(size=(500, 6)):
        trial.command(moved(arm.tcp_pose, 0.003 * way[:3], 0.03 * way[3:]))
        trial.tick(0.01)
        trial.apply(("arrive", None))
        if np.abs(arm.tcp_pose - before).max() > 1e-4:
            return
    pytest.fail(f"locked in at {before}, pressed by {arm.tcp_wrench}; {guard.reason}")
