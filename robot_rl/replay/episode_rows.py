"""The rows of datasets in memory, for the sampler: what is cloned."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_DEMONSTRATION, Array
from robot_rl.replay import NotEnoughData
from robot_rl.replay.catalogue import NewestValues
from robot_rl.replay.windows import SCALARS, Integers, News, Ranges

if TYPE_CHECKING:  # zarr takes a third of a second, and a replay server needs none
    from robot_rl.data.episodes import EpisodeDataset


class EpisodeRows:
    """Whole episodes in memory, all of them demonstrations; what `TableRows` is for a store.

    Args:
        arrays: Columns of shape (rows, ...), final rows included; more may be added later.
        episode_ends: (episodes,) exclusive, cumulative; T + 1 rows per episode.
        episodes: (episodes,) bool, which episodes are given; default all.

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
    ) -> None:
        self.arrays = dict(arrays)
        self.evicted = Counter[str]()
        ends = np.asarray(episode_ends, np.int64).tolist()
        every = list(itertools.pairwise([0, *ends]))
        chosen = [True] * len(every) if episodes is None else np.asarray(episodes)
        self._episodes = list(itertools.compress(every, chosen))
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
    ) -> EpisodeRows:
        """Read columns of datasets into memory, one behind the other.

        Args:
            datasets: The episodes in their present view.
            fields: Columns to read; `instruction` gives each row the text of its episode.
            only_successful: Whether failed episodes are left out.

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
        )

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The fields as one structured dtype."""
        return np.dtype([(name, a.dtype, a.shape[1:]) for name, a in self.arrays.items()])

    def look(self) -> list[News]:
        """Return all episodes, the first time."""
        looked, self._looked = self._looked, True
        return [] if looked else list(itertools.starmap(self._news, enumerate(self._episodes)))

    def rewind(self) -> None:
        """Let the next look return all again."""
        self._looked = False

    def gone(self) -> Ranges:
        """Nothing."""
        return []

    def forget_gone(self) -> None:
        """Nothing is ever gone."""

    def take(self, addresses: Integers, out: Mapping[str, Array]) -> None:
        """Copy fields of the rows at (n,) addresses, which are their numbers."""
        for name, array in out.items():
            self.arrays[name].take(addresses, axis=0, out=array, mode="clip")

    def annotation_count(self, name: str) -> int:
        """There are none."""
        return 0

    def annotated(self, name: str, address: int, rows: int) -> NewestValues:
        """There are none to ask for."""
        raise NotImplementedError

    def close(self) -> None:
        """The columns stay their owner's."""

    def _news(self, number: int, episode: tuple[int, int]) -> News:
        start, end = episode
        scalars = np.zeros(end - start, SCALARS)
        for name in SCALARS.names or ():
            if name in self.arrays:
                scalars[name] = self.arrays[name][start:end]
        # Whatever recorded it: what is given as a demonstration counts as one.
        scalars["source"] = SOURCE_DEMONSTRATION
        scalars["is_last"] = np.arange(start, end) == end - 1
        return News(number, start, scalars, of_actor=False, complete=True)


def _columns(dataset: EpisodeDataset, names: Sequence[str]) -> dict[str, Array]:
    columns = dataset.arrays(name for name in names if name != "instruction")
    if "instruction" in names:
        lengths = np.diff(dataset.episode_ends, prepend=0)
        columns["instruction"] = np.repeat(np.array(dataset.instructions), lengths)
    return columns
