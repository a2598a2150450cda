"""Inserting a peg as a person does who does not see the hole well: tilted, by feel.

The corner that comes first is lowered into the hole, which is much wider than a corner; the peg
then slides until both walls hold it back, is set upright and pushed in, and yields to what it
feels. All of it follows from what the arm measures and from the goal as it is seen, so that a
policy with the same observations can learn it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from robot_rl.env.sim.task import Vector
from robot_rl.env.sim.tasks.peg_insert import PEG_WIDTH, TipExpert
from robot_rl.safety import rotations


class _Phase(Enum):
    """The next part of the motion."""

    APPROACH = "go above the place where the tilted peg is to be set down"
    LOWER = "lower it until it touches"
    SLIDE = "slide towards the hole until both walls hold it back"
    INSERT = "set it upright and push it in"


@dataclass
class InsertionByFeel:
    """The skill; positions are of the peg's tip in the frame of the socket as seen, z up."""

    offset: float  # how far from the hole, back along x and y, the peg is set down [m]
    tilt: float  # by how much the corner that comes first is lower, about each axis [rad]
    hover: float  # height from which it is lowered [m]
    near: float  # distance from the place above which it is lowered [m]
    touch_force: float  # upward force that says that it stands on something [N]
    slide: float  # motion of the target per step along an axis that nothing holds back [m]
    creep: float  # the same along one that a wall holds back [m]
    press: float  # how far below the tip the target is held [m]
    # Least sideways force of a wall [N]; also more than `wall_ratio` times the upward one, since
    # friction alone gives some.
    wall_force: float
    wall_ratio: float
    overshoot: float  # position beyond the hole at which the slide has missed it [m]
    yielding: float  # sideways motion per step for a force [m/N]
    turning: float  # rotation per step about the vertical for a torque [rad/Nm]
    patience: int  # steps of pushing at something that is no hole, before it starts again
    _pushed: int = field(default=0, init=False)
    _phase: _Phase = field(default=_Phase.APPROACH, init=False)
    _caught_at: Vector = field(default_factory=lambda: np.zeros(3), init=False)

    def reset(self) -> None:
        """Begin with the approach."""
        self._phase = _Phase.APPROACH

    def next_tip(self, tip: Vector, wrench: Vector, *, inside: bool) -> Vector:
        """Where the tip, at a pose (7,), should be next; both in the frame of the socket as seen.

        So is the force [N] and torque [Nm] (6,) on the peg. `inside`: whether that is seen to be in
        the hole, if only a little.
        """
        force = wrench[:3]
        held = -force[:2] > max(self.wall_force, self.wall_ratio * force[2])
        self._turn_to(tip[:3], touching=bool(force[2] > self.touch_force), held=held, inside=inside)
        leaning = np.array([-self.tilt, self.tilt, 0.0])
        place = np.full(2, -self.offset)
        if self._phase is _Phase.APPROACH:
            return _pose(place, self.hover, leaning)
        below = tip[2] - self.press
        if self._phase is _Phase.LOWER:
            return _pose(place, below, leaning)
        if self._phase is _Phase.SLIDE:
            return _pose(tip[:2] + np.where(held, self.creep, self.slide), below, leaning)
        turned = rotations.to_rotation_vector(tip[3:])[2] + self.turning * wrench[5]
        return _pose(tip[:2] + self.yielding * force[:2], below, np.array([0.0, 0.0, turned]))

    def _turn_to(self, tip: Vector, *, touching: bool, held: Vector, inside: bool) -> None:
        """Enter the next phase, or the first again where the hole was missed."""
        over = np.linalg.norm(tip[:2] + self.offset) < self.near and tip[2] < self.hover + self.near
        self._pushed = 0 if inside or self._phase is not _Phase.INSERT else self._pushed + 1
        if inside or (self._phase is _Phase.SLIDE and held.all()):
            if self._phase is not _Phase.INSERT:
                self._caught_at = tip
            self._phase = _Phase.INSERT
        elif self._phase is _Phase.INSERT:
            slipped = (tip - self._caught_at).max() > self.near  # along the walls, or up again
            if slipped or self._pushed > self.patience:
                self._phase = _Phase.APPROACH
        elif self._phase is _Phase.SLIDE:
            if tip[:2].max() > self.overshoot:
                self._phase = _Phase.APPROACH
        elif self._phase is _Phase.LOWER and touching:
            self._phase = _Phase.SLIDE
        elif self._phase is _Phase.APPROACH and over:
            self._phase = _Phase.LOWER


@dataclass(kw_only=True, eq=False)
class PegInsertByFeel(TipExpert):
    """Inserts by feel, and knows of socket and peg what the policy sees of them."""

    insertion: InsertionByFeel
    # Depth from which anyone sees that the peg is in the hole, not beside it or over its edge [m].
    visible_depth: float

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self.insertion.reset()

    def tip(self) -> Vector:
        """The tip (7,) as the policy knows it."""
        return self.task.seen_tip()

    def socket(self) -> Vector:
        """The socket (7,) as the policy sees it."""
        return np.asarray(self.task.measured_poses()[0])

    def tip_goal(self) -> Vector:
        """Where the skill wants the tip (7,), base frame."""
        socket = self.believed_socket()
        into_frame = rotations.conjugate(socket[3:])
        wrench = rotations.rotate_both(into_frame, self.task.world.tcp_wrench())
        # Whether the tip truly is in the hole, anyone would see.
        x, y, z = rotations.relative(self.task.socket_pose(), self.task.tip_pose())[:3]
        inside = bool(z < -self.visible_depth and max(abs(x), abs(y)) < PEG_WIDTH / 4)
        seen = rotations.relative(socket, self.tip())
        goal = self.insertion.next_tip(seen, wrench, inside=inside)
        return rotations.compose(socket, goal)


def _pose(place: Vector, height: float, rotation: Vector) -> Vector:
    """A pose (7,) of x and y, z and a rotation vector."""
    return np.concatenate([place, [height], rotations.from_rotation_vector(rotation)])
