"""The base of every error that a user of robot_rl can meet."""

from __future__ import annotations

from unicodedata import category

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


def shown(text: str) -> str:
    r"""A text as a terminal may print it: what would move its cursor or colour it is spelled out.

    Lines and tabs stay: a folder may have either in its name.
    """
    return "".join(
        f"\\x{ord(c):02x}" if category(c) == "Cc" and c not in "\n\t" else c for c in text
    )
