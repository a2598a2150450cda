"""`reach_instructed`: bring the TCP to the one of two markers that the instruction names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import ARM_ACTIONS
from robot_rl.env.sim.task import SimTask, Vector
from robot_rl.env.sim.tasks.reach import HOME
from robot_rl.env.task import Outcome
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

_MARKERS = 2


class ReachInstructedView:
    """Pose of each marker, and the way (m, base frame) to it."""

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (_MARKERS, 7)),
        Field("state/relative_positions", "float32", (_MARKERS, 3)),
    )
    action_names: tuple[str, ...] = ARM_ACTIONS

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """See `TaskView`; the objects are the markers, in the order of their colours."""
        way = object_poses[:, :3] - tcp_pose[:3]
        return {
            "state/object_poses": object_poses.astype(np.float32),
            "state/relative_positions": way.astype(np.float32),
        }


class ReachInstructed(SimTask):
    """Reach the named marker within `tolerance` [m], in any orientation.

    Both markers are observed, always in the order of `colours`; which one is wanted is drawn with
    the episode, and nothing but `instruction` tells it. Who comes to the other one has failed: the
    episode ends, so that trying both does not pass for following the instruction.

    Args:
        name: See `SimTask`.
        instruction: Text of an episode's instruction, with `{colour}` where the name belongs.
        time_limit_steps: See `SimTask`.
        colours: Name → RGB in 0 ... 1 of each of the two markers.
        position_range: Half width of the cube of markers about the home position [m].
        separation: Smallest distance between the markers [m].
        clearance: Smallest distance of a marker from the straight way to the other [m].
        tolerance: Distance that counts as reached [m].

    Raises:
        RobotRLError: Not two colours, or an instruction that does not name one.
    """

    def __init__(
        self,
        name: str,
        instruction: str,
        time_limit_steps: int,
        colours: Mapping[str, Sequence[float]],
        position_range: float,
        separation: float,
        clearance: float,
        tolerance: float,
    ) -> None:
        """See the class."""
        if len(colours) != _MARKERS or "{colour}" not in instruction:
            raise RobotRLError(
                "the task needs two colours and an instruction that names one",
                got=f"colours {list(colours)}, instruction {instruction!r}",
                expected="two colours, and {colour} in the instruction",
            )
        self._colours = dict(colours)
        self.observed_objects = tuple(colours)
        self._instructions = [instruction.format(colour=colour) for colour in colours]
        super().__init__(name, self._instructions[0], time_limit_steps, ReachInstructedView())
        self._position_range = position_range
        self._separation = separation
        self._clearance = clearance
        self._tolerance = tolerance
        self._positions = np.tile(HOME[:3], (_MARKERS, 1))
        self._wanted = 0

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add two markers that nothing collides with."""
        for colour, rgb in self._colours.items():
            marker = spec.worldbody.add_body(name=colour)
            marker.add_geom(
                type=mujoco.mjtGeom.mjGEOM_SPHERE,
                size=[0.012, 0, 0],
                rgba=[*rgb, 1.0],
                contype=0,
                conaffinity=0,
            )

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw both markers and which is wanted; the arm starts at home."""
        span = self._position_range
        while True:
            offsets = rng.uniform(-span, span, (_MARKERS, 3))
            apart = np.linalg.norm(offsets[0] - offsets[1]) >= self._separation
            if apart and _distance_from_way(offsets) >= self._clearance:
                break
        self._positions = HOME[:3] + offsets
        for colour, position in zip(self._colours, self._positions, strict=True):
            self.world.set_body_pose(colour, _pose(position))
        self._wanted = int(rng.integers(_MARKERS))
        self.instruction = self._instructions[self._wanted]
        return HOME

    def goal_pose(self) -> Vector:
        """The named marker (7,), the hand pointing down."""
        return _pose(self._positions[self._wanted])

    def seen_poses(self) -> Vector:
        """Both markers (2, 7), seen without noise."""
        return np.stack([_pose(position) for position in self._positions])

    def succeeded(self) -> bool:
        """Within the tolerance of the named marker."""
        return self._reached(self._wanted)

    def outcome(self) -> Outcome:
        """Reward 1 at the named marker; the other one ends the episode without."""
        missed = any(self._reached(marker) for marker in range(_MARKERS) if marker != self._wanted)
        outcome = super().outcome()
        return outcome._replace(terminated=outcome.terminated or missed)

    def _reached(self, marker: int) -> bool:
        way = self._positions[marker] - self.world.tcp_pose()[:3]
        return bool(np.linalg.norm(way) <= self._tolerance)


def _distance_from_way(ends: Vector) -> float:
    """The least distance [m] of one of two points (2, 3) from the line from 0 to the other."""
    squares = np.einsum("ij,ij->i", ends, ends)
    along = np.clip((ends[0] @ ends[1]) / squares, 0.0, 1.0)
    return float(np.linalg.norm(ends[::-1] - along[:, None] * ends, axis=1).min())


def _pose(position: Vector) -> Vector:
    return np.concatenate([position, rotations.DOWNWARD])
