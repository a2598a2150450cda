"""Symmetry: reuse experience from one side of the arm on the other side.

Kaleidoscope experience replay (Lin et al. 2020, "Invariant Transform Experience Replay", arXiv
1909.10707). If a task is invariant under a reflection or rotation, so are its transitions and
demonstrations.
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
# Proprioceptive observations that can be transformed. Poses and joint positions cannot.
_OWN = {
    "state/tcp_velocity": ARM_ACTIONS,
    "state/tcp_wrench": ARM_ACTIONS,
    "state/target_lead": ARM_ACTIONS,
    "state/gripper_position": (_SAME,),
}
_ACTIONS = ("action", "base_action", LAST_COMMAND)
# Columns that change sign under reflection at the plane y = 0: y, and rotations about x and z.
_REFLECTED = ("y", "rotation_x", "rotation_z")
_WITHOUT = "correct it; or learn without: task.symmetry.mirror=false task.symmetry.turns=1"


@dataclass(frozen=True)
class Symmetry:
    """The symmetric views of a task, and how observations change between them.

    Columns are in the base frame, or in the frame of an object that is itself invariant under the
    reflection or rotation. The clone is frozen, so its transformed proposals are only approximately
    what it would propose.

    Raises:
        RobotRLError: `turns` or a name in `fields` is not one of the values listed below.
    """

    mirror: bool  # whether left and right (y and -y in the base frame) are equivalent
    turns: int  # number of equivalent rotations about the vertical per 360°: 1, 2 or 4
    # Meaning of each column of the task's fields: x, y, z of a vector; rotation_x, rotation_y,
    # rotation_z of a rotation vector or torque; same for a column that does not change.
    fields: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if self.turns not in (1, 2, 4):
            raise RobotRLError("task.symmetry.turns", got=self.turns, expected="1, 2 or 4")
        for name, columns in self.fields.items():
            _check_columns(f"task.symmetry.fields.{name}", columns, self.turns)

    def among(self, widths: Mapping[str, int], action_names: Sequence[str]) -> Turning:
        """Create the transform for rows with these observations (name → width) and action columns.

        Raises:
            RobotRLError: The meaning of a column is unknown.
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
    """Transforms each row of a batch into one of the task's symmetric views."""

    # Per field: source column index and sign, both (views, columns).
    tables: Mapping[str, tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]]

    @property
    def views(self) -> int:
        """Number of views, including the original."""
        return len(self.tables["action"][0])

    def each_turned(self, batches: Iterable[Batch], seed: int, first: int) -> Iterator[Batch]:
        """Transform the batches of updates, starting at update number `first`.

        Each update has its own generator, so a resumed run draws the same transforms.
        """
        for number, batch in enumerate(batches, first):
            yield self.turned(batch, np.random.default_rng((seed, number)))

    def turned(self, batch: Batch, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
        """Return a batch with each row randomly transformed, including its s' and its chunks."""
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
    """Create the transform for rows with these fields. None if the task has no symmetry.

    Also None if rows store extras of a plan, since their transforms are unknown.

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
    same = (INSTRUCTION, INSTRUCTION_FEATURES)  # the same in all views
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
            # After the reflection, (x, y) rotated by 90° is (-y, x).
            if quarters % 2:
                source[row, [*across, *along]] = source[row, [*along, *across]]
                sign[row, [*across, *along]] = sign[row, [*along, *across]]
                sign[row, across] *= -1
            if quarters >= 2:
                sign[row, [*across, *along]] *= -1
    return source, sign
