"""Where the joints of a MuJoCo arm put its tool, and the other way round."""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector

_XYZW = [1, 2, 3, 0]
_DAMPING = 1e-4  # of inverse kinematics


class Chain(NamedTuple):
    """The n joints that move a site, by their places in a model."""

    site: int  # its id
    qpos: npt.NDArray[np.int32]  # places of the joints' positions (n,)
    dofs: npt.NDArray[np.int32]  # places of the joints' velocities (n,)
    low: Vector  # lowest positions (n,) [rad]
    high: Vector  # highest positions (n,) [rad]


def site_pose(data: mujoco.MjData, site: int) -> Vector:
    """Pose (7,) of a site in the base frame."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, data.site_xmat[site])
    return np.concatenate([data.site_xpos[site], quaternion[_XYZW]])


def forward_kinematics(
    model: mujoco.MjModel, data: mujoco.MjData, chain: Chain, joints: Vector
) -> Vector:
    """Pose (7,) in which joint positions (n,) put a site; they are set in the state `data`."""
    data.qpos[chain.qpos] = joints
    mujoco.mj_kinematics(model, data)
    return site_pose(data, chain.site)


def joint_step(model: mujoco.MjModel, data: mujoco.MjData, chain: Chain, way: Vector) -> Vector:
    """How the joints (n,) [rad] move a site by a small way (6,) [m, rad], by damped least squares.

    They are where `forward_kinematics` has set them.
    """
    jacobian = np.zeros((6, model.nv))
    mujoco.mj_comPos(model, data)
    mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], chain.site)
    arm = jacobian[:, chain.dofs]
    return np.asarray(arm.T @ np.linalg.solve(arm @ arm.T + _DAMPING * np.eye(6), way))


def solve_inverse_kinematics(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    chain: Chain,
    pose: Vector,
    joint_guess: Vector,
    tolerance: float,
) -> Vector:
    """Joint angles (n,) that put a site at `pose` (7,), by damped least squares.

    The state `data` of `model` is moved on the way; `joint_guess` (n,) [rad] is where to begin, and
    `tolerance` the largest error that is left [m, rad].

    Raises:
        RobotRLError: The pose cannot be reached from the guess.
    """
    joints = np.array(joint_guess, np.float64)
    for _ in range(100):
        error = rotations.between(forward_kinematics(model, data, chain, joints), pose)
        if np.abs(error).max() < tolerance:
            return joints
        joints += joint_step(model, data, chain, error)
        joints = np.clip(joints, chain.low, chain.high)
    raise RobotRLError(
        "the arm cannot reach the pose",
        got=np.round(pose, 4).tolist(),
        expected=f"a pose within reach of joints {np.round(joint_guess, 3).tolist()}",
    )
