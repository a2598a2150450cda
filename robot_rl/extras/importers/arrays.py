"""Episodes in arrays, such as NumPy's `.npz`: one group or file per episode, or concatenated."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.episode_files import damage, inside
from robot_rl.data.episodes import DatasetDamaged, DatasetError
from robot_rl.data.schema import Array
from robot_rl.extras.importers.dataset import (
    ALL,
    Episodes,
    ForeignDataset,
    ForeignEpisode,
    read_columns,
    reason,
)

# Columns that mark where episodes end: rows before each end, an episode number for each row, or
# flags, any of which is true at the end. Terminations alone miss episodes that were cut short.
ENDS, _NUMBERS = "episode_ends", ("episode_index", "episode_id", "episode")
_TERMINATIONS = ("terminals", "terminations", "terminated")
_FLAGS = (*_TERMINATIONS, "timeouts", "truncations", "truncated", "dones", "done")
_NEXT = "next_"  # robomimic, D4RL: the observation after the action of the same row
_ABSENT = "it is not there"
_NPZ_HINT = "copy it again, or write arrays without Python objects"


@dataclass(frozen=True)
class Arrays:
    """The arrays of a group or file by name, and why others in it cannot be read."""

    name: str  # of the group or file
    found: Mapping[str, Any]
    unreadable: Mapping[str, str]

    @property
    def steps(self) -> int:
        """Number of actions; without actions, the most common length of the arrays."""
        lengths = [array.shape[0] for name, array in self.found.items() if name != ENDS]
        named = [self.found[name].shape[0] for name in ("actions", "action") if name in self.found]
        return named[0] if named else max(lengths, key=lengths.count, default=0)


@dataclass(frozen=True)
class Part:
    """The rows of one episode in arrays."""

    name: str
    arrays: Arrays
    start: int
    stop: int

    @property
    def is_alone(self) -> bool:
        """Whether the arrays hold only this episode: observations may then be one longer."""
        return self.stop - self.start == self.arrays.steps

    def problem(self, name: str) -> str | None:
        """Return why a column cannot be read, judging by its dtype and shape."""
        if name not in self.arrays.found:
            return self.arrays.unreadable.get(name, _ABSENT)
        array, steps = self.arrays.found[name], self.arrays.steps
        if array.dtype.kind not in "biuf":
            return f"it holds no numbers, but {array.dtype}"
        if not 0 <= array.shape[0] - steps <= self.is_alone or 0 in array.shape[1:]:
            return f"its shape is {array.shape}, for {steps} steps"
        return None

    def column(self, name: str) -> Array:
        """Read a column, or raise `DatasetDamaged`."""
        if problem := self.problem(name):
            raise DatasetDamaged(problem)
        arrays = self.arrays.found
        with damage(f"{name!r} of {self.name}"):
            stop = None if self.is_alone else self.stop
            column: Array = np.asarray(arrays[name][self.start : stop])
            if len(column) == self.stop - self.start and self.problem(_NEXT + name) is None:
                following = arrays[_NEXT + name][self.stop - 1 : self.stop]
                column = np.concatenate([column, following])
            return column


def whole_parts(found: Sequence[Arrays], notes: list[str]) -> dict[str, Part]:
    """Make each group or file an episode; empty ones become notes."""
    for arrays in found:
        if not arrays.steps:
            why = "; ".join(sorted({*arrays.unreadable.values()})) or "it has no steps"
            notes.append(f"{arrays.name} is left out: {why}")
    return {a.name: Part(a.name, a, 0, a.steps) for a in found if a.steps}


def dataset_of(
    path: Path,
    kind: str,
    choices: Mapping[str, Sequence[Part]],
    notes: list[str],
    answers: Mapping[str, Any],
    rate: float | None = None,
) -> ForeignDataset:
    """Describe the dataset of a file or folder, with its choices of episodes.

    Raises:
        DatasetError: There is no episode, or no column can be read.
    """
    counts = {choice: len(parts) for choice, parts in choices.items() if parts}
    if not counts:
        raise DatasetError(
            f"there is no episode in {path}",
            got="; ".join([kind, *notes]),
            hint="look into the file: it may be empty, cut short, or of another layout",
        )
    parts = choices[next(iter(counts))]
    each = {id(part.arrays): part.arrays for part in parts}.values()
    known = dict.fromkeys(n for arrays in each for n in (*arrays.found, *arrays.unreadable))
    columns, unreadable = dict[str, tuple[str, ...]](), dict[str, str]()
    for name in known:
        if name.rpartition("/")[2].startswith(_NEXT) and name.replace(_NEXT, "", 1) in known:
            continue
        problems = [part.problem(name) for part in parts]
        if None in problems:
            columns[name] = ()
        else:
            unreadable[name] = next((p for p in problems if p != _ABSENT), None) or _ABSENT
    if not columns:
        raise _nothing_readable(path, unreadable)

    def episodes(names: Collection[str], choice: str) -> Episodes:
        for part in choices[choice]:
            yield ForeignEpisode(part.name, *read_columns(names, part.column))

    return ForeignDataset(
        kind, counts, columns, episodes, rate, answers, unreadable=unreadable, notes=tuple(notes)
    )


def flat_dataset(path: Path, kind: str, arrays: Arrays, notes: list[str]) -> ForeignDataset:
    """Split concatenated arrays at episode ends; flags may leave the last episode open.

    Raises:
        DatasetError: No column marks where episodes end, or there is no episode.
    """
    if arrays.unreadable and not arrays.steps:
        raise _nothing_readable(path, arrays.unreadable)
    steps, by, ends = arrays.steps, "", list[int]()
    number = next((name for name in _NUMBERS if name in arrays.found), "")
    flags = [name for name in _FLAGS if name in arrays.found]
    where = damage(f"{path}: what says where its episodes end")
    with where, np.errstate(invalid="ignore"):  # a NaN end comes out below 0
        if ENDS in arrays.found:
            by, ends = ENDS, np.ravel(arrays.found[ENDS]).astype(np.int64).tolist()
        elif number:
            column = np.ravel(arrays.found[number])
            by, ends = number, [*(np.flatnonzero(column[1:] != column[:-1]) + 1), len(column)]
        elif flags:
            ended = np.any([np.ravel(arrays.found[name]) != 0 for name in flags], axis=0)
            by, ends = " or ".join(flags), (np.flatnonzero(ended) + 1).tolist()
    edges = sorted({0, *ends, steps})
    wrong = ends != sorted(ends) or edges[0] < 0 or edges[-1] > steps
    if not ends or wrong or (by == ENDS and ends[-1] < steps):
        damaged = [f"{n}: {why}" for n, why in arrays.unreadable.items() if n in (ENDS, *_FLAGS)]
        got = f"{by} with the last ends {ends[-3:]}" if ends else ""
        got = got or f"no end in {by or [*arrays.found, *arrays.unreadable]}"
        raise DatasetError(
            f"nothing in {path} says where each episode of its {steps} steps ends",
            got="; ".join([got, *damaged]),
            expected=f"one of {', '.join((ENDS, *_NUMBERS, *_FLAGS))}",
            hint="add one, or write a folder with one file an episode",
        )
    least = 1 if by in (ENDS, number) else 2  # flags may stay true after an end
    pairs = [(i, j) for i, j in itertools.pairwise(edges) if j - i >= least]
    if short := len(edges) - 1 - len(pairs):
        kind += f", without {short} episodes of a single step by {by}"
    certain = by == ENDS or number or not {*flags} <= {*_TERMINATIONS}
    known = {name: array for name, array in arrays.found.items() if name != ENDS}
    kept = Arrays(arrays.name, known, arrays.unreadable)
    parts = [Part(f"episode {n}", kept, i, j) for n, (i, j) in enumerate(pairs)]
    return dataset_of(path, kind, {by: parts}, notes, {"episodes": by} if certain else {})


def open_npz(path: Path) -> ForeignDataset:
    """Open a file with the steps of all episodes, or a folder with one file per episode.

    Raises:
        DatasetError: It cannot be read, or no column marks where episodes end.
    """
    notes: list[str] = []
    if path.is_file():
        return flat_dataset(path, "NumPy", _read_npz(path), notes)
    found = []
    files = [inside(path, file) for file in path.glob("*.npz")]
    for file in sorted(files, key=lambda file: (len(file.name), file.name)):  # 9 before 10
        try:
            found.append(_read_npz(file))
        except DatasetDamaged as error:
            notes.append(f"{file.name} is left out: {reason(error)}")
    return dataset_of(path, "NumPy", {ALL: [*whole_parts(found, notes).values()]}, notes, {})


def _read_npz(file: Path) -> Arrays:
    def read(name: str) -> Any:
        with damage("it", hint=_NPZ_HINT):
            return opened[name]

    with damage(file, hint=_NPZ_HINT), np.load(file, allow_pickle=False) as opened:
        arrays, unreadable = read_columns(opened.files, read)
    return Arrays(file.name, {n: a for n, a in arrays.items() if np.ndim(a)}, unreadable)


def _nothing_readable(path: Path, unreadable: Mapping[str, str]) -> DatasetDamaged:
    return DatasetDamaged(
        f"no column of {path} can be read",
        got="; ".join(f"{name}: {why}" for name, why in unreadable.items())[:500],
        hint="write arrays of numbers, without Python objects, of one row a step",
    )
