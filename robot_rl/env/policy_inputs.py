"""What a policy sees of what is observed, and what it leaves out: one line for a person."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from robot_rl.data.schema import LAST_COMMAND, RowSchema


class PolicyInputs(NamedTuple):
    """The observations of a schema that a policy sees, and the others, in the schema's order.

    What was commanded before is no observation of the robot: it is among neither.
    """

    seen: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, observed: Collection[str], schema: RowSchema) -> PolicyInputs:
        """Sort the columns of a schema by whether a policy has `observed` them."""
        names = [name for name in schema.observation_names if name != LAST_COMMAND]
        seen = tuple(name for name in names if name in observed)
        return cls(seen, tuple(name for name in names if name not in observed))

    @property
    def pictures(self) -> bool:
        """Whether pictures or point clouds are among what it sees."""
        return any(name.startswith(("images/", "points/")) for name in self.seen)

    def __str__(self) -> str:
        """Say it in one line."""
        left = f", and leaves out {', '.join(self.left_out)}" if self.left_out else ", which is all"
        return f"the policy sees {', '.join(self.seen) or 'nothing'}{left}"
