"""LeRobot datasets that anybody recorded: v3.0 as of release 0.4.4, v2.1 as of 0.3.3."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import lerobot as layout
from robot_rl.data.episodes import DatasetDamaged
from robot_rl.data.foreign import ALL, Episodes, ForeignDataset
from robot_rl.data.lerobot import INDEX_FEATURES, Feature
from robot_rl.data.lerobot.reader import LeRobotFrames, read_information
from robot_rl.data.schema import DTYPES

_PICTURES = (layout.VIDEO, layout.IMAGE)


def open_lerobot(path: Path) -> ForeignDataset:
    """Open the folder of a LeRobot dataset.

    Raises:
        DatasetError: Another version of the layout, or a file that cannot be read.
    """
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
        exact = Fraction(rate).limit_denominator(layout.LARGEST_DENOMINATOR)
        return LeRobotFrames(path, information, wanted, exact, ["tasks"])

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

    return ForeignDataset(
        f"LeRobot {information['codebase_version']}, robot {information.get('robot_type')}",
        {ALL: len(frames(()).records)},
        {key: feature.names or () for key, feature in features.items()},
        episodes,
        rate,
    )


def _feature(key: str, told: Mapping[str, Any]) -> Feature:
    shape, names, dtype = tuple(map(int, told["shape"])), told.get("names"), str(told["dtype"])
    if dtype in _PICTURES and names and str(names[0]).startswith("channel"):
        shape = (*shape[1:], shape[0])  # some are described so; all are stored rows first
    if isinstance(names, dict):  # {"motors": [...]}
        names = next(iter(names.values()), None)
    return Feature(key, dtype, shape, tuple(map(str, names)) if isinstance(names, list) else None)
