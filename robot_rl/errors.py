"""The base of every error that a user of robot_rl can meet."""

from __future__ import annotations

from policies.errors import CheckpointError as CheckpointError
from policies.errors import MissingExtra as MissingExtra
from policies.errors import RobotRLError as RobotRLError
from policies.errors import did_you_mean as did_you_mean
from policies.errors import in_shell as in_shell
from policies.errors import installing as installing
from policies.errors import nearest as nearest
from policies.errors import require as require


def described(error: BaseException) -> str:
    """An error in words; one that is not of this package with its type."""
    return str(error) if isinstance(error, RobotRLError) else repr(error)
