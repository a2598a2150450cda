"""Transfer of whole episodes between formats, one at a time.

Sources yield episodes, sinks write them; the replay store, episode datasets and the LeRobot layout
are each one or both. An episode has T + 1 rows. If the final observation was never recorded,
`close_episode` decides what happens to the last step.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from robot_rl.data.episodes import DatasetError, Episode, EpisodeDataset, EpisodeWriter, Rows
from robot_rl.data.schema import LAST_COMMAND, RowSchema
from robot_rl.processes.files import new_folder

# Episodes are buffered up to this many rows, or bytes.
_BLOCK_ROWS, _BLOCK_BYTES = 1 << 13, 1 << 26
# Fields that a row keeps when it becomes an episode's final row; the others become zero.
_FINAL_ROW_FIELDS = ("source", "episode_step", "stamp_observation", "base_action")


@dataclass(frozen=True)
class Selection:
    """Filter for episodes; None accepts all."""

    source: int | None = None  # SOURCE code
    success: bool | None = None  # whether they reached their goal

    def takes(self, source: int, success: bool) -> bool:
        """Whether an episode of this source and outcome is selected."""
        return self.source in (None, source) and self.success in (None, success)


class EpisodeSource(Protocol):
    """Yields whole episodes of one schema; `metadata`, JSON values, describes the recording."""

    schema: RowSchema
    metadata: Mapping[str, Any]

    def __len__(self) -> int:
        """Return an upper bound on the number of episodes that `episodes` yields."""

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes, holding one at a time in memory."""


class SummarizedEpisodes(EpisodeSource, Protocol):
    """A dataset that knows its size before it is read through."""

    steps: int
    successes: int


class EpisodeSink(Protocol):
    """Writes whole episodes."""

    def add(self, episode: Episode) -> None:
        """Write one episode."""


# Creates a sink in an empty directory; leaving its context without an error completes the files.
OpenSink = Callable[[Path, RowSchema, Mapping[str, Any]], AbstractContextManager[EpisodeSink]]


class DatasetEpisodes:
    """The selected episodes of the dataset in a directory; for errors see `EpisodeDataset`."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._dataset = EpisodeDataset(path)
        self.schema = self._dataset.stored_schema
        self.metadata: Mapping[str, Any] = self._dataset.metadata
        facts = zip(self._dataset.sources, self._dataset.successes, strict=True)
        self._indices = [
            index
            for index, (source, success) in enumerate(facts)
            if selection.takes(int(source), bool(success))
        ]

    def __len__(self) -> int:
        return len(self._indices)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes, or raise `DatasetDamaged`."""
        return map(self._dataset.whole, self._indices)


class DatasetSink(EpisodeWriter):
    """Writes an episode dataset in large blocks; see `OpenSink`."""

    def __init__(self, path: Path, schema: RowSchema, metadata: Mapping[str, Any]) -> None:
        super().__init__(path, schema, metadata)
        self._waiting: list[Episode] = []
        self._rows = self._bytes = 0

    def add(self, episode: Episode) -> None:
        """Write one episode, batched with later ones."""
        self.schema.check(episode.rows)
        self._waiting.append(episode)
        self._rows += len(episode.rows)
        self._bytes += episode.rows.nbytes
        if self._rows >= _BLOCK_ROWS or self._bytes >= _BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        if waiting:
            self.extend(waiting)

    def __exit__(self, kind: object = None, *error: object) -> None:
        with closing(self):
            if kind is None:
                self._flush()


def write_episodes(
    source: EpisodeSource,
    out: Path,
    open_sink: OpenSink,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> None:
    """Write all episodes of a source to a new directory, which appears whole or not at all.

    `on_episode` is called after each.

    Raises:
        DatasetError: `out` exists, the source yielded no episode, or one could not be read or
            written.
    """
    taken = DatasetError(
        f"there is something at {out} already",
        expected="a path where nothing is; nothing is overwritten",
        hint="name another one, or move it away first",
    )
    if os.path.lexists(out):
        raise taken
    parent = out.absolute().parent
    if not parent.is_dir():
        raise DatasetError(f"the directory {parent} does not exist", hint="make it first")
    partial = parent / f".{out.name}.{secrets.token_hex(4)}.partial"
    written = 0
    with new_folder(out, partial):
        with open_sink(partial, source.schema, source.metadata) as sink:
            for episode in source.episodes():
                sink.add(episode)
                on_episode(episode)
                written += 1
            if written == 0:
                raise DatasetError(
                    "there is no episode to write",
                    got=f"{len(source)} that are whole and were asked for",
                    expected="at least one",
                    hint="robot-rl inspect says what there is",
                )
        if os.path.lexists(out):  # another process created it meanwhile
            raise taken


def close_episode(rows: Rows, observation_names: tuple[str, ...]) -> Rows | None:
    """Turn rows (n,), n >= 1, without a recorded final observation into a whole episode.

    A last step that terminated is kept: its final row repeats the last observation, which is never
    bootstrapped from, and has `stamp_observation` 0, which no observation after an action has. For
    any other last step the outcome is unknown: its observation becomes the final one, and the
    previous step is truncated.

    Returns:
        The rows, the last with `is_last`; None if no step is left.
    """
    last = rows[-1]
    final = np.zeros(1, rows.dtype)
    for name in (*observation_names, *_FINAL_ROW_FIELDS):
        final[name] = last[name]
    final["is_last"] = True
    if last["terminated"]:
        final["stamp_observation"] = 0
        final["base_action"] = 0
        final[LAST_COMMAND] = last["action"]
        final["episode_step"] = last["episode_step"] + 1
        return np.concatenate([rows, final])
    if len(rows) < 2:
        return None
    kept = rows[:-1].copy()
    kept["truncated"][-1] = True
    return np.concatenate([kept, final])
