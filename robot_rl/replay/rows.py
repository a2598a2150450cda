"""The rows of one table, followed as it grows, straight from the segments' memory maps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array
from robot_rl.replay.annotations import AnnotationField, fields_of_table, newest_values
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.errors import NotEnoughData, StoreError
from robot_rl.replay.records import EpisodeRecord, SessionKey, TableCounts
from robot_rl.replay.segments import Segment, Segments
from robot_rl.replay.windows import SCALARS, Records

Addresses = npt.NDArray[np.int64]
_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_LARGE_BYTES = 2048
_TRIES = 16


class News(NamedTuple):
    """Rows of an episode that have come.

    Attributes:
        episode: Its identifier; increases in the order in which episodes began.
        of_actor: Whether it may be evicted; else it is a demonstration.
        address: Of the first of these rows.
        scalars: What the rows say, shape (rows,), dtype `SCALARS`; may be none.
        complete: Whether nothing more will come.
        cut: Whether it was closed without its row with ``is_last``.
    """

    episode: int
    of_actor: bool
    address: int
    scalars: Records
    complete: bool
    cut: bool


@dataclass
class _Mapped:
    """A segment, its rows so far, their bytes, and the size that its file had."""

    segment: Segment
    rows: npt.NDArray[Any]
    data: memoryview
    file_bytes: int

    @property
    def end(self) -> int:
        """Sequence behind its last row."""
        return self.segment.first + len(self.rows)


class TableRows:
    """Follows a table. A row has an address, and the rows of an episode have consecutive ones.

    What was given stays readable, also after its eviction, until `forget_gone`.

    Args:
        store: Folder of the store.
        table: Name of the table.

    Attributes:
        identity: Name of the store and its copies.
        info: The table.
        schema: Its schema.
        dtype: Of a row.
        evicted: Totals of what was evicted from it, as of the last look.

    Raises:
        StoreError: No such store or table.
    """

    def __init__(self, store: Path, table: str) -> None:
        """Open the store before the first episode; see the class."""
        self._catalogue = Catalogue(store)
        tables = self._catalogue.tables()
        if table not in tables:
            self._catalogue.close()
            raise StoreError(
                f"the store {store} has no such table", got=table, expected=sorted(tables)
            )
        self.info = tables[table]
        self.schema, self.dtype = self.info.schema, self.info.schema.dtype
        self.identity = self._catalogue.identity
        self.evicted = TableCounts()
        self._segments = Segments(store)
        self._mapped: list[_Mapped | None] = []
        self._numbers: dict[Segment, int] = {}
        self._gone: set[tuple[SessionKey, int]] = set()
        self._last_gone = 0
        self._open: dict[int, int] = {}  # open episodes and how many of their rows were given
        self._next_episode = 0
        self._seen_version: object = None
        self._unseen: list[EpisodeRecord] = []

    def look(self) -> list[News]:
        """Return what has come since the last look, in the order in which episodes began.

        Raises:
            StoreError: The rows are not those that the catalogue knows.
        """
        for _ in range(_TRIES):
            try:
                return self._look()
            except (FileNotFoundError, NotEnoughData):
                self._seen_version = None  # evicted between catalogue and rows: look again
        raise StoreError(
            "rows are evicted faster than they can be read",
            got=f"eviction during each of {_TRIES} looks",
            hint="let more rows stay: a larger replay.capacity_rows or replay.capacity_bytes",
        )

    def gone(self) -> list[tuple[int, int]]:
        """Return the address ranges (first, end) of what was evicted and not forgotten yet."""
        ranges = []
        for number, mapped in enumerate(self._mapped):
            if mapped is not None and (mapped.segment.key, mapped.segment.first) in self._gone:
                first = number << _INDEX_BITS
                ranges.append((first, first + len(mapped.rows)))
        return ranges

    def forget_gone(self) -> None:
        """Let go of the rows that `gone` returned."""
        for first, _ in self.gone():
            mapped = self._mapped[first >> _INDEX_BITS]
            assert mapped is not None
            del self._numbers[mapped.segment]
            self._mapped[first >> _INDEX_BITS] = None
        self._gone.clear()

    def rewind(self) -> None:
        """Let the next look begin again at the first episode."""
        self._next_episode, self._seen_version = 0, None
        self._open = {}

    def take(self, addresses: Addresses, out: Mapping[str, Array]) -> None:
        """Copy fields of rows.

        Args:
            addresses: Of the rows, int64 (n,).
            out: Where to, by the name of the field, each (n, *shape) and contiguous.
        """
        columns, row_bytes = self.dtype.fields, self.dtype.itemsize
        assert columns is not None
        numbers = (addresses >> _INDEX_BITS).tolist()
        rows = (addresses & _INDEX_MASK) * row_bytes
        data = [b"" if m is None else m.data for m in self._mapped]

        def copy(target: memoryview, offset: int, size: int) -> None:
            """Copy so many bytes of each row, once; NumPy's indexing of a map would do it twice."""
            places = range(0, len(target), size)
            starts = (rows + offset).tolist()
            for at, number, start in zip(places, numbers, starts, strict=True):
                target[at : at + size] = data[number][start : start + size]

        small = [name for name in out if columns[name][0].itemsize < _LARGE_BYTES]
        for name in set(out).difference(small):
            dtype, offset = columns[name][:2]
            copy(out[name].reshape(-1).view(np.uint8).data, offset, dtype.itemsize)
        if small:  # they lie close together, and are spread from the head of each row
            first = min(columns[name][1] for name in small)
            end = max(columns[name][1] + columns[name][0].itemsize for name in small)
            layout = {
                "names": small,
                "formats": [columns[name][0] for name in small],
                "offsets": [columns[name][1] - first for name in small],
                "itemsize": end - first,
            }
            heads: npt.NDArray[Any] = np.empty(len(rows), np.dtype(layout))  # type: ignore[call-overload]
            copy(heads.view(np.uint8).data, first, end - first)
            for name in small:
                out[name][...] = heads[name]

    def annotation_fields(self) -> dict[str, AnnotationField]:
        """Return the annotations that rows of the table may have, by name."""
        return fields_of_table(self._catalogue, self.info.identifier)

    def annotated(
        self, field: AnnotationField, addresses: Addresses
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Return the newest values of an annotation, (n, *shape), and which rows have one, (n,)."""
        values = np.zeros((len(addresses), *field.shape), field.dtype)
        valid = np.zeros(len(addresses), np.bool_)
        breaks = np.flatnonzero(np.diff(addresses) != 1) + 1
        for start, end in zip([0, *breaks], [*breaks, len(addresses)], strict=True):
            if start == end:
                continue
            number, index = divmod(int(addresses[start]), 1 << _INDEX_BITS)
            mapped = self._mapped[number]
            assert mapped is not None
            first = mapped.segment.first + index
            stretch = (first, first + int(end - start))
            for sequence, _, value in newest_values(
                self._catalogue, field, mapped.segment.key, stretch
            ):
                at = int(start) + sequence - first
                values[at] = np.frombuffer(value, field.dtype).reshape(field.shape)
                valid[at] = True
        return values, valid

    def close(self) -> None:
        """Release the store."""
        self._catalogue.close()
        self._mapped = []

    def _look(self) -> list[News]:
        (version,) = self._catalogue.connection.execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            self._read_catalogue()
        news = list(self._news())
        self._seen_version = version
        for item in news:
            self._next_episode = max(self._next_episode, item.episode + 1)
            if item.complete:
                self._open.pop(item.episode, None)
            else:
                self._open[item.episode] = self._open.get(item.episode, 0) + len(item.scalars)
        return news

    def _read_catalogue(self) -> None:
        """Take what is to be looked at: what was evicted, open episodes and new ones."""
        table = self.info.identifier
        with self._catalogue.transaction(write=False):
            for segment in self._catalogue.evicted_segments(table, self._last_gone):
                self._gone.add((segment.key, segment.first))
                self._last_gone = segment.number
            self.evicted = self._catalogue.evicted(table)
            known = (self._catalogue.episode(identifier) for identifier in sorted(self._open))
            there = [record for record in known if record is not None]
            self._unseen = [*there, *self._catalogue.episodes(table, self._next_episode)]
        still = {record.identifier for record in there}
        self._open = {i: rows for i, rows in self._open.items() if i in still}

    def _news(self) -> Iterator[News]:
        for record in self._unseen:
            given = self._open.get(record.identifier, 0)
            if record.identifier < self._next_episode and record.identifier not in self._open:
                continue
            number, mapped = self._map(record)
            start = record.first_sequence - mapped.segment.first
            if record.sealed:
                rows = mapped.rows[start + given : start + record.rows]
                if len(rows) < record.rows - given:
                    raise StoreError(
                        f"{mapped.segment.path} has fewer rows than its catalogue knows",
                        got=len(mapped.rows),
                        expected=start + record.rows,
                        hint="see what is there: robot-rl inspect STORE rebuild=true",
                    )
                whole = True
            else:
                rows = mapped.rows[start + given :]
                lasts = np.flatnonzero(rows["is_last"])
                whole = bool(len(lasts))
                rows = rows[: lasts[0] + 1] if whole else rows
            new = record.identifier >= self._next_episode
            if not (len(rows) or new or whole):
                continue
            scalars = np.empty(len(rows), SCALARS)
            for name in SCALARS.names or ():
                scalars[name] = rows[name]
            address = (number << _INDEX_BITS) + start + given
            yield News(
                record.identifier, not record.is_demonstration, address, scalars, whole, record.cut
            )

    def _map(self, record: EpisodeRecord) -> tuple[int, _Mapped]:
        """Return the segment of an episode, mapped with the rows that it has now."""
        segment = self._segments.holding(record.session_key, record.first_sequence)
        number = self._numbers.get(segment)
        if number is not None:
            mapped = self._mapped[number]
            assert mapped is not None
            if self._is_full(mapped, record) or os.stat(segment.path).st_size == mapped.file_bytes:
                return number, mapped
        # What comes between this and the mapping is found with the next look.
        size = os.stat(segment.path).st_size
        rows = segment.rows(self.identity, self.dtype)
        mapped = _Mapped(segment, rows, rows.view(np.uint8).data, size)
        if number is None:
            number = len(self._mapped)
            self._mapped.append(mapped)
            self._numbers[segment] = number
        self._mapped[number] = mapped
        return number, mapped

    def _is_full(self, mapped: _Mapped, record: EpisodeRecord) -> bool:
        """Whether all rows of an episode are mapped."""
        return record.sealed and record.first_sequence + record.rows <= mapped.end
