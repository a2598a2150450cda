"""The robot in 3-D: the bodies of its MJCF as primitives in a viser scene.

It shows only reported state: joints from `state/joint_positions` and `state/gripper_position`,
objects from `state/object_poses`.
"""

from __future__ import annotations

import io
import socket
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
import viser

from robot_rl.data.schema import Observation
from robot_rl.env.sim.robot import FINGER_STROKE
from robot_rl.env.sim.task import SimTask
from robot_rl.env.sim.world import FINGERS
from robot_rl.extras.console.access import LOOPBACK
from robot_rl.safety import rotations

Vector = npt.NDArray[np.float64]

_WXYZ = [3, 0, 1, 2]
_TABLE_COLOR = (196, 204, 212)
_TARGET_COLOR = (230, 80, 30)
_MOVED = 1e-6
_HINGE = mujoco.mjtJoint.mjJNT_HINGE
_NO_OFFSET: Vector = np.concatenate([np.zeros(3), rotations.about_z(0.0)])


class RobotScene:
    """Draws the robot of an MJCF, and its task's objects, for a viewer at `port` of loopback."""

    def __init__(self, model_path: Path, task: SimTask | None) -> None:
        self.port = free_port()
        with redirect_stdout(io.StringIO()):  # its banner shows a port that users must not open
            self._server = viser.ViserServer(LOOPBACK, self.port, verbose=False)
        self._server.gui.configure_theme(show_logo=False, show_share_button=False)
        spec = mujoco.MjSpec.from_file(str(model_path))
        if task is not None:
            task.build(spec)
        self._model = spec.compile()
        self._data = mujoco.MjData(self._model)
        # All hinges, in model order.
        self._joints = self._model.jnt_qposadr[self._model.jnt_type == _HINGE].tolist()
        names = {self._model.joint(index).name: index for index in range(self._model.njnt)}
        fingers = [names[finger] for finger in FINGERS if finger in names]
        self._fingers = self._model.jnt_qposadr[fingers].tolist()
        middle = self._model.jnt_range[self._model.jnt_type == _HINGE].mean(axis=1)
        self._data.qpos[self._joints] = middle
        self._objects = [] if task is None else [self._object(n) for n in task.observed_objects]
        self._shown: dict[int, Vector] = {}
        self._bodies = {body: self._draw_body(body) for body in range(1, self._model.nbody)}
        self._draw_surroundings()
        self._lead = self._server.scene.add_icosphere(
            "/lead", radius=0.008, color=_TARGET_COLOR, opacity=0.7, visible=False
        )
        self._update()

    def show(self, observation: Observation) -> None:
        """Move everything in an observation to its observed pose; leave the rest."""
        data = self._data
        if "state/joint_positions" in observation:
            angles = observation["state/joint_positions"][: len(self._joints)]
            data.qpos[self._joints[: len(angles)]] = angles
        if "state/gripper_position" in observation:
            closed = float(observation["state/gripper_position"][0])
            data.qpos[self._fingers] = 0.5 * FINGER_STROKE * (1.0 - closed)
        poses = observation.get("state/object_poses", ())
        for (body, inverse), pose in zip(self._objects, poses, strict=False):
            self._place(body, rotations.compose(np.asarray(pose, np.float64), inverse))
        self._update(observation.get("state/target_lead"))

    def _update(self, lead: npt.NDArray[Any] | None = None) -> None:
        data = self._data
        mujoco.mj_kinematics(self._model, data)
        with self._server.atomic():
            for body, handle in self._bodies.items():
                pose = np.concatenate([data.xpos[body], data.xquat[body]])
                if body not in self._shown or np.abs(pose - self._shown[body]).max() > _MOVED:
                    handle.position, handle.wxyz = pose[:3], pose[3:]
                    self._shown[body] = pose
            if lead is not None:
                self._lead.position = data.site("tcp").xpos + lead[:3]
                self._lead.visible = bool(np.abs(lead[:3]).max() > 0.002)

    def _object(self, name: str) -> tuple[int, Vector]:
        """Return the body of an observed frame, and the body's pose in that frame."""
        model = self._model
        if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name) >= 0:
            return int(model.body(name).id), _NO_OFFSET
        site = model.site(name)
        frame = np.concatenate([site.pos, np.roll(site.quat, -1)])
        return int(site.bodyid[0]), rotations.relative(frame, _NO_OFFSET)

    def _place(self, body: int, pose: Vector) -> None:
        """Put a body, free or fixed to the world, at a pose (7,) in the base frame."""
        joint = int(self._model.body_jntadr[body])
        wxyz = pose[3:][_WXYZ]
        if joint >= 0:
            first = int(self._model.jnt_qposadr[joint])
            self._data.qpos[first : first + 7] = np.concatenate([pose[:3], wxyz])
        else:
            self._model.body_pos[body], self._model.body_quat[body] = pose[:3], wxyz

    def _draw_surroundings(self) -> None:
        scene = self._server.scene
        scene.set_up_direction("+z")
        # Must run on operators' laptops: no shadows, no reflections.
        scene.configure_default_lights(cast_shadow=False)
        scene.configure_environment_map(hdri=None)
        scene.add_light_ambient("/light", intensity=1.2)
        scene.add_grid(
            "/table",
            width=1.6,
            height=1.6,
            position=(0.4, 0.0, 0.0),
            cell_size=0.1,
            section_size=0.4,
            cell_color=_TABLE_COLOR,
            section_color=_TABLE_COLOR,
        )
        hand = self._model.site("tcp")
        scene.add_frame(
            f"{self._path(int(hand.bodyid[0]))}/tcp",
            position=hand.pos,
            wxyz=hand.quat,
            axes_length=0.06,
            axes_radius=0.0025,
        )

    def _path(self, body: int) -> str:
        return f"/bodies/{self._model.body(body).name or body}"

    def _draw_body(self, body: int) -> viser.FrameHandle:
        model = self._model
        handle = self._server.scene.add_frame(self._path(body), show_axes=False)
        first = int(model.body_geomadr[body])
        for geom in range(first, first + int(model.body_geomnum[body])):
            self._draw_geom(f"{self._path(body)}/{geom}", geom)
        return handle

    def _draw_geom(self, path: str, geom: int) -> None:
        model, scene = self._model, self._server.scene
        kinds = mujoco.mjtGeom
        kind, size = model.geom_type[geom], model.geom_size[geom]
        rgba = model.geom_rgba[geom]
        color = tuple(int(255 * value) for value in rgba[:3])
        look: dict[str, Any] = {"color": color, "opacity": float(rgba[3]) if rgba[3] < 1 else None}
        place = {"position": model.geom_pos[geom], "wxyz": model.geom_quat[geom]}
        if kind == kinds.mjGEOM_BOX:
            scene.add_box(path, dimensions=tuple(2 * size), **look, **place)
        elif kind == kinds.mjGEOM_SPHERE:
            scene.add_icosphere(path, radius=size[0], **look, **place)
        elif kind in (kinds.mjGEOM_CYLINDER, kinds.mjGEOM_CAPSULE):
            scene.add_cylinder(path, radius=size[0], height=2 * size[1], **look, **place)
            if kind == kinds.mjGEOM_CAPSULE:
                for end, z in (("bottom", -size[1]), ("top", size[1])):
                    scene.add_icosphere(
                        f"{path}/{end}", radius=size[0], position=(0.0, 0.0, z), **look
                    )
        elif kind == kinds.mjGEOM_MESH:
            mesh = model.mesh(model.geom_dataid[geom])
            vertices = model.mesh_vert[mesh.vertadr[0] :][: mesh.vertnum[0]].copy()
            faces = model.mesh_face[mesh.faceadr[0] :][: mesh.facenum[0]].copy()
            scene.add_mesh_simple(path, vertices=vertices, faces=faces, **look, **place)


def free_port() -> int:
    """Return a currently unused port of loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
