"""Reader for foreign LeRobot datasets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from robot_rl.data.episode_files import damage, inside
from robot_rl.data.episodes import DatasetDamaged, DatasetError
from robot_rl.data.schema import DTYPES
from robot_rl.extras.importers.dataset import ALL, Episodes, ForeignDataset, ForeignEpisode, reason
from robot_rl.extras.lerobot import layout
from robot_rl.extras.lerobot.layout import INDEX_FEATURES, Feature, frame_rate
from robot_rl.extras.lerobot.lerobot_reader import LeRobotFrame, LeRobotFrames, read_information
from robot_rl.extras.lerobot.tables import read_lines

_VERSIONS = (layout.VERSION, "v2.1", "v2.0")
_OLD_TASKS_PATH = "meta/tasks.jsonl"
_TIMESTAMP, _TASK = INDEX_FEATURES[0], INDEX_FEATURES[-1]


def open_lerobot(path: Path) -> ForeignDataset:
    """Open a folder; raises `DatasetError`."""
    information = read_information(path, _VERSIONS)
    try:
        rate, described = float(information["fps"]), dict(information["features"])
        if not 0.0 < rate < math.inf:
            raise ValueError(rate)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DatasetDamaged(
            f"{path / layout.INFO_PATH}: 'fps' or 'features' cannot be read",
            got=repr(error),
            expected="steps per second, and a description of each column",
        ) from error
    features, unreadable = dict[str, Feature](), dict[str, str]()
    for key in described.keys() - {feature.key for feature in INDEX_FEATURES}:
        try:
            features[key] = feature_of(key, described[key])
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            unreadable[key] = f"its description in info.json cannot be used: {error!r}"
    every = LeRobotFrames(path, information, [*features.values()], frame_rate(rate))
    kind = f"LeRobot {information['codebase_version']}, robot {information.get('robot_type')}"
    notes = [reason(error) for error in every.damaged]
    if not every.records:
        raise DatasetError(
            f"there is no episode in {path}",
            got="; ".join([kind, *notes]),
            hint="copy or download the whole folder again",
        )
    for feature in (feature for feature in features.values() if feature.is_video):
        lost = [why for record in every.records if (why := _lost(every, record, feature))]
        if len(lost) == len(every.records):
            unreadable[feature.key] = lost[0]
        elif lost:
            notes.append(f"{feature.key}: {lost[0]}; {len(lost)} episodes lack it")
    instructions = _tasks(path, notes)

    def episodes(names: Collection[str], _: str) -> Episodes:
        chosen = [*INDEX_FEATURES, *(features[name] for name in names)]
        for frame in LeRobotFrames(path, information, chosen, frame_rate(rate)).episodes():
            number = frame.record["episode_index"]
            if _TIMESTAMP in frame.values:
                _check_rate(number, frame.values[_TIMESTAMP], rate)
            values = {feature.key: column for feature, column in frame.values.items()}
            yield ForeignEpisode(
                f"episode {number}",
                {name: values[name] for name in names if name in values},
                {f.key: reason(why) for f, why in frame.damaged.items() if f.key in names},
                _instruction(instructions, frame),
            )

    return ForeignDataset(
        kind,
        {ALL: len(every.records)},
        {k: features[k].names or () for k in described if k in features and k not in unreadable},
        episodes,
        rate,
        unreadable=unreadable,
        notes=notes,
    )


def feature_of(key: str, declared: Mapping[str, Any]) -> Feature:
    """Make the feature of an entry in `meta/info.json`; the shape of images is left open.

    Raises ValueError, TypeError, AttributeError or OverflowError for an unusable entry.
    """
    dtype = str(declared.get("dtype")).lower()
    if dtype in (layout.VIDEO, layout.IMAGE):
        return Feature(key, dtype, ())
    shape = declared.get("shape")
    sizes = (-1,) if shape is None else tuple(int(size) for size in np.ravel(shape))
    if shape is not None and min(sizes, default=1) < 1:
        raise ValueError(f"shape {shape}")
    names = _names(declared.get("names"))
    fits = len(names) == len({*names}) and len(names) == math.prod(sizes)
    return Feature(key, dtype if dtype in DTYPES else "", sizes, tuple(names) if fits else None)


def _names(declared: Any) -> list[str]:
    """Names of the numbers, flat: from lists, lists by name, or indices by name."""
    if isinstance(declared, str):
        return [declared]
    if isinstance(declared, list):
        return [name for item in declared for name in _names(item)]
    if not isinstance(declared, dict):
        return []
    if all(isinstance(place, int) for place in declared.values()):
        return sorted(declared, key=lambda name: int(declared[name]))
    if len(declared) == 1:  # {"motors": [...]}
        return _names(next(iter(declared.values())))
    return [f"{group}/{name}" for group, inner in declared.items() for name in _names(inner)]


def _lost(frames: LeRobotFrames, record: Mapping[str, Any], feature: Feature) -> str | None:
    """Return why an episode's images cannot be read, as far as known without reading them."""
    try:
        file, _ = frames.video_file(record, feature)
    except DatasetDamaged as error:
        return reason(error)
    return None if file.is_file() else f"there is no file {file.relative_to(frames.path)}"


def _check_rate(number: int, timestamps: np.ndarray[Any, Any], rate: float) -> None:
    steps = np.diff(timestamps[:, 0].astype(np.float64))
    if not (np.abs(steps * rate - 1.0) <= 0.5).all():
        raise DatasetDamaged(
            f"episode {number} is not at the rate that info.json says",
            got=f"steps of {steps.min():g} to {steps.max():g} s",
            expected=f"{1.0 / rate:g} s",
            hint="correct 'fps' in meta/info.json",
        )


def _tasks(path: Path, notes: list[str]) -> dict[int, str]:
    """Read the instructions by number, from the file of either version."""
    try:
        new, old = (inside(path, name) for name in (layout.TASKS_PATH, _OLD_TASKS_PATH))
        if not new.is_file():
            with damage(old):
                lines = [line for line in read_lines(old) if not isinstance(line, DatasetDamaged)]
                return {int(line["task_index"]): str(line["task"]) for line in lines}
        with damage(new):
            table = parquet.read_table(new)
            # Pandas writes the texts as its index, under a name that depends on its version.
            (text,) = (name for name in table.column_names if name != _TASK.key)
            pairs = zip(table[_TASK.key].to_pylist(), table[text].to_pylist(), strict=True)
            return {int(number): str(task) for number, task in pairs}
    except DatasetDamaged as error:
        notes.append(f"instructions may be missing: {reason(error)}")
        return {}


def _instruction(tasks: Mapping[int, str], frame: LeRobotFrame) -> str:
    texts = frame.record["tasks"]
    if texts:
        return texts if isinstance(texts, str) else str(texts[0])
    numbered = frame.values.get(_TASK)
    return "" if numbered is None else tasks.get(int(numbered[0, 0]), "")
