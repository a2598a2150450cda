"""Windows over episodes: observation history before a step, a chunk of actions after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import Array
from robot_rl.errors import RobotRLError

_OBSERVED = ("state/", "images/", "features/", "instruction")


class WindowError(RobotRLError):
    """Arrays, episode ends or indices that no window can be cut from."""


class WindowSampler:
    """Cuts windows for chunked imitation out of arrays in memory.

    A window belongs to one row s, which is never a final row (`is_last`). With n =
    `observation_steps` and H = `horizon`, and t the row of s:

    * observation columns (`state/...`, `images/...`, `features/...`, `instruction`) give rows
      t-n+1 ... t, shape (B, n, ...); steps before the episode repeat its first row;
    * every other column gives rows t ... t+H-1, shape (B, H, ...); steps behind the episode's
      last action repeat that action's row (Diffusion Policy pads its edges in the same way);
    * `valid` (B, H) bool is false at the repeated steps: losses on padded actions are the
      caller's decision, critics must mask them.

    Args:
        arrays: Columns of shape (rows, ...), final rows included.
        episode_ends: (episodes,) exclusive, cumulative; T + 1 rows per episode.
        observation_steps: History length n >= 1.
        horizon: Chunk length H >= 1.
        episodes: (episodes,) bool, which episodes give windows; default all.

    Raises:
        WindowError: Lengths that do not fit each other, or a selection without any step.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        episode_ends: npt.ArrayLike,
        observation_steps: int,
        horizon: int,
        *,
        episodes: npt.ArrayLike | None = None,
    ) -> None:
        """Index the episodes; see the class for arguments and errors."""
        ends = np.asarray(episode_ends, np.int64)
        selected = _selection(episodes, len(ends))
        _check(arrays, ends, observation_steps, horizon)
        starts = np.concatenate([[0], ends[:-1]])
        lengths = ends - starts
        self.arrays = dict(arrays)
        self.observation_steps = observation_steps
        self.horizon = horizon
        # Per row: first row of its episode, and the row of its last action.
        self._first = np.repeat(starts, lengths)
        self._last = np.repeat(ends - 2, lengths)
        rows = np.arange(int(ends[-1]) if len(ends) else 0)
        usable = (rows <= self._last) & np.repeat(selected, lengths)
        self.indices: npt.NDArray[np.int64] = rows[usable]
        """(windows,) int64 rows that may be s, in the order of recording."""
        if not len(self.indices):
            raise WindowError(
                "there is no step to cut a window at",
                got=f"{len(ends)} episodes, {int(selected.sum())} of them selected",
                hint="record more episodes, or select others",
            )
        self._history = np.arange(1 - observation_steps, 1)
        self._chunk = np.arange(horizon)

    @classmethod
    def of_dataset(
        cls,
        dataset: EpisodeDataset,
        observation_steps: int,
        horizon: int,
        *,
        fields: Iterable[str] | None = None,
        only_successful: bool = False,
    ) -> WindowSampler:
        """Read columns of a dataset into memory and index them.

        Args:
            dataset: The episodes in its present view.
            observation_steps: History length n.
            horizon: Chunk length H.
            fields: Columns to read; default all observations and `action`. `instruction` gives
                each row the text of its episode.
            only_successful: Whether failed episodes give no windows.

        Raises:
            WindowError: The dataset has no (successful) episode.
        """
        return cls.of_datasets(
            [dataset], observation_steps, horizon, fields=fields, only_successful=only_successful
        )

    @classmethod
    def of_datasets(
        cls,
        datasets: Sequence[EpisodeDataset],
        observation_steps: int,
        horizon: int,
        *,
        fields: Iterable[str] | None = None,
        only_successful: bool = False,
    ) -> WindowSampler:
        """As `of_dataset`, of the episodes of several datasets one behind the other."""
        names = [*datasets[0].schema.observation_names, "action"] if fields is None else [*fields]
        parts = [_columns(dataset, names) for dataset in datasets]
        counts = [0, *(int(dataset.episode_ends[-1]) for dataset in datasets[:-1])]
        ends = zip(np.cumsum(counts), datasets, strict=True)
        return cls(
            parts[0] if len(parts) == 1 else _joined(parts),
            np.concatenate([start + dataset.episode_ends for start, dataset in ends]),
            observation_steps,
            horizon,
            episodes=np.concatenate([d.successes for d in datasets]) if only_successful else None,
        )

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.indices)

    def batch(self, indices: npt.ArrayLike) -> dict[str, Array]:
        """Cut the windows at the given rows.

        Args:
            indices: (B,) rows, taken from `indices`.

        Returns:
            Columns of shape (B, n, ...) or (B, H, ...) as the class says, copied, and `valid`.

        Raises:
            WindowError: An index outside the rows, or at a final row.
        """
        at = np.asarray(indices, np.int64)
        if at.size and (at.min() < 0 or at.max() >= len(self._first)):
            raise WindowError(
                "a row index is out of range",
                got=f"{at.min()} to {at.max()}",
                expected=f"0 to {len(self._first) - 1}",
            )
        last = self._last[at]
        if (at > last).any():
            raise WindowError(
                "a window was asked for at a final row, which has no action",
                got=at[at > last],
                hint="draw the rows from `indices`",
            )
        history = np.maximum(at[:, None] + self._history, self._first[at][:, None])
        ahead = at[:, None] + self._chunk
        valid = ahead <= last[:, None]
        chunk = np.minimum(ahead, last[:, None])
        windows: dict[str, Array] = {
            name: column.take(history if name.startswith(_OBSERVED) else chunk, axis=0)
            for name, column in self.arrays.items()
        }
        windows["valid"] = valid
        return windows


def _columns(dataset: EpisodeDataset, names: Sequence[str]) -> dict[str, Array]:
    columns = dataset.arrays(name for name in names if name != "instruction")
    if "instruction" in names:
        lengths = np.diff(dataset.episode_ends, prepend=0)
        columns["instruction"] = np.repeat(np.array(dataset.instructions), lengths)
    return columns


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _selection(episodes: npt.ArrayLike | None, count: int) -> npt.NDArray[np.bool_]:
    if episodes is None:
        return np.ones(count, np.bool_)
    selected: npt.NDArray[Any] = np.asarray(episodes)
    if selected.dtype != np.bool_ or selected.shape != (count,):
        raise WindowError(
            "the selection of episodes has another shape or dtype",
            got=f"{selected.dtype} {selected.shape}",
            expected=f"bool ({count},)",
        )
    return selected


def _check(
    arrays: Mapping[str, Array],
    ends: npt.NDArray[np.int64],
    observation_steps: int,
    horizon: int,
) -> None:
    if observation_steps < 1 or horizon < 1:
        raise WindowError(
            "a window needs at least one observation and one action",
            got=f"observation_steps={observation_steps}, horizon={horizon}",
        )
    if len(ends) and np.diff(ends, prepend=0).min() < 2:
        raise WindowError(
            "episode_ends must grow by at least two rows per episode", got=np.diff(ends, prepend=0)
        )
    total = int(ends[-1]) if len(ends) else 0
    for name, column in arrays.items():
        if len(column) != total:
            raise WindowError(
                f"column {name!r} does not fit episode_ends",
                got=f"{len(column)} rows",
                expected=f"{total} rows",
            )
