"""Reading a store: tables, episodes, weights. Mini-batches are the sampler's business."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from robot_rl.replay.annotations import AnnotationField, fields_of_table, newest_values
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.errors import NotEnoughData, StoreError
from robot_rl.replay.mailbox import read_weights
from robot_rl.replay.records import (
    EpisodeRecord,
    RowFlags,
    TableCounts,
    TableInfo,
    WeightsRecord,
)
from robot_rl.replay.segments import Segments, facts_of
from robot_rl.replay.sessions import Session, plan_rows


class StoreReader:
    """Reads a store while a server may be writing it.

    Args:
        path: Folder of the store.

    Attributes:
        identity: Name of this store and its copies.

    Raises:
        StoreError: There is no store, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Open the store; see the class."""
        self.path = path
        self._catalogue = Catalogue(path)
        self._segments = Segments(path)
        self.identity = self._catalogue.identity

    def tables(self) -> dict[str, TableInfo]:
        """Return the tables by name."""
        return self._catalogue.tables()

    def table(self, name: str) -> TableInfo:
        """Return one table.

        Raises:
            StoreError: There is none of this name.
        """
        tables = self.tables()
        if name not in tables:
            raise StoreError(
                f"the store {self.path} has no such table", got=name, expected=sorted(tables)
            )
        return tables[name]

    def episodes(self, table: str) -> list[EpisodeRecord]:
        """Return the episodes of a table in the order in which they began."""
        info = self.table(table)
        records = self._catalogue.episodes(info.identifier)
        return [r if r.sealed else self._as_it_is(info, r) for r in records]

    def read_episode(self, table: str, episode: EpisodeRecord) -> npt.NDArray[Any]:
        """Return the rows of an episode, mapped from the file and read-only.

        Returns:
            Structured array of shape (rows,) with the schema's dtype.

        Raises:
            NotEnoughData: They are not there: evicted, or lost with a part of the file.
        """
        rows = self.rows_there(table, episode)[: episode.rows]
        if len(rows) < episode.rows:
            raise NotEnoughData(
                "rows of the episode are not in the store",
                got=len(rows),
                expected=episode.rows,
                hint=f"see what is there: robot-rl inspect {self.path}",
            )
        return rows

    def rows_there(self, table: str, episode: EpisodeRecord) -> npt.NDArray[Any]:
        """Map what there is of an episode, and of those behind it in its file.

        Raises:
            NotEnoughData: It was evicted, or its file is lost.
        """
        return self._rows(self.table(table), episode)

    def evicted(self, table: str) -> TableCounts:
        """Return the totals of what was evicted from a table."""
        return self._catalogue.evicted(self.table(table).identifier)

    def annotation_fields(self, table: str) -> dict[str, AnnotationField]:
        """Return the annotations that rows of a table may have, by name."""
        return fields_of_table(self._catalogue, self.table(table).identifier)

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
        field, first = fields[name], episode.first_sequence
        valid = np.zeros(episode.rows, np.bool_)
        versions = np.zeros(episode.rows, np.int64)
        values = np.zeros((episode.rows, *field.shape), field.dtype)
        stretch = (first, first + episode.rows)
        for sequence, version, value in newest_values(
            self._catalogue, field, episode.session_key, stretch
        ):
            at = sequence - first
            valid[at], versions[at] = True, version
            values[at] = np.frombuffer(value, field.dtype).reshape(field.shape)
        return valid, versions, values

    def weights(self, name: str) -> WeightsRecord | None:
        """Return the latest weights under a name."""
        return read_weights(self.path, name)

    def close(self) -> None:
        """Release the store."""
        self._catalogue.close()

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the store."""
        self.close()

    def _rows(self, info: TableInfo, episode: EpisodeRecord) -> npt.NDArray[Any]:
        try:
            segment = self._segments.holding(episode.session_key, episode.first_sequence)
            rows = segment.rows(self.identity, info.schema.dtype)
        except (FileNotFoundError, NotEnoughData) as error:
            raise NotEnoughData(
                "the rows of the episode are not in the store any more",
                got=error,
                hint="they were evicted, or are damaged: robot-rl inspect STORE counts both",
            ) from error
        return rows[episode.first_sequence - segment.first :]

    def _as_it_is(self, info: TableInfo, episode: EpisodeRecord) -> EpisodeRecord:
        """Return the record of an open episode with the rows that it has by now."""
        try:
            rows = self._rows(info, episode)
        except NotEnoughData:
            return episode
        lasts = np.flatnonzero(rows["is_last"])
        rows = rows[: lasts[0] + 1] if len(lasts) else rows
        state = Session("", episode.first_sequence, episode.without_rows())
        facts = facts_of(rows, RowFlags.of(info.schema))
        plan = plan_rows(episode.session_key, state, facts, {}, 0)
        return plan.episodes.get(episode.identifier, episode)
