"""Limits that hold whatever the policy asks for; the same module guards simulated and real arms."""

from robot_rl.safety.limits import (
    ActionRefused,
    CartesianLimiter,
    CartesianLimits,
    MeasurementRefused,
    check_action,
)

__all__ = [
    "ActionRefused",
    "CartesianLimiter",
    "CartesianLimits",
    "MeasurementRefused",
    "check_action",
]
