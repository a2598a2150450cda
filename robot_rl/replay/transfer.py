"""Whole stores: episodes out and in, what there is, and a catalogue made anew."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    Row,
    RowSchema,
)
from robot_rl.data.transfer import EpisodeSource, Selection, close_episode
from robot_rl.replay import NotEnoughData, ReplayError, StoreError, catalogue
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.messages import Opened
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import Annotations, EpisodeRecord
from robot_rl.replay.row_file import RowFile
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_files import Segments, lock_store, weights_versions

_FIRST_ACTOR = 1 << 31  # those of actors are counted from 0
_ROOM_SECONDS = 60.0
# Stamps of the system's clock are above [ns]: it is later than 2001.
_WALL_CLOCK = 10**18
_COUNTS = ("episodes", "sealed", "successes", "steps")


class StoreEpisodes:
    """The episodes of a table that are sealed at the moment when this is made.

    One that the server evicts before it is read is left out.

    Args:
        path: Folder of the store.
        table: Name of the table; None takes the only one.
        selection: Which episodes.

    Attributes:
        schema: Columns of the rows, and the newest version of each annotation at that moment.
        metadata: What the table was created with.
        open_episodes: How many were left out as they are not sealed.
        left_out: How many so far could not be given: evicted meanwhile, or cut after their first
            row.

    Raises:
        StoreError: No such store or table, or several tables to choose from.
    """

    def __init__(self, path: Path, table: str | None, selection: Selection) -> None:
        with StoreReader(path) as reader:
            info = reader.table(table)
            records = reader.episodes(info.name)
            names = sorted(reader.annotation_counts(info.name))
        self._path, self._table = path, info.name
        annotations = [Field(name, "float32") for name in names]
        self.schema: RowSchema = info.schema.recorded.with_annotations(annotations)
        self.metadata: Mapping[str, Any] = info.metadata
        self.open_episodes = sum(not record.sealed for record in records)
        self.left_out = 0
        self._records = [
            record
            for record in records
            if record.sealed and selection.takes(episode_source(record), record.success)
        ]

    def __len__(self) -> int:
        return len(self._records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that are still there, each with its final row.

        One that the server closed for a killed actor ends as `close_episode` says.
        """
        with StoreReader(self._path) as reader:
            for record in self._records:
                rows: npt.NDArray[Any] | None = None
                with contextlib.suppress(NotEnoughData):
                    rows = self._read(reader, record)
                    if not rows["is_last"][-1]:
                        rows = close_episode(rows, self.schema.observation_names)
                if rows is None:
                    self.left_out += 1
                    continue
                seed, text = record.metadata.get("seed"), record.metadata.get("instruction")
                seed, text = seed if isinstance(seed, int) else 0, str(text or "")
                yield Episode(rows, seed, text, record.success, episode_source(record))

    def _read(self, reader: StoreReader, record: EpisodeRecord) -> npt.NDArray[Any]:
        """Copy the rows of an episode, with the columns of the schema."""
        stored = reader.read_episode(self._table, record)
        if stored.dtype == self.schema.dtype:
            return stored
        rows = np.empty(len(stored), self.schema.dtype)
        for column in self.schema.without_annotations.fields:
            rows[column.name] = stored[column.name]
        for annotation in self.schema.annotations:
            found = reader.annotations(annotation.name, record)
            for part, values in zip(("valid", "version", "value"), found, strict=True):
                rows[f"{ANNOTATION}{annotation.name}/{part}"] = values
        return rows


def episode_source(record: EpisodeRecord) -> int:
    """Return the SOURCE code of an episode whose steps may have several.

    Demonstration if it began as one, intervention if anybody intervened, else policy.
    """
    if record.is_demonstration:
        return SOURCE_DEMONSTRATION
    return SOURCE_INTERVENTION if record.steps[SOURCE_INTERVENTION] else SOURCE_POLICY


@dataclass
class Imported:
    """What an import came to; rows and episodes that were there before are not new."""

    episodes: int = 0
    new_episodes: int = 0
    new_rows: int = 0
    new_annotations: int = 0


def import_episodes(
    source: EpisodeSource,
    client: ReplayClient,
    table: str,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> Imported:
    """Send all episodes of a source, and their annotations, to the server of a client.

    A source is known by its first episode, its columns and its length, and has a session of its
    own in the store: one that was interrupted goes on where it stood, and one that is there is not
    added again. The table is created where absent; `on_episode` is called after each.

    Raises:
        SchemaMismatch: The table has other columns; names the field.
        SpoolFull: There is no room; what was sent stays, and the import can be repeated.
        ServerUnreachable: The server went away and did not come back in time.
        DatasetError: The source cannot be read.
    """
    done, following, schema = Imported(), 0, source.schema.without_annotations
    opened: Opened | None = None
    for episode in source.episodes():
        if opened is None:
            token = _token(source, episode)
            actor, facts = _FIRST_ACTOR + int(token[:7], 16), dict(source.metadata)
            opened = client.open_session(table, schema, actor, owner=token, metadata=facts)
        there = min(max(opened.next_sequence - following, 0), len(episode.rows))
        if there < len(episode.rows):
            rows = [{f.name: row[f.name] for f in schema.fields} for row in episode.rows]
            facts = {"task": schema.task, "seed": episode.seed, "instruction": episode.instruction}
            client.append_episode(rows, facts, _ROOM_SECONDS, stored=there)
        done.episodes += 1
        done.new_episodes += there == 0
        done.new_rows += len(episode.rows) - there
        sequences = np.arange(following, following + len(episode.rows))
        for column in source.schema.annotations:
            name = f"{ANNOTATION}{column.name}"
            valid, versions = episode.rows[f"{name}/valid"], episode.rows[f"{name}/version"]
            for version in np.unique(versions[valid]).tolist():
                at = valid & (versions == version)
                client.flush(_ROOM_SECONDS)  # only stored rows can be annotated
                values = episode.rows[f"{name}/value"][at]
                new = Annotations(opened.place, column.name, version, sequences[at], values)
                done.new_annotations += client.annotate(new)
        following += len(episode.rows)
        on_episode(episode)
    client.flush(_ROOM_SECONDS)
    return done


class PlayedDifferently(ReplayError):
    """An episode does not go as it went before: its robot does not follow from its seed."""


class ReplayedEpisode:
    """Appends rows to a session that goes on; those that are stored are compared instead.

    `records` are of the episodes that the actor has finished: ``session`` and ``length`` in steps.
    This session has `finished` of them, and `steps` environment steps that are played again.

    Raises:
        PlayedDifferently: The store does not hold what was finished.
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
                for episode in reader.episodes(schema.task)
                if episode.session_key == place and episode.first_sequence >= self._next
            ]
            rows = [row for e in found for row in reader.read_episode(schema.task, e)]
        self.steps = sum(episode.environment_steps for episode in found)
        self._stored = dict(enumerate(rows, self._next))
        if self._next + len(rows) != expected:
            raise PlayedDifferently(
                "the rows of the unfinished episode are not in the store",
                got=f"rows {self._next} to {self._next + len(rows)}",
                expected=f"up to {expected}",
            )

    def append(self, row: Row, episode: Mapping[str, object] | None = None) -> int:
        """As `ReplayClient.append`; raises `PlayedDifferently` too, which names the fields."""
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


def _token(source: EpisodeSource, first: Episode) -> str:
    schema = source.schema.without_annotations
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(f"{len(source)} {first.seed} {first.instruction}".encode())
    for column in schema.fields:
        digest.update(np.ascontiguousarray(first.rows[column.name]).tobytes())
    return digest.hexdigest()[:32]


def summarize_store(path: Path) -> dict[str, Any]:
    """Look at every episode of a store.

    Returns:
        JSON-able: ``identity``; version of the latest ``weights`` by name; ``disk_bytes`` of all
        files, ``bytes_per_row`` of the files of rows; and ``tables`` by name, each with its
        ``schema``, ``metadata``, ``annotations``, counts of ``rows``, ``row_bytes``,
        ``evicted_rows``, ``sessions``, ``episodes``, ``sealed`` ones, ``successes`` and ``steps``,
        the last four by who acted in ``sources`` too; ``cut``: episodes closed without their final
        row, as their actor was killed; ``missing_rows`` by episode: damage; ``first_stamp`` and
        ``last_stamp`` [ns] of the wall clock, None where all time was simulated.

    Raises:
        StoreError: There is no store, or it cannot be read.
    """
    with StoreReader(path) as reader:
        tables = {name: _table(reader, name) for name in reader.tables()}
        rows = sum(table["rows"] for table in tables.values())
        sizes = [segment.path.stat().st_size for segment in Segments(path)]
        return {
            "identity": reader.identity,
            "disk_bytes": sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file()),
            "bytes_per_row": sum(sizes) / max(rows, 1),
            "weights": weights_versions(path),
            "tables": tables,
        }


def _table(reader: StoreReader, name: str) -> dict[str, Any]:
    info, episodes = reader.table(name), reader.episodes(name)
    sources = {source: Counter(dict.fromkeys(_COUNTS, 0)) for source in SOURCE_NAMES}
    missing: dict[int, int] = {}
    stamps: list[int] = []
    for record in episodes:
        try:
            rows = reader.rows_there(name, record)[: record.rows]
        except NotEnoughData:  # evicted since the list was made, or lost with its file
            rows = np.empty(0, info.schema.dtype)
        sources[SOURCE_NAMES[episode_source(record)]].update(
            episodes=1,
            sealed=record.sealed,
            successes=record.success,
            steps=record.environment_steps,
        )
        if len(rows) < record.rows:
            missing[record.identifier] = record.rows - len(rows)
        stamps += rows["stamp_observation"][[0, -1]].tolist() if len(rows) else []
    real = [stamp for stamp in stamps if stamp >= _WALL_CLOCK]
    return {
        "schema": json.loads(info.schema.to_json()),
        "metadata": dict(info.metadata),
        **{count: sum(found[count] for found in sources.values()) for count in _COUNTS},
        "sources": {source: dict(found) for source, found in sources.items()},
        "cut": sum(record.cut for record in episodes),
        "sessions": len({record.session_key for record in episodes}),
        "rows": sum(record.rows for record in episodes) - sum(missing.values()),
        "row_bytes": info.schema.dtype.itemsize,
        "missing_rows": missing,
        "evicted_rows": reader.catalogue.evicted(info.identifier)["rows"],
        "first_stamp": min(real, default=None),
        "last_stamp": max(real, default=None),
        "annotations": reader.annotation_counts(name),
    }


def rebuild_catalogue(path: Path) -> str:
    """Make the catalogue of a store anew from its files of rows, and say what was found.

    What only the catalogue knows are the annotations: they are taken over as far as the present
    one can be read. That file stays beside the new one.

    Raises:
        StoreInUse: A server is writing the store.
        StoreError: There are no rows, or rows of several stores, or they are damaged.
    """
    identities = set[str]()
    for segment in Segments(path):
        with contextlib.closing(RowFile.open(segment.path)) as file:
            identities.add(file.about["store"])
    if len(identities) != 1:
        raise StoreError(
            f"no catalogue can be made from the rows in {path}",
            got=f"rows of {len(identities)} stores",
            expected="rows of one",
            hint="move the files of other stores out of its folder" if identities else None,
        )
    lock_store(path).close()
    old, kept = path / catalogue.FILE, path / f"{catalogue.FILE}.before"
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{old}{suffix}").replace(f"{kept}{suffix}")
    with contextlib.closing(Catalogue(path, write=True, identity=identities.pop())) as made:
        annotations = made.take_annotations(kept) if kept.exists() else 0
    with contextlib.closing(StoreWriter(path)) as writer:
        totals = writer.statistics().items()
    tables = ", ".join(f"{table['episodes']} episodes of {name}" for name, table in totals)
    return f"made the catalogue anew: {tables}; {annotations} annotations were kept"
