"""Forward and inverse kinematics of a MuJoCo arm."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector

_XYZW = [1, 2, 3, 0]
_DAMPING = 1e-4  # for damped least squares


def site_pose(data: mujoco.MjData, site: int) -> Vector:
    """Pose (7,) of a site in the base frame."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, data.site_xmat[site])
    return np.concatenate([data.site_xpos[site], quaternion[_XYZW]])


class Kinematics:
    """Forward and inverse kinematics of n joints and a site, given their ids in a model.

    Attributes:
        qpos: Indices of the joint positions in a state (n,).
        dofs: Indices of the joint velocities (n,).
        low: Lower joint limits (n,) [rad].
        high: Upper joint limits (n,) [rad].
    """

    def __init__(self, model: mujoco.MjModel, site: int, joints: Sequence[int]) -> None:
        self.qpos, self.dofs = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
        self.low, self.high = model.jnt_range[joints].T
        self._model, self._site = model, site
        self._data = mujoco.MjData(model)

    def pose(self, joints: Vector) -> Vector:
        """Pose (7,) of the site at joint positions (n,) [rad]."""
        self._data.qpos[self.qpos] = joints
        mujoco.mj_kinematics(self._model, self._data)
        return site_pose(self._data, self._site)

    def step(self, joints: Vector, pose: Vector) -> Vector:
        """Approximate joint motion (n,) [rad] from `joints` to a nearby site pose (7,).

        Uses damped least squares.
        """
        way = rotations.between(self.pose(joints), pose)
        jacobian = np.zeros((6, self._model.nv))
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_jacSite(self._model, self._data, jacobian[:3], jacobian[3:], self._site)
        arm = jacobian[:, self.dofs]
        return np.asarray(arm.T @ np.linalg.solve(arm @ arm.T + _DAMPING * np.eye(6), way))

    def solve(self, pose: Vector, guess: Vector, tolerance: float) -> Vector:
        """Find joint positions (n,) for a site pose (7,), within `tolerance` [m, rad].

        The search starts at `guess` (n,) [rad]; `RobotRLError` if it fails.
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
