"""Reading a store: tables, episodes, weights. Mini-batches are the sampler's business."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from robot_rl.replay.annotations import AnnotationField, read_fields, values_in_stretch
from robot_rl.replay.environment import (
    ABOUT,
    EPISODES,
    ROWS,
    TABLES,
    WEIGHTS,
    Environment,
    open_for_reading,
)
from robot_rl.replay.errors import NotEnoughData, StoreError
from robot_rl.replay.records import ROW_KEY, TABLE_KEY, EpisodeRecord, TableInfo, WeightsRecord

IDENTITY_KEY = b"identity"


class StoreReader:
    """Reads a store from its memory map, while a server may be writing it.

    Args:
        path: Folder of the store.

    Raises:
        StoreError: There is no store, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Open the store; see the class."""
        self.path = path
        self._environment = open_for_reading(path)
        self._tables: dict[str, TableInfo] = {}

    def tables(self) -> dict[str, TableInfo]:
        """Return the tables by name."""
        with self._environment.begin() as txn:
            databases = self._environment.databases
            return {info.name: info for info in read_tables(txn, databases[TABLES])}

    def table(self, name: str) -> TableInfo:
        """Return one table.

        Raises:
            StoreError: There is none of this name.
        """
        if name not in self._tables:  # what is known of a table never changes
            self._tables = self.tables()
        if name not in self._tables:
            raise StoreError(
                f"the store {self.path} has no such table", got=name, expected=sorted(self._tables)
            )
        return self._tables[name]

    def episodes(self, table: str) -> list[EpisodeRecord]:
        """Return the episodes of a table in the order in which they began."""
        identifier = self.table(table).identifier
        with self._environment.begin() as txn:
            records = read_episodes(txn, self._environment.databases[EPISODES])
            return [record for record in records if record.table == identifier]

    def read_episode(self, table: str, episode: EpisodeRecord) -> npt.NDArray[Any]:
        """Copy the rows of an episode.

        Returns:
            Structured array of shape (rows,) with the schema's dtype.

        Raises:
            NotEnoughData: A row is no longer there.
        """
        dtype = self.table(table).schema.dtype
        rows = np.empty(episode.rows, dtype)
        place = (episode.table, episode.actor, episode.session)
        with self._environment.begin_buffers() as txn:
            for index in range(episode.rows):
                key = ROW_KEY.pack(*place, episode.first_sequence + index)
                value = txn.get(key, db=self._environment.databases[ROWS])
                if value is None:
                    raise NotEnoughData("a row of the episode is not in the store", got=key.hex())
                rows[index] = np.frombuffer(value, dtype)[0]
        return rows

    def annotation_fields(self, table: str) -> dict[str, AnnotationField]:
        """Return the annotations that rows of a table may have, by name."""
        identifier = self.table(table).identifier
        with self._environment.begin() as txn:
            return read_fields(txn, self._environment.databases, identifier)

    def annotations(
        self, table: str, name: str, episode: EpisodeRecord
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Read the newest version of an annotation along an episode.

        Returns:
            Whether each row has one, bool (rows,); its version, int64 (rows,); its value,
            (rows, *shape) with the declared dtype, zero where there is none.

        Raises:
            StoreError: No row of the table was ever annotated under this name.
        """
        fields = self.annotation_fields(table)
        if name not in fields:
            raise StoreError(
                f"no row of the table {table!r} has such an annotation",
                got=name,
                expected=sorted(fields),
            )
        field = fields[name]
        valid = np.zeros(episode.rows, np.bool_)
        versions = np.zeros(episode.rows, np.int64)
        values = np.zeros((episode.rows, *field.shape), field.dtype)
        first = episode.first_sequence
        with self._environment.begin_buffers() as txn:
            for sequence, version, value in values_in_stretch(
                txn,
                self._environment.databases,
                field,
                episode.session_key,
                (first, first + episode.rows),
            ):
                at = sequence - first
                valid[at], versions[at] = True, version
                values[at] = np.frombuffer(value, field.dtype).reshape(field.shape)
        return valid, versions, values

    def bytes_per_row(self) -> float:
        """Return the bytes of the file's pages that hold rows, per row, over all tables."""
        with self._environment.begin() as txn:
            pages = txn.stat(self._environment.databases[ROWS])
        used = pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"]
        return float(used * pages["psize"] / max(pages["entries"], 1))

    @property
    def identity(self) -> str | None:
        """Name of this store and its copies; None where no server has given it one yet."""
        return read_identity(self._environment)

    def weights(self, name: str) -> WeightsRecord | None:
        """Return the latest weights under a name."""
        return read_weights(self._environment, name)

    def close(self) -> None:
        """Release the store."""
        self._environment.release()


def read_identity(environment: Environment) -> str | None:
    """Return the identity of a store; None where no server has given it one yet."""
    if ABOUT not in environment.databases:
        return None
    with environment.begin() as txn:
        value = txn.get(IDENTITY_KEY, db=environment.databases[ABOUT])
        return None if value is None else value.decode()


def read_weights(
    environment: Environment, name: str, *, tensors: bool = True
) -> WeightsRecord | None:
    """Return the latest weights under a name; without `tensors` only their head."""
    with environment.begin_buffers() as txn:
        value = txn.get(name.encode(), db=environment.databases[WEIGHTS])
        return None if value is None else WeightsRecord.from_bytes(name, value, tensors=tensors)


def read_tables(txn: lmdb.Transaction[bytes], database: lmdb._Database) -> Iterator[TableInfo]:
    """Yield the tables; session records live in the same sub-database under longer keys."""
    for key, value in txn.cursor(database):
        if len(key) == TABLE_KEY.size:
            yield TableInfo.from_bytes(key, value)


def read_episodes(
    txn: lmdb.Transaction[bytes], database: lmdb._Database
) -> Iterator[EpisodeRecord]:
    """Yield the episodes of all tables in the order in which they began."""
    for key, value in txn.cursor(database):
        yield EpisodeRecord.from_bytes(key, value)
