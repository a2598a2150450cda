"""Peg insertion by feel, with a tilted peg, as a person does who cannot see the hole well.

The leading corner is lowered into the hole, which is much wider than a corner. The peg then slides
until both walls stop it, is set upright and pushed in, yielding to contact forces. The skill uses
only the arm's measurements and the observed goal, so a policy with the same observations can learn
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from robot_rl.env.sim.task import Vector
from robot_rl.env.sim.tasks.peg_insert import PEG_WIDTH, TipExpert
from robot_rl.safety import rotations


class _Phase(Enum):
    """Phase of the motion."""

    APPROACH = "go above the place where the tilted peg is to be set down"
    LOWER = "lower it until it touches"
    SLIDE = "slide towards the hole until both walls hold it back"
    INSERT = "set it upright and push it in"


@dataclass
class InsertionByFeel:
    """The skill. Positions are of the peg's tip in the observed socket frame, z up."""

    offset: float  # distance before the hole, along -x and -y, where the peg touches down [m]
    tilt: float  # tilt about each axis that lowers the leading corner [rad]
    hover: float  # height from which it is lowered [m]
    near: float  # distance from the touch-down point at which lowering starts [m]
    touch_force: float  # upward force that indicates contact [N]
    slide: float  # motion of the target per step along a free axis [m]
    creep: float  # the same along an axis blocked by a wall [m]
    press: float  # distance of the target below the tip [m]
    # Least sideways force of a wall [N]; it must also exceed `wall_ratio` times the upward force,
    # since friction causes some sideways force.
    wall_force: float
    wall_ratio: float
    overshoot: float  # position past the hole that counts as a miss [m]
    yielding: float  # sideways motion per step per force [m/N]
    turning: float  # rotation per step about the vertical per torque [rad/Nm]
    patience: int  # steps of pushing outside the hole before it starts over
    _pushed: int = field(default=0, init=False)
    _phase: _Phase = field(default=_Phase.APPROACH, init=False)
    _caught_at: Vector = field(default_factory=lambda: np.zeros(3), init=False)

    def reset(self) -> None:
        """Start with the approach."""
        self._phase = _Phase.APPROACH

    def next_tip(self, tip: Vector, wrench: Vector, *, inside: bool) -> Vector:
        """Return the tip's next pose (7,), from its current pose (7,).

        Both poses, and the force [N] and torque [Nm] (6,) on the peg, are in the observed socket
        frame. `inside`: whether the peg is visibly in the hole, even slightly.
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
        """Enter the next phase, or return to the first if the hole was missed."""
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
    """Inserts by feel, knowing only what the policy observes of socket and peg."""

    insertion: InsertionByFeel
    # Depth at which the peg is visibly in the hole, not next to it or over its edge [m].
    visible_depth: float

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self.insertion.reset()

    def tip(self) -> Vector:
        """Return the tip pose (7,) as the policy observes it."""
        return self.task.seen_tip()

    def socket(self) -> Vector:
        """Return the socket pose (7,) as the policy observes it."""
        return np.asarray(self.task.measured_poses()[0])

    def tip_goal(self) -> Vector:
        """Return the skill's next tip pose (7,), base frame."""
        socket = self.believed_socket()
        into_frame = rotations.conjugate(socket[3:])
        wrench = rotations.rotate_both(into_frame, self.task.world.tcp_wrench())
        # A person would see whether the tip is really in the hole.
        x, y, z = rotations.relative(self.task.socket_pose(), self.task.tip_pose())[:3]
        inside = bool(z < -self.visible_depth and max(abs(x), abs(y)) < PEG_WIDTH / 4)
        seen = rotations.relative(socket, self.tip())
        goal = self.insertion.next_tip(seen, wrench, inside=inside)
        return rotations.compose(socket, goal)


def _pose(place: Vector, height: float, rotation: Vector) -> Vector:
    """Make a pose (7,) from x and y, z and a rotation vector."""
    return np.concatenate([place, [height], rotations.from_rotation_vector(rotation)])
