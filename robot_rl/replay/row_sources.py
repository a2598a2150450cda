"""Row sources for a sampler: a store, which may be growing, or datasets in memory.

Every row has an address; the rows of an episode have consecutive addresses.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_DEMONSTRATION, Array
from robot_rl.replay import NotEnoughData, StoreError
from robot_rl.replay.catalogue import Catalogue, NewestValues, schema_of
from robot_rl.replay.episode_records import EpisodeRecord
from robot_rl.replay.store_files import Segment, holding, lacks_rows, not_there, segments_of
from robot_rl.replay.windows import SCALARS, Integers, News, Ranges, scalars_of

if TYPE_CHECKING:  # zarr takes a third of a second to import; a replay server does not need it
    from robot_rl.data.episodes import EpisodeDataset

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_LARGE_BYTES = 2048
_TRIES = 16


def of_one_episode(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], bool]:
    """Return the rows up to the one with ``is_last``, and whether that one is there."""
    lasts = np.flatnonzero(rows["is_last"])
    return (rows[: lasts[0] + 1], True) if len(lasts) else (rows, False)


@dataclass
class _Mapped:
    """A segment, the address of its first row, its rows so far, their bytes, its file size."""

    segment: Segment
    address: int
    rows: npt.NDArray[Any]
    data: memoryview
    file_bytes: int
    gone: bool = False

    @property
    def end(self) -> int:
        """Sequence after its last row."""
        return self.segment.first + len(self.rows)


class StoreRows:
    """Follows a store. Returned rows stay readable, even after eviction, until `forget_gone`.

    Before each look it calls `pull`, which updates a replica from its store.

    Attributes:
        identity: Name of the store and its copies.
        dtype: Dtype of a row.
        evicted: Totals of the evicted rows, as of the last look.

    Raises:
        StoreError: No such store, or no session has been started in it.
    """

    def __init__(self, store: Path, pull: Callable[[], None] = lambda: None) -> None:
        self._pull = pull
        self._store, self._catalogue = store, Catalogue(store)
        try:
            self.dtype = schema_of(self._catalogue).dtype
        except BaseException:
            self.close()
            raise
        self.identity = self._catalogue.identity
        self.evicted: Counter[str] = Counter()
        self._numbers: dict[Segment, int] = {}  # evicted ones included
        self._mapped: dict[int, _Mapped] = {}
        self._given: dict[int, int] = {}  # rows returned so far, by open episode
        self._next_episode = 0
        self._seen_version: int | None = None
        self._unseen: list[EpisodeRecord] = []  # may have new rows

    def look(self) -> list[News]:
        """Return the data added since the last look, in the order in which episodes started."""
        self._pull()
        for _ in range(_TRIES):
            try:
                return self._look()
            except NotEnoughData:
                self._seen_version = None  # evicted between catalogue and rows: look again
        raise StoreError(
            "rows are evicted faster than they can be read",
            got=f"eviction during each of {_TRIES} looks",
            hint="let more rows stay: a larger replay.capacity_rows",
        )

    def gone(self) -> Ranges:
        """Return the address ranges [first, end) of evicted rows not yet forgotten."""
        return [
            (mapped.address, mapped.address + len(mapped.rows))
            for mapped in self._mapped.values()
            if mapped.gone
        ]

    def forget_gone(self) -> None:
        """Release the rows that `gone` returned."""
        self._mapped = {n: mapped for n, mapped in self._mapped.items() if not mapped.gone}

    def rewind(self) -> None:
        """Make the next look start again at the first episode."""
        self._next_episode, self._seen_version, self._given = 0, None, {}

    def take(self, addresses: Integers, out: Mapping[str, Array]) -> None:
        """Copy fields of the rows at (n,) addresses to arrays, each (n, *shape) and contiguous."""
        columns = self.dtype.fields
        assert columns is not None
        numbers = (addresses >> _INDEX_BITS).tolist()
        rows = (addresses & _INDEX_MASK) * self.dtype.itemsize
        data = {number: mapped.data for number, mapped in self._mapped.items()}

        def copy(target: memoryview, offset: int, size: int) -> None:
            """Copy `size` bytes of each row once; NumPy's indexing of a map would copy twice."""
            places = range(0, len(target), size)
            starts = (rows + offset).tolist()
            for at, number, start in zip(places, numbers, starts, strict=True):
                target[at : at + size] = data[number][start : start + size]

        small = [name for name in out if columns[name][0].itemsize < _LARGE_BYTES]
        for name in set(out).difference(small):
            dtype, offset = columns[name][:2]
            copy(out[name].reshape(-1).view(np.uint8).data, offset, dtype.itemsize)
        if small:  # they are adjacent: copy the head of each row, then spread it
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
        """Return how many values of an annotation were ever written."""
        return self._catalogue.annotation_counts().get(name, 0)

    def annotated(self, name: str, address: int, rows: int) -> NewestValues:
        """Read the latest values of an annotation for consecutive rows."""
        mapped = self._mapped[address >> _INDEX_BITS]
        first = mapped.segment.first + (address & _INDEX_MASK)
        return self._catalogue.newest_values(name, mapped.segment.key, first, rows)

    def close(self) -> None:
        """Release the store."""
        self._catalogue.close()

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
        """Read the evicted totals, the open episodes and the new ones."""
        with self._catalogue.transaction(write=False):
            for mapped in self._mapped.values():  # a segment begins with an episode
                key, first = mapped.segment.key, mapped.segment.first
                mapped.gone = not self._catalogue.episodes_of_session(key, first, first + 1)
            self.evicted = self._catalogue.evicted()
            known = (self._catalogue.episode(identifier) for identifier in sorted(self._given))
            there = [record for record in known if record is not None]
            self._unseen = [*there, *self._catalogue.episodes(self._next_episode)]
        self._segments = segments_of(self._store)  # covers all these episodes
        self._given = {record.identifier: self._given[record.identifier] for record in there}

    def _news(self) -> Iterator[News]:
        for record in self._unseen:
            new = record.identifier not in self._given
            given = self._given.get(record.identifier, 0)
            mapped, first = None, record.first_sequence
            with suppress(FileNotFoundError, NotEnoughData):
                mapped = self._map(record)
            if mapped is None or (record.sealed and mapped.end < record.end):
                place, end = f"session {record.session_key}", mapped.end if mapped else first
                if self._catalogue.evicted() != self.evicted:  # since the catalogue was read
                    raise not_there(f"row {end} of {place}")
                raise lacks_rows(self._store, place, end, max(record.end, first + 1))
            start = first - mapped.segment.first + given
            rows, complete = mapped.rows[start:], True
            if record.sealed:
                rows = rows[: record.rows - given]
            else:
                rows, complete = of_one_episode(rows)
            if not (len(rows) or new or complete):
                continue
            scalars = scalars_of(rows)
            address, of_actor = mapped.address + start, not record.is_demonstration
            yield News(record.identifier, address, scalars, of_actor, complete, record.cut)

    def _map(self, record: EpisodeRecord) -> _Mapped:
        segment = holding(self._segments, record.session_key, record.first_sequence)
        number = self._numbers.setdefault(segment, len(self._numbers))
        mapped = self._mapped.get(number)
        if mapped is not None and record.sealed and record.end <= mapped.end:
            return mapped
        size = segment.path.stat().st_size
        if mapped is None or size != mapped.file_bytes:
            # The next look finds rows written between reading the size and mapping.
            rows = segment.view(self.identity, self.dtype)
            data = rows.view(np.uint8).data
            mapped = _Mapped(segment, number << _INDEX_BITS, rows, data, size)
            self._mapped[number] = mapped
        return mapped


class EpisodeRows:
    """Whole episodes in memory, with the interface of `StoreRows`.

    Args:
        arrays: Columns of shape (rows, ...), final rows included; more may be added later.
        episode_ends: (episodes,) exclusive, cumulative; T + 1 rows per episode.
        episodes: (episodes,) bool, which episodes to return; default all.
        left_out: (rows,) bool, actions to leave out. Each stretch between them becomes an episode,
            with the observation after it; default none.
        as_recorded: Whether the column ``source`` tells who acted; else all are demonstrations.

    Attributes:
        indices: (steps,) int64, the rows that have an action, in the order of recording.

    Raises:
        NotEnoughData: There is no step.
    """

    identity = ""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        episode_ends: npt.ArrayLike,
        *,
        episodes: npt.ArrayLike | None = None,
        left_out: npt.NDArray[np.bool_] | None = None,
        as_recorded: bool = False,
    ) -> None:
        self.arrays = dict(arrays)
        self._as_recorded = as_recorded
        self.evicted = Counter[str]()
        ends = np.asarray(episode_ends, np.int64).tolist()
        every = list(itertools.pairwise([0, *ends]))
        chosen = [True] * len(every) if episodes is None else np.asarray(episodes)
        self._episodes = list(itertools.compress(every, chosen))
        if left_out is not None:
            self._episodes = [part for e in self._episodes for part in _kept(*e, left_out)]
        if not self._episodes:
            raise NotEnoughData(
                "there is no step to learn from",
                got=f"{len(every)} episodes, none of them selected",
                hint="record more episodes, or select others",
            )
        self.indices: Integers = np.concatenate([np.arange(a, b - 1) for a, b in self._episodes])
        self._looked = False

    @classmethod
    def of_datasets(
        cls,
        datasets: Sequence[EpisodeDataset],
        fields: Iterable[str],
        *,
        only_successful: bool = False,
        left_out: npt.NDArray[np.bool_] | None = None,
    ) -> EpisodeRows:
        """Read columns of datasets into memory, concatenated.

        Args:
            datasets: The episodes in their present view.
            fields: Columns to read; `instruction` sets each row to its episode's text.
            only_successful: Whether to leave out failed episodes.
            left_out: (rows,) bool, actions to leave out of the remaining episodes.

        Raises:
            NotEnoughData: There is no (successful) episode.
        """
        names = list(fields)
        parts = [_columns(dataset, names) for dataset in datasets]
        counts = np.cumsum([0, *(dataset.rows_total for dataset in datasets[:-1])])
        ends = [start + d.episode_ends for start, d in zip(counts, datasets, strict=True)]
        return cls(
            {n: np.concatenate([p[n] for p in parts]) if parts[1:] else parts[0][n] for n in names},
            np.concatenate(ends),
            episodes=np.concatenate([d.successes for d in datasets]) if only_successful else None,
            left_out=left_out,
        )

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The fields as one structured dtype."""
        return np.dtype([(name, a.dtype, a.shape[1:]) for name, a in self.arrays.items()])

    def look(self) -> list[News]:
        """Return all episodes the first time, then no more."""
        looked, self._looked = self._looked, True
        return [] if looked else list(itertools.starmap(self._news, enumerate(self._episodes)))

    def rewind(self) -> None:
        """Make the next look return all episodes again."""
        self._looked = False

    def gone(self) -> Ranges:
        """Return no ranges: rows in memory are never evicted."""
        return []

    def forget_gone(self) -> None:
        """Do nothing: no rows are ever evicted."""

    def take(self, addresses: Integers, out: Mapping[str, Array]) -> None:
        """Copy fields of the rows at (n,) addresses, which are row indices."""
        for name, array in out.items():
            self.arrays[name].take(addresses, axis=0, out=array, mode="clip")

    def annotation_count(self, name: str) -> int:
        """Return 0: there are no annotations."""
        return 0

    def annotated(self, name: str, address: int, rows: int) -> NewestValues:
        """Raise `NotImplementedError`: there are no annotations."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: the caller owns the columns."""

    def _news(self, number: int, episode: tuple[int, int]) -> News:
        start, end = episode
        scalars = np.zeros(end - start, SCALARS)
        for name in SCALARS.names or ():
            if name in self.arrays:
                scalars[name] = self.arrays[name][start:end]
        # Episodes passed as demonstrations count as such, whatever recorded them.
        if not self._as_recorded:
            scalars["source"] = SOURCE_DEMONSTRATION
        scalars["is_last"] = np.arange(start, end) == end - 1
        of_actor = bool(scalars["source"][0] != SOURCE_DEMONSTRATION)
        return News(number, start, scalars, of_actor=of_actor, complete=True)


def _kept(start: int, end: int, left_out: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The kept stretches of an episode's actions, each with the row after it."""
    kept = ~left_out[start : end - 1]
    edges = start + np.flatnonzero(np.diff(kept, prepend=False, append=False))
    return [(int(first), int(stop) + 1) for first, stop in edges.reshape(-1, 2)]


def _columns(dataset: EpisodeDataset, names: Sequence[str]) -> dict[str, Array]:
    columns = dataset.arrays(name for name in names if name != "instruction")
    if "instruction" in names:
        lengths = np.diff(dataset.episode_ends, prepend=0)
        columns["instruction"] = np.repeat(np.array(dataset.instructions), lengths)
    return columns
