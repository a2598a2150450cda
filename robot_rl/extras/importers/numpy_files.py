"""NumPy's `.npz`: one file with the steps of all episodes, or a folder with a file an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.episode_files import damage, inside
from robot_rl.data.episodes import DatasetDamaged
from robot_rl.extras.importers.arrays import Arrays, dataset_of, flat_dataset, whole_parts
from robot_rl.extras.importers.dataset import ALL, ForeignDataset, reason

_HINT = "copy it again, or write arrays without Python objects"


def open_npz(path: Path) -> ForeignDataset:
    """Open a file or a folder; raises `DatasetError`."""
    notes: list[str] = []
    if path.is_file():
        return flat_dataset(path, "NumPy", _arrays(path), notes)
    found = []
    files = [inside(path, file) for file in path.glob("*.npz")]
    for file in sorted(files, key=lambda file: (len(file.name), file.name)):  # 9 before 10
        try:
            found.append(_arrays(file))
        except DatasetDamaged as error:
            notes.append(f"{file.name} is left out: {reason(error)}")
    return dataset_of(path, "NumPy", {ALL: [*whole_parts(found, notes).values()]}, notes, {})


def _arrays(file: Path) -> Arrays:
    found: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    with damage(file, hint=_HINT), np.load(file, allow_pickle=False) as opened:
        for name in opened.files:
            try:
                with damage("it", hint=_HINT):
                    array = opened[name]
            except DatasetDamaged as error:
                unreadable[name] = reason(error)
                continue
            if np.ndim(array):
                found[name] = array
    return Arrays(file.name, found, unreadable)
