"""Actions of others as ours, but for their scale: an arm's as steps of its target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.spatial.transform import Rotation

from robot_rl.data.schema import Array, SchemaMismatch
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION

_ENVIRONMENT, _RATES, _ABSOLUTE = "environment", "rates", "absolute"
CONVENTIONS = (_ENVIRONMENT, "joint", "delta", _RATES, _ABSOLUTE)
_OF_ARM = CONVENTIONS[2:]
_POSITION, _ROTATION = ARM_ACTIONS[:3], ARM_ACTIONS[3:]
# How a rotation may be written; Euler angles turn about the fixed axes x, y, z one by one.
_TURNS = {
    _ROTATION: Rotation.from_rotvec,
    ("roll", "pitch", "yaw"): partial(Rotation.from_euler, "xyz"),
    ("qx", "qy", "qz", "qw"): Rotation.from_quat,
}


def converted(
    values: Array, names: Sequence[str | None], convention: str, period: float
) -> dict[str, Array]:
    """Convert the actions of an episode.

    Of absolute poses the first is left out: what it is relative to, nobody recorded.

    Args:
        values: (T, c), a column for each name.
        names: What they are called; None leaves a column out.
        convention: One of `CONVENTIONS`; the mapping file says what they are.
        period: Of the control loop [s].

    Returns:
        Our columns, (T,) each, or (T - 1,) of absolute poses, in m and rad where they are an arm's.

    Raises:
        SchemaMismatch: The convention has no such names.
    """
    kept = [name for name in names if name is not None]
    if len(names) != values.shape[1] or not 0 < len(kept) == len(set(kept)):
        raise SchemaMismatch(
            "the action needs one name for each of its columns, all different",
            got=f"{len(names)}: {names}",
            expected=values.shape[1],
        )
    columns = {
        f"action_{i}" if convention == _ENVIRONMENT else name: values[:, i]
        for i, name in enumerate(names)
        if name is not None
    }
    return _steps(columns, convention, period) if convention in _OF_ARM else columns


def _steps(columns: dict[str, Array], convention: str, period: float) -> dict[str, Array]:
    absolute, factor = convention == _ABSOLUTE, period if convention == _RATES else 1.0
    found: dict[str, Array] = {}
    for name, column in columns.items():
        arm, slash, part = name.rpartition("/")
        parts = next((parts for parts in _TURNS if part in parts), ())
        turn = [f"{arm}{slash}{part}" for part in parts]
        if part in _POSITION:
            found[name] = np.diff(column) if absolute else column * factor
        elif part == GRIPPER_ACTION:  # in every convention it is told where to be
            found[name] = column[1:] if absolute else column
        elif not parts or not {*turn} <= {*columns} or (len(parts) == 4 and convention == _RATES):
            raise SchemaMismatch(
                f"an arm's action by the convention {convention!r} has no {name!r} alone",
                expected=f"{', '.join(_POSITION)}, {GRIPPER_ACTION}, and for a rotation all of"
                f" {' or of '.join(', '.join(parts) for parts in _TURNS)} (of no rates)",
                hint="rename it in action_names, or correct action_convention",
            )
        else:
            poses = np.stack([columns[part] for part in turn], axis=1)
            turns = _TURNS[parts](poses if len(parts) == 4 else poses * factor)
            vectors = (turns[1:] * turns[:-1].inv() if absolute else turns).as_rotvec()
            axes = (f"{arm}{slash}{axis}" for axis in _ROTATION)
            found |= dict(zip(axes, vectors.T, strict=True))
    return found
