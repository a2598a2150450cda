"""Episode datasets in zarr 3: one writer, any number of readers, only whole episodes.

Layout (n episodes, N rows in all, an episode of T actions has T + 1 rows)::

    zarr.json                attributes: format, schema (RowSchema.to_json), metadata
    data/<field>             (N, ...) every field of the schema; slashes make nested groups
    meta/episode_ends        (n,) int64, exclusive and cumulative over rows: the commit record
    meta/seed                (n,) int64
    meta/success             (n,) bool
    meta/source              (n,) uint8, a SOURCE code of `robot_rl.data.schema`
    meta/task                (n,) string
    meta/instruction         (n,) string

Commit point. zarr replaces each file as a whole, by a rename, but an append touches several. The
writer therefore appends the rows to every data array, then the other per-episode columns, and
`meta/episode_ends` last. That array grows first (new entries read as 0, which is never a valid
end), and the rename of its one chunk commits the episode. Readers trust only the non-zero ends;
data after the last one is left from a killed append, and the next append overwrites it.

This survives the death of the process at any instant, but not a power cut shortly after an append,
because files are not synchronised: checksums reveal that damage. The replay store survives it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from robot_rl.data import episode_files as files
from robot_rl.data.episode_files import ENDS, META
from robot_rl.data.episode_files import DatasetDamaged as DatasetDamaged
from robot_rl.data.episode_files import DatasetError as DatasetError
from robot_rl.data.episode_files import NotADataset as NotADataset
from robot_rl.data.episode_files import OutsideDataset as OutsideDataset
from robot_rl.data.episode_files import StorageFull as StorageFull
from robot_rl.data.episode_files import importing as importing
from robot_rl.data.episode_files import is_ours as is_ours
from robot_rl.data.schema import SOURCE_NAMES, Array, Row, RowSchema
from robot_rl.processes.signals import deferred_signals

if TYPE_CHECKING:  # zarr takes a quarter of a second to import; most processes do not need it
    import zarr

Rows = npt.NDArray[Any]  # structured, with the dtype of a schema


@dataclass(frozen=True)
class Episode:
    """One whole episode."""

    rows: Rows  # (T + 1,) structured; only the last row has `is_last`
    seed: int  # seed of its reset
    instruction: str  # the task as text
    success: bool  # whether it reached its goal
    source: int  # SOURCE code: 0 demo, 1 policy, 2 intervention


class EpisodeWriter:
    """Appends whole episodes to a dataset, and creates it if there is none.

    One writer at a time: the directory is locked until `close`, or until the process dies.
    `metadata`, JSON values, is stored with a newly created dataset; an existing one keeps its
    own.

    Raises:
        SchemaMismatch: The existing dataset has another task, rate, version or field.
        NotADataset: The path exists and is not a dataset.
        StorageFull: There is no space to create it.
        DatasetError: Another writer has the dataset open.
    """

    def __init__(
        self, path: str | Path, schema: RowSchema, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(path)
        self.schema = schema
        if not self.path.exists() or files.is_empty_directory(self.path):
            with files.write_errors(self.path):
                files.create(self.path, schema, dict(metadata or {}))
        stored = files.read_attributes(self.path)[0]
        schema.compare(stored, what=f"the dataset {self.path}")
        self._lock: int | None = files.lock(self.path)
        for leftover in self.path.rglob("*.partial"):  # from a killed append: we hold the lock
            leftover.unlink(missing_ok=True)
        self._ends: npt.NDArray[np.int64]
        self._open_columns()

    def __len__(self) -> int:
        return len(self._ends)

    def append(
        self, rows: Sequence[Row], *, seed: int, instruction: str = "", success: bool, source: int
    ) -> int:
        """Add one finished episode; it is committed when this returns. Return its index.

        `rows` has T + 1 rows, T >= 1, and exactly the final one has `is_last`. For the other
        arguments see `Episode`.

        Raises:
            SchemaMismatch: A row has a wrong, missing, non-finite or out-of-range field.
            StorageFull: No space is left. Make room and append the same rows again.
            DatasetError: The rows are not a whole episode, the description is invalid, or
                writing failed for another reason.
        """
        packed = b"".join(self.schema.pack(row) for row in rows)
        records = self.schema.unpack(packed) if rows else np.empty(0, self.schema.dtype)
        return self.extend([Episode(records, seed, instruction, success, source)])

    def extend(self, episodes: Sequence[Episode]) -> int:
        """Add several finished episodes at once, which is faster; return the index of the first.

        Use it only for a dataset that is moved into place when complete: a kill during this call
        may damage it, because the ends of several episodes are not committed together.

        Raises:
            DatasetError: As `append`.
        """
        if self._lock is None:
            raise DatasetError(
                f"the writer of {self.path} is closed", hint="open a new EpisodeWriter"
            )
        for episode in episodes:
            self._validate(episode)
        records = np.concatenate([episode.rows for episode in episodes])
        text = np.dtypes.StringDType()
        description = {
            "meta/seed": np.array([e.seed for e in episodes], np.int64),
            "meta/success": np.array([e.success for e in episodes], np.bool_),
            "meta/source": np.array([e.source for e in episodes], np.uint8),
            "meta/task": np.array([self.schema.task] * len(episodes), text),
            "meta/instruction": np.array([e.instruction for e in episodes], text),
        }
        columns = self._open_columns()
        first, start = len(self._ends), int(self._ends[-1]) if len(self._ends) else 0
        ends = start + np.cumsum([len(episode.rows) for episode in episodes], dtype=np.int64)
        with deferred_signals():  # all of the episodes, or no change
            for field in self.schema.fields:
                self._put(columns, f"data/{field.name}", start, records[field.name])
            for name, value in description.items():
                self._put(columns, name, first, value)
            self._put(columns, ENDS, first, ends)
            self._ends = np.append(self._ends, ends)
        return first

    def close(self) -> None:
        """Release the dataset for other writers; a second call is a no-op."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open_columns(self) -> dict[str, zarr.Array[Any]]:
        import zarr

        names = [name for name, _ in META] + [f"data/{f.name}" for f in self.schema.fields]
        # Chunks of zeros are written as files too, so an absent file always means loss, and is
        # reported. Arrays read this setting on opening; `open_array` has no argument for it.
        with zarr.config.set({"array.write_empty_chunks": True}):
            columns = {name: files.open_array(self.path, name, mode="r+") for name in names}
        self._ends = files.committed_ends(columns[ENDS], self.path)
        return columns

    def _put(
        self, columns: dict[str, zarr.Array[Any]], name: str, start: int, values: Array
    ) -> None:
        """Replace everything from `start` on with `values`."""
        array, stop = columns[name], start + len(values)
        # The chunk at the boundary is read, completed and replaced: it must exist and be whole.
        files.check_chunks(array, self.path / name, start - 1 if start else 0, start)
        with files.read_errors(self.path, name), files.write_errors(self.path):
            array.resize((stop, *values.shape[1:]))
            array[start:stop] = values

    def _validate(self, episode: Episode) -> None:
        rows, last = episode.rows, np.flatnonzero(episode.rows["is_last"])
        if len(rows) < 2 or last.tolist() != [len(rows) - 1]:
            raise DatasetError(
                "an episode needs at least one action and its final observation: 'is_last' must"
                " mark the final row and no other",
                got=f"is_last at rows {last.tolist()} of {len(rows)}",
                expected="T + 1 rows with T >= 1",
            )
        if rows["action"][-1].any():
            raise DatasetError(
                "the final row carries only the observation: its 'action' must be zero",
                got=rows["action"][-1],
            )
        if not -(2**63) <= episode.seed < 2**63:
            raise DatasetError(
                "the seed is out of range", got=episode.seed, expected="a 64-bit integer"
            )
        if not 0 <= episode.source < len(SOURCE_NAMES):
            raise DatasetError(
                "unknown source code", got=episode.source, expected=dict(enumerate(SOURCE_NAMES))
            )


def steps_to_success(episodes: Iterable[npt.NDArray[Any]]) -> list[int]:
    """Steps to the first success of each episode that has one, from its columns (T + 1, ...).

    If success does not end an episode, these are fewer than its length.
    """
    return [int(np.argmax(each)) + 1 for each in episodes if each.any()]


class EpisodeDataset:
    """Reads the committed episodes of a dataset, also while a writer adds to it.

    The view is fixed when the dataset is opened.

    Attributes:
        schema: Columns of the rows as recorded.
        stored_schema: These and the annotations that an export of a store has added.
        metadata: Metadata from the dataset's creation.
        episode_ends: (n,) int64, exclusive and cumulative; T + 1 rows per episode.
        seeds, successes, sources, instructions: (n,) int64, bool, uint8 SOURCE codes, and texts.

    Raises:
        NotADataset: The path is missing or is not a dataset.
        SchemaMismatch: The dataset was written with another schema version.
        DatasetDamaged: The per-episode columns cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.stored_schema, self.metadata = files.read_attributes(self.path)
        self.schema = self.stored_schema.without_annotations
        # Read the ends first: the other columns of committed episodes are then complete.
        ends = files.open_array(self.path, ENDS)
        self._show(files.committed_ends(ends, self.path))

    def __len__(self) -> int:
        return len(self.episode_ends)

    @property
    def rows_total(self) -> int:
        """Number of rows in view, final observations included."""
        return int(self.episode_ends[-1]) if len(self) else 0

    def first(self, count: int) -> EpisodeDataset:
        """Restrict the view to the first `count` episodes, and return the dataset."""
        self._show(self.episode_ends[:count])
        return self

    def _show(self, ends: npt.NDArray[np.int64]) -> None:
        count = len(ends)
        columns = {name: self._rows(name, 0, count) for name, _ in META if name != ENDS}
        self.episode_ends = ends
        self.seeds: npt.NDArray[np.int64] = columns["meta/seed"]
        self.successes: npt.NDArray[np.bool_] = columns["meta/success"]
        self.sources: npt.NDArray[np.uint8] = columns["meta/source"]
        self.instructions = [str(text) for text in columns["meta/instruction"]]

    def expect(self, schema: RowSchema) -> EpisodeDataset:
        """Return the dataset, or raise `SchemaMismatch` if its rows have another schema."""
        schema.compare(self.schema, what=f"the dataset {self.path}")
        return self

    def read(self, field: str) -> Array:
        """Read one column (rows_total, ...) of all episodes in view, or raise `DatasetError`."""
        names = [f.name for f in self.stored_schema.fields]
        if field not in names:
            raise DatasetError(f"{self.path} has no field {field!r}", expected=names)
        return self._rows(f"data/{field}", 0, self.rows_total)

    def arrays(self, fields: Iterable[str]) -> dict[str, Array]:
        """Read several columns of all episodes in view, by field name."""
        return {name: self.read(name) for name in fields}

    def episode(self, index: int) -> dict[str, Array]:
        """Read every recorded column of one episode, each of shape (T + 1, ...).

        Raises:
            IndexError: There is no such episode in view.
            DatasetDamaged: Rows are missing or fail their checksum.
        """
        return self._columns(index, self.schema)

    def whole(self, index: int) -> Episode:
        """As `episode`, with its annotations: rows of `stored_schema`'s dtype."""
        columns = self._columns(index, self.stored_schema)
        rows = np.empty(len(columns["is_last"]), self.stored_schema.dtype)
        for name, column in columns.items():
            rows[name] = column
        return Episode(
            rows,
            int(self.seeds[index]),
            self.instructions[index],
            bool(self.successes[index]),
            int(self.sources[index]),
        )

    def _columns(self, index: int, schema: RowSchema) -> dict[str, Array]:
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} of {self.path}, which shows {len(self)} episodes")
        start = int(self.episode_ends[index - 1]) if index else 0
        stop = int(self.episode_ends[index])
        return {f.name: self._rows(f"data/{f.name}", start, stop) for f in schema.fields}

    def _rows(self, name: str, start: int, stop: int) -> Array:
        array = files.open_array(self.path, name)
        if array.shape[0] < stop:
            raise DatasetDamaged(
                f"{self.path}: {name!r} is cut short",
                got=f"{array.shape[0]} rows",
                expected=f"at least {stop}",
                hint=files.RESTORE,
            )
        files.check_chunks(array, self.path / name, start, stop)
        with files.read_errors(self.path, name):
            return np.asarray(array[start:stop])
