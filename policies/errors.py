"""Errors that say what was got, what was expected and what to do next."""

from __future__ import annotations


class ExplainedError(Exception):
    """The base of every error that a user can meet, here and in robot_rl.

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
        """Build the message from its parts; see the class for the arguments."""
        parts = {"got": got, "expected": expected, "next": hint}
        details = [f"{name}: {value}" for name, value in parts.items() if value is not None]
        super().__init__("; ".join([problem, *details]))


class PolicyError(ExplainedError, ValueError):
    """A policy, checkpoint or observation that does not fit."""
