"""Demonstrations that others recorded: a reader a format, and one mapping to rows.

Reads HDF5 of robomimic 0.3 (`data/demo_0/obs/NAME`, filter keys in `mask`), of Minari 0.5
(`episode_0/observations`) and of D4RL, NumPy's `.npz`, MCAP of ROS 2 topics, and LeRobot: v3.0 as
of release 0.4.4, v2.1 as of 0.3.3. D4RL, and a single `.npz`, have the steps of all episodes one
after the other. The readers give columns as they are. What these mean, a person says in a mapping
file (`mapping`), and `mapped` makes rows by it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from robot_rl.data import lerobot as layout
from robot_rl.data._episode_files import RESTORE, damage
from robot_rl.data.episodes import DatasetDamaged, DatasetError, NotADataset
from robot_rl.data.lerobot import INDEX_FEATURES, Feature
from robot_rl.data.schema import DTYPES, Array
from robot_rl.errors import require

ALL = "all"
Episodes = Iterator[tuple[Mapping[str, Array], str]]

# What says where episodes end that lie one after the other: rows before each end, a number for
# each row, or flags of which any is true at the end. Terminations alone miss episodes cut short.
_ENDS, _NUMBERS = "episode_ends", ("episode_index", "episode_id", "episode")
_TERMINATIONS = ("terminals", "terminations", "terminated")
_FLAGS = (*_TERMINATIONS, "timeouts", "truncations", "truncated", "dones", "done")
_NEXT = "next_"  # robomimic, D4RL: what was seen after the action of the same row

_HINT = f"{RESTORE}, or write arrays without Python objects"
_damage = partial(damage, also=(BadZipFile,), hint=_HINT)
_PICTURES = (layout.VIDEO, layout.IMAGE)
# Arrays or HDF5 datasets by name, and the rows of an episode in them.
_Arrays = Mapping[str, Any]
_Part = tuple[_Arrays, int, int]


@dataclass(frozen=True)
class ForeignDataset:
    """A dataset of others."""

    kind: str  # the format, in words, and what else it says of itself
    # The choices of episodes that the mapping file has, and how many each takes.
    counts: Mapping[str, int]
    # What the numbers of each column are called, () where they have no names.
    columns: Mapping[str, tuple[str, ...]]
    # Given names of columns and a choice, yields the columns of each episode, with what the robot
    # was told to do. They are (T, ...), or (T + 1, ...) with what followed the last action. It
    # raises `DatasetDamaged`.
    episodes: Callable[[Collection[str], str], Episodes]
    rate: float | None = None  # steps per second [Hz]; None where nothing says it
    # Values that the metadata gives to keys of the mapping file.
    answers: Mapping[str, Any] = field(default_factory=dict)
    # Observations, and the columns that these are for certain.
    observed: Mapping[str, str] = field(default_factory=dict)


def open_foreign(path: Path) -> ForeignDataset:
    """Open a LeRobot or Minari folder, one with an `.npz` an episode or with MCAP, or a file.

    Raises:
        MissingExtra: The package that reads the format is not installed.
        DatasetError: It is none, or cannot be read.
    """
    if (path / layout.INFO_PATH).is_file():
        layout.require_packages()
        return _open_lerobot(path)
    minari = path / "data" / "main_data.hdf5"
    if minari.is_file() or path.suffix in (".hdf5", ".h5"):
        return _open_hdf5(minari if minari.is_file() else path)
    if path.suffix == ".npz" or any(path.glob("*.npz")):
        return _open_npz(path)
    if path.suffix == ".mcap" or any(path.glob("*.mcap")):
        return _open_mcap(path)
    raise NotADataset(
        f"{path} is no dataset that can be imported",
        expected="an episode or LeRobot dataset, .hdf5 (robomimic, Minari, D4RL), .npz or .mcap",
        hint="give the folder that `robot-rl export` or LeRobot wrote, or the file",
    )


def _open_hdf5(path: Path) -> ForeignDataset:
    h5py = require("h5py", "hdf5")
    with _damage(path):
        file: Any = h5py.File(path, "r")
        if "data" in file:
            told = json.loads(file["data"].attrs.get("env_args", "{}"))
            rate = (told.get("env_kwargs") or {}).get("control_freq")
            groups = _groups(file["data"])
            filters = {
                key: [groups[name] for name in names.asstr()[:]]
                for key, names in file.get("mask", {}).items()
            }
            kind = f"robomimic, environment {told.get('env_name')}"
            return _dataset(path, kind, {ALL: [*groups.values()], **filters}, {}, rate)
        if "episode_0" in file:
            whole = {ALL: [*_groups(file).values()]}
            return _dataset(path, "Minari", whole, _minari_answers(path))
        return _flat_dataset(path, "D4RL", _arrays(file))


def _open_npz(path: Path) -> ForeignDataset:
    arrays: dict[str, _Arrays] = {}
    files = path.glob("*.npz") if path.is_dir() else [path]
    for file in sorted(files, key=lambda file: (len(file.name), file.name)):  # 9 before 10
        with _damage(file), np.load(file, allow_pickle=False) as opened:
            arrays[file.name] = {n: it for n in opened.files if (it := opened[n]).ndim}
    if path.is_file():
        return _flat_dataset(path, "NumPy", arrays[path.name])
    return _dataset(path, "NumPy", {ALL: [*_whole(arrays).values()]}, {})


def _dataset(
    path: Path,
    kind: str,
    choices: Mapping[str, Sequence[_Part]],
    answers: Mapping[str, Any],
    rate: float | None = None,
) -> ForeignDataset:
    counts = {choice: len(parts) for choice, parts in choices.items() if parts}
    if not counts:
        raise DatasetError(f"there is no episode in {path}", got=kind)
    arrays, start, stop = choices[next(iter(counts))][0]
    alone = stop - start == _steps(arrays)
    names = [
        name
        for name, array in arrays.items()
        if array.dtype.kind in "biuf"
        and 0 <= len(array) - _steps(arrays) <= alone
        and not (name.startswith(_NEXT) and name.removeprefix(_NEXT) in arrays)
    ]

    def episodes(wanted: Collection[str], choice: str) -> Episodes:
        for number, part in enumerate(choices[choice]):
            with _damage(f"episode {number} of {path}"):
                values = {name: _column(part, name) for name in wanted}
            yield values, ""

    return ForeignDataset(kind, counts, dict.fromkeys(names, ()), episodes, rate, answers)


def _column(part: _Part, name: str) -> Array:
    arrays, start, stop = part
    alone = stop - start == _steps(arrays)  # the observations may then be one longer
    column: Array = np.asarray(arrays[name][start : None if alone else stop])
    if len(column) == stop - start and _NEXT + name in arrays:
        column = np.concatenate([column, arrays[_NEXT + name][stop - 1 : stop]])
    return column


def _arrays(group: Any) -> _Arrays:
    """All datasets below a group, but for single values, as `obs/NAME`."""
    found: dict[str, Any] = {}
    group.visititems(lambda name, it: found.update({name: it} if getattr(it, "shape", ()) else {}))
    return found


def _groups(parent: Any) -> dict[str, _Part]:
    """One episode a group, in the order of the numbers in their names."""
    names = sorted(parent, key=lambda name: (len(name), name))
    return _whole({name: _arrays(parent[name]) for name in names})


def _whole(named: Mapping[str, _Arrays]) -> dict[str, _Part]:
    """One episode each, but for what has no step."""
    return {name: (arrays, 0, _steps(arrays)) for name, arrays in named.items() if _steps(arrays)}


def _flat_dataset(path: Path, kind: str, arrays: _Arrays) -> ForeignDataset:
    """Cut arrays of all episodes where one ends; flags may leave the last one open."""
    steps = _steps(arrays)
    number = next((name for name in _NUMBERS if name in arrays), "")
    flags = [name for name in _FLAGS if name in arrays]
    if _ENDS in arrays:
        by, ends = _ENDS, np.ravel(arrays[_ENDS]).tolist()
    elif number:
        column = np.ravel(arrays[number])
        by, ends = number, [*(np.flatnonzero(column[1:] != column[:-1]) + 1), len(column)]
    else:
        ended = sum(np.ravel(arrays[name]) for name in flags)
        by, ends = " or ".join(flags), (np.flatnonzero(ended) + 1).tolist()
    edges = sorted({0, *ends, steps})
    wrong = ends != sorted(ends) or edges[0] < 0 or edges[-1] > steps
    if not ends or wrong or (by == _ENDS and ends[-1] < steps):
        raise DatasetError(
            f"nothing in {path} says where each episode of its {steps} steps ends",
            got=f"{by} with the last ends {ends[-3:]}" if ends else f"no end in {by or [*arrays]}",
            expected=f"one of {', '.join((_ENDS, *_NUMBERS, *_FLAGS))}",
            hint="add one, or write a folder with one file an episode",
        )
    least = 1 if by in (_ENDS, number) else 2  # flags may stay true after an end
    parts = [(arrays, i, j) for i, j in itertools.pairwise(edges) if j - i >= least]
    if short := len(edges) - 1 - len(parts):
        kind += f", without {short} episodes of a single step by {by}"
    certain = by == _ENDS or number or not {*flags} <= {*_TERMINATIONS}
    return _dataset(path, kind, {by: parts}, {"episodes": by} if certain else {})


def _steps(arrays: _Arrays) -> int:
    """Number of actions in arrays, or else what most of them have."""
    lengths = [len(array) for array in arrays.values()]
    named = [len(arrays[name]) for name in ("actions", "action") if name in arrays]
    return named[0] if named else max(lengths, key=lengths.count, default=0)


def _minari_answers(path: Path) -> dict[str, Any]:
    file = path.with_name("metadata.json")
    told = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    spec, space = (json.loads(told.get(key) or "{}") for key in ("env_spec", "action_space"))
    answers = {"task": spec.get("id")}
    if space.get("type") == "Box":
        low, high = (np.ravel(space[key]).tolist() for key in ("low", "high"))
        answers |= {"action_low": low, "action_high": high, "action_convention": "environment"}
    return {key: answer for key, answer in answers.items() if answer is not None}


def _open_mcap(path: Path) -> ForeignDataset:
    from robot_rl.data.foreign.mcap import Recording

    recording = Recording(path)

    def episodes(names: Collection[str], _: str) -> Episodes:
        return ((columns, "") for columns in recording.episodes(names))

    kind, answers = "MCAP", {"control_rate_hz": recording.rate, "action": recording.acting}
    if recording.left_out:
        kind += f", without {recording.left_out} episodes of which actions were lost"
    if recording.ours:
        own = {"action_convention": "joint", "action_low": -1.0, "action_high": 1.0}
        answers |= own | {"reward": "success", "terminated": "terminated", "success": "success"}
    else:
        answers["action_convention"] = "absolute"
    counts = {ALL: len(recording)}
    return ForeignDataset(
        kind, counts, recording.columns, episodes, None, answers, recording.observed
    )


def _open_lerobot(path: Path) -> ForeignDataset:
    from robot_rl.data.lerobot.reader import LeRobotFrames, read_information

    information = read_information(path, (layout.VERSION, "v2.1"))
    own = {feature.key for feature in INDEX_FEATURES}
    try:
        rate = float(information["fps"])
        found = [_feature(*item) for item in information["features"].items() if item[0] not in own]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetDamaged(
            f"{path / layout.INFO_PATH}: 'fps' or 'features' cannot be read", got=repr(error)
        ) from error
    features = {f.key: f for f in found if f.dtype in DTYPES or f.dtype in _PICTURES}

    def frames(names: Collection[str]) -> LeRobotFrames:
        wanted = [*INDEX_FEATURES, *(features[name] for name in names)]
        return LeRobotFrames(path, information, wanted, layout.frame_rate(rate), ["tasks"])

    def episodes(names: Collection[str], _: str) -> Episodes:
        for record, given in frames(names).episodes():
            values = {feature.key: column for feature, column in given.items()}
            steps = np.diff(values["timestamp"][:, 0].astype(np.float64))
            if (np.abs(steps * rate - 1.0) > 0.5).any():
                raise DatasetDamaged(
                    f"episode {record['episode_index']} is not at the rate that info.json says",
                    got=f"steps of {steps.min():g} to {steps.max():g} s",
                    expected=f"{1.0 / rate:g} s",
                )
            told = record["tasks"] or [""]
            yield {name: values[name] for name in names}, str(told[0])

    kind = f"LeRobot {information['codebase_version']}, robot {information.get('robot_type')}"
    count = len(frames(()).records)
    if not count:
        raise DatasetError(f"there is no episode in {path}", got=kind)
    return ForeignDataset(
        kind,
        {ALL: count},
        {key: feature.names or () for key, feature in features.items()},
        episodes,
        rate,
    )


def _feature(key: str, told: Mapping[str, Any]) -> Feature:
    shape, names, dtype = tuple(map(int, told["shape"])), told.get("names"), str(told["dtype"])
    if dtype in _PICTURES:
        if names and str(names[0]).startswith("channel"):
            shape = (*shape[1:], shape[0])  # some are described so; all are stored rows first
        names = None  # those of the axes
    if isinstance(names, dict):  # {"motors": [...]}
        names = next(iter(names.values()), None)
    return Feature(key, dtype, shape, tuple(map(str, names)) if isinstance(names, list) else None)
