"""The errors of `policies.errors`, and how to print one."""

from __future__ import annotations

from unicodedata import category

from policies.errors import CheckpointError as CheckpointError
from policies.errors import MissingExtra as MissingExtra
from policies.errors import RobotRLError as RobotRLError
from policies.errors import did_you_mean as did_you_mean
from policies.errors import in_shell as in_shell
from policies.errors import installing as installing
from policies.errors import require as require


def described(error: BaseException) -> str:
    """The message of an error; its `repr` where it is not one of ours."""
    return str(error) if isinstance(error, RobotRLError) else repr(error)


def printable(text: str) -> str:
    r"""Spell out the control characters of a text, which a terminal would obey.

    Lines and tabs stay: the name of a folder may have them.
    """
    return "".join(
        f"\\x{ord(c):02x}" if category(c) == "Cc" and c not in "\n\t" else c for c in text
    )
