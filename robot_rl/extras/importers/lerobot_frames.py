"""LeRobot's datasets, whoever recorded them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
    tasks = partial(_instruction, _tasks(path, notes))

    def episodes(names: Collection[str], _: str) -> Episodes:
        wanted = [*INDEX_FEATURES, *(features[name] for name in names)]
        for frame in LeRobotFrames(path, information, wanted, frame_rate(rate)).episodes():
            number = frame.record["episode_index"]
            if _TIMESTAMP in frame.values:
                _check_rate(number, frame.values[_TIMESTAMP], rate)
            values = {feature.key: column for feature, column in frame.values.items()}
            yield ForeignEpisode(
                f"episode {number}",
                {name: values[name] for name in names if name in values},
                {f.key: reason(why) for f, why in frame.damaged.items() if f.key in names},
                tasks(frame),
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


def feature_of(key: str, told: Mapping[str, Any]) -> Feature:
    """A feature by its entry in `meta/info.json`; pictures say their shape themselves.

    ValueError, TypeError, AttributeError or OverflowError where the entry cannot be used.
    """
    dtype = str(told.get("dtype")).lower()
    if dtype in (layout.VIDEO, layout.IMAGE):
        return Feature(key, dtype, ())
    shape = told.get("shape")
    sizes = (-1,) if shape is None else tuple(int(size) for size in np.ravel(shape))
    if shape is not None and min(sizes, default=1) < 1:
        raise ValueError(f"shape {shape}")
    names = _names(told.get("names"))
    fits = len(names) == len({*names}) and len(names) == math.prod(sizes)
    return Feature(key, dtype if dtype in DTYPES else "", sizes, tuple(names) if fits else None)


def _names(told: Any) -> list[str]:
    """The names of numbers, flat: of lists, of lists by name, or of places by name."""
    if isinstance(told, str):
        return [told]
    if isinstance(told, list):
        return [name for item in told for name in _names(item)]
    if not isinstance(told, dict):
        return []
    if all(isinstance(place, int) for place in told.values()):
        return sorted(told, key=lambda name: int(told[name]))
    if len(told) == 1:  # {"motors": [...]}
        return _names(next(iter(told.values())))
    return [f"{group}/{name}" for group, inner in told.items() for name in _names(inner)]


def _lost(frames: LeRobotFrames, record: Mapping[str, Any], feature: Feature) -> str | None:
    """Why the pictures of an episode cannot be read, as far as it shows without reading them."""
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
    """What the robot was told to do, by number, from either version's file."""
    try:
        new, old = (inside(path, name) for name in (layout.TASKS_PATH, _OLD_TASKS_PATH))
        if new.is_file():
            return _task_table(new)
        with damage(old):
            lines = [line for line in read_lines(old) if not isinstance(line, DatasetDamaged)]
            return {int(line["task_index"]): str(line["task"]) for line in lines}
    except DatasetDamaged as error:
        notes.append(f"instructions may be missing: {reason(error)}")
        return {}


def _task_table(file: Path) -> dict[int, str]:
    from pyarrow import parquet

    with damage(file):
        names = parquet.read_schema(file).names
        # Pandas writes the texts as its index, under a name that depends on its version.
        (text,) = (name for name in names if name != _TASK.key)
        texts = parquet.read_table(file, columns=[_TASK.key, text]).to_pydict()
        pairs = zip(texts[_TASK.key], texts[text], strict=True)
        return {int(number): str(task) for number, task in pairs}


def _instruction(tasks: Mapping[int, str], frame: LeRobotFrame) -> str:
    told = frame.record["tasks"]
    if isinstance(told, str):
        return told
    if told:
        return str(told[0])
    numbered = frame.values.get(_TASK)
    return "" if numbered is None else tasks.get(int(numbered[0, 0]), "")
