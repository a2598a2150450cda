"""The error that every policy, process and checkpoint raises."""

from __future__ import annotations


class PolicyError(ValueError):
    """A policy, checkpoint or observation that does not fit.

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
