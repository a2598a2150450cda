"""The motor of the simulated gripper, for tasks whose action has a gripper column."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco

from robot_rl.env.sim.world import FINGERS, GRIPPER_ACTUATOR

# Distance to the commanded opening, of each finger, below which the motor eases off [m].
_BAND = 0.004


@dataclass(frozen=True)
class GripperMotor:
    """A geared motor that moves both fingers: the faster they move, the less it pushes.

    Attributes:
        force: With which each finger presses on what it holds [N].
        speed: Of each finger with nothing between them [m/s].
        friction: Sliding friction of the finger pads.
    """

    force: float
    speed: float
    friction: float

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
