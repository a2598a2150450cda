"""What a store holds, worked out while a server may be writing it; and a catalogue made anew."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from robot_rl.data.schema import SOURCE_NAMES
from robot_rl.replay import catalogue
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.errors import NotEnoughData, StoreError
from robot_rl.replay.mailbox import weights_versions
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import AnnotationField, TableInfo
from robot_rl.replay.segments import Segments, lock_store
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.transfer import episode_source

# Stamps of the system's clock are above [ns]: it is later than 2001.
_WALL_CLOCK = 10**18


@dataclass
class SourceCounts:
    """Episodes of one source; `steps` are environment steps."""

    episodes: int = 0
    sealed: int = 0
    successes: int = 0
    steps: int = 0


@dataclass
class TableSummary:
    """What a table holds.

    Attributes:
        info: Its name and schema.
        sources: Counts by source: who acted in an episode.
        rows: Rows that are there.
        cut: Episodes that were closed without their final row, as their actor was killed.
        missing_rows: Rows that are not there, by episode: damage.
        evicted_rows: Rows that were evicted.
        sessions: Number of sessions that have an episode.
        first_stamp: Earliest `stamp_observation` [ns] of the wall clock, None where all time was
            simulated: it begins anew with each episode.
        last_stamp: Latest.
        annotations: What rows were annotated with, by name.
    """

    info: TableInfo
    sources: dict[str, SourceCounts] = field(default_factory=dict)
    rows: int = 0
    cut: int = 0
    missing_rows: dict[int, int] = field(default_factory=dict)
    evicted_rows: int = 0
    sessions: int = 0
    first_stamp: int | None = None
    last_stamp: int | None = None
    annotations: dict[str, AnnotationField] = field(default_factory=dict)

    @property
    def total(self) -> SourceCounts:
        """The counts over all sources."""
        counts = [vars(c).values() for c in self.sources.values()]
        return SourceCounts(*map(sum, zip(*counts, strict=True)))


@dataclass(frozen=True)
class StoreSummary:
    """What a store holds.

    Attributes:
        identity: Name of the store and its copies.
        tables: Its tables.
        weights: Version of the latest weights by name.
        disk_bytes: Space that its files take on the disk.
        bytes_per_row: Of the files of rows, over all tables.
    """

    identity: str
    tables: list[TableSummary]
    weights: dict[str, int]
    disk_bytes: int
    bytes_per_row: float


def summarize_store(path: Path) -> StoreSummary:
    """Look at every episode of a store.

    Raises:
        StoreError: There is no store, or it cannot be read.
    """
    with StoreReader(path) as reader:
        tables = [_summarize_table(reader, info) for info in reader.tables().values()]
        sizes = [segment.path.stat().st_size for segment in Segments(path)]
        disk = sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
        per_row = sum(sizes) / max(sum(table.rows for table in tables), 1)
        return StoreSummary(reader.identity, tables, weights_versions(path), disk, per_row)


def _summarize_table(reader: StoreReader, info: TableInfo) -> TableSummary:
    summary = TableSummary(
        info,
        {name: SourceCounts() for name in SOURCE_NAMES},
        evicted_rows=reader.evicted_rows(info.name),
        annotations=reader.annotation_fields(info.name),
    )
    sessions = set()
    stamps: list[int] = []
    for record in reader.episodes(info.name):
        try:
            rows = reader.rows_there(info.name, record)[: record.rows]
        except NotEnoughData:  # evicted since the list was made, or lost with its file
            rows = np.empty(0, info.schema.dtype)
        counts = summary.sources[SOURCE_NAMES[episode_source(record)]]
        counts.episodes += 1
        counts.sealed += record.sealed
        counts.successes += record.success
        counts.steps += record.environment_steps
        summary.cut += record.cut
        summary.rows += len(rows)
        if len(rows) < record.rows:
            summary.missing_rows[record.identifier] = record.rows - len(rows)
        stamps += rows["stamp_observation"][[0, -1]].tolist() if len(rows) else []
        sessions.add(record.session_key)
    real = [stamp for stamp in stamps if stamp >= _WALL_CLOCK]
    if real:
        summary.first_stamp, summary.last_stamp = min(real), max(real)
    summary.sessions = len(sessions)
    return summary


def rebuild_catalogue(path: Path) -> str:
    """Make the catalogue of a store anew from its files of rows, and say what was found.

    What only the catalogue knows are the annotations: they are taken over as far as the present
    one can be read. That file stays beside the new one.

    Raises:
        StoreInUse: A server is writing the store.
        StoreError: There are no rows, or rows of several stores, or they are damaged.
    """
    identities = {str(segment.about()["store"]) for segment in Segments(path)}
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
    made = Catalogue(path, write=True, identity=identities.pop())
    annotations = made.take_annotations(kept) if kept.exists() else 0
    made.close()
    writer = StoreWriter(path)
    totals = [f"{t['episodes']} episodes of {name}" for name, t in writer.statistics().items()]
    writer.close()
    tables = ", ".join(totals)
    return f"made the catalogue anew: {tables}; {annotations} annotations were kept"
