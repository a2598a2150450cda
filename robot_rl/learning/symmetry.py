"""Symmetry: experience on one side of the arm, used as experience on the other side too.

Kaleidoscope experience replay (Lin et al. 2020, "Invariant Transform Experience Replay", arXiv
1909.10707): where a task looks the same after a reflection or a turn, so does each transition, and
the demonstrations with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policies import registry
from policies.columns import INSTRUCTION, INSTRUCTION_FEATURES, PLAN
from robot_rl.data.schema import LAST_COMMAND, RowSchema
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.errors import RobotRLError
from robot_rl.replay.windows import CHUNK, NEXT, is_observation

Batch = Mapping[str, npt.NDArray[Any]]

_SAME = "same"  # a column that does not change
_KNOWN = (*ARM_ACTIONS, GRIPPER_ACTION, _SAME)
# An arm's observations of itself that can be turned; its poses and joints cannot.
_OWN = {
    "state/tcp_velocity": ARM_ACTIONS,
    "state/tcp_wrench": ARM_ACTIONS,
    "state/target_lead": ARM_ACTIONS,
    "state/gripper_position": (_SAME,),
}
_ACTIONS = ("action", "base_action", LAST_COMMAND)
# Reflected at the plane y = 0 these change their sign: y, and what turns in that plane.
_REFLECTED = ("y", "rotation_x", "rotation_z")
_WITHOUT = "correct it; or learn without: task.symmetry.mirror=false task.symmetry.turns=1"


@dataclass(frozen=True)
class Symmetry:
    """From where a task looks the same, and how its observations change from one to another.

    Columns are in the base frame, or in that of an object that looks the same itself after the
    reflection or turn. The clone is frozen, so its turned proposals are
    roughly those that it would make.

    Raises:
        RobotRLError: `turns` or a name in `fields` is not one of those below.
    """

    mirror: bool  # whether left and right are alike: y and -y of the base frame
    turns: int  # how many turns about the vertical, of 360° in all, look alike: 1, 2 or 4
    # The meaning of each column of the task's fields: x, y, z of a vector; rotation_x, rotation_y,
    # rotation_z of a rotation vector or torque; and same for a column that does not change.
    fields: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if self.turns not in (1, 2, 4):
            raise RobotRLError("task.symmetry.turns", got=self.turns, expected="1, 2 or 4")
        for name, columns in self.fields.items():
            _check_columns(f"task.symmetry.fields.{name}", columns, self.turns)

    def among(self, widths: Mapping[str, int], action_names: Sequence[str]) -> Turning:
        """Make the turning of rows with these observations, name → width, and action columns.

        Raises:
            RobotRLError: The meaning of the columns of one of them is not known.
        """
        _check_columns("the action, which task.symmetry changes,", action_names, self.turns)
        known = {**_OWN, **self.fields, **dict.fromkeys(_ACTIONS, action_names)}
        wrong = [f"{n} ({w} columns)" for n, w in widths.items() if len(known.get(n, ())) != w]
        if wrong:
            raise RobotRLError(
                "the task's symmetry does not say how its observations change",
                got=f"{', '.join(wrong)} without as many names",
                expected="task.symmetry.fields with the columns of all that the policy sees",
                hint=_WITHOUT,
            )
        quarters = [turn * 4 // self.turns for turn in range(self.turns)]
        elements = [(mirror, turn) for mirror in range(1 + self.mirror) for turn in quarters]
        return Turning({name: _tables(known[name], elements) for name in (*widths, *_ACTIONS)})


@dataclass(frozen=True)
class Turning:
    """Shows each row of a batch in one of the views in which the task looks the same."""

    # By field: the column that each is taken from, and its sign, (views, columns) both.
    tables: Mapping[str, tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]]

    @property
    def views(self) -> int:
        """Number of views, that of the row itself included."""
        return len(self.tables["action"][0])

    def each_turned(self, batches: Iterable[Batch], seed: int, first: int) -> Iterator[Batch]:
        """Turn the batches of updates from the number `first` on.

        Each has a generator of its own, so that a resumed run draws the same.
        """
        for number, batch in enumerate(batches, first):
            yield self.turned(batch, np.random.default_rng((seed, number)))

    def turned(self, batch: Batch, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
        """A batch of rows, each turned by chance, with its s' and its chunks."""
        given, view = dict(batch), None
        for name, column in batch.items():
            tables = self.tables.get(name.removeprefix(NEXT).removeprefix(CHUNK))
            if tables is None:
                continue
            source, sign = tables
            if view is None:
                view = rng.integers(len(source), size=len(column))
            steps = column.reshape(len(column), -1, source.shape[1])
            moved = np.take_along_axis(steps, source[view][:, None], 2)
            moved *= sign[view][:, None]
            given[name] = moved.reshape(column.shape)
        return given


def turning_of(
    config: Mapping[str, Any], fields: Sequence[str], schema: RowSchema
) -> Turning | None:
    """Make the turning of rows with these fields; None if the configured task has no symmetry.

    None also if rows keep extras of a plan, whose other views are unknown.

    Raises:
        RobotRLError: See `Symmetry`.
    """
    section = config["task"].get("symmetry")
    if section is None or any(name.startswith(PLAN) for name in fields):
        return None
    symmetry = registry.make(section, Symmetry)
    if not symmetry.mirror and symmetry.turns == 1:
        return None
    sizes = {field.name: int(np.prod(field.shape)) for field in schema.fields}
    same = (INSTRUCTION, INSTRUCTION_FEATURES)  # in all views
    observed = [name for name in fields if is_observation(name) and name not in same]
    return symmetry.among({name: sizes.get(name, 0) for name in observed}, schema.action_names)


def _check_columns(what: str, columns: Sequence[str], turns: int) -> None:
    unknown = [column for column in columns if column not in _KNOWN]
    pairs = [(columns.count(f"{kind}x"), columns.count(f"{kind}y")) for kind in ("", "rotation_")]
    if unknown or (turns == 4 and any(x != y for x, y in pairs)):
        raise RobotRLError(
            f"{what} has columns that cannot be turned",
            got=", ".join(columns),
            expected=f"names out of {', '.join(_KNOWN)}; with 4 turns a y for each x",
            hint=_WITHOUT,
        )


def _tables(
    columns: Sequence[str], elements: Sequence[tuple[int, int]]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    places = {name: [at for at, each in enumerate(columns) if each == name] for name in _KNOWN}
    source = np.tile(np.arange(len(columns)), (len(elements), 1))
    sign = np.ones(source.shape, np.float32)
    for row, (mirror, quarters) in enumerate(elements):
        flipped = [at for name in _REFLECTED for at in places[name]]
        sign[row, flipped] = 1 - 2 * mirror
        for kind in ("", "rotation_"):
            across, along = places[f"{kind}x"], places[f"{kind}y"]
            # (x, y) turned by 90° is (-y, x), after the reflection.
            if quarters % 2:
                source[row, [*across, *along]] = source[row, [*along, *across]]
                sign[row, [*across, *along]] = sign[row, [*along, *across]]
                sign[row, across] *= -1
            if quarters >= 2:
                sign[row, [*across, *along]] *= -1
    return source, sign
