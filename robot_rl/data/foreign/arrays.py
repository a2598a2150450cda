"""Episodes that are arrays: HDF5 of robomimic, Minari and D4RL, and NumPy's `.npz`.

Follows robomimic 0.3 (`data/demo_0/obs/NAME`), Minari 0.5 in HDF5 (`episode_0/observations`), and
D4RL, which has the steps of all episodes one after the other, as a single `.npz` has.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from policies.errors import require
from robot_rl.data.episodes import DatasetDamaged, DatasetError
from robot_rl.data.foreign import ForeignDataset
from robot_rl.data.schema import Array

# What says where episodes end that lie one after the other: rows before each end, a number for
# each row, or flags of which any is true at the end.
_ENDS, _NUMBERS = "episode_ends", ("episode_index", "episode_id", "episode")
_FLAGS = (
    *("terminals", "timeouts", "terminations", "truncations", "terminated", "truncated"),
    *("dones", "done"),
)
_NEXT = "next_"  # robomimic, D4RL: what was seen after the action of the same row
_HINT = "restore it from a copy, or write arrays without Python objects"

# Arrays or HDF5 datasets by name, and the rows of an episode in them.
_Arrays = Mapping[str, Any]
_Part = tuple[_Arrays, int, int]


def open_hdf5(path: Path) -> ForeignDataset:
    """Open an HDF5 file of robomimic, Minari or D4RL.

    Raises:
        DatasetError: It cannot be read, or holds nothing of the kind.
    """
    with _read_errors(path):
        file: Any = require("h5py", "hdf5").File(path, "r")
        if "data" in file:
            told = json.loads(file["data"].attrs.get("env_args", "{}"))
            rate = (told.get("env_kwargs") or {}).get("control_freq")
            kind = f"robomimic, environment {told.get('env_name')}"
            return _dataset(path, kind, _groups(file["data"]), rate)
        if "episode_0" in file:
            return _dataset(path, "Minari", _groups(file), None, _minari_answers(path))
        return _dataset(path, "D4RL", _cut(path, _flat(file)))


def open_npz(path: Path, files: Sequence[Path]) -> ForeignDataset:
    """Open a `.npz` with all episodes, or a folder with one an episode.

    Args:
        path: The file or the folder.
        files: The files.

    Raises:
        DatasetError: One cannot be read, or nothing says where an episode ends.
    """
    arrays = []
    for file in sorted(files, key=lambda file: _natural(file.name)):
        with _read_errors(file), np.load(file, allow_pickle=False) as opened:
            arrays.append({name: opened[name] for name in opened.files if opened[name].ndim})
    parts = _cut(path, arrays[0]) if path.is_file() else [(a, 0, _steps(a)) for a in arrays]
    return _dataset(path, "NumPy", parts)


def _dataset(
    path: Path,
    kind: str,
    parts: Sequence[_Part],
    rate: float | None = None,
    answers: Mapping[str, Any] | None = None,
) -> ForeignDataset:
    if not parts:
        raise DatasetError(f"there is no episode in {path}", expected="at least one")
    arrays, start, stop = parts[0]
    alone = stop - start == _steps(arrays)
    names = [
        name
        for name, array in arrays.items()
        if array.dtype.kind in "biuf"
        and 0 <= len(array) - _steps(arrays) <= alone
        and not (name.startswith(_NEXT) and name.removeprefix(_NEXT) in arrays)
    ]

    def episodes(wanted: Collection[str]) -> Iterator[tuple[Mapping[str, Array], str]]:
        for number, part in enumerate(parts):
            with _read_errors(path, f"episode {number} of "):
                values = {name: _column(part, name) for name in wanted}
            yield values, ""

    return ForeignDataset(kind, len(parts), dict.fromkeys(names, ()), episodes, rate, answers or {})


def _column(part: _Part, name: str) -> Array:
    arrays, start, stop = part
    alone = stop - start == _steps(arrays)  # the observations may then be one longer
    column: Array = np.asarray(arrays[name][start : None if alone else stop])
    if len(column) == stop - start and _NEXT + name in arrays:
        column = np.concatenate([column, arrays[_NEXT + name][stop - 1 : stop]])
    return column


def _flat(group: Any) -> _Arrays:
    """All datasets below a group, but for single values, as `obs/NAME`."""
    found: dict[str, Any] = {}
    group.visititems(lambda name, it: found.update({name: it} if getattr(it, "shape", ()) else {}))
    return found


def _groups(parent: Any) -> list[_Part]:
    """One episode a group, in the order of the numbers in their names."""
    found = [_flat(parent[name]) for name in sorted(parent, key=_natural)]
    return [(arrays, 0, _steps(arrays)) for arrays in found if arrays]


def _cut(path: Path, arrays: _Arrays) -> list[_Part]:
    """Cut arrays of all episodes where one ends; what comes after the last end is one too."""
    steps = _steps(arrays)
    told = (_ENDS, *_NUMBERS, *_FLAGS)
    columns = {name: np.ravel(arrays[name]) for name in told if name in arrays}
    numbers = [columns[name] for name in _NUMBERS if name in columns]
    if _ENDS in columns:
        ends = columns[_ENDS].tolist()
    elif columns:
        changes = np.diff(numbers[0], append=np.nan) if numbers else sum(columns.values())
        ends = (np.flatnonzero(changes) + 1).tolist()
    else:
        raise DatasetError(
            f"nothing in {path} says where an episode ends",
            got=", ".join(arrays) or "no array",
            expected=f"one of {', '.join(told)}",
            hint="add one, or write a folder with one file an episode",
        )
    edges = sorted({0, *ends, steps})
    if edges[-1] > steps or ends != sorted(ends):
        raise DatasetDamaged(
            f"the ends of the episodes in {path} are out of order, or behind the {steps} steps",
            got=ends[-3:],
        )
    return [(arrays, start, stop) for start, stop in itertools.pairwise(edges)]


def _steps(arrays: _Arrays) -> int:
    """Number of actions in arrays, or else what most of them have."""
    lengths = [len(array) for array in arrays.values()]
    named = [len(arrays[name]) for name in ("actions", "action") if name in arrays]
    return named[0] if named else max(lengths, key=lengths.count, default=0)


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _minari_answers(path: Path) -> dict[str, Any]:
    """What Minari says beside the episodes."""
    file = path.with_name("metadata.json")
    told = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    spec, space = (json.loads(told.get(key) or "{}") for key in ("env_spec", "action_space"))
    answers = {"task": spec.get("id")}
    if space.get("type") == "Box":
        low, high = (np.ravel(space[key]).tolist() for key in ("low", "high"))
        answers |= {"action_low": low, "action_high": high, "action_convention": "environment"}
    return {key: answer for key, answer in answers.items() if answer is not None}


@contextmanager
def _read_errors(path: Path, part: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetDamaged(f"{part}{path} cannot be read", got=repr(error), hint=_HINT) from error
