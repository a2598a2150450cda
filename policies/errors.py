"""The base of every error that a user can meet, and what policies and checkpoints raise."""

from __future__ import annotations

import difflib
import importlib
import re
import shlex
from collections.abc import Iterable
from types import ModuleType

_NEAR = 0.7  # likeness from which on one word is another mistyped


class RobotRLError(Exception):
    """An error that says what was got, what was expected and what to do next.

    Args:
        problem: One sentence: what is wrong, naming the field or file.
        got: The value that was met.
        expected: What would have been accepted.
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
        parts = [problem]
        if got is not None:
            parts.append(f"got: {got}")
        if expected is not None:
            parts.append(f"expected: {expected}")
        if hint is not None:
            parts.append(f"next: {hint}")
        super().__init__("; ".join(parts))


def _within(words: str) -> tuple[str, str]:
    """What another error says as a part of one: what is wrong, and what to do next."""
    told, _, hint = words.partition("; next: ")
    problem, *parts = re.split("; (?=got: |expected: )", told)
    return f"{problem} ({', '.join(parts)})" if parts else problem, hint


class PolicyError(RobotRLError):
    """A policy, checkpoint or observation that does not fit."""


class CheckpointError(PolicyError):
    """A checkpoint that is absent, cut short or changed, or whose policy cannot be made."""


class MissingExtra(RobotRLError):
    """An optional package is not installed, or does not load."""


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice of which a name is a misspelling; None where it is of none."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=_NEAR)
    return close[0] if close else None


def did_you_mean(name: str, choices: Iterable[str], before: str | None = None) -> str | None:
    """A hint that names the `nearest` choice, plainly after what stands `before` it, or quoted."""
    close = nearest(name, choices)
    written = repr(close) if before is None else f"{before}{close}"
    return None if close is None else f"did you mean {written}?"


def in_shell(*words: object) -> str:
    """Words of a command as they are typed in a shell: a path may hold spaces, quotes or $."""
    return shlex.join(map(str, words))


def installing(extra: str) -> str:
    """The command that installs an extra; there is no package on PyPI."""
    return f".venv/bin/pip install -e '.[{extra}]' in the clone's folder"


def require(package: str, extra: str) -> ModuleType:
    """Import an optional package when it is needed, not before.

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
    except ImportError as broken:  # it is there, but a shared library or another version is not
        raise MissingExtra(
            f"{package!r} is installed and does not load",
            got=broken,
            hint=f"install the libraries that it names, or again: {installing(extra)}",
        ) from broken
