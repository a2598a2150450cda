"""The zarr of diffusion_policy, formats 2 and 3: `data/NAME` by rows, and `meta/episode_ends`."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore

from robot_rl.data._episode_files import ENDS as ENDS_PATH
from robot_rl.data._episode_files import damage, inside
from robot_rl.data.episodes import DatasetDamaged
from robot_rl.data.foreign.arrays import ENDS, Arrays, flat_dataset
from robot_rl.data.foreign.dataset import ForeignDataset, reason

_DESCRIPTIONS = (".zarray", "zarr.json")
_CODE = "pickle"  # a codec that runs code


def is_zarr(path: Path) -> bool:
    """Whether a folder has this layout."""
    return any((path / ENDS_PATH / name).is_file() for name in _DESCRIPTIONS)


def open_zarr(path: Path) -> ForeignDataset:
    """Open a folder; raises `DatasetError`."""
    found: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    notes: list[str] = []
    with damage(path):
        _check_links(path)
        store = LocalStore(path, read_only=True)
    for name in sorted(_names(path / "data")):
        try:
            array = _array(store, path, f"data/{name}")
        except DatasetDamaged as error:
            unreadable[name] = reason(error)
            continue
        if array.shape:
            found[name] = array
            if absent := _absent_chunks(array, path / "data" / name):
                notes.append(
                    f"{name} lacks {absent} files: the format says that each number in them is"
                    f" {array.fill_value}"
                )
    ends = _array(store, path, ENDS_PATH)
    with damage(path / ENDS_PATH):
        found[ENDS] = ends[:]
    version = ends.metadata.zarr_format
    kind = f"diffusion_policy, zarr format {version}"
    return flat_dataset(path, kind, Arrays(path.name, found, unreadable), notes)


def _array(store: LocalStore, path: Path, name: str) -> zarr.Array[Any]:
    with damage(f"{path / name}", hint="copy or download the folder again"):
        array = zarr.open_array(store, path=name, mode="r")
        if _CODE in str(array.metadata.to_dict()):
            raise ValueError("its codec runs code")
        return array


def _names(data: Path) -> set[str]:
    """Arrays below a folder, by their paths in it."""
    files = (file for name in _DESCRIPTIONS for file in data.rglob(name))
    names = {file.parent.relative_to(data).as_posix() for file in files if not _is_group(file)}
    return names - {"."}


def _is_group(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_bytes())["node_type"] == "group")
    except (OSError, ValueError, LookupError, TypeError):
        return False  # format 2 has other files for groups; opening says what else is wrong


def _check_links(path: Path) -> None:
    """Refuse links to files elsewhere: zarr follows them."""
    for folder, folders, files in itertools.chain(*(os.walk(path / p) for p in ("data", "meta"))):
        for name in (*folders, *files):
            entry = Path(folder) / name
            if entry.is_symlink():
                inside(path, entry)


def _absent_chunks(array: zarr.Array[Any], folder: Path) -> int:
    """Number of files of an array that are not there."""
    rows = array.shards or array.chunks
    expected = math.prod(-(-size // each) for size, each in zip(array.shape, rows, strict=True))
    there = (name for _, _, files in os.walk(folder) for name in files)
    return expected - sum(name != "zarr.json" and name[0] != "." for name in there)
