"""`pick_insert`: take the peg from its holder, then insert it in the socket of `peg_insert`."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.env.sim.grasping import TopGrasp
from robot_rl.env.sim.task import Vector
from robot_rl.env.sim.tasks.peg_insert import (
    HOLE_DEPTH,
    PEG_BELOW_TCP,
    PEG_LENGTH,
    PEG_WIDTH,
    SOCKET_CENTRE,
    SOCKET_HEIGHT,
    PegInsert,
    PegInsertExpert,
    PegInsertView,
    TipExpert,
    add_socket,
    peg_geom,
)
from robot_rl.env.task import refuse_resume
from robot_rl.safety import rotations

# Beside the socket wherever that is.
HOLDER_CENTRE = np.array([0.45, 0.16, SOCKET_HEIGHT])
_UP = np.array([0.0, 0.0, 1.0])
# Cosine of the angle from which a peg cannot be set upright: 0.5 rad.
_ASKEW = 0.88
# The peg stands on the floor of the holder's hole.
_PEG_CENTRE_Z = SOCKET_HEIGHT - HOLE_DEPTH + PEG_LENGTH / 2


class PickInsertView(PegInsertView):
    """As `PegInsertView`, and the way from the TCP to the grasp as seen, base frame [m]."""

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (2, 7)),
        Field("state/relative_pose", "float32", (6,)),
        Field("state/relative_position_fine", "float32", (3,)),
        Field("state/grasp_position", "float32", (3,)),
        Field("state/grasp_position_fine", "float32", (3,)),
    )
    action_names: tuple[str, ...] = (*ARM_ACTIONS, GRIPPER_ACTION)

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """See `TaskView`; the objects are the socket and the tip of the peg, z up."""
        tip = self.tip_pose(object_poses, tcp_pose)
        way = tip[:3] + np.array([0.0, 0.0, PEG_BELOW_TCP]) - tcp_pose[:3]
        return {
            **super().observe(object_poses, tcp_pose),
            "state/grasp_position": way.astype(np.float32),
            "state/grasp_position_fine": np.tanh(way / self.fine_scale).astype(np.float32),
        }

    def tip_pose(self, object_poses: Vector, tcp_pose: Vector) -> Vector:
        """The tip's pose (7,) as it is seen."""
        return np.asarray(object_poses[1])


class PickInsert(PegInsert):
    """Grasp the peg that stands in a holder, pull it out and insert it in the socket.

    All about the socket is as in `PegInsert`, to the side of the holder; the peg is free, and its
    position is seen with a fixed error of its own.

    Args:
        holder_range: Half range of the holder's x and y [m].
        holder_clearance: Width of the holder's hole minus width of the peg [m].
        peg_noise: Half range of the error per axis with which the peg is seen [m].
        **arguments: See `PegInsert`; `start_height` is that of the TCP over the place of the grasp.
    """

    view_type = PickInsertView
    finger_opening = 0.08
    observed_objects: tuple[str, ...] = ("socket", "tip")

    def __init__(
        self, holder_range: float, holder_clearance: float, peg_noise: float, **arguments: Any
    ) -> None:
        """See the class."""
        super().__init__(**arguments)
        self._holder_range = holder_range
        self._holder_clearance = holder_clearance
        self._peg_noise = peg_noise
        self._peg_error = np.zeros(3)

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the socket, the holder and the free peg to the table."""
        # Less creep sideways in the fingers; solving for no slip at all jams the peg in the hole.
        spec.option.impratio = 10.0
        add_socket(spec, "socket", SOCKET_CENTRE, self._clearance, self._friction)
        add_socket(spec, "holder", HOLDER_CENTRE, self._holder_clearance, self._friction)
        peg = spec.worldbody.add_body(name="peg", pos=[*HOLDER_CENTRE[:2], _PEG_CENTRE_Z])
        peg.add_freejoint(name="peg")
        peg.add_geom(**peg_geom(self._friction), contype=3, conaffinity=3)
        peg.add_site(name="tip", pos=[0.0, 0.0, -PEG_LENGTH / 2])

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the poses of socket and holder, the errors they are seen with, and the start."""
        self._place_socket(rng)
        shift = rng.uniform(-self._holder_range, self._holder_range, 2)
        holder = HOLDER_CENTRE + np.array([*shift, 0.0])
        upright = rotations.about_z(0.0)
        self.world.set_body_pose("holder", np.concatenate([holder, upright]))
        peg = np.array([holder[0], holder[1], _PEG_CENTRE_Z])
        self.world.set_start_pose("peg", np.concatenate([peg, upright]))
        self._peg_error = rng.uniform(-self._peg_noise, self._peg_noise, 3)
        start = HOLDER_CENTRE + np.array([0.0, 0.0, self._start_height - HOLE_DEPTH])
        start = start + rng.uniform(-self._start_noise, self._start_noise, 3)
        return np.concatenate([start + np.array([0.0, 0.0, PEG_BELOW_TCP]), rotations.DOWNWARD])

    def resume(self, rng: np.random.Generator) -> None:
        """Nobody puts the peg back into its holder.

        Raises:
            RobotRLError: Always.
        """
        refuse_resume(self.name)

    def tip_pose(self) -> Vector:
        """Pose (7,) of the peg's lower end, z up, in the base frame."""
        return self.world.site_pose("tip")

    def seen_tip(self) -> Vector:
        """Pose (7,) of the tip with the error with which it is seen."""
        tip = self.tip_pose()
        return np.concatenate([tip[:3] + self._peg_error, tip[3:]])

    def seen_poses(self) -> Vector:
        """Socket and tip of the peg (2, 7), with the errors with which they are seen."""
        return np.concatenate([super().seen_poses(), self.seen_tip()[None]])


class PickFirst(TipExpert):
    """Takes the peg, pulls it out and carries it over the socket, before what it is mixed into.

    Args:
        task: The task.
        carry_height: Height of the tip over the socket on the way to it [m].
        grasp: How the peg is taken.
        **arguments: See the class that it is mixed into.
    """

    def __init__(
        self, task: PickInsert, carry_height: float, grasp: TopGrasp, **arguments: Any
    ) -> None:
        """See the class."""
        super().__init__(task, **arguments)
        self._carry_height = carry_height
        self._grasp = grasp
        self._arrived = False

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self._grasp.reset()
        self._arrived = False

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """To the peg, up, over to the socket, and then as whoever inserts it wants."""
        if not self._grasp.held or self._grasp.lost(self):
            self._arrived = False
            return self._grasp.waypoint(self, self.grasp_pose())
        if not self._arrived:
            return self._carry()
        return super().waypoint(rng)

    def is_beyond_help(self) -> bool:
        """The peg is askew in the fingers, or lies somewhere."""
        peg = rotations.rotate(self.tip()[3:], _UP)
        fingers = -rotations.rotate(self.task.world.tcp_pose()[3:], _UP)
        upright = fingers if self._grasp.held else _UP
        return float(peg @ upright) < _ASKEW

    def grasp_pose(self) -> Vector:
        """The TCP pose (7,), level, at which the hand holds the peg as in `PegInsert`."""
        above = np.concatenate([[0.0, 0.0, PEG_BELOW_TCP], rotations.DOWNWARD])
        position = rotations.compose(self.tip(), above)[:3] + self.error
        return np.concatenate([position, rotations.DOWNWARD])

    def destination(self) -> Vector | None:
        """Where the peg is grasped, then above the socket."""
        if not self._grasp.held:
            return self.grasp_pose()
        return super().destination() if self._arrived else self._above_socket()

    def _carry(self) -> Vector:
        """Straight up until the tip is free, then level to above the socket."""
        tip, place = self.tip(), self._above_socket()
        away = float(np.hypot(*(self.socket()[:2] - tip[:2])))
        # Whoever else moves the arm may bring the peg there at less height, or into the hole.
        if away < (self._carry_height if tip[2] > SOCKET_HEIGHT else PEG_WIDTH / 2):
            self._arrived = True
        elif tip[2] < SOCKET_HEIGHT + 0.5 * self._carry_height:
            place[:2] = self.task.world.tcp_pose()[:2]
        return place

    def _above_socket(self) -> Vector:
        """The TCP pose (7,), level, with which the tip is `carry_height` above the socket."""
        tip, tcp = self.tip(), self.task.world.tcp_pose()
        height = tcp[2] + SOCKET_HEIGHT + self._carry_height - tip[2]
        beside = tcp[:2] + (self.socket()[:2] - tip[:2])
        return np.concatenate([beside, [height], rotations.DOWNWARD])


class PickInsertExpert(PickFirst, PegInsertExpert):
    """Takes the peg, carries it over the socket, and inserts it as `PegInsertExpert` does."""
