"""Base class of all user-facing errors, and the errors of policies and checkpoints."""

from __future__ import annotations

import difflib
import importlib
import re
import shlex
from collections.abc import Iterable
from types import ModuleType

_NEAR = 0.7  # least similarity of a misspelling, from 0 to 1


class RobotRLError(Exception):
    """An error with the value found, the value expected and what to do next.

    Args:
        problem: What is wrong, in one sentence that names the field or file.
        got: The value found.
        expected: The values accepted.
        hint: What the user can do next.
    """

    def __init__(
        self,
        problem: str,
        *,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        if got is not None or expected is not None or hint is not None:
            problem, further = _within(problem)
            got, more = (got, "") if got is None else _within(str(got))
            hint = "; ".join(filter(None, (further, more, hint))) or None
        parts = {"got": got, "expected": expected, "next": hint}
        words = (f"{name}: {part}" for name, part in parts.items() if part is not None)
        super().__init__("; ".join((problem, *words)))


def _within(message: str) -> tuple[str, str]:
    """Split another error's message into problem and hint, to embed it in a new one."""
    before, _, hint = message.partition("; next: ")
    problem, *parts = re.split("; (?=got: |expected: )", before)
    return f"{problem} ({', '.join(parts)})" if parts else problem, hint


class PolicyError(RobotRLError):
    """A policy, checkpoint or observation that does not fit."""


class CheckpointError(PolicyError):
    """A checkpoint that is missing, truncated or altered, or whose policy cannot be made."""


class MissingExtra(RobotRLError):
    """An optional package is not installed, or does not load."""


def did_you_mean(name: str, choices: Iterable[str], before: str | None = None) -> str | None:
    """Return a hint with the choice closest to `name`; None if no choice is close.

    The choice is prefixed with `before`, or quoted if `before` is None.
    """
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=_NEAR)
    if not close:
        return None
    return f"did you mean {repr(close[0]) if before is None else before + close[0]}?"


def in_shell(*words: object) -> str:
    """Return a shell command; words with spaces, quotes or $ are quoted."""
    return shlex.join(map(str, words))


def installing(extra: str) -> str:
    """Return the command that installs an extra."""
    return f".venv/bin/pip install -e '.[{extra}]' in the clone's folder"


def require(package: str, extra: str) -> ModuleType:
    """Import an optional package.

    Raises:
        MissingExtra: Names the extra to install, or the library that the package itself lacks.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        raise MissingExtra(
            f"the package {package!r} is not installed",
            got=f"no module named {missing.name!r}",
            hint=installing(extra),
        ) from missing
    except ImportError as broken:  # installed, but a shared library or a version is wrong
        raise MissingExtra(
            f"{package!r} is installed and does not load",
            got=broken,
            hint=f"install the libraries that it names, or again: {installing(extra)}",
        ) from broken
