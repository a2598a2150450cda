"""`peg_insert`: put a square peg, held in the gripper, into a square socket observed with an error.

`peg_remove` undoes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from robot_rl.env.sim.task import ScriptedExpert, SimTask, Vector, box, downward, observed
from robot_rl.safety import rotations

PEG_WIDTH = 0.02
PEG_LENGTH = 0.07
PEG_BELOW_TCP = 0.055
SOCKET_WIDTH = 0.08
SOCKET_HEIGHT = 0.035
HOLE_DEPTH = 0.03
SOCKET_CENTRE = np.array([0.45, 0.0, SOCKET_HEIGHT])
# The peg's frame has z up, the TCP's has z down: half a turn about x.
_TIP_IN_TCP = np.array([0.0, 0.0, PEG_BELOW_TCP, 1.0, 0.0, 0.0, 0.0])
_TCP_IN_TIP = np.array([0.0, 0.0, PEG_BELOW_TCP, -1.0, 0.0, 0.0, 0.0])
_CONTACT = {"solref": [0.004, 1.0], "solimp": [0.95, 0.99, 0.0005, 0.5, 2.0]}
# Tip over the socket's upper face at which `peg_remove` moves it sideways [m].
_FREE_HEIGHT = 0.01


@dataclass(kw_only=True, eq=False)
class PegInsert(SimTask):
    """Insert a 20 mm square peg into a socket whose pose is known with a fixed error.

    The socket frame is at the centre of its upper face, z up. The observed socket pose has an error
    that is fixed for the episode, and the tip's pose (m, rad) is observed in that frame; only
    contact reveals the true pose.
    """

    observation_fields = observed(
        object_poses=(1, 7), relative_pose=(6,), relative_position_fine=(3,)
    )
    finger_opening = PEG_WIDTH
    observed_objects: tuple[str, ...] = field(default=("socket",), init=False)

    clearance: float  # width of the hole minus width of the peg [m]
    position_range: float  # half range of the socket's x and y [m]
    yaw_range: float  # half range of the socket's yaw [rad]
    position_noise: float  # half range of the observation error per axis, fixed per episode [m]
    yaw_noise: float  # half range of the observed yaw's error [rad]
    fine_scale: float  # distance d of the fine observation tanh(relative position / d) [m]
    start_height: float  # height of the peg's tip over the socket at the start [m]
    start_noise: float  # half range of the start position per axis [m]
    success_depth: float  # depth of the tip below the socket's upper face that counts [m]
    friction: float  # sliding friction between peg and socket

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the peg to the hand and the socket to the table."""
        tcp = spec.site("tcp").pos
        centre = tcp + np.array([0.0, 0.0, PEG_BELOW_TCP - PEG_LENGTH / 2])
        peg = spec.body("hand").add_body(name="peg", pos=centre, gravcomp=1)
        peg.add_geom(**peg_geom(self.friction), contype=1, conaffinity=2)
        add_socket(spec, "socket", SOCKET_CENTRE, self.clearance, self.friction)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the socket's pose, its observation error, and the start pose."""
        self._place_socket(rng)
        return self._draw_start(rng)

    def resume(self, rng: np.random.Generator) -> None:
        """Observe the socket where it is, with a new error."""
        self._socket = self.world.body_pose("socket")
        self._look(rng, rotations.heading(self._socket[3:]))

    def tip_pose(self) -> Vector:
        """Pose (7,) of the peg's lower end, z up, in the base frame."""
        return rotations.compose(self.world.tcp_pose(), _TIP_IN_TCP)

    def seen_tip(self) -> Vector:
        """Pose (7,) of the tip as the policy observes it."""
        return self._tip_among(self.measured_poses(), self.world.measured_tcp_pose())

    def socket_pose(self) -> Vector:
        """True pose (7,) of the socket; for experts and tests, never observed."""
        return self._socket

    def goal_pose(self) -> Vector:
        """TCP pose (7,) with the tip centred in the socket's upper face."""
        return rotations.compose(self._socket, _TCP_IN_TIP)

    def seen_poses(self) -> Vector:
        """Pose (1, 7) of the socket with its observation error."""
        return self._observed[None]

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`; the first object is the socket."""
        offset = rotations.relative(object_poses[0], self._tip_among(object_poses, tcp_pose))
        turn = rotations.to_rotation_vector(offset[3:])
        return {
            "state/relative_pose": np.concatenate([offset[:3], turn]),
            "state/relative_position_fine": np.tanh(offset[:3] / self.fine_scale),
        }

    def succeeded(self) -> bool:
        """Whether the tip is deep enough inside the hole."""
        x, y, z = rotations.relative(self._socket, self.tip_pose())[:3]
        return bool(z <= -self.success_depth and max(abs(x), abs(y)) < PEG_WIDTH / 2)

    def _tip_among(self, object_poses: Vector, tcp_pose: Vector) -> Vector:
        """Observed pose (7,) of the tip; here computed from the arm's pose."""
        return rotations.compose(tcp_pose, _TIP_IN_TCP)

    def _draw_start(self, rng: np.random.Generator) -> Vector:
        tip = SOCKET_CENTRE + np.array([0.0, 0.0, self.start_height])
        tip = tip + rng.uniform(-self.start_noise, self.start_noise, 3)
        return downward(tip + np.array([0.0, 0.0, PEG_BELOW_TCP]))

    def _place_socket(self, rng: np.random.Generator) -> None:
        shift = rng.uniform(-self.position_range, self.position_range, 2)
        yaw = rng.uniform(-self.yaw_range, self.yaw_range)
        position = SOCKET_CENTRE + np.array([*shift, 0.0])
        self._socket = np.concatenate([position, rotations.about_z(yaw)])
        self._look(rng, yaw)
        self.world.set_body_pose("socket", self._socket)

    def _look(self, rng: np.random.Generator, yaw: float) -> None:
        """Draw the episode's observation error of the socket, whose true yaw is `yaw`."""
        seen = self._socket[:3] + rng.uniform(-self.position_noise, self.position_noise, 3)
        seen_yaw = yaw + rng.uniform(-self.yaw_noise, self.yaw_noise)
        self._observed = np.concatenate([seen, rotations.about_z(seen_yaw)])


def peg_geom(friction: float) -> dict[str, Any]:
    """Arguments of the peg's geom, frame at the peg's centre, without collision masks."""
    size = [PEG_WIDTH, PEG_WIDTH, PEG_LENGTH]
    peg = box(size, friction=friction, mass=0.1, rgba=[0.85, 0.45, 0.1, 1])
    return {"name": "peg", **peg, **_CONTACT}


def add_socket(
    spec: mujoco.MjSpec, name: str, centre: Vector, clearance: float, friction: float
) -> None:
    """Add a block with a square hole to the table: four walls and a floor.

    `centre` (3,) is the centre of its upper face in the base frame, the hole is wider than the peg
    by `clearance` [m], and `friction` is the walls' sliding friction.
    """
    socket = spec.worldbody.add_body(name=name, pos=centre)
    wall = (SOCKET_WIDTH - PEG_WIDTH - clearance) / 2
    reach, inner = (SOCKET_WIDTH - wall) / 2, SOCKET_WIDTH - 2 * wall
    walls = {
        "front": ([reach, 0], [wall, SOCKET_WIDTH]),
        "back": ([-reach, 0], [wall, SOCKET_WIDTH]),
        "left": ([0, reach], [inner, wall]),
        "right": ([0, -reach], [inner, wall]),
    }
    for side, (xy, size) in walls.items():
        solid = box([*size, HOLE_DEPTH], friction=friction, rgba=[0.3, 0.45, 0.65, 1], **_CONTACT)
        place = [*xy, -HOLE_DEPTH / 2]
        socket.add_geom(name=f"{name}_{side}", pos=place, contype=2, conaffinity=1, **solid)
    floor = SOCKET_HEIGHT - HOLE_DEPTH
    solid = box([SOCKET_WIDTH, SOCKET_WIDTH, floor], rgba=[0.2, 0.3, 0.45, 1])
    place = [0, 0, -HOLE_DEPTH - floor / 2]
    socket.add_geom(name=f"{name}_floor", pos=place, contype=2, conaffinity=1, **solid)


@dataclass(kw_only=True, eq=False)
class TipExpert(ScriptedExpert):
    """Expert that plans the tip's next pose and moves the TCP accordingly.

    It knows the true scene, except that its socket pose has its own error.
    """

    task: PegInsert

    def tip_goal(self) -> Vector:
        """Return the tip's next pose (7,) in the base frame."""
        raise NotImplementedError

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Return the TCP pose (7,) that puts the tip at `tip_goal`."""
        held = rotations.relative(self.tip(), self.task.world.tcp_pose())
        return rotations.compose(self.tip_goal(), held)

    def tip(self) -> Vector:
        """Pose (7,) of the tip as this expert knows it."""
        return self.task.tip_pose()

    def socket(self) -> Vector:
        """Pose (7,) of the socket as this expert knows it, without its own error."""
        return self.task.socket_pose()

    def believed_socket(self) -> Vector:
        """Pose (7,) of the socket with the expert's own error."""
        error = np.concatenate([self.error, rotations.about_z(self.yaw_error)])
        return rotations.compose(self.socket(), error)


@dataclass(kw_only=True, eq=False)
class PegInsertExpert(TipExpert):
    """Moves above the believed socket, descends, and corrects itself when stuck."""

    hover: float  # height of the tip over the socket until it is aligned [m]
    align: float  # distance at which it starts to descend [m]
    stuck_steps: int  # steps without descent in contact before it notices
    _descending: bool = field(default=False, init=False)
    _depths: list[float] = field(default_factory=list, init=False)

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self._descending = False
        self._depths = []

    def tip_goal(self) -> Vector:
        """Stay above the believed socket until aligned, then descend; pose (7,), base frame."""
        tip = rotations.relative(self.socket(), self.tip())
        lateral = float(np.linalg.norm(tip[:2] - self.error[:2]))
        if not self._descending and lateral < self.align and tip[2] < 1.5 * self.hover:
            self._descending = True
        believed = self.believed_socket()
        if self._descending:
            self._depths.append(float(tip[2]))
            recent = self._depths[-self.stuck_steps :]
            if len(recent) == self.stuck_steps and recent[0] - recent[-1] < 0.001:
                self.correct()
                self._depths = []
        height = -HOLE_DEPTH if self._descending else self.hover
        return rotations.compose(believed, np.array([0.0, 0.0, height, 0.0, 0.0, 0.0, 1.0]))


@dataclass(kw_only=True, eq=False)
class PegRemove(PegInsert):
    """Pull the peg out of the socket and bring it to a random start pose of `peg_insert`.

    The scene is that of `PegInsert`, with the peg inserted at the start. It can also start in place
    in the world of `PegInsert`, wherever the peg is: the two tasks undo each other. `way_to_start`
    is the remaining TCP motion (m, rad; base frame).
    """

    observation_fields = (
        *observed(object_poses=(2, 7)),
        *PegInsert.observation_fields[1:],
        *observed(way_to_start=(6,)),
    )

    tolerance: float  # distance to the start that counts as reached [m]
    angle_tolerance: float  # the same for the angle [rad]

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the scene and the peg's target; return the TCP pose with the peg inserted."""
        self._start = super().reset(rng)
        inserted = np.array([0.0, 0.0, self.success_depth, 0.0, 0.0, 0.0, 1.0])
        return rotations.compose(super().goal_pose(), inserted)

    def resume(self, rng: np.random.Generator) -> None:
        """Observe the socket again, and draw the peg's target."""
        super().resume(rng)
        self._start = self._draw_start(rng)

    def goal_pose(self) -> Vector:
        """TCP pose (7,) of the peg's target, level and over the table."""
        return self._start

    def seen_poses(self) -> Vector:
        """Poses (2, 7): the observed socket, and the target TCP pose."""
        return np.concatenate([super().seen_poses(), self._start[None]])

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`; the objects are the socket and the target TCP pose."""
        way = rotations.between(tcp_pose, object_poses[1])
        return {**super().see(object_poses, tcp_pose), "state/way_to_start": way}

    def succeeded(self) -> bool:
        """Whether the TCP is at its target."""
        return self.is_at(self._start, self.tolerance, self.angle_tolerance)


class PegRemoveExpert(ScriptedExpert):
    """Pulls straight up until the tip is free, then goes to the start."""

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Move straight up without turning, then to the target."""
        tcp, start = self.task.world.tcp_pose(), self.task.goal_pose()
        if tcp[2] - PEG_BELOW_TCP < SOCKET_HEIGHT + _FREE_HEIGHT:
            return np.concatenate([tcp[:2], start[2:3], tcp[3:]])
        self.yaw_error = 0.0
        return self.straight_to(start)
