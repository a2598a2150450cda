"""The stored episodes of a run, for the console: listed, and read whole for a replay.

Everything is read while the replay server may be writing; nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.console.link import ConsoleError
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_NAMES, RowSchema
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.export import episode_source
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import EpisodeRecord
from robot_rl.run import RunDirectory

STORE, DEMONSTRATIONS = "store", "demonstrations"


@dataclass(frozen=True)
class ListedEpisode:
    """What the list says of an episode.

    Attributes:
        place: `store` or `demonstrations`.
        table: Table of the store; empty for demonstrations.
        number: Identifier in the table, or index among the demonstrations.
        steps: Actions taken.
        intervened_steps: Those of the operator.
        source: Who acted: demo, policy, or intervention.
        success: Whether it reached its goal.
        complete: Whether it is over.
        instruction: What the robot was told to do.
    """

    place: str
    table: str
    number: int
    steps: int
    intervened_steps: int
    source: str
    success: bool
    complete: bool
    instruction: str


@dataclass(frozen=True)
class Recording:
    """An episode to be replayed.

    Attributes:
        listed: What the list says of it.
        schema: Columns of its rows.
        rows: Structured array (T + 1,), or fewer of an episode that goes on.
    """

    listed: ListedEpisode
    schema: RowSchema
    rows: npt.NDArray[Any]


class EpisodeLibrary:
    """Lists and reads the episodes of one run.

    Args:
        run: The run directory.
        dataset: Demonstrations that are not in the run directory; None takes its own.
    """

    def __init__(self, run: RunDirectory, dataset: Path | None = None) -> None:
        self._store = run.store
        self._demonstrations = dataset or run.demonstrations

    def newest(self, place: str, most: int, before: int | None = None) -> list[ListedEpisode]:
        """List episodes, the newest first.

        Args:
            place: `store` or `demonstrations`.
            most: How many.
            before: Only those with a lower number.

        Raises:
            ConsoleError: There is no such place.
            RobotRLError: What is there cannot be read.
        """
        readers = {STORE: self._in_store, DEMONSTRATIONS: self._in_dataset}
        if place not in readers:
            raise ConsoleError(
                "episodes are in no such place", got=place, expected=[STORE, DEMONSTRATIONS]
            )
        listed = [e for e in readers[place]() if before is None or e.number < before]
        return listed[::-1][:most]

    def read(self, place: str, number: int) -> Recording:
        """Read one episode whole.

        Raises:
            ConsoleError: There is none of this number, or it was evicted.
            RobotRLError: It cannot be read.
        """
        if place == DEMONSTRATIONS:
            return self._read_demonstration(number)
        reader = StoreReader(self._store)
        try:
            for name in reader.tables():
                for record in reader.episodes(name):
                    if record.identifier == number:
                        rows = reader.read_episode(name, record)
                        schema = reader.table(name).schema
                        return Recording(_of_record(name, record), schema, rows)
        finally:
            reader.close()
        raise _unknown(place, number)

    def _in_store(self) -> list[ListedEpisode]:
        if not is_store(self._store):
            return []
        reader = StoreReader(self._store)
        try:
            tables = {name: reader.episodes(name) for name in reader.tables()}
        finally:
            reader.close()
        found = [_of_record(name, record) for name, of in tables.items() for record in of]
        return sorted(found, key=lambda episode: episode.number)

    def _in_dataset(self) -> list[ListedEpisode]:
        if not self._demonstrations.exists():
            return []
        dataset = EpisodeDataset(self._demonstrations)
        return [_of_dataset(dataset, index) for index in range(len(dataset))]

    def _read_demonstration(self, number: int) -> Recording:
        if not self._demonstrations.exists():
            raise _unknown(DEMONSTRATIONS, number)
        dataset = EpisodeDataset(self._demonstrations)
        if not 0 <= number < len(dataset):
            raise _unknown(DEMONSTRATIONS, number)
        columns = dataset.episode(number)
        rows = np.empty(len(columns["is_last"]), dataset.schema.dtype)
        for name, column in columns.items():
            rows[name] = column
        return Recording(_of_dataset(dataset, number), dataset.schema, rows)


def _of_record(table: str, record: EpisodeRecord) -> ListedEpisode:
    return ListedEpisode(
        STORE,
        table,
        record.identifier,
        record.environment_steps,
        record.steps[SOURCE_INTERVENTION],
        SOURCE_NAMES[episode_source(record)],
        record.success,
        record.sealed,
        str(record.metadata.get("instruction", "")),
    )


def _of_dataset(dataset: EpisodeDataset, index: int) -> ListedEpisode:
    first = int(dataset.episode_ends[index - 1]) if index else 0
    return ListedEpisode(
        DEMONSTRATIONS,
        "",
        index,
        int(dataset.episode_ends[index]) - first - 1,
        0,
        SOURCE_NAMES[int(dataset.sources[index])],
        bool(dataset.successes[index]),
        complete=True,
        instruction=dataset.instructions[index],
    )


def _unknown(place: str, number: int) -> ConsoleError:
    return ConsoleError(
        "there is no such episode, or it has been evicted",
        got=f"{place} {number}",
        hint="take one from the list",
    )
