"""A task's world, and the part of it that moves: what a copy needs to look the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import mujoco
import numpy as np

from robot_rl.env.robot import GRIPPER_ACTION
from robot_rl.env.sim.task import SimTask
from robot_rl.env.sim.world import FINGERS, GRIPPER_ACTUATOR, Vector, World
from robot_rl.env.task import Task
from robot_rl.errors import RobotRLError
from robot_rl.processes.resources import find_resource

# Distance to the commanded opening, of each finger, below which its motor eases off [m].
_BAND = 0.004


@dataclass(frozen=True)
class GripperMotor:
    """A geared motor that moves both fingers: the faster they move, the less it pushes."""

    force: float  # with which each finger presses on what it holds [N]
    speed: float  # of each finger with nothing between them [m/s]
    friction: float  # sliding friction of the finger pads

    def install(self, model: mujoco.MjModel) -> None:
        """Put the motor in place of the weak spring that keeps the fingers of other tasks."""
        stall = 2.0 * self.force  # one actuator moves both fingers, which share its force
        stiffness = stall / _BAND
        actuator = model.actuator(GRIPPER_ACTUATOR).id
        model.actuator_gainprm[actuator, 0] = stiffness
        model.actuator_biasprm[actuator, 1:3] = -stiffness, 0.0
        model.actuator_forcerange[actuator] = -stall, stall
        for name in FINGERS:
            # The back-EMF of a motor acts as damping: no force is left at its full speed.
            model.dof_damping[model.joint(name).dofadr[0]] = 0.5 * stall / self.speed
            model.geom_friction[model.geom(name).id, 0] = self.friction


def simulated(task: Task) -> SimTask:
    """The task, as one that has a simulated world.

    Raises:
        RobotRLError: It is not a simulated one.
    """
    if not isinstance(task, SimTask):
        raise RobotRLError(
            f"the simulated arm cannot do the task {task.name!r}",
            got=type(task).__name__,
            expected="a task of robot_rl.env.sim",
            hint="add robot=gym for a Gymnasium environment",
        )
    return task


def make_world(task: SimTask, model: str, gripper: GripperMotor) -> World:
    """Build the world of a task, and put the task in it.

    Args:
        task: The task; it is attached to the new world.
        model: Path of the arm's MJCF, beginning with `hardware/`.
        gripper: What moves the fingers where the task's action has a gripper column.
    """
    world = World(find_resource(model), task.build)
    if GRIPPER_ACTION in task.action_names:
        gripper.install(world.model)
    task.attach(world)
    return world


class SceneState:
    """Reads and writes what moves in a world as one vector, for a copy in another process.

    The vector is all joint positions (nq,), then the pose (7,) of the impedance target, then those
    of all fixed bodies that a task may have placed (k, 7), in the units and order of MuJoCo: it is
    only for copies that were compiled from the same model, which `fingerprint` tells.

    Args:
        world: The world.

    Attributes:
        size: Length of the vector.
        fingerprint: The same for worlds that were compiled from the same model.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        model = world.model
        bodies = range(1, model.nbody)
        self._fixed = [
            body
            for body in bodies
            if model.body_parentid[body] == 0
            and model.body_jntnum[body] == 0
            and model.body_mocapid[body] < 0
        ]
        self.size = model.nq + 7 + 7 * len(self._fixed)
        content = model.names + model.geom_size.tobytes() + model.geom_rgba.tobytes()
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]

    def capture(self) -> Vector:
        """The present state (size,)."""
        model, data = self._world.model, self._world.data
        fixed = np.hstack([model.body_pos[self._fixed], model.body_quat[self._fixed]])
        target = [data.mocap_pos[0], data.mocap_quat[0]]
        return np.concatenate([data.qpos, *target, fixed.ravel()])

    def restore(self, state: Vector) -> None:
        """Make the world look as `state` (size,) says; velocities and forces stay as they are.

        Raises:
            RobotRLError: Another length, or not finite.
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
