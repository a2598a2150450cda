"""`pick_insert`: take the peg from its holder, then insert it in `peg_insert`'s socket."""

from __future__ import annotations

from dataclasses import dataclass, field

import mujoco
import numpy as np

from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.env.sim.task import ScriptedExpert, TopGrasp, Vector, downward, observed
from robot_rl.env.sim.tasks.insertion_by_feel import PegInsertByFeel
from robot_rl.env.sim.tasks.peg_insert import (
    HOLE_DEPTH,
    PEG_BELOW_TCP,
    PEG_LENGTH,
    PEG_WIDTH,
    SOCKET_CENTRE,
    SOCKET_HEIGHT,
    PegInsert,
    PegInsertExpert,
    TipExpert,
    add_socket,
    peg_geom,
)
from robot_rl.env.task import refuse_resume
from robot_rl.safety import rotations

# Clear of the socket anywhere in the socket's range.
HOLDER_CENTRE = np.array([0.45, 0.16, SOCKET_HEIGHT])
_UP = np.array([0.0, 0.0, 1.0])
# Cosine of the tilt beyond which a peg cannot be set upright: 0.5 rad.
_ASKEW = 0.88
# Maximum distance from where an object is held, and maximum difference from its width [m].
_OFF_GRASP, _OFF_WIDTH = 0.03, 0.006
# The peg stands on the floor of the holder's hole.
_PEG_CENTRE_Z = SOCKET_HEIGHT - HOLE_DEPTH + PEG_LENGTH / 2


@dataclass(kw_only=True, eq=False)
class PickInsert(PegInsert):
    """Grasp a peg standing in a holder, pull it out and insert it in the socket.

    The socket is as in `PegInsert`, to the side of the holder. The peg is free, and its position is
    observed with its own fixed error. `start_height` is the TCP's height above the grasp position.
    `grasp_position` is the observed vector from the TCP to the grasp position, base frame [m].
    """

    observation_fields = (
        *observed(object_poses=(2, 7)),
        *PegInsert.observation_fields[1:],
        *observed(grasp_position=(3,), grasp_position_fine=(3,)),
    )
    action_names = (*ARM_ACTIONS, GRIPPER_ACTION)
    finger_opening = 0.08
    observed_objects = ("socket", "tip")

    holder_range: float  # half range of the holder's x and y [m]
    holder_clearance: float  # width of the holder's hole minus width of the peg [m]
    peg_noise: float  # half range of the peg's position error, per axis [m]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the socket, the holder and the free peg to the table."""
        # Reduces sideways creep in the fingers. Solving for no slip at all jams the peg in the
        # hole.
        spec.option.impratio = 10.0
        add_socket(spec, "socket", SOCKET_CENTRE, self.clearance, self.friction)
        add_socket(spec, "holder", HOLDER_CENTRE, self.holder_clearance, self.friction)
        peg = spec.worldbody.add_body(name="peg", pos=[*HOLDER_CENTRE[:2], _PEG_CENTRE_Z])
        peg.add_freejoint(name="peg")
        peg.add_geom(**peg_geom(self.friction), contype=3, conaffinity=3)
        peg.add_site(name="tip", pos=[0.0, 0.0, -PEG_LENGTH / 2])

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the poses of socket and holder, their observation errors, and the start."""
        self._place_socket(rng)
        shift = rng.uniform(-self.holder_range, self.holder_range, 2)
        holder = HOLDER_CENTRE + np.array([*shift, 0.0])
        upright = rotations.about_z(0.0)
        self.world.set_body_pose("holder", np.concatenate([holder, upright]))
        peg = np.array([holder[0], holder[1], _PEG_CENTRE_Z])
        self.world.set_start_pose("peg", np.concatenate([peg, upright]))
        self._peg_error = rng.uniform(-self.peg_noise, self.peg_noise, 3)
        start = HOLDER_CENTRE + np.array([0.0, 0.0, self.start_height - HOLE_DEPTH])
        start = start + rng.uniform(-self.start_noise, self.start_noise, 3)
        return downward(start + np.array([0.0, 0.0, PEG_BELOW_TCP]))

    def resume(self, rng: np.random.Generator) -> None:
        """Refuse: the peg cannot be put back into its holder."""
        refuse_resume(self.name)

    def tip_pose(self) -> Vector:
        """Pose (7,) of the peg's lower end, z up, in the base frame."""
        return self.world.site_pose("tip")

    def seen_poses(self) -> Vector:
        """Socket and peg tip (2, 7), with observation errors."""
        tip = self.tip_pose()
        tip[:3] += self._peg_error
        return np.concatenate([super().seen_poses(), tip[None]])

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`. The objects are the socket and the tip of the peg, z up."""
        way = object_poses[1, :3] + np.array([0.0, 0.0, PEG_BELOW_TCP]) - tcp_pose[:3]
        return {
            **super().see(object_poses, tcp_pose),
            "state/grasp_position": way,
            "state/grasp_position_fine": np.tanh(way / self.fine_scale),
        }

    def _tip_among(self, object_poses: Vector, tcp_pose: Vector) -> Vector:
        return np.asarray(object_poses[1])


@dataclass
class WatchedGrasp(TopGrasp):
    """A grasp that another agent may cause or undo."""

    def see(self, expert: ScriptedExpert, grasp: Vector, width: float) -> None:
        """Check what the fingers hold, in case another agent has closed or opened them.

        The object of `width` [m] is between the fingers when the TCP is at `grasp` (7,), base
        frame.
        """
        world = expert.task.world
        beside = float(np.linalg.norm(grasp[:3] - world.tcp_pose()[:3])) > _OFF_GRASP
        has_it = not beside and abs(world.finger_opening() - width) < _OFF_WIDTH
        if has_it and not self._closing:
            self._closing, self.held, expert.gripper = self.close_steps + 1, True, 1.0
        elif self.held and not has_it:
            self.reset()


@dataclass(kw_only=True, eq=False)
class PickFirst(TipExpert):
    """Mixin: takes the peg, pulls it out and carries it over the socket, before inserting."""

    task: PickInsert
    carry_height: float  # height of the tip over the socket while carrying [m]
    grasp: WatchedGrasp  # how the peg is grasped
    _arrived: bool = field(default=False, init=False)

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self.grasp.reset()
        self._arrived = False

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Return the next pose: to the peg, up, over to the socket, then the inserting expert's."""
        if not self.grasp.held or self.grasp.lost(self):
            self._arrived = False
            return self.grasp.waypoint(self, self.grasp_pose())
        if not self._arrived:
            return self._carry()
        return super().waypoint(rng)

    def is_beyond_help(self) -> bool:
        """Whether the peg is tilted too far, in the fingers or lying on the table."""
        peg = rotations.rotate(self.tip()[3:], _UP)
        fingers = -rotations.rotate(self.task.world.tcp_pose()[3:], _UP)
        upright = fingers if self.grasp.held else _UP
        return float(peg @ upright) < _ASKEW

    def grasp_pose(self) -> Vector:
        """Return the level TCP pose (7,) at which the hand holds the peg as in `PegInsert`."""
        above = downward(np.array([0.0, 0.0, PEG_BELOW_TCP]))
        position = rotations.compose(self.tip(), above)[:3] + self.error
        return downward(position)

    def destination(self) -> Vector | None:
        """Return the grasp pose, then the pose above the socket."""
        if not self.grasp.held:
            return self.grasp_pose()
        return super().destination() if self._arrived else self._above_socket()

    def _carry(self) -> Vector:
        """Go straight up until the tip is free, then level to above the socket."""
        tip, place = self.tip(), self._above_socket()
        away = float(np.hypot(*(self.socket()[:2] - tip[:2])))
        # Another agent moving the arm may bring the peg there lower, or into the hole.
        if away < (self.carry_height if tip[2] > SOCKET_HEIGHT else PEG_WIDTH / 2):
            self._arrived = True
        elif tip[2] < SOCKET_HEIGHT + 0.5 * self.carry_height:
            place[:2] = self.task.world.tcp_pose()[:2]
        return place

    def _above_socket(self) -> Vector:
        """Return the level TCP pose (7,) with the tip `carry_height` above the socket."""
        tip, tcp = self.tip(), self.task.world.tcp_pose()
        height = tcp[2] + SOCKET_HEIGHT + self.carry_height - tip[2]
        beside = tcp[:2] + (self.socket()[:2] - tip[:2])
        return np.concatenate([beside, [height], rotations.DOWNWARD])


@dataclass(kw_only=True, eq=False)
class PickInsertExpert(PickFirst, PegInsertExpert):
    """Takes the peg, carries it over the socket, and inserts it as `PegInsertExpert` does."""


@dataclass(kw_only=True, eq=False)
class PickInsertByFeel(PickFirst, PegInsertByFeel):
    """Takes the peg, carries it over the socket, and inserts it by feel.

    It detects if another agent moving the arm takes or loses the peg.
    """

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Return the next TCP pose, from wherever the TCP is now."""
        self.grasp.see(self, self.grasp_pose(), PEG_WIDTH)
        return super().waypoint(rng)
