"""A task of one's own: press a button that stands somewhere else in each episode."""

from __future__ import annotations

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.sim.task import ScriptedExpert, SimTask, Vector

HEIGHT = 0.05  # m, of the button
HOME = np.array([0.45, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])  # m, xyzw: the tool points down


class ButtonView:
    """What a policy sees of the task: the way (m, base frame) that is left to the button's top."""

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (1, 7)),
        Field("state/to_button", "float32", (3,)),
    )
    action_names: tuple[str, ...] = ("x", "y", "z")  # the tool does not turn

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """The one object is the button's top."""
        return {
            "state/object_poses": object_poses.astype(np.float32),
            "state/to_button": (object_poses[0, :3] - tcp_pose[:3]).astype(np.float32),
        }


class PressButton(SimTask):
    """Bring the TCP to within `tolerance` of the button's top.

    Args:
        name: See `SimTask`.
        instruction: See `SimTask`.
        time_limit_steps: See `SimTask`.
        position_range: Half width of the square that the button stands in [m].
        tolerance: Distance that counts as pressed [m].
    """

    observed_objects = ("button",)

    def __init__(
        self,
        name: str,
        instruction: str,
        time_limit_steps: int,
        position_range: float,
        tolerance: float,
    ) -> None:
        """See the class."""
        super().__init__(name, instruction, time_limit_steps, ButtonView())
        self._range = position_range
        self._tolerance = tolerance
        self._top = HOME

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
        place = HOME[:2] + rng.uniform(-self._range, self._range, 2)
        self._top = np.concatenate([place, [HEIGHT], HOME[3:]])
        self.world.set_body_pose("button", self._top)
        return HOME

    def seen_poses(self) -> Vector:
        """The button's top (1, 7), seen without noise."""
        return self._top[None]

    def goal_pose(self) -> Vector:
        """The TCP pose (7,) that presses it."""
        return self._top

    def succeeded(self) -> bool:
        """Whether it is pressed."""
        distance = np.linalg.norm(self.world.tcp_pose()[:3] - self._top[:3])
        return bool(distance <= self._tolerance)


class ButtonExpert(ScriptedExpert):
    """Demonstrates it: goes straight there, with the error that every person makes."""

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Where it believes the button to be."""
        believed = self.task.goal_pose().copy()
        believed[:3] += self.error
        if np.abs(self.motion(believed)).max() < 0.2:
            self.correct()
        return believed
