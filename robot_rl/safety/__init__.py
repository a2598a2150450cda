"""Limits that hold whatever the policy asks for; the same module guards simulated and real arms."""

from robot_rl.safety.commands import CommandRefused, Mode, SoleSource
from robot_rl.safety.guard import ArmGuard
from robot_rl.safety.limiter import CartesianLimiter, check_action
from robot_rl.safety.limits import (
    ActionRefused,
    ArmLimits,
    CartesianLimits,
    Compliance,
    MeasurementRefused,
    refuse_stiff_contact,
)
from robot_rl.safety.measurement import Measured, Plausibility
from robot_rl.safety.reset_motion import ResetOptions, ResetOutcome, Resets
from robot_rl.safety.stop_latch import StopLatch, StopNotKept, default_stop_folder, kept_stop

__all__ = [
    "ActionRefused",
    "ArmGuard",
    "ArmLimits",
    "CartesianLimiter",
    "CartesianLimits",
    "CommandRefused",
    "Compliance",
    "Measured",
    "MeasurementRefused",
    "Mode",
    "Plausibility",
    "ResetOptions",
    "ResetOutcome",
    "Resets",
    "SoleSource",
    "StopLatch",
    "StopNotKept",
    "check_action",
    "default_stop_folder",
    "kept_stop",
    "refuse_stiff_contact",
]
