"""What a reset promises from wherever it begins, in whatever limits, and whatever happens to it.

Resets are drawn; at each tick of one something else happens to a copy of it.
"""

import copy
import math

import numpy as np
import pytest
from guarded_arm import DOWN, SMALL, Arm

from robot_rl.safety import (
    ArmGuard,
    ArmLimits,
    CommandRefused,
    MeasurementRefused,
    Mode,
    ResetOptions,
    Resets,
    rotations,
)

TICK = 0.05  # the longest that counts whole [s]
FAULTS = ("stop", "force", "joint", "nan", "jump", "push", "silence", "stuck")


def kinematics(joints):
    """Of an arm that turns, reaches out, lifts, and turns its wrist."""
    turn, reach, height, wrist = joints.tolist()
    position = [reach * math.cos(turn), reach * math.sin(turn), height]
    return np.concatenate([position, rotations.multiply(rotations.about_z(turn + wrist), DOWN)])


def joints_at(pose):
    turn = math.atan2(pose[1], pose[0])
    wrist = math.remainder(rotations.heading(pose[3:]) - turn, math.tau)
    return np.array([turn, math.hypot(pose[0], pose[1]), pose[2], wrist])


class Trial:
    """A drawn arm, its limits and where its reset ends; checks at each tick what must hold."""

    def __init__(self, rng):
        self.rng = rng
        self.low = np.array([rng.uniform(0.2, 0.35), rng.uniform(-0.3, -0.1), rng.uniform(0, 0.1)])
        self.high = self.low + rng.uniform(0.15, 0.5, 3)
        self.limits = ArmLimits(
            workspace_low=tuple(self.low),
            workspace_high=tuple(self.high),
            joint_low=(-3.0, 0.05, -0.5, -4.0),
            joint_high=(3.0, 1.5, 1.5, 4.0),
            max_lead_translation=rng.uniform(0.01, 0.05),
        )
        inside = rng.uniform(self.low, self.high, (3, 3))
        start = inside[0] + rng.choice([0.0, 0.2]) * rng.uniform(-1.0, 1.0, 3)  # or outside
        turns = [rotations.multiply(rotations.about_z(a), DOWN) for a in rng.uniform(-1.0, 1.0, 3)]
        poses = [np.concatenate(pose) for pose in zip([start, *inside[1:]], turns, strict=True)]
        waypoints = [joints_at(pose) for pose in poses[rng.integers(1, 3) :]]
        self.end = poses[2] if rng.random() < 0.3 else np.array(waypoints)
        self.options = ResetOptions(
            retract_distance=rng.uniform(0.01, 0.05), speed_translation=0.25, speed_rotation=1.0
        )
        self.guard = ArmGuard(self.limits)
        self.resets = Resets(self.guard, self.options, kinematics)
        self.arm = Arm(joint_velocities=np.zeros(4))
        self.put(poses[0])
        self.now, self.stuck, self.outcome = 10.0, False, None
        self.before, self.held = None, 0

    def put(self, pose):
        self.arm.tcp_pose, self.arm.joint_positions = pose.copy(), joints_at(pose)

    def tick(self, times=1):
        for _ in range(times):
            self.now += TICK
            self.arm.stamp_ns += round(TICK * 1e9)
            try:
                target = self.guard.tick(self.now, self.arm)
            except MeasurementRefused:
                target = None
            if target is not None:
                self.check(target)
                if not self.stuck:
                    self.put(target)
            self.before = None if target is None else target.copy()
            self.outcome = self.resets.poll() or self.outcome

    def outside(self, pose):
        return np.maximum(np.maximum(self.low - pose[:3], pose[:3] - self.high), 0.0)

    def check(self, target):
        """A target that is sent now, against that before and the measured arm."""
        arm, mode = self.arm.tcp_pose, self.guard.mode
        self.held = self.held + 1 if mode in (Mode.HOLD, Mode.STOPPED) else 0
        assert abs(np.linalg.norm(target[3:]) - 1.0) < SMALL
        if self.before is None:
            return
        step = np.linalg.norm(target[:3] - self.before[:3])
        assert step <= 0.25 * TICK + SMALL or np.abs(self.before - arm).max() > 0.01  # pushed
        # Inside, or no farther out than the target was, or than the arm is; or, off what presses on
        # it, back to where it came from.
        most = np.maximum(self.outside(self.before), self.outside(arm))
        assert np.all(self.outside(target) <= most + SMALL) or self.arm.tcp_wrench.any()
        lead = self.limits.max_lead_translation
        assert np.abs(target[:3] - arm[:3]).max() <= lead + SMALL or step > 0.25 * TICK
        # It comes to rest within the lead, and nothing moves it from there.
        assert step <= SMALL or self.held <= 2 + math.sqrt(3.0) * lead / (0.25 * TICK)

    def happen(self, fault):
        arm, rng = self.arm, self.rng
        self.held = 0
        if fault == "stop":
            self.guard.stop("a person pressed stop")
        elif fault == "force":
            arm.tcp_wrench = np.append(rng.normal(size=3) * 100.0 + 100.0, np.zeros(3))
        elif fault == "joint":
            arm.joint_velocities = np.array([0.0, 0.0, 0.0, 5.0])
        elif fault == "nan":
            arm.tcp_pose = np.full(7, math.nan)
        elif fault in ("jump", "push"):
            far = 0.3 if fault == "jump" else 0.03
            way = rng.normal(size=3)
            self.put(arm.tcp_pose + np.append(far * way / np.linalg.norm(way), np.zeros(4)))
        elif fault == "silence":
            self.outcome = self.resets.give_up("the arm was silent")
            self.guard.forget("the arm was silent")
        else:
            self.stuck = True

    def check_person_is_asked(self, where):
        """However it ended, the arm moves when a person has cleared it and asks for it, not before.

        It is then led back from wherever it is.
        """
        self.guard.stop("the trial is over")
        self.held = 0
        self.tick(2)
        assert not self.resets.busy
        with pytest.raises(CommandRefused, match="clear_errors"):
            self.resets.begin(self.end)
        self.arm.tcp_wrench, self.arm.joint_velocities, self.stuck = np.zeros(6), np.zeros(4), False
        self.put(self.arm.tcp_pose if np.isfinite(self.arm.tcp_pose).all() else where)
        self.guard.clear()
        self.guard.forget("a person has looked", elsewhere=True)
        self.before, self.held = None, 9
        where = self.arm.tcp_pose
        self.tick(4)
        np.testing.assert_allclose(self.arm.tcp_pose, where, atol=1e-6)
        middle = np.concatenate([self.limits.middle[:3], where[3:]])
        for _ in range(2):
            stamp = round(self.now * 1e9)
            self.guard.command(middle, stamp, self.now, stamp)
            self.tick()
        away = [np.linalg.norm(pose[:3] - middle[:3]) for pose in (where, self.arm.tcp_pose)]
        assert away[1] < max(away[0] - 1e-4, 1e-3)


def try_a_reset(rng):
    """Returns how many faults have been tried, and how it ended without any."""
    trial, faults = Trial(rng), 0
    start = trial.arm.tcp_pose
    trial.tick(4)
    np.testing.assert_allclose(trial.arm.tcp_pose, start, atol=1e-9)  # nothing was asked for
    trial.resets.begin(trial.end)
    for _ in range(1_000):
        if rng.random() < 0.3:
            other, fault, faults = copy.deepcopy(trial), rng.choice(FAULTS), faults + 1
            other.happen(fault)
            other.tick(3)
            assert other.guard.mode is not Mode.RESET or fault in ("force", "push", "stuck")
            other.check_person_is_asked(trial.arm.tcp_pose)
        trial.tick()
        if trial.outcome is not None:
            break
    if trial.outcome.success:
        end = trial.end if trial.end.ndim == 1 else kinematics(trial.end[-1])
        distance, angle = rotations.apart(trial.arm.tcp_pose, end)
        assert distance <= trial.options.tolerance_translation + SMALL
        assert angle <= trial.options.tolerance_rotation + SMALL
    trial.check_person_is_asked(trial.arm.tcp_pose)
    return faults, trial.outcome.success


def try_resets(faults, seed):
    rng, tried, successes = np.random.default_rng(seed), 0, []
    while tried < faults:
        count, success = try_a_reset(rng)
        tried += count
        successes.append(success)
    assert sum(successes) > len(successes) / 4


def test_whatever_happens_to_a_reset_the_arm_is_safe():
    try_resets(500, seed=0)


@pytest.mark.slow
def test_ten_thousand_faults_in_resets_are_safe():
    try_resets(10_000, seed=1)
