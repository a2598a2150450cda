"""What a store holds, worked out while a server may be writing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from robot_rl.data.schema import SOURCE_NAMES, RowSchema
from robot_rl.replay.annotations import AnnotationField
from robot_rl.replay.environment import EPISODES, ROWS, WEIGHTS, Environment, open_for_reading
from robot_rl.replay.export import episode_source
from robot_rl.replay.reader import StoreReader, read_weights
from robot_rl.replay.records import (
    EPISODE_KEY,
    ROW_KEY,
    EpisodeRecord,
    RowFlags,
    TableInfo,
    field_offset,
)

# Stamps of the system's clock are above [ns]: it is later than 2001.
_WALL_CLOCK = 10**18
_STAMP_BYTES = 8


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
        gone_sequences: Sequences of sessions that belong to no episode before a later one: whole
            episodes that were evicted.
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
    gone_sequences: int = 0
    sessions: int = 0
    first_stamp: int | None = None
    last_stamp: int | None = None
    annotations: dict[str, AnnotationField] = field(default_factory=dict)

    @property
    def total(self) -> SourceCounts:
        """The counts over all sources."""
        counts = self.sources.values()
        return SourceCounts(
            sum(c.episodes for c in counts),
            sum(c.sealed for c in counts),
            sum(c.successes for c in counts),
            sum(c.steps for c in counts),
        )


@dataclass(frozen=True)
class StoreSummary:
    """What a store holds.

    Attributes:
        identity: Name of the store and its copies; None if an older server wrote it.
        tables: Its tables.
        weights: Version of the latest weights by name.
        disk_bytes: Space that the file takes on the disk.
        bytes_per_row: Of the file's pages that hold rows, over all tables.
    """

    identity: str | None
    tables: list[TableSummary]
    weights: dict[str, int]
    disk_bytes: int
    bytes_per_row: float


def summarize_store(path: Path) -> StoreSummary:
    """Look at every episode of a store, each in a transaction of its own.

    Raises:
        StoreError: There is no store, or it cannot be read.
    """
    reader = StoreReader(path)
    environment = open_for_reading(path)
    try:
        tables = [
            _summarize_table(
                environment, info, reader.episodes(name), reader.annotation_fields(name)
            )
            for name, info in reader.tables().items()
        ]
        return StoreSummary(
            reader.identity,
            tables,
            dict(_weights(environment)),
            (path / "data.mdb").stat().st_blocks * 512,
            reader.bytes_per_row(),
        )
    finally:
        environment.release()
        reader.close()


def _summarize_table(
    environment: Environment,
    info: TableInfo,
    records: list[EpisodeRecord],
    annotations: dict[str, AnnotationField],
) -> TableSummary:
    sources = {name: SourceCounts() for name in SOURCE_NAMES}
    summary = TableSummary(info, sources, annotations=annotations)
    place = _Offsets.of(info.schema)
    ends: dict[tuple[int, int], int] = {}
    for listed in sorted(records, key=lambda r: (r.actor, r.session, r.first_sequence)):
        with environment.begin_buffers() as txn:
            value = txn.get(EPISODE_KEY.pack(listed.identifier), db=environment.databases[EPISODES])
            if value is None:  # evicted since the list was made
                continue
            record = EpisodeRecord.from_bytes(EPISODE_KEY.pack(listed.identifier), bytes(value))
            _count_rows(txn, environment.databases[ROWS], record, place, summary)
        counts = summary.sources[SOURCE_NAMES[episode_source(record)]]
        counts.episodes += 1
        counts.sealed += record.sealed
        counts.successes += record.success
        counts.steps += record.environment_steps
        session = (record.actor, record.session)
        summary.gone_sequences += record.first_sequence - ends.get(session, 0)
        ends[session] = record.first_sequence + record.rows
    summary.sessions = len(ends)
    return summary


@dataclass(frozen=True)
class _Offsets:
    """Where in a packed row lies what is looked at."""

    is_last: int
    stamp: int

    @classmethod
    def of(cls, schema: RowSchema) -> _Offsets:
        return cls(RowFlags.of(schema).is_last, field_offset(schema, "stamp_observation"))


def _count_rows(
    txn: lmdb.Transaction[memoryview],
    database: lmdb._Database,
    record: EpisodeRecord,
    place: _Offsets,
    summary: TableSummary,
) -> None:
    """Walk along the keys of an episode; only its first and last row are read."""
    first = ROW_KEY.pack(record.table, record.actor, record.session, record.first_sequence)
    behind = ROW_KEY.pack(
        record.table, record.actor, record.session, record.first_sequence + record.rows
    )
    with txn.cursor(database) as cursor:
        found = 0
        if cursor.set_range(first):
            for found_key in cursor.iternext(keys=True, values=False):
                if bytes(found_key) >= behind:
                    break
                found += 1
        summary.rows += found
        if found < record.rows:
            summary.missing_rows[record.identifier] = record.rows - found
        last = b""
        for sequence in (0, record.rows - 1):
            key = ROW_KEY.pack(
                record.table, record.actor, record.session, record.first_sequence + sequence
            )
            value = txn.get(key, db=database)
            if value is None:
                return
            last = bytes(value[place.is_last : place.is_last + 1])
            _note_stamp(summary, bytes(value[place.stamp : place.stamp + _STAMP_BYTES]))
    summary.cut += record.sealed and last == b"\0"


def _note_stamp(summary: TableSummary, data: bytes) -> None:
    stamp = int.from_bytes(data, "little", signed=True)
    if stamp >= _WALL_CLOCK:
        summary.first_stamp = min(summary.first_stamp or stamp, stamp)
        summary.last_stamp = max(summary.last_stamp or stamp, stamp)


def _weights(environment: Environment) -> Iterator[tuple[str, int]]:
    with environment.begin() as txn, txn.cursor(environment.databases[WEIGHTS]) as cursor:
        names = [bytes(key).decode() for key in cursor.iternext(keys=True, values=False)]
    for name in names:
        record = read_weights(environment, name, tensors=False)
        if record is not None:
            yield name, record.version
