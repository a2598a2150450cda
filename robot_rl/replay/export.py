"""Whole episodes out of a store, while a server may be writing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import Episode
from robot_rl.data.schema import (
    ANNOTATION,
    SOURCE_DEMONSTRATION,
    SOURCE_INTERVENTION,
    SOURCE_NAMES,
    SOURCE_POLICY,
    Field,
    RowSchema,
)
from robot_rl.data.transfer import Selection, close_episode
from robot_rl.replay.errors import NotEnoughData, StoreError
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import EpisodeRecord


class StoreEpisodes:
    """The episodes of a table that are sealed at the moment when this is made.

    Episodes that begin or end later are not seen. One that the server evicts before it is read is
    left out. Each is read in a transaction of its own.

    Args:
        path: Folder of the store.
        table: Name of the table; None takes the only one.
        selection: Which episodes.

    Attributes:
        schema: Columns of the rows, and the newest version of each annotation at that moment.
        metadata: What the table was created with.
        open_episodes: Episodes that were left out as they are not sealed.
        left_out: Episodes so far that could not be given: evicted meanwhile, or cut after their
            first row.

    Raises:
        StoreError: No such store or table, or several tables to choose from.
    """

    def __init__(self, path: Path, table: str | None, selection: Selection) -> None:
        """Take the list of episodes; see the class."""
        self._reader = StoreReader(path)
        try:
            self._table = table or only_table(self._reader)
            info = self._reader.table(self._table)
            records = self._reader.episodes(self._table)
            fields = self._reader.annotation_fields(self._table)
            annotations = [Field(name, f.dtype, f.shape) for name, f in sorted(fields.items())]
            self.schema: RowSchema = info.schema.recorded.with_annotations(annotations)
        except BaseException:
            self._reader.close()
            raise
        self.metadata: Mapping[str, Any] = info.metadata
        self.open_episodes = sum(not record.sealed for record in records)
        self.left_out = 0
        self._records = [
            record
            for record in records
            if record.sealed and selection.takes(episode_source(record), record.success)
        ]

    def __len__(self) -> int:
        """Return the number of episodes in the list."""
        return len(self._records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that are still there, each with its final row.

        One that the server closed for a killed actor ends as `close_episode` says.
        """
        for record in self._records:
            try:
                rows = self._read(record)
            except NotEnoughData:
                self.left_out += 1
                continue
            if not rows["is_last"][-1]:
                closed = close_episode(rows, self.schema.observation_names)
                if closed is None:
                    self.left_out += 1
                    continue
                rows = closed
            facts = record.metadata
            seed, instruction = facts.get("seed"), facts.get("instruction")
            yield Episode(
                rows,
                seed if isinstance(seed, int) else 0,
                instruction if isinstance(instruction, str) else "",
                record.success,
                episode_source(record),
            )

    def close(self) -> None:
        """Release the store."""
        self._reader.close()

    def __enter__(self) -> Self:
        """Return the episodes."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the store."""
        self.close()

    def _read(self, record: EpisodeRecord) -> npt.NDArray[Any]:
        """Copy the rows of an episode, with the columns of the schema."""
        stored = self._reader.read_episode(self._table, record)
        if stored.dtype == self.schema.dtype:
            return stored
        rows = np.empty(len(stored), self.schema.dtype)
        for column in self.schema.without_annotations.fields:
            rows[column.name] = stored[column.name]
        for field in self.schema.annotations:
            found = self._reader.annotations(self._table, field.name, record)
            for part, values in zip(("valid", "version", "value"), found, strict=True):
                rows[f"{ANNOTATION}{field.name}/{part}"] = values
        return rows


def only_table(reader: StoreReader) -> str:
    """Return the name of the only table of a store.

    Raises:
        StoreError: It has none, or several.
    """
    names = sorted(reader.tables())
    if len(names) != 1:
        raise StoreError(
            f"the store {reader.path} has {len(names) or 'no'} tables",
            got=", ".join(names) or None,
            expected="one" if not names else None,
            hint="name one of them with table=NAME" if names else None,
        )
    return names[0]


def episode_source(record: EpisodeRecord) -> int:
    """Return the SOURCE code of an episode whose steps may have several.

    Demonstration if it began as one, intervention if anybody intervened, else policy.
    """
    if record.source == SOURCE_NAMES[SOURCE_DEMONSTRATION]:
        return SOURCE_DEMONSTRATION
    return SOURCE_INTERVENTION if record.steps[SOURCE_INTERVENTION] else SOURCE_POLICY
