"""Reads the episodes of a store, also while a server writes it.

Rows come straight from the segments' memory maps.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import Episode
from robot_rl.data.schema import ANNOTATION, SOURCE_NAMES, Row, RowSchema
from robot_rl.data.transfer import Selection, close_episode
from robot_rl.errors import in_shell
from robot_rl.replay import NotEnoughData, ReplayError
from robot_rl.replay.catalogue import Catalogue, NewestValues, schema_of
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.episode_records import EpisodeRecord, RowFlags, StoredSession
from robot_rl.replay.protocol import Opened
from robot_rl.replay.row_sources import of_one_episode
from robot_rl.replay.store_files import holding, segments_of, weights_versions

# Stamps of the system clock are above this [ns], as it is later than 2001.
_WALL_CLOCK = 10**18
_COUNTS = ("episodes", "sealed", "successes", "steps")


class StoreReader(AbstractContextManager["StoreReader"]):
    """Reads the episodes of the store in a folder; `still` as for `Catalogue`.

    Attributes:
        identity: Name of this store and its copies.

    Raises:
        StoreError: There is no store, or it cannot be read. All methods may raise it.
    """

    def __init__(self, path: Path, *, still: bool = False) -> None:
        self.path = path
        self.catalogue = Catalogue(path, still=still)
        self._segments = segments_of(path)
        self.identity = self.catalogue.identity

    @property
    def empty(self) -> bool:
        """Whether no session has been started in it, so that it has no schema yet."""
        return self.catalogue.schema is None

    @property
    def schema(self) -> RowSchema:
        """Schema of the rows; raises `StoreError` if the store is empty."""
        return schema_of(self.catalogue)

    def episodes(self) -> list[EpisodeRecord]:
        """Return the episodes in the order in which they started."""
        records = self.catalogue.episodes()
        self._segments = segments_of(self.path)  # covers all these episodes
        return [record if record.sealed else self._as_it_is(record) for record in records]

    def read_episode(self, episode: EpisodeRecord) -> npt.NDArray[Any]:
        """Return the rows of an episode, mapped from the file and read-only.

        Returns:
            Shape (rows,), with the schema's dtype.

        Raises:
            NotEnoughData: The rows are missing: evicted, or lost.
        """
        rows = self.rows_there(episode)[: episode.rows]
        if len(rows) < episode.rows:
            raise NotEnoughData(
                "rows of the episode are not in the store",
                got=len(rows),
                expected=episode.rows,
                hint=f"see what is there: {in_shell('robot-rl', 'inspect', self.path)}",
            )
        return rows

    def rows_there(self, episode: EpisodeRecord) -> npt.NDArray[Any]:
        """Map the existing rows of an episode, and of later ones in its file."""
        segment = holding(self._segments, episode.session_key, episode.first_sequence)
        rows = segment.view(self.identity, self.schema.dtype)
        return rows[episode.first_sequence - segment.first :]

    def annotation_counts(self) -> dict[str, int]:
        """Return the number of values ever written, by annotation name."""
        return self.catalogue.annotation_counts()

    def annotations(self, name: str, episode: EpisodeRecord) -> NewestValues:
        """Read the latest version of an annotation along an episode; n is its rows."""
        place = episode.session_key, episode.first_sequence
        return self.catalogue.newest_values(name, *place, episode.rows)

    def close(self) -> None:
        """Release the store."""
        self.catalogue.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _as_it_is(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Return an open episode's record, updated with the rows written so far."""
        try:
            rows = of_one_episode(self.rows_there(episode))[0]
        except NotEnoughData:
            return episode
        state = StoredSession("", episode.first_sequence, episode.restarted())
        facts = RowFlags(self.schema).read_all(rows)
        _, found = state.after(episode.session_key, facts, {}, 0)
        return found.get(episode.identifier, episode)


class StoreEpisodes:
    """The episodes of a store that are sealed when this object is created.

    Episodes that the server evicts before they are read are left out.

    Attributes:
        schema: Columns of the rows, and the latest version of each annotation at that moment.
        metadata: Recording metadata from the store's first session.
        open_episodes: Number of episodes left out because they are not sealed.
        left_out: Number of episodes skipped so far: evicted meanwhile, or cut after their first
            row.

    Raises:
        StoreError: No such store, or it is empty.
    """

    def __init__(self, path: Path, selection: Selection) -> None:
        with StoreReader(path) as reader:
            recorded, records = reader.schema.recorded, reader.episodes()
            names = sorted(reader.annotation_counts())
            self.metadata: Mapping[str, Any] = reader.catalogue.metadata
        self._path = path
        self.schema: RowSchema = recorded.with_annotations(names)
        self.open_episodes = sum(not record.sealed for record in records)
        self.left_out = 0
        self._records = [
            record
            for record in records
            if record.sealed and selection.takes(record.overall_source, record.success)
        ]

    def __len__(self) -> int:
        return len(self._records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that are still there, each with its final row.

        Episodes that the server closed for a killed actor end as `close_episode` describes.
        """
        with StoreReader(self._path) as reader:
            for record in self._records:
                rows: npt.NDArray[Any] | None = None
                with suppress(NotEnoughData):
                    rows = self._read(reader, record)
                    if not rows["is_last"][-1]:
                        rows = close_episode(rows, self.schema.observation_names)
                if rows is None:
                    self.left_out += 1
                    continue
                seed, text = record.metadata.get("seed"), record.metadata.get("instruction")
                seed, text = seed if isinstance(seed, int) else 0, str(text or "")
                yield Episode(rows, seed, text, record.success, record.overall_source)

    def _read(self, reader: StoreReader, record: EpisodeRecord) -> npt.NDArray[Any]:
        """Copy the rows of an episode into the schema's columns."""
        stored = reader.read_episode(record)
        if stored.dtype == self.schema.dtype:
            return stored
        rows = np.empty(len(stored), self.schema.dtype)
        for column in self.schema.without_annotations.fields:
            rows[column.name] = stored[column.name]
        for name in self.schema.annotations:
            found = reader.annotations(name, record)
            for part, values in zip(("valid", "version", "value"), found, strict=True):
                rows[f"{ANNOTATION}{name}/{part}"] = values
        return rows


class PlayedDifferently(ReplayError):
    """A replayed episode differs from the recording: the seed does not determine the robot."""


class ReplayedEpisode:
    """Appends rows to a resumed session, and compares rows that are already stored.

    `records` describe the episodes that the actor has finished: ``session`` and ``length`` in
    steps. This session has `finished` of them, and replays `steps` environment steps.

    Raises:
        PlayedDifferently: The store does not hold the finished episodes.
    """

    def __init__(
        self,
        client: ReplayClient,
        store: Path,
        opened: Opened,
        schema: RowSchema,
        records: Sequence[Mapping[str, Any]],
    ) -> None:
        self._client, self._schema = client, schema
        lengths = [int(r["length"]) for r in records if r["session"] == opened.session]
        self.finished = len(lengths)
        self._next = sum(length + 1 for length in lengths if length)
        place, expected = opened.place, opened.next_sequence
        with StoreReader(store) as reader:
            found = [
                episode
                for episode in reader.episodes()
                if episode.session_key == place and episode.first_sequence >= self._next
            ]
            rows = [row for e in found for row in reader.read_episode(e)]
        self.steps = sum(episode.environment_steps for episode in found)
        self._stored = dict(enumerate(rows, self._next))
        if self._next + len(rows) != expected:
            raise PlayedDifferently(
                "the rows of the unfinished episode are not in the store",
                got=f"rows {self._next} to {self._next + len(rows)}",
                expected=f"up to {expected}",
            )

    def append(self, row: Row, episode: Mapping[str, object] | None = None) -> int:
        """As `ReplayClient.append`; also raises `PlayedDifferently`, naming the fields."""
        sequence, self._next = self._next, self._next + 1
        stored = self._stored.pop(sequence, None)
        if stored is None:
            return self._client.append(row, episode)
        if self._schema.pack(row) != stored.tobytes():
            names = [n for n in row if stored[n].tobytes() != np.asarray(row[n]).tobytes()]
            raise PlayedDifferently(
                "the unfinished episode goes otherwise when it is played again",
                got=f"another {', '.join(names)} at step {int(row['episode_step'])}",
                hint="only an episode that follows from its seed alone can be repeated",
            )
        return sequence


def summarize_store(path: Path) -> dict[str, Any]:
    """Summarize every episode of a store; read-only.

    Returns:
        JSON-able: ``identity``; version of the latest ``weights`` by name; ``disk_bytes`` of all
        files, ``bytes_per_row`` of the row files; and, if it is not empty, its ``schema``,
        ``metadata``, ``annotations``, counts of ``rows``, ``row_bytes``, ``evicted_rows``,
        ``sessions``, ``episodes``, ``sealed`` ones, ``successes`` and ``steps``, the last four
        also by actor in ``sources``; ``cut``: episodes closed without their final row because
        their actor was killed; ``missing_rows`` by episode: damage; ``first_stamp`` and
        ``last_stamp`` [ns] of the wall clock, None if all time was simulated.

    Raises:
        StoreError: There is no store, or it cannot be read.
    """
    with StoreReader(path, still=True) as reader:
        content = {} if reader.empty else _content(reader)
        segments = _stats(segment.path for segment in segments_of(path))
        return {
            "identity": reader.identity,
            "disk_bytes": sum(file.st_blocks * 512 for file in _stats(path.rglob("*"))),
            "bytes_per_row": sum(s.st_size for s in segments) / max(content.get("rows", 0), 1),
            "weights": weights_versions(path),
            **content,
        }


def _stats(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the stats of files that still exist: a server may evict or replace some meanwhile."""
    for path in paths:
        with suppress(FileNotFoundError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                yield found


def _content(reader: StoreReader) -> dict[str, Any]:
    schema, episodes = reader.schema, reader.episodes()
    sources = {source: Counter[str]() for source in SOURCE_NAMES}
    missing: dict[int, int] = {}
    stamps: list[int] = []
    for record in episodes:
        try:
            rows = reader.rows_there(record)[: record.rows]
        except NotEnoughData:  # evicted since the list was made, or lost with its file
            rows = np.empty(0, schema.dtype)
        source = SOURCE_NAMES[record.overall_source]
        sources[source].update(record.totals(), steps=record.environment_steps)
        if len(rows) < record.rows:
            missing[record.identifier] = record.rows - len(rows)
        stamps += rows["stamp_observation"][[0, -1]].tolist() if len(rows) else []
    real = [stamp for stamp in stamps if stamp >= _WALL_CLOCK]
    return {
        "schema": json.loads(schema.to_json()),
        "metadata": dict(reader.catalogue.metadata),
        **{count: sum(found[count] for found in sources.values()) for count in _COUNTS},
        "sources": {s: {count: found[count] for count in _COUNTS} for s, found in sources.items()},
        "cut": sum(record.cut for record in episodes),
        "sessions": len({record.session_key for record in episodes}),
        "rows": sum(record.rows for record in episodes) - sum(missing.values()),
        "row_bytes": schema.dtype.itemsize,
        "missing_rows": missing,
        "evicted_rows": reader.catalogue.evicted()["rows"],
        "first_stamp": min(real, default=None),
        "last_stamp": max(real, default=None),
        "annotations": reader.annotation_counts(),
    }
