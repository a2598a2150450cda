"""`peg_insert`: put a square peg, held in the gripper, into a square socket seen with an error."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import ARM_ACTIONS
from robot_rl.env.sim.task import Imperfections, ScriptedExpert, SimTask, Vector
from robot_rl.safety import rotations

PEG_WIDTH = 0.02
PEG_LENGTH = 0.07
PEG_BELOW_TCP = 0.055
SOCKET_WIDTH = 0.08
SOCKET_HEIGHT = 0.035
HOLE_DEPTH = 0.03
SOCKET_CENTRE = np.array([0.45, 0.0, SOCKET_HEIGHT])
# The peg's frame has z up, the TCP's has z down: half a turn about x.
_TIP_IN_TCP = np.concatenate([[0.0, 0.0, PEG_BELOW_TCP], [1.0, 0.0, 0.0, 0.0]])
_CONTACT = {"solref": [0.004, 1.0], "solimp": [0.95, 0.99, 0.0005, 0.5, 2.0]}


class PegInsertView:
    """The socket as seen, and the tip's pose (m, rad) in the frame of the socket as seen.

    Args:
        fine_scale: Distance d of the fine observation tanh(relative position / d) [m].
    """

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (1, 7)),
        Field("state/relative_pose", "float32", (6,)),
        Field("state/relative_position_fine", "float32", (3,)),
    )
    action_names: tuple[str, ...] = ARM_ACTIONS

    def __init__(self, fine_scale: float) -> None:
        """See the class."""
        self.fine_scale = fine_scale

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """See `TaskView`; the first object is the socket."""
        offset = rotations.relative(object_poses[0], self.tip_pose(object_poses, tcp_pose))
        position = offset[:3]
        pose = np.concatenate([position, rotations.to_rotation_vector(offset[3:])])
        return {
            "state/object_poses": object_poses.astype(np.float32),
            "state/relative_pose": pose.astype(np.float32),
            "state/relative_position_fine": np.tanh(position / self.fine_scale).astype(np.float32),
        }

    def tip_pose(self, object_poses: Vector, tcp_pose: Vector) -> Vector:
        """The tip's pose (7,) as the arm knows it: here exactly, as the hand holds the peg."""
        return rotations.compose(tcp_pose, _TIP_IN_TCP)


class PegInsert(SimTask):
    """Insert a 20 mm square peg into a socket whose pose is known with a fixed error.

    The frame of the socket is at the centre of its upper face, z up. The arm sees the socket
    where the noise puts it, all episode long; only contact tells where it really is.

    Args:
        name: See `SimTask`.
        instruction: See `SimTask`.
        time_limit_steps: See `SimTask`.
        clearance: Width of the hole minus width of the peg [m].
        position_range: Half range of the socket's x and y [m].
        yaw_range: Half range of the socket's yaw [rad].
        position_noise: Half range of the observation error per axis, fixed per episode [m].
        yaw_noise: Half range of the observed yaw's error [rad].
        fine_scale: See `PegInsertView`.
        start_height: Height of the peg's tip over the socket at the start [m].
        start_noise: Half range of the start position per axis [m].
        success_depth: Depth of the tip below the socket's upper face that counts [m].
        friction: Sliding friction between peg and socket.
    """

    view_type: ClassVar[type[PegInsertView]] = PegInsertView
    finger_opening = PEG_WIDTH
    observed_objects: tuple[str, ...] = ("socket",)

    def __init__(
        self,
        name: str,
        instruction: str,
        time_limit_steps: int,
        clearance: float,
        position_range: float,
        yaw_range: float,
        position_noise: float,
        yaw_noise: float,
        fine_scale: float,
        start_height: float,
        start_noise: float,
        success_depth: float,
        friction: float,
    ) -> None:
        """See the class."""
        super().__init__(name, instruction, time_limit_steps, self.view_type(fine_scale))
        self._clearance = clearance
        self._position_range = position_range
        self._yaw_range = yaw_range
        self._position_noise = position_noise
        self._yaw_noise = yaw_noise
        self._start_height = start_height
        self._start_noise = start_noise
        self._success_depth = success_depth
        self._friction = friction
        self._socket = np.concatenate([SOCKET_CENTRE, rotations.about_z(0.0)])
        self._observed = self._socket

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the peg to the hand and the socket to the table."""
        tcp = spec.site("tcp").pos
        centre = tcp + np.array([0.0, 0.0, PEG_BELOW_TCP - PEG_LENGTH / 2])
        peg = spec.body("hand").add_body(name="peg", pos=centre, gravcomp=1)
        peg.add_geom(**peg_geom(self._friction), contype=1, conaffinity=2)
        add_socket(spec, "socket", SOCKET_CENTRE, self._clearance, self._friction)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the socket's pose, the error it is seen with, and the start pose."""
        self._place_socket(rng)
        return self._draw_start(rng)

    def resume(self, rng: np.random.Generator) -> None:
        """Look at the socket anew, where it is."""
        self._socket = self.world.body_pose("socket")
        self._look(rng, rotations.heading(self._socket[3:]))

    def _draw_start(self, rng: np.random.Generator) -> Vector:
        tip = SOCKET_CENTRE + np.array([0.0, 0.0, self._start_height])
        tip = tip + rng.uniform(-self._start_noise, self._start_noise, 3)
        return np.concatenate([tip + np.array([0.0, 0.0, PEG_BELOW_TCP]), rotations.DOWNWARD])

    def tip_pose(self) -> Vector:
        """Pose (7,) of the peg's lower end, z up, in the base frame."""
        return rotations.compose(self.world.tcp_pose(), _TIP_IN_TCP)

    def seen_tip(self) -> Vector:
        """Pose (7,) of the tip as the policy knows it: here exactly, as the hand holds the peg."""
        return self.tip_pose()

    def socket_pose(self) -> Vector:
        """The true pose (7,) of the socket: for experts and tests, never observed."""
        return self._socket

    def goal_pose(self) -> Vector:
        """TCP pose (7,) with the tip centred in the socket's upper face."""
        inverse_tip = np.concatenate([[0.0, 0.0, PEG_BELOW_TCP], [-1.0, 0.0, 0.0, 0.0]])
        return rotations.compose(self._socket, inverse_tip)

    def seen_poses(self) -> Vector:
        """The socket (1, 7) with the error with which it is seen."""
        return self._observed[None]

    def succeeded(self) -> bool:
        """The tip is deep enough inside the hole."""
        x, y, z = rotations.relative(self._socket, self.tip_pose())[:3]
        return bool(z <= -self._success_depth and max(abs(x), abs(y)) < PEG_WIDTH / 2)

    def _place_socket(self, rng: np.random.Generator) -> None:
        shift = rng.uniform(-self._position_range, self._position_range, 2)
        yaw = rng.uniform(-self._yaw_range, self._yaw_range)
        position = SOCKET_CENTRE + np.array([*shift, 0.0])
        self._socket = np.concatenate([position, rotations.about_z(yaw)])
        self._look(rng, yaw)
        self.world.set_body_pose("socket", self._socket)

    def _look(self, rng: np.random.Generator, yaw: float) -> None:
        """See the socket, which is turned by `yaw`, with an error that stays for the episode."""
        seen = self._socket[:3] + rng.uniform(-self._position_noise, self._position_noise, 3)
        seen_yaw = yaw + rng.uniform(-self._yaw_noise, self._yaw_noise)
        self._observed = np.concatenate([seen, rotations.about_z(seen_yaw)])


def peg_geom(friction: float) -> dict[str, Any]:
    """The peg's geom, whose frame is at the peg's centre, but for what it collides with."""
    return {
        "name": "peg",
        "type": mujoco.mjtGeom.mjGEOM_BOX,
        "size": [PEG_WIDTH / 2, PEG_WIDTH / 2, PEG_LENGTH / 2],
        "mass": 0.1,
        "rgba": [0.85, 0.45, 0.1, 1],
        "friction": _friction(friction),
        **_CONTACT,
    }


def add_socket(
    spec: mujoco.MjSpec, name: str, centre: Vector, clearance: float, friction: float
) -> None:
    """Add a block with a square hole to the table: four walls and a floor.

    Args:
        spec: The model.
        name: Name of the body; those of its geoms begin with it.
        centre: Position (3,) of the centre of its upper face, base frame [m].
        clearance: Width of the hole minus width of the peg [m].
        friction: Sliding friction of its walls.
    """
    box = mujoco.mjtGeom.mjGEOM_BOX
    socket = spec.worldbody.add_body(name=name, pos=centre)
    wall = (SOCKET_WIDTH - PEG_WIDTH - clearance) / 4
    reach = SOCKET_WIDTH / 2 - wall
    inner = SOCKET_WIDTH / 2 - 2 * wall
    boxes = {
        "front": ([reach, 0], [wall, SOCKET_WIDTH / 2]),
        "back": ([-reach, 0], [wall, SOCKET_WIDTH / 2]),
        "left": ([0, reach], [inner, wall]),
        "right": ([0, -reach], [inner, wall]),
    }
    for side, (centre_xy, half_xy) in boxes.items():
        socket.add_geom(
            name=f"{name}_{side}",
            type=box,
            pos=[*centre_xy, -HOLE_DEPTH / 2],
            size=[*half_xy, HOLE_DEPTH / 2],
            rgba=[0.3, 0.45, 0.65, 1],
            contype=2,
            conaffinity=1,
            friction=_friction(friction),
            **_CONTACT,
        )
    floor = (SOCKET_HEIGHT - HOLE_DEPTH) / 2
    socket.add_geom(
        name=f"{name}_floor",
        type=box,
        pos=[0, 0, -HOLE_DEPTH - floor],
        size=[SOCKET_WIDTH / 2, SOCKET_WIDTH / 2, floor],
        rgba=[0.2, 0.3, 0.45, 1],
        contype=2,
        conaffinity=1,
    )


def _friction(sliding: float) -> list[float]:
    return [sliding, 0.005, 0.0001]


class TipExpert(ScriptedExpert):
    """Says where the tip of the peg should be next, and leads the TCP so that it is there.

    It knows the true scene, and the socket with its own error.

    Args:
        task: The task.
        imperfections: See `Imperfections`.
        translation_step: See `ScriptedExpert`.
        rotation_step: See `ScriptedExpert`.
    """

    def __init__(
        self,
        task: PegInsert,
        imperfections: Imperfections,
        translation_step: float,
        rotation_step: float,
    ) -> None:
        """See the class."""
        super().__init__(task, imperfections, translation_step, rotation_step)
        self._peg_task = task

    @abstractmethod
    def tip_goal(self) -> Vector:
        """Where the tip should be next: a pose (7,) in the base frame."""

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Where the TCP should be next for the tip to be there."""
        held = rotations.relative(self.tip(), self.task.world.tcp_pose())
        return rotations.compose(self.tip_goal(), held)

    def tip(self) -> Vector:
        """The tip (7,) as this expert knows it."""
        return self._peg_task.tip_pose()

    def socket(self) -> Vector:
        """The socket (7,) as this expert knows it, but for its own error."""
        return self._peg_task.socket_pose()

    def believed_socket(self) -> Vector:
        """The same (7,) with its own error."""
        error = np.concatenate([self.error, rotations.about_z(self.yaw_error)])
        return rotations.compose(self.socket(), error)


class PegInsertExpert(TipExpert):
    """Goes above where it believes the socket is, descends, and corrects itself when stuck.

    Args:
        task: The task.
        hover: Height of the tip over the socket until it is aligned [m].
        align: Distance at which it begins to descend [m].
        stuck_steps: Steps without descent in contact before it notices.
        **arguments: See `TipExpert`.
    """

    def __init__(
        self, task: PegInsert, hover: float, align: float, stuck_steps: int, **arguments: Any
    ) -> None:
        """See the class."""
        super().__init__(task, **arguments)
        self._hover = hover
        self._align = align
        self._stuck_steps = stuck_steps
        self._descending = False
        self._depths: list[float] = []

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self._descending = False
        self._depths = []

    def tip_goal(self) -> Vector:
        """Above the believed socket until aligned, then down into it; pose (7,), base frame."""
        tip = rotations.relative(self.socket(), self.tip())
        lateral = float(np.linalg.norm(tip[:2] - self.error[:2]))
        if not self._descending and lateral < self._align and tip[2] < 1.5 * self._hover:
            self._descending = True
        believed = self.believed_socket()
        if self._descending:
            self._notice_stuck(float(tip[2]))
        height = -HOLE_DEPTH if self._descending else self._hover
        lift = np.concatenate([[0.0, 0.0, height], rotations.about_z(0.0)])
        return rotations.compose(believed, lift)

    def _notice_stuck(self, height: float) -> None:
        self._depths.append(height)
        recent = self._depths[-self._stuck_steps :]
        if len(recent) == self._stuck_steps and recent[0] - recent[-1] < 0.001:
            self.correct()
            self._depths = []
