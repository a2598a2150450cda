"""The Parquet files of a LeRobot dataset. Needs the package `pyarrow`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robot_rl.data._episode_files import DatasetDamaged, write_errors
from robot_rl.data.lerobot.features import Feature
from robot_rl.data.lerobot.layout import Place
from robot_rl.data.schema import Array


class TableFiles:
    """Writes tables of one schema one behind another; each becomes one row group.

    Args:
        root: Directory of the dataset.
        template: Path of the files.
        limit_bytes: A file that would grow beyond this with another table is ended.
    """

    def __init__(self, root: Path, template: str, limit_bytes: int) -> None:
        """Write nothing yet; see the class."""
        self._root, self._template, self._limit = root, template, limit_bytes
        self._place = Place()
        self._file: Any = None
        self._writer: Any = None

    def place_for(self, size: int) -> Place:
        """Return the file that the next table goes to, ending the one before if need be.

        Args:
            size: Bytes of the table in memory; compressed it takes no more.
        """
        if self._file is not None and self._file.tell() + size > self._limit:
            self.close()
            self._place = self._place.following()
        return self._place

    def write(self, table: pa.Table) -> None:
        """Append a table to the file that `place_for` named.

        Raises:
            DatasetWriteFailed: It cannot be written; `StorageFull` where no space is left.
        """
        path = self._root / self._place.path(self._template)
        with write_errors(path):
            if self._writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = pa.OSFile(str(path), "wb")
                self._writer = pq.ParquetWriter(self._file, table.schema, compression="snappy")
            self._writer.write_table(table, row_group_size=max(len(table), 1))

    def close(self) -> None:
        """Complete the file that is open."""
        with write_errors(self._root / self._place.path(self._template)):
            if self._writer is not None:
                self._writer.close()
            self.release()

    def release(self) -> None:
        """Close the file that is open; it need not be whole."""
        if self._writer is not None:
            with suppress(Exception):  # it would complain later, of a file that is closed
                self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None


def frames_table(columns: Mapping[Feature, Array]) -> pa.Table:
    """Build the table of an episode's frames from (frames, n) columns."""
    arrays = {}
    for feature, values in columns.items():
        kind = pa.from_numpy_dtype(np.dtype(feature.dtype))
        flat = pa.array(np.ascontiguousarray(values, feature.dtype).reshape(-1), kind)
        (width,) = feature.shape
        arrays[feature.key] = flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.table(arrays)


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write the numbered instructions, as a table that pandas reads with them as its index."""
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": list(tasks)})

    def column(name: str, kind: str, numpy: str) -> dict[str, object]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": numpy,
            "metadata": None,
        }

    described = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "pandas_version": "2.2.0",
    }
    with write_errors(path):
        pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(described)}), path)


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Read some columns of a file.

    Raises:
        DatasetDamaged: The file cannot be read, or lacks one.
    """
    with _read_errors(path):
        file = pq.ParquetFile(path)
        _require(path, file, names)
        columns: dict[str, list[Any]] = file.read(columns=list(names)).to_pydict()
        return columns


class TableReader:
    """Reads stretches of rows, keeping the file open that it read last."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._path: Path | None = None
        self._file: Any = None

    def read(
        self, path: Path, start: int, stop: int, features: Sequence[Feature]
    ) -> dict[Feature, Array]:
        """Read rows `start` to `stop` of a file.

        Returns:
            For each feature its values, shape (rows, n).

        Raises:
            DatasetDamaged: The file is missing, cut, or holds another shape or dtype.
        """
        with _read_errors(path):
            if self._path != path:
                self.close()
                self._file, self._path = pq.ParquetFile(path), path
            _require(path, self._file, [feature.key for feature in features])
            table, first = self._groups(start, stop, [feature.key for feature in features])
            table = table.slice(start - first, stop - start)
        if len(table) != stop - start:
            raise DatasetDamaged(
                f"the file {path} is cut short",
                got=f"{first + len(table)} rows",
                expected=f"at least {stop}",
                hint="restore it from a copy",
            )
        return {feature: _values(path, feature, table[feature.key]) for feature in features}

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def _groups(self, start: int, stop: int, keys: list[str]) -> tuple[pa.Table, int]:
        """Read the row groups that hold some rows; returns also the number of their first row."""
        metadata = self._file.metadata
        ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        wanted = list(range(first, min(last + 1, len(ends))))
        before = int(ends[first - 1]) if first else 0
        return self._file.read_row_groups(wanted, columns=keys), before


def _values(path: Path, feature: Feature, column: Any) -> Array:
    array = column.combine_chunks()
    (width,) = feature.shape
    flat = array if width == 1 and not pa.types.is_nested(array.type) else array.flatten()
    if array.null_count or flat.type != pa.from_numpy_dtype(np.dtype(feature.dtype)):
        raise DatasetDamaged(
            f"{path}: the feature {feature.key!r} has another dtype, or gaps",
            got=f"{array.type}, {array.null_count} missing",
            expected=feature.dtype,
        )
    if len(flat) != len(array) * width:
        raise DatasetDamaged(
            f"{path}: the feature {feature.key!r} has another shape",
            got=str(array.type),
            expected=f"{width} numbers a row",
        )
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(array), width)


def _require(path: Path, file: Any, names: Sequence[str]) -> None:
    present = file.schema_arrow.names
    for name in names:
        if name not in present:
            raise DatasetDamaged(f"{path} lacks the column {name!r}", expected=list(names))


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DatasetDamaged(
            f"{path} cannot be read", got=repr(error)[:500], hint="restore it from a copy"
        ) from error
