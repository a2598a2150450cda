"""Where the joints of a MuJoCo arm put its tool, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector

_XYZW = [1, 2, 3, 0]
_DAMPING = 1e-4  # of inverse kinematics


def site_pose(data: mujoco.MjData, site: int) -> Vector:
    """Pose (7,) of a site in the base frame."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, data.site_xmat[site])
    return np.concatenate([data.site_xpos[site], quaternion[_XYZW]])


class Kinematics:
    """Forward and inverse kinematics of n joints and a site, by their ids in a model.

    Attributes:
        qpos: Places of the joints' positions in a state (n,).
        dofs: Places of their velocities (n,).
        low: Their lowest positions (n,) [rad].
        high: Their highest (n,) [rad].
    """

    def __init__(self, model: mujoco.MjModel, site: int, joints: Sequence[int]) -> None:
        self.qpos, self.dofs = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
        self.low, self.high = model.jnt_range[joints].T
        self._model, self._site = model, site
        self._data = mujoco.MjData(model)

    def pose(self, joints: Vector) -> Vector:
        """Pose (7,) in which joint positions (n,) [rad] put the site."""
        self._data.qpos[self.qpos] = joints
        mujoco.mj_kinematics(self._model, self._data)
        return site_pose(self._data, self._site)

    def step(self, joints: Vector, pose: Vector) -> Vector:
        """About how far joints (n,) [rad] are from where the site is at a pose (7,) nearby.

        By damped least squares.
        """
        way = rotations.between(self.pose(joints), pose)
        jacobian = np.zeros((6, self._model.nv))
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_jacSite(self._model, self._data, jacobian[:3], jacobian[3:], self._site)
        arm = jacobian[:, self.dofs]
        return np.asarray(arm.T @ np.linalg.solve(arm @ arm.T + _DAMPING * np.eye(6), way))

    def solve(self, pose: Vector, guess: Vector, tolerance: float) -> Vector:
        """Joint positions (n,) that put the site at `pose` (7,), but for `tolerance` [m, rad].

        They are looked for from `guess` (n,) [rad]; `RobotRLError` where they are not found.
        """
        joints = np.array(guess, np.float64)
        for _ in range(100):
            if np.abs(rotations.between(self.pose(joints), pose)).max() < tolerance:
                return joints
            joints = np.clip(joints + self.step(joints, pose), self.low, self.high)
        raise RobotRLError(
            "the arm cannot reach the pose",
            got=np.round(pose, 4).tolist(),
            expected=f"a pose within reach of joints {np.round(guess, 3).tolist()}",
        )
