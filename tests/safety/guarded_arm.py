"""An arm that follows its guard's target at once, and the time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from robot_rl.safety import ArmGuard, ArmLimits, CommandRefused

LIMITS = ArmLimits(
    workspace_low=(0.30, -0.20, 0.0),
    workspace_high=(0.65, 0.20, 0.45),
    joint_low=(-2.0,) * 7,
    joint_high=(2.0,) * 7,
)
DOWN = np.array([1.0, 0.0, 0.0, 0.0])
START = np.array([0.45, 0.0, 0.2, *DOWN])
SMALL = 1e-9


@dataclass
class Arm:
    stamp_ns: int = 10**18
    tcp_pose: np.ndarray = field(default_factory=lambda: START.copy())
    tcp_velocity: np.ndarray = field(default_factory=lambda: np.full(6, np.nan))
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
        target = self.measure(seconds=seconds)
        if target is not None:
            self.arm.tcp_pose = target.copy()
        return target

    def measure(self, pose=None, seconds=0.01):
        """Let time pass for an arm that is at this pose, wherever its target is."""
        self.now += seconds
        self.arm.stamp_ns += round(seconds * 1e9)
        self.arm.tcp_pose = self.arm.tcp_pose if pose is None else pose
        return self.guard.tick(self.now, self.arm)

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


def moved(pose, way, turn):
    rotation = Rotation.from_rotvec(turn) * Rotation.from_quat(pose[3:])
    return np.concatenate([pose[:3] + way, rotation.as_quat()])
