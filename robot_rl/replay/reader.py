"""Reading a store while a server may be writing it: whole episodes, or a table as it grows.

Rows come straight from the segments' memory maps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array
from robot_rl.errors import did_you_mean
from robot_rl.replay import NotEnoughData, StoreError
from robot_rl.replay.catalogue import Catalogue, NewestValues
from robot_rl.replay.records import EpisodeRecord, RowFlags, Session, TableInfo
from robot_rl.replay.store_files import Segment, Segments, lacks_rows
from robot_rl.replay.windows import SCALARS, Integers, News, Ranges

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_LARGE_BYTES = 2048
_TRIES = 16


class StoreReader(AbstractContextManager["StoreReader"]):
    """Reads the tables and episodes of the store in a folder.

    Attributes:
        identity: Name of this store and its copies.

    Raises:
        StoreError: There is no store, or it cannot be read; so with all calls.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.catalogue = Catalogue(path)
        self.segments = Segments(path)
        self.identity = self.catalogue.identity

    def tables(self) -> dict[str, TableInfo]:
        """Return the tables by name."""
        return self.catalogue.tables()

    def table(self, name: str | None) -> TableInfo:
        """Return one table; None stands for the only one.

        Raises:
            StoreError: There is none of this name, or none or several to choose from.
        """
        tables = self.tables()
        if name is None and len(tables) == 1:
            return next(iter(tables.values()))
        if name is None:
            raise StoreError(
                f"the store {self.path} has {len(tables) or 'no'} tables",
                got=", ".join(sorted(tables)) or None,
                expected="one",
                hint="name one of them with table=NAME" if tables else None,
            )
        if name not in tables:
            raise StoreError(
                f"the store {self.path} has no such table",
                got=name,
                expected=sorted(tables),
                hint=did_you_mean(name, tables),
            )
        return tables[name]

    def episodes(self, table: str) -> list[EpisodeRecord]:
        """Return the episodes of a table in the order in which they began."""
        info = self.table(table)
        records = self.catalogue.episodes(info.identifier)
        return [r if r.sealed else self._as_it_is(info, r) for r in records]

    def read_episode(self, table: str, episode: EpisodeRecord) -> npt.NDArray[Any]:
        """Return the rows of an episode, mapped from the file and read-only.

        Returns:
            Shape (rows,), with the schema's dtype.

        Raises:
            NotEnoughData: They are not there: evicted, or lost.
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
        """Map what there is of an episode, and of those behind it in its file."""
        segment = self.segments.holding(episode.session_key, episode.first_sequence)
        rows = segment.rows(self.identity, self.table(table).schema.dtype)
        return rows[episode.first_sequence - segment.first :]

    def annotation_counts(self, table: str) -> dict[str, int]:
        """Return the values ever written of each annotation that rows of a table have, by name."""
        return self.catalogue.annotation_counts(self.table(table).identifier)

    def annotations(self, name: str, episode: EpisodeRecord) -> NewestValues:
        """Read the newest version of an annotation along an episode; n is its rows."""
        place = episode.session_key, episode.first_sequence
        return self.catalogue.newest_values(name, *place, episode.rows)

    def close(self) -> None:
        """Release the store."""
        self.catalogue.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _as_it_is(self, info: TableInfo, episode: EpisodeRecord) -> EpisodeRecord:
        """Return the record of an open episode with the rows that it has by now."""
        try:
            rows = _of_one_episode(self.rows_there(info.name, episode))[0]
        except NotEnoughData:
            return episode
        state = Session("", episode.first_sequence, episode.begun_anew())
        facts = RowFlags(info.schema).read_all(rows)
        _, found = state.after(episode.session_key, facts, {}, 0)
        return found.get(episode.identifier, episode)


def _of_one_episode(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], bool]:
    """Return the rows up to the one with ``is_last``, and whether that is there."""
    lasts = np.flatnonzero(rows["is_last"])
    return (rows[: lasts[0] + 1], True) if len(lasts) else (rows, False)


@dataclass
class _Mapped:
    """A segment, its rows so far, their bytes, and the size that its file had."""

    segment: Segment
    rows: npt.NDArray[Any]
    data: memoryview
    file_bytes: int
    gone: bool = False

    @property
    def end(self) -> int:
        """Sequence behind its last row."""
        return self.segment.first + len(self.rows)


class TableRows:
    """Follows a table. A row has an address, and the rows of an episode have consecutive ones.

    What was given stays readable, also after its eviction, until `forget_gone`.

    Attributes:
        identity: Name of the store and its copies.
        dtype: Of a row.
        evicted: Totals of what was evicted from it, as of the last look.

    Raises:
        StoreError: No such store or table.
    """

    def __init__(self, store: Path, table: str) -> None:
        self._reader = StoreReader(store)
        try:
            info = self._reader.table(table)
        except BaseException:
            self._reader.close()
            raise
        self._table, self.dtype = info.identifier, info.schema.dtype
        self.identity, self._catalogue = self._reader.identity, self._reader.catalogue
        self.evicted: Counter[str] = Counter()
        self._mapped: list[_Mapped | None] = []
        self._numbers: dict[Segment, int] = {}
        self._given: dict[int, int] = {}  # of open episodes: how many of their rows were given
        self._next_episode = 0
        self._seen_version: int | None = None
        self._unseen: list[EpisodeRecord] = []  # of which rows may come

    def look(self) -> list[News]:
        """Return what has come since the last look, in the order in which episodes began."""
        for _ in range(_TRIES):
            try:
                return self._look()
            except (FileNotFoundError, NotEnoughData):
                self._seen_version = None  # evicted between catalogue and rows: look again
        raise StoreError(
            "rows are evicted faster than they can be read",
            got=f"eviction during each of {_TRIES} looks",
            hint="let more rows stay: a larger replay.capacity_rows",
        )

    def gone(self) -> Ranges:
        """Return the address ranges (first, end) of what was evicted and not forgotten yet."""
        return [
            (number << _INDEX_BITS, (number << _INDEX_BITS) + len(mapped.rows))
            for number, mapped in enumerate(self._mapped)
            if mapped is not None and mapped.gone
        ]

    def forget_gone(self) -> None:
        """Let go of the rows that `gone` returned."""
        for number, mapped in enumerate(self._mapped):
            if mapped is not None and mapped.gone:
                del self._numbers[mapped.segment]
                self._mapped[number] = None

    def rewind(self) -> None:
        """Let the next look begin again at the first episode."""
        self._next_episode, self._seen_version, self._given = 0, None, {}

    def take(self, addresses: Integers, out: Mapping[str, Array]) -> None:
        """Copy fields of the rows at (n,) addresses to arrays, each (n, *shape) and contiguous."""
        columns = self.dtype.fields
        assert columns is not None
        numbers = (addresses >> _INDEX_BITS).tolist()
        rows = (addresses & _INDEX_MASK) * self.dtype.itemsize
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

    def annotation_count(self, name: str) -> int:
        """Return how many values were ever written of an annotation."""
        return self._catalogue.annotation_counts(self._table).get(name, 0)

    def annotated(self, name: str, address: int, rows: int) -> NewestValues:
        """Read the newest values of an annotation of consecutive rows."""
        number, index = divmod(address, 1 << _INDEX_BITS)
        mapped = self._mapped[number]
        assert mapped is not None
        segment = mapped.segment
        return self._catalogue.newest_values(name, segment.key, segment.first + index, rows)

    def close(self) -> None:
        """Release the store."""
        self._reader.close()
        self._mapped = []

    def _look(self) -> list[News]:
        version = self._catalogue.data_version()
        if version != self._seen_version:
            self._read_catalogue()
        news = list(self._news())
        self._seen_version = version
        for item in news:
            self._next_episode = max(self._next_episode, item.episode + 1)
            self._given[item.episode] = self._given.get(item.episode, 0) + len(item.scalars)
            if item.complete:
                del self._given[item.episode]
        self._unseen = [record for record in self._unseen if record.identifier in self._given]
        return news

    def _read_catalogue(self) -> None:
        """Take what is to be looked at: what was evicted, open episodes and new ones."""
        with self._catalogue.transaction(write=False):
            for mapped in self._mapped:
                if mapped is not None:  # a segment begins with an episode
                    first = mapped.segment.first
                    place = (mapped.segment.key, first, first + 1)
                    mapped.gone = not self._catalogue.episodes_of_session(*place)
            self.evicted = self._catalogue.evicted(self._table)
            known = (self._catalogue.episode(identifier) for identifier in sorted(self._given))
            there = [record for record in known if record is not None]
            self._unseen = [*there, *self._catalogue.episodes(self._table, self._next_episode)]
        self._given = {record.identifier: self._given[record.identifier] for record in there}

    def _news(self) -> Iterator[News]:
        for record in self._unseen:
            new = record.identifier not in self._given
            given = self._given.get(record.identifier, 0)
            number, mapped = self._map(record)
            start = record.first_sequence - mapped.segment.first + given
            rows, complete = mapped.rows[start:], True
            if not record.sealed:
                rows, complete = _of_one_episode(rows)
            elif mapped.end < record.end:
                store, name = self._reader.path, mapped.segment.path.name
                raise lacks_rows(store, name, mapped.end, record.end)
            else:
                rows = rows[: record.rows - given]
            if not (len(rows) or new or complete):
                continue
            scalars = np.empty(len(rows), SCALARS)
            for name in SCALARS.names or ():
                scalars[name] = rows[name]
            address, of_actor = (number << _INDEX_BITS) + start, not record.is_demonstration
            yield News(record.identifier, address, scalars, of_actor, complete, record.cut)

    def _map(self, record: EpisodeRecord) -> tuple[int, _Mapped]:
        segment = self._reader.segments.holding(record.session_key, record.first_sequence)
        number = self._numbers.get(segment, len(self._mapped))
        mapped = self._mapped[number] if number < len(self._mapped) else None
        if mapped is not None and record.sealed and record.end <= mapped.end:
            return number, mapped
        size = segment.path.stat().st_size
        if mapped is not None and size == mapped.file_bytes:
            return number, mapped
        # What comes between the size and the mapping is found with the next look.
        rows = segment.rows(self.identity, self.dtype)
        mapped = _Mapped(segment, rows, rows.view(np.uint8).data, size)
        self._mapped[number : number + 1] = [mapped]
        self._numbers[segment] = number
        return number, mapped
