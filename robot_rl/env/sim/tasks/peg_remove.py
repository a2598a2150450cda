"""`peg_remove`: undo `peg_insert`: pull the peg out and bring it to where an episode may start."""

from __future__ import annotations

from typing import Any

import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.sim.task import ScriptedExpert, Vector
from robot_rl.env.sim.tasks.peg_insert import (
    PEG_BELOW_TCP,
    SOCKET_HEIGHT,
    PegInsert,
    PegInsertView,
)
from robot_rl.safety import rotations

# Tip over the socket's upper face at which it moves sideways [m].
_FREE_HEIGHT = 0.01


class PegRemoveView(PegInsertView):
    """As `PegInsertView`, and the way (m, rad; base frame) that the TCP has left to the start."""

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (2, 7)),
        Field("state/relative_pose", "float32", (6,)),
        Field("state/relative_position_fine", "float32", (3,)),
        Field("state/way_to_start", "float32", (6,)),
    )

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """See `TaskView`; the objects are the socket, and the TCP pose to go to."""
        way = rotations.between(tcp_pose, object_poses[1])
        seen = super().observe(object_poses, tcp_pose)
        return {**seen, "state/way_to_start": way.astype(np.float32)}


class PegRemove(PegInsert):
    """Pull the peg out of the socket and bring it to a start of `peg_insert`, drawn anew each time.

    With the scene of `PegInsert`, in which the peg begins inserted. It also begins in place, in the
    world of `PegInsert` and wherever the peg is: the two tasks undo each other.

    Args:
        tolerance: Distance to the start that counts as there [m].
        angle_tolerance: The same for the angle [rad].
        **arguments: See `PegInsert`.
    """

    view_type = PegRemoveView

    def __init__(self, tolerance: float, angle_tolerance: float, **arguments: Any) -> None:
        """See the class."""
        super().__init__(**arguments)
        self._tolerance = tolerance
        self._angle_tolerance = angle_tolerance
        self._start = super().goal_pose()

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the scene and where the peg is to go; returns the pose with the peg inserted."""
        self._start = super().reset(rng)
        inserted = np.array([0.0, 0.0, self._success_depth, 0.0, 0.0, 0.0, 1.0])
        return rotations.compose(super().goal_pose(), inserted)

    def resume(self, rng: np.random.Generator) -> None:
        """Look at the socket anew, and draw where the peg is to go."""
        super().resume(rng)
        self._start = self._draw_start(rng)

    def goal_pose(self) -> Vector:
        """TCP pose (7,) at which the peg is to end, level and over the table."""
        return self._start

    def seen_poses(self) -> Vector:
        """The socket as it is seen, and the TCP pose to go to: (2, 7)."""
        return np.concatenate([super().seen_poses(), self._start[None]])

    def succeeded(self) -> bool:
        """The TCP is where the peg was to be brought."""
        way = rotations.between(self.world.tcp_pose(), self._start)
        near = np.linalg.norm(way[:3]) <= self._tolerance
        return bool(near and np.linalg.norm(way[3:]) <= self._angle_tolerance)


class PegRemoveExpert(ScriptedExpert):
    """Pulls straight up until the tip is free, then goes to the start."""

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Up, as the peg stands; then to where it is to go."""
        tcp, start = self.task.world.tcp_pose(), self.task.goal_pose()
        if tcp[2] - PEG_BELOW_TCP < SOCKET_HEIGHT + _FREE_HEIGHT:
            return np.concatenate([tcp[:2], start[2:3], tcp[3:]])
        believed = np.concatenate([start[:3] + self.error, start[3:]])
        if np.abs(self.motion(believed)).max() < 0.2:
            self.correct()
        return believed
