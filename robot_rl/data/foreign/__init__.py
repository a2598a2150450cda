"""Demonstrations that others recorded: a reader a format, and one mapping to rows.

LeRobot (v3.0, v2.1) is read by `lerobot`; HDF5 of robomimic, Minari and D4RL, and NumPy's `.npz`,
by `arrays`. They give columns as they are. What these mean, a person says in a mapping file
(`mapping`), and `mapped` makes rows by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.data.episodes import NotADataset
from robot_rl.data.lerobot import INFO_PATH, require_packages
from robot_rl.data.schema import Array
from robot_rl.errors import require

ALL = "all"
Episodes = Iterator[tuple[Mapping[str, Array], str]]


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


def open_foreign(path: Path) -> ForeignDataset:
    """Open a dataset of any format that is read here.

    Args:
        path: Folder of a LeRobot or Minari dataset, or of one `.npz` an episode; or a file.

    Raises:
        MissingExtra: The package that reads the format is not installed.
        DatasetError: It is none, or cannot be read.
    """
    if (path / INFO_PATH).is_file():
        require_packages()
        from robot_rl.data.foreign.lerobot import open_lerobot

        return open_lerobot(path)
    from robot_rl.data.foreign.arrays import open_hdf5, open_npz

    minari = path / "data" / "main_data.hdf5"
    if minari.is_file() or path.suffix in (".hdf5", ".h5"):
        require("h5py", "hdf5")
        return open_hdf5(minari if minari.is_file() else path)
    if path.suffix == ".npz" or any(path.glob("*.npz")):
        return open_npz(path)
    raise NotADataset(
        f"{path} is no dataset that can be imported",
        expected="an episode or LeRobot dataset, .hdf5 (robomimic, Minari, D4RL) or .npz",
        hint="give the folder that `robot-rl export` or LeRobot wrote, or the file",
    )
