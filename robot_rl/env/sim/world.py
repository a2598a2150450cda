"""MuJoCo world: the arm from hardware/ plus the task's bodies, with poses in our conventions.

MuJoCo stores quaternions as wxyz; this module's interface uses xyzw.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from robot_rl.env.sim.domain import IDEAL, Conditions, Sensors
from robot_rl.env.sim.kinematics import Kinematics, site_pose
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector

# Names of the two fingers' joints and geoms.
FINGERS = ("finger_left", "finger_right")
GRIPPER_ACTUATOR = "gripper"
_WXYZ, _XYZW = [3, 0, 1, 2], [1, 2, 3, 0]
# Number of samples per period for the averaged contact wrench.
_WRENCH_SAMPLES = 5
_IMPEDANCE = tuple(f"impedance_{axis}" for axis in ("x", "y", "z", "rx", "ry", "rz"))
# Damping factor while braking: the arm stops without springing back, like one with brakes.
_BRAKE = 8.0
# Distance to each finger's commanded position below which its motor reduces force [m].
_BAND = 0.004


class WorldEvent(NamedTuple):
    """An event during a world step."""

    after: int  # physics steps from the start
    happen: Callable[[], None]


class World:
    """One simulated scene with an arm of n joints under Cartesian impedance control.

    The impedance law runs inside MuJoCo at every physics step, as actuators between the TCP and
    a mocap body, so it needs no Python per step.

    Args:
        model_path: The arm's MJCF; it must name a site ``tcp``, a mocap body ``target``, joints
            `FINGERS` and a body ``hand`` that carries the tool. All other joints are the arm's.
        build: Adds the task's bodies to the model before it is compiled.

    Attributes:
        kinematics: Kinematics of the arm's joints and the TCP.
        arm_joints: Names of the arm's joints (n,).
    """

    def __init__(self, model_path: Path, build: Callable[[mujoco.MjSpec], None]) -> None:
        spec = mujoco.MjSpec.from_file(str(model_path))
        without_task = list(spec.geoms)
        self.arm_joints = tuple(j.name for j in spec.joints if j.name not in FINGERS)
        build(spec)
        self.model = spec.compile()
        arm_and_table = [geom.id for geom in without_task]
        self._task_geoms = np.setdiff1d(np.arange(self.model.ngeom), arm_and_table)
        self.data = mujoco.MjData(self.model)
        self._tcp = self.model.site("tcp").id
        joints = [self.model.joint(name).id for name in self.arm_joints]
        self.kinematics = Kinematics(self.model, self._tcp, joints)
        self._qpos, self._dofs = self.kinematics.qpos, self.kinematics.dofs
        self._finger_dofs = [int(self.model.joint(name).dofadr[0]) for name in FINGERS]
        self._finger_qpos = [int(self.model.joint(name).qposadr[0]) for name in FINGERS]
        self._gripper = self.model.actuator(GRIPPER_ACTUATOR).id
        self._impedance = [self.model.actuator(name).id for name in _IMPEDANCE]
        # The model's values: impedance stiffness and damping, lamp brightness.
        self._stiffness = self.model.actuator_biasprm[self._impedance, 1].copy()
        self._own_damping = self.model.actuator_biasprm[self._impedance, 2].copy()
        self._damping = self._own_damping
        self._lamps = [light.copy() for light in self._brightness()]
        self._tool_bodies = [self.model.body("hand").id]  # and attached bodies
        for body in range(self._tool_bodies[0] + 1, self.model.nbody):
            if self.model.body_parentid[body] in self._tool_bodies:
                self._tool_bodies.append(body)
        self._wrench = np.zeros(6)
        rng = np.random.default_rng(0)
        self.sensors = Sensors(IDEAL.draw(rng), rng)  # for the current conditions

    def meet(self, conditions: Conditions, rng: np.random.Generator) -> None:
        """Apply an episode's conditions to the world, except for delays."""
        self.sensors = Sensors(conditions, rng)
        if conditions.friction is not None:
            self.model.geom_friction[self._task_geoms, 0] = conditions.friction
        share = conditions.stiffness
        self.model.actuator_biasprm[self._impedance, 1] = self._stiffness * share
        self._damping = self._own_damping * math.sqrt(share)  # the damping ratio stays
        for light, own in zip(self._brightness(), self._lamps, strict=True):
            light[:] = own * conditions.light

    @property
    def physics_rate_hz(self) -> float:
        """Physics and impedance control steps per second."""
        return 1.0 / float(self.model.opt.timestep)

    def site_pose(self, name: str) -> Vector:
        """Pose (7,) of a site in the base frame."""
        return site_pose(self.data, self.model.site(name).id)

    def tcp_pose(self) -> Vector:
        """Pose (7,) of the TCP in the base frame."""
        return site_pose(self.data, self._tcp)

    def measured_tcp_pose(self) -> Vector:
        """Pose (7,) of the TCP with measurement error."""
        return self.sensors.tcp_pose(self.tcp_pose())

    def tcp_velocity(self) -> Vector:
        """Linear [m/s] and angular [rad/s] velocity (6,) of the TCP in the base frame."""
        velocity = np.zeros(6)
        site = mujoco.mjtObj.mjOBJ_SITE
        mujoco.mj_objectVelocity(self.model, self.data, site, self._tcp, velocity, 0)
        return np.concatenate([velocity[3:], velocity[:3]])

    def tcp_wrench(self) -> Vector:
        """Contact force [N] and torque about the TCP [Nm] (6,) on the tool, base frame.

        It is the mean over the last period, like a filtered wrist sensor.
        """
        return self._wrench

    def joint_positions(self) -> Vector:
        """Arm joint angles (n,) [rad]."""
        return np.array(self.data.qpos[self._qpos])

    def joint_velocities(self) -> Vector:
        """Arm joint velocities (n,) [rad/s]."""
        return np.array(self.data.qvel[self._dofs])

    def set_braking(self, braking: bool) -> None:
        """Engage or release the arm's brakes."""
        factor = _BRAKE if braking else 1.0
        self.model.actuator_biasprm[self._impedance, 2] = self._damping * factor

    def set_target(self, pose: Vector) -> None:
        """Set the equilibrium pose (7,) of the impedance controller."""
        self.data.mocap_pos[0] = pose[:3]
        self.data.mocap_quat[0] = pose[3:][_WXYZ]

    def control_joints(self, stiffness: Vector, damping: Vector) -> None:
        """Switch to joint control: each joint (n,) has a spring [Nm/rad] and a damper [Nms/rad].

        The TCP's pose is no longer controlled; `set_posture` sets the springs' rest positions.
        """
        self._stiffness, self._own_damping, self._damping = np.zeros((3, len(self._impedance)))
        self.model.actuator_biasprm[self._impedance, 1:3] = 0.0
        self.model.jnt_stiffness[self.model.dof_jntid[self._dofs]] = stiffness
        self.model.dof_damping[self._dofs] = damping

    def set_posture(self, joints: Vector) -> None:
        """Pull the arm's redundant motion towards joint positions (n,) [rad]."""
        self.model.qpos_spring[self._qpos] = joints

    def stretch(self, way: Vector, velocity: Vector) -> None:
        """Stretch the impedance spring by a displacement (6,) [m, rad] until the next physics step.

        The damper acts on the difference from `velocity` (6,) [m/s, rad/s]. Both in the base frame.
        """
        way = way + velocity * (self._own_damping / self._stiffness)
        turn = rotations.from_rotation_vector(way[3:])
        self.set_target(rotations.displaced(self.tcp_pose(), way[:3], turn))

    @property
    def stiffness(self) -> Vector:
        """Stiffness of the impedance (6,) [N/m, Nm/rad]."""
        return np.asarray(-self._stiffness)

    def set_body_pose(self, name: str, pose: Vector) -> None:
        """Place a fixed body (one without a joint) at a pose (7,) in its parent's frame."""
        body = self.model.body(name)
        body.pos[:], body.quat[:] = pose[:3], pose[3:][_WXYZ]

    def body_pose(self, name: str) -> Vector:
        """Pose (7,) of a fixed body, as set by `set_body_pose`; `RobotRLError` if there is none."""
        number = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name)
        if number < 0:
            bodies = [self.model.body(index).name for index in range(1, self.model.nbody)]
            raise RobotRLError("the scene has no such body", got=name, expected=bodies)
        return np.concatenate([self.model.body_pos[number], self.model.body_quat[number][_XYZW]])

    def set_start_pose(self, name: str, pose: Vector) -> None:
        """Set a free body's start pose (7,) in the base frame, from the next reset on."""
        first = int(self.model.joint(name).qposadr[0])
        self.model.qpos0[first : first + 3] = pose[:3]
        self.model.qpos0[first + 3 : first + 7] = pose[3:][_WXYZ]

    def put_back_objects(self) -> None:
        """Move the free bodies to their start poses, at rest; leave everything else unchanged."""
        for joint in np.flatnonzero(self.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            place, dof = self.model.jnt_qposadr[joint], self.model.jnt_dofadr[joint]
            self.data.qpos[place : place + 7] = self.model.qpos0[place : place + 7]
            self.data.qvel[dof : dof + 6] = 0.0

    def finger_opening(self) -> float:
        """Distance between the fingers [m]."""
        return float(self.data.qpos[self._finger_qpos].sum())

    def finger_speed(self) -> float:
        """Rate of change of the finger distance [m/s]; positive when opening."""
        return float(self.data.qvel[self._finger_dofs].sum())

    def set_finger_opening(self, opening: float) -> None:
        """Place both fingers `opening` metres apart and hold them there."""
        self.data.qpos[self._finger_qpos] = 0.5 * opening
        self.set_finger_target(opening)

    def set_finger_target(self, opening: float) -> None:
        """Command the gripper to a distance `opening` between the fingers [m]."""
        self.data.ctrl[self._gripper] = 0.5 * opening

    def reset(self, pose: Vector, joint_guess: Vector) -> None:
        """Put the arm at rest with the TCP at `pose` (7,), solved from `joint_guess` (n,)."""
        mujoco.mj_resetData(self.model, self.data)
        self.set_braking(False)
        joints = self.kinematics.solve(pose, joint_guess, 1e-5)
        self.data.qpos[self._qpos] = joints
        self.set_posture(joints)
        self.set_target(pose)
        mujoco.mj_forward(self.model, self.data)
        self._wrench = np.zeros(6)

    def steps(self, duration: float) -> int:
        """Number of physics steps in `duration` seconds."""
        return round(duration * self.physics_rate_hz)

    def step(self, duration: float, events: Iterable[WorldEvent] = ()) -> None:
        """Simulate `duration` seconds, at least one physics step, and run the events when due."""
        steps = max(1, self.steps(duration))
        samples = min(_WRENCH_SAMPLES, steps)
        total = np.zeros(6)
        left = deque(sorted(events, key=lambda event: event.after))
        done = 0
        for sample in range(samples):
            end = steps * (sample + 1) // samples
            while left and left[0].after <= end:
                event = left.popleft()
                mujoco.mj_step(self.model, self.data, event.after - done)
                done = event.after
                event.happen()
            mujoco.mj_step(self.model, self.data, end - done)
            done = end
            mujoco.mj_rnePostConstraint(self.model, self.data)
            # cfrc_ext is (torque, force) about the centre of mass of the whole kinematic tree.
            external = self.data.cfrc_ext[self._tool_bodies].sum(axis=0)
            root = self.model.body_rootid[self._tool_bodies[0]]
            arm = self.data.subtree_com[root] - self.data.site_xpos[self._tcp]
            force = external[3:]
            total += np.concatenate([force, external[:3] + np.cross(arm, force)])
        self._wrench = total / samples
        self.sensors.next_step()
        # mj_step leaves poses from before its last integration; update them.
        mujoco.mj_forward(self.model, self.data)

    def _brightness(self) -> list[Vector]:
        """Views of all brightness values of the model."""
        lamp = self.model.vis.headlight
        return [self.model.light_ambient, self.model.light_diffuse, lamp.ambient, lamp.diffuse]


@dataclass(frozen=True)
class GripperMotor:
    """A geared motor that moves both fingers; its force drops with speed."""

    force: float  # grip force of each finger [N]
    speed: float  # no-load speed of each finger [m/s]
    friction: float  # sliding friction of the finger pads

    def install(self, model: mujoco.MjModel) -> None:
        """Replace the weak spring that holds the fingers in other tasks by the motor."""
        stall = 2.0 * self.force  # one actuator moves both fingers, which share its force
        stiffness = stall / _BAND
        actuator = model.actuator(GRIPPER_ACTUATOR).id
        model.actuator_gainprm[actuator, 0] = stiffness
        model.actuator_biasprm[actuator, 1:3] = -stiffness, 0.0
        model.actuator_forcerange[actuator] = -stall, stall
        for name in FINGERS:
            # A motor's back-EMF acts as damping: zero force at full speed.
            model.dof_damping[model.joint(name).dofadr[0]] = 0.5 * stall / self.speed
            model.geom_friction[model.geom(name).id, 0] = self.friction


class SceneState:
    """Reads and writes the movable state of a world as one vector, for a copy in another process.

    The vector is all joint positions (nq,), the pose (7,) of the impedance target, then the poses
    of all fixed bodies that a task may have placed (k, 7), in MuJoCo's units and order. It only
    fits copies compiled from the same model, which have the same `fingerprint`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        model = world.model
        with_joint, mocap = model.body_jntnum, model.body_mocapid
        self._fixed = [
            body
            for body in range(1, model.nbody)
            if model.body_parentid[body] == 0 and with_joint[body] == 0 and mocap[body] < 0
        ]
        self.size = model.nq + 7 + 7 * len(self._fixed)
        content = model.names + model.geom_size.tobytes() + model.geom_rgba.tobytes()
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]

    def capture(self) -> Vector:
        """Return the current state (size,)."""
        model, data = self._world.model, self._world.data
        fixed = np.hstack([model.body_pos[self._fixed], model.body_quat[self._fixed]])
        target = [data.mocap_pos[0], data.mocap_quat[0]]
        return np.concatenate([data.qpos, *target, fixed.ravel()])

    def restore(self, state: Vector) -> None:
        """Set the world's poses from `state` (size,); velocities and forces stay unchanged.

        `RobotRLError` if it has another length or is not finite.
        """
        if state.shape != (self.size,) or not np.isfinite(state).all():
            raise RobotRLError(
                "the state is of another world, or not finite",
                got=f"shape {state.shape}",
                expected=f"({self.size},) finite numbers",
                hint="give all nodes the same task and model",
            )
        model, data = self._world.model, self._world.data
        data.qpos[:] = state[: model.nq]
        target = state[model.nq : model.nq + 7]
        data.mocap_pos[0], data.mocap_quat[0] = target[:3], target[3:]
        fixed = state[model.nq + 7 :].reshape(-1, 7)
        model.body_pos[self._fixed], model.body_quat[self._fixed] = fixed[:, :3], fixed[:, 3:]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
