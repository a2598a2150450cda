"""`reach`: bring the TCP to a random pose, or to the marker named in the instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from robot_rl.env.sim.task import SimTask, Vector, downward, observed
from robot_rl.env.task import Outcome
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

HOME = downward(np.array([0.45, 0.0, 0.2]))
_MARKERS = 2


def _add_marker(spec: mujoco.MjSpec, name: str, radius: float, rgba: Sequence[float]) -> None:
    ball = {"type": mujoco.mjtGeom.mjGEOM_SPHERE, "size": [radius, 0, 0], "rgba": rgba}
    spec.worldbody.add_body(name=name).add_geom(**ball, contype=0, conaffinity=0)


@dataclass(kw_only=True, eq=False)
class Reach(SimTask):
    """Reach a pose; `relative_pose` is the remaining motion (m, rad; base frame)."""

    observation_fields = observed(object_poses=(1, 7), relative_pose=(6,))
    observed_objects = ("goal",)

    position_range: float  # half width of the cube of targets about the home position [m]
    yaw_range: float  # largest yaw of a target [rad]
    tolerance: float  # distance that counts as reached [m]
    angle_tolerance: float  # angle that counts as reached [rad]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add a marker of the target."""
        _add_marker(spec, "goal", self.tolerance, [0.2, 0.7, 0.3, 0.6])

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw a target; the arm starts at home."""
        offset = rng.uniform(-self.position_range, self.position_range, 3)
        yaw = rotations.about_z(rng.uniform(-self.yaw_range, self.yaw_range))
        turned = rotations.multiply(yaw, rotations.DOWNWARD)
        self._goal = np.concatenate([HOME[:3] + offset, turned])
        self.world.set_body_pose("goal", self._goal)
        return HOME

    def resume(self, rng: np.random.Generator) -> None:
        """Draw another target; the arm starts where it is."""
        self.reset(rng)

    def goal_pose(self) -> Vector:
        """Target pose (7,)."""
        return self._goal

    def seen_poses(self) -> Vector:
        """Target pose (1, 7), without noise."""
        return self._goal[None]

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`; the one object is the target."""
        return {"state/relative_pose": rotations.between(tcp_pose, object_poses[0])}

    def succeeded(self) -> bool:
        """Whether the TCP is within both tolerances."""
        return self.is_at(self._goal, self.tolerance, self.angle_tolerance)


@dataclass(kw_only=True, eq=False)
class ReachInstructed(SimTask):
    """Reach the marker named in the instruction, out of two, in any orientation.

    Both markers are observed in the order of `colours`, with the vectors (m, base frame) to them;
    only `instruction` names the right one. Reaching the other one ends the episode as failed.

    Raises:
        RobotRLError: Not two colours, or an instruction without the placeholder `{colour}`.
    """

    observation_fields = observed(object_poses=(_MARKERS, 7), relative_positions=(_MARKERS, 3))

    colours: Mapping[str, Sequence[float]]  # name → RGB in 0 ... 1 of each of the two markers
    position_range: float  # half width of the cube of markers about the home position [m]
    separation: float  # smallest distance between the markers [m]
    clearance: float  # smallest distance of a marker from the straight path to the other [m]
    tolerance: float  # distance that counts as reached [m]

    def __post_init__(self) -> None:
        if len(self.colours) != _MARKERS or "{colour}" not in self.instruction:
            raise RobotRLError(
                "the task needs two colours and an instruction that names one",
                got=f"colours {list(self.colours)}, instruction {self.instruction!r}",
                expected="two colours, and {colour} in the instruction",
            )
        self.observed_objects = tuple(self.colours)
        self._instructions = [self.instruction.format(colour=colour) for colour in self.colours]
        self.instruction = self._instructions[0]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add both markers."""
        for colour, rgb in self.colours.items():
            _add_marker(spec, colour, 0.012, [*rgb, 1.0])

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw both markers, and which one is named; the arm starts at home."""
        span = self.position_range
        while True:
            offsets = rng.uniform(-span, span, (_MARKERS, 3))
            apart = np.linalg.norm(offsets[0] - offsets[1]) >= self.separation
            if apart and _distance_from_way(offsets) >= self.clearance:
                break
        self._poses = np.stack([downward(HOME[:3] + offset) for offset in offsets])
        for colour, pose in zip(self.colours, self._poses, strict=True):
            self.world.set_body_pose(colour, pose)
        self._named = int(rng.integers(_MARKERS))
        self.instruction = self._instructions[self._named]
        return HOME

    def goal_pose(self) -> Vector:
        """Pose (7,) of the named marker, with the hand pointing down."""
        return np.asarray(self._poses[self._named])

    def seen_poses(self) -> Vector:
        """Poses (2, 7) of both markers, without noise."""
        return self._poses

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`; the objects are the markers, in the order of their colours."""
        return {"state/relative_positions": object_poses[:, :3] - tcp_pose[:3]}

    def succeeded(self) -> bool:
        """Whether the TCP is within the tolerance of the named marker."""
        return self._reached(self._named)

    def outcome(self) -> Outcome:
        """Return reward 1 at the named marker; the other one ends the episode without reward."""
        missed = any(self._reached(marker) for marker in range(_MARKERS) if marker != self._named)
        outcome = super().outcome()
        return outcome._replace(terminated=outcome.terminated or missed)

    def _reached(self, marker: int) -> bool:
        way = self._poses[marker, :3] - self.world.tcp_pose()[:3]
        return bool(np.linalg.norm(way) <= self.tolerance)


def _distance_from_way(ends: Vector) -> float:
    """The least distance [m] of one of two points (2, 3) from the line from 0 to the other."""
    squares = np.einsum("ij,ij->i", ends, ends)
    along = np.clip((ends[0] @ ends[1]) / squares, 0.0, 1.0)
    return float(np.linalg.norm(ends[::-1] - along[:, None] * ends, axis=1).min())
