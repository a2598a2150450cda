"""Zarr of diffusion_policy, formats 2 and 3: `data/NAME` by rows, and `meta/episode_ends`."""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import zarr
from zarr.storage import LocalStore

from robot_rl.data.episode_files import ENDS as ENDS_PATH
from robot_rl.data.episode_files import damage
from robot_rl.data.episodes import OutsideDataset
from robot_rl.data.schema import Array
from robot_rl.extras.importers.arrays import ENDS, Arrays, flat_dataset
from robot_rl.extras.importers.dataset import ForeignDataset, read_columns
from robot_rl.processes.files import check_links

_DESCRIPTIONS = (".zarray", "zarr.json")
_CODE = "pickle"  # a codec that runs code
# Header of a blosc chunk: versions, flags and item size, then the bytes of the numbers, of a
# block, and of the chunk.
_HEADER = struct.Struct("<4x3I")


def is_zarr(path: Path) -> bool:
    """Whether a folder has this layout."""
    return any((path / ENDS_PATH / name).is_file() for name in _DESCRIPTIONS)


def open_zarr(path: Path) -> ForeignDataset:
    """Open a folder; raises `DatasetError`."""
    with damage(path):
        check_links(path, OutsideDataset)
        store = LocalStore(path, read_only=True)
    columns, unreadable = read_columns(
        sorted(_names(path / "data")), lambda name: _Column(store, path, f"data/{name}")
    )
    found = {name: column for name, column in columns.items() if column.shape}
    notes = [
        f"{name} lacks {absent} files: the format says that each number in them is"
        f" {column.array.fill_value}"
        for name, column in found.items()
        if (absent := column.absent)
    ]
    ends = _Column(store, path, ENDS_PATH)
    found[ENDS] = ends[:]
    kind = f"diffusion_policy, zarr format {ends.array.metadata.zarr_format}"
    return flat_dataset(path, kind, Arrays(path.name, found, unreadable), notes)


class _Column:
    """An array on disk. Chunks are checked for truncation before they are decoded."""

    def __init__(self, store: LocalStore, path: Path, name: str) -> None:
        self._folder = path / name
        with damage(self._folder, hint="copy or download the folder again"):
            self.array = array = zarr.open_array(store, path=name, mode="r")
            self.shape, self.dtype = array.shape, np.dtype(array.dtype)
            described = str(array.metadata.to_dict())
            if _CODE in described:
                raise ValueError("its codec runs code")
            self._is_blosc = "blosc" in described and array.shards is None

    def __getitem__(self, rows: slice) -> Array:
        with damage(self._folder):
            if self._is_blosc:
                self._check_whole(range(*rows.indices(self.shape[0])))
            return np.asarray(self.array[rows])

    def _check_whole(self, rows: range) -> None:
        """Refuse truncated chunks: blosc would fill them with uninitialised memory."""
        each = self.array.chunks[0]
        others = [
            range(-(-n // c)) for n, c in zip(self.shape[1:], self.array.chunks[1:], strict=True)
        ]
        for key in itertools.product(range(rows.start // each, -(-rows.stop // each)), *others):
            file = self._folder / self.array.metadata.encode_chunk_key(key)
            if not file.exists():
                continue
            with file.open("rb") as opened:
                header = opened.read(_HEADER.size)
            size = _HEADER.unpack(header)[-1] if len(header) == _HEADER.size else _HEADER.size
            if file.stat().st_size < size:
                raise ValueError(f"{file.name} is cut short: {file.stat().st_size} of {size} bytes")

    @property
    def absent(self) -> int:
        """Number of missing files."""
        rows = self.array.shards or self.array.chunks
        expected = math.prod(-(-size // each) for size, each in zip(self.shape, rows, strict=True))
        there = (name for _, _, files in os.walk(self._folder) for name in files)
        return expected - sum(name != "zarr.json" and name[0] != "." for name in there)


def _names(data: Path) -> set[str]:
    """Arrays below a folder, by their relative paths."""
    files = (file for name in _DESCRIPTIONS for file in data.rglob(name))
    names = {file.parent.relative_to(data).as_posix() for file in files if not _is_group(file)}
    return names - {"."}


def _is_group(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_bytes())["node_type"] == "group")
    except (OSError, ValueError, LookupError, TypeError):
        return False  # format 2 marks groups differently; opening reports other problems
