"""Poses of a MuJoCo model's sites, and the joint angles that bring one of them to a pose."""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

Vector = npt.NDArray[np.float64]

# MuJoCo keeps quaternions as wxyz; ours are xyzw.
XYZW = [1, 2, 3, 0]
_DAMPING = 1e-4


class Chain(NamedTuple):
    """The joints that move a site, by their places in a model.

    Attributes:
        site: Its id.
        qpos: Places of the joints' positions (n,).
        dofs: Places of the joints' velocities (n,).
        low: Lowest positions (n,) [rad].
        high: Highest positions (n,) [rad].
    """

    site: int
    qpos: npt.NDArray[np.int32]
    dofs: npt.NDArray[np.int32]
    low: Vector
    high: Vector


def site_pose(data: mujoco.MjData, site: int) -> Vector:
    """Pose (7,) of a site in the base frame."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, data.site_xmat[site])
    return np.concatenate([data.site_xpos[site], quaternion[XYZW]])


def solve_inverse_kinematics(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    chain: Chain,
    pose: Vector,
    joint_guess: Vector,
    tolerance: float,
) -> Vector:
    """Joint angles (n,) that put a site at `pose` (7,), by damped least squares.

    Args:
        model: The model.
        data: Its state; the joints of the chain are moved.
        chain: The site and its joints.
        pose: Where to, base frame.
        joint_guess: Where to begin (n,) [rad].
        tolerance: Largest error that is left [m, rad].

    Raises:
        RobotRLError: The pose cannot be reached from the guess.
    """
    joints = np.array(joint_guess, np.float64)
    jacobian = np.zeros((6, model.nv))
    for _ in range(100):
        data.qpos[chain.qpos] = joints
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        reached = site_pose(data, chain.site)
        turn = rotations.multiply(pose[3:], rotations.conjugate(reached[3:]))
        error = np.concatenate([pose[:3] - reached[:3], rotations.to_rotation_vector(turn)])
        if np.abs(error).max() < tolerance:
            return joints
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], chain.site)
        arm = jacobian[:, chain.dofs]
        joints += arm.T @ np.linalg.solve(arm @ arm.T + _DAMPING * np.eye(6), error)
        joints = np.clip(joints, chain.low, chain.high)
    raise RobotRLError(
        "the arm cannot reach the pose",
        got=np.round(pose, 4).tolist(),
        expected=f"a pose within reach of joints {np.round(joint_guess, 3).tolist()}",
    )
