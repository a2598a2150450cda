"""The base of every error of robot_rl."""

from __future__ import annotations

from policies.errors import ExplainedError


class RobotRLError(ExplainedError):
    """An error of robot_rl; it says what was got, what was expected and what to do next."""
