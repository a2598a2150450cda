"""A task of one's own: press a button that stands somewhere else in each episode."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from robot_rl.env.sim.task import SimTask, Vector, downward, observed

HEIGHT = 0.05  # m, of the button
HOME = np.array([0.45, 0.0, 0.2])  # m


@dataclass(kw_only=True)
class PressButton(SimTask):
    """Bring the TCP to within `tolerance` of the button's top."""

    observation_fields = observed(object_poses=(1, 7), to_button=(3,))
    action_names = ("x", "y", "z")  # the tool does not turn
    observed_objects = ("button",)

    position_range: float  # half width of the square that the button stands in [m]
    tolerance: float  # distance that counts as pressed [m]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the button; its origin is its top."""
        button = spec.worldbody.add_body(name="button")
        button.add_geom(
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=[0.02, HEIGHT / 2, 0],
            pos=[0, 0, -HEIGHT / 2],
            rgba=[0.8, 0.2, 0.2, 1],
            contype=0,
            conaffinity=0,
        )

    def reset(self, rng: np.random.Generator) -> Vector:
        """Put the button somewhere; the arm starts at home."""
        place = HOME[:2] + rng.uniform(-self.position_range, self.position_range, 2)
        self._top = downward(np.array([*place, HEIGHT]))
        self.world.set_body_pose("button", self._top)
        return downward(HOME)

    def seen_poses(self) -> Vector:
        """The button's top (1, 7), seen without noise."""
        return self._top[None]

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """What a policy sees beside that: the way (m, base frame) that is left to the top."""
        return {"state/to_button": object_poses[0, :3] - tcp_pose[:3]}

    def goal_pose(self) -> Vector:
        """The TCP pose (7,) that presses it: the scripted expert goes there, with an error."""
        return self._top

    def succeeded(self) -> bool:
        """Whether it is pressed."""
        distance = np.linalg.norm(self.world.tcp_pose()[:3] - self._top[:3])
        return bool(distance <= self.tolerance)
