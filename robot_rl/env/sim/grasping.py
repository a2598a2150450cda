"""Grasping from above, for scripted experts: hover, go down, close the fingers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from robot_rl.env.sim.task import ScriptedExpert, Vector

# Fingers that come closer than this have nothing between them [m].
_EMPTY = 0.01
# How much higher or lower than meant an object may be held, and how much narrower or wider [m].
_OFF_GRASP = 0.03
_OFF_WIDTH = 0.006


@dataclass
class TopGrasp:
    """Leads an expert's gripper to an object and closes it.

    Attributes:
        hover: Height over the object until the fingers are above it [m].
        align: Horizontal distance at which they begin to go down [m].
        close_steps: Control steps that they are given to close.
        patience: Control steps of going down after which the expert looks again.
        held: Whether the fingers have closed on something, as far as the expert knows.
    """

    hover: float
    align: float
    close_steps: int
    patience: int
    held: bool = field(default=False, init=False)
    _descending: int = field(default=0, init=False)
    _closing: int = field(default=0, init=False)

    def reset(self) -> None:
        """Begin again with nothing in the hand."""
        self.held = False
        self._descending = self._closing = 0

    def waypoint(self, expert: ScriptedExpert, grasp: Vector) -> Vector:
        """Where the TCP should be next to close the fingers at `grasp` (7,), base frame.

        Also sets the expert's gripper.
        """
        offset = grasp[:3] - expert.task.world.tcp_pose()[:3]
        if self._descending or float(np.hypot(offset[0], offset[1])) < self.align:
            self._descending += 1
        if self._closing or (self._descending and abs(float(offset[2])) < self.align):
            self._closing += 1
        elif self._descending > self.patience:  # the fingers stand on something
            expert.correct()
            self.reset()
        expert.gripper = 1.0 if self._closing else -1.0
        self.held = self._closing > self.close_steps
        lift = 0.0 if self._descending else self.hover
        return np.concatenate([grasp[:3] + np.array([0.0, 0.0, lift]), grasp[3:]])

    def see(self, expert: ScriptedExpert, grasp: Vector, width: float) -> None:
        """Look at what the fingers have, which somebody else may have closed or opened.

        Args:
            expert: Who looks.
            grasp: The pose (7,) at which the object is in the fingers, base frame.
            width: Of the object [m].
        """
        world = expert.task.world
        beside = float(np.linalg.norm(grasp[:3] - world.tcp_pose()[:3])) > _OFF_GRASP
        has_it = not beside and abs(world.finger_opening() - width) < _OFF_WIDTH
        if has_it and not self._closing:
            self._closing, self.held, expert.gripper = self.close_steps + 1, True, 1.0
        elif self.held and not has_it:
            self.reset()

    def lost(self, expert: ScriptedExpert) -> bool:
        """Whether the fingers are closed on nothing; the expert then looks again."""
        if not self.held or expert.task.world.finger_opening() > _EMPTY:
            return False
        expert.correct()
        self.reset()
        return True
