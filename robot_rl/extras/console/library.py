"""The stored episodes of a run, for the console: list, read and replay them.

Read-only, and safe while the replay server is writing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.console.link import ConsoleError
from robot_rl.data.episodes import EpisodeDataset, Rows
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_NAMES, Observation, RowSchema
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import RunDirectory

STORE, DEMONSTRATIONS = "store", "demonstrations"
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
_MOST_FRAMES_HZ = 15.0


@dataclass(frozen=True)
class ListedEpisode:
    """One line in the list of episodes."""

    place: str  # `store` or `demonstrations`
    number: int  # identifier in the store, or index in the demonstrations
    steps: int  # number of actions
    intervened_steps: int  # steps by the operator
    source: str  # actor: demo, policy, or intervention
    success: bool  # whether the episode reached its goal
    complete: bool  # whether the episode has ended
    instruction: str  # the task as text


@dataclass(frozen=True)
class Recording:
    """An episode to replay: (T + 1,) rows, or fewer if it is still in progress."""

    listed: ListedEpisode
    schema: RowSchema
    rows: Rows


class EpisodeLibrary:
    """Lists and reads the episodes of a run; its demonstrations may be another `dataset`."""

    def __init__(self, run: RunDirectory, dataset: Path | None = None) -> None:
        self._store = run.store
        self._demonstrations = dataset or run.demonstrations

    def newest(self, place: str, most: int, before: int | None = None) -> list[ListedEpisode]:
        """List up to `most` episodes of a place before a number, latest first."""
        readers = {STORE: self._in_store, DEMONSTRATIONS: self._in_dataset}
        if place not in readers:
            raise ConsoleError("episodes are in no such place", got=place, expected=list(readers))
        listed = [e for e in readers[place]() if before is None or e.number < before]
        return listed[::-1][:most]

    def read(self, place: str, number: int) -> Recording:
        """Read one whole episode; `ConsoleError` if it does not exist or was evicted."""
        listed = next(iter(self.newest(place, 1, number + 1)), None)
        if listed is None or listed.number != number:
            raise ConsoleError(
                "there is no such episode, or it has been evicted",
                got=f"{place} {number}",
                hint="take one from the list",
            )
        if place == DEMONSTRATIONS:
            dataset = EpisodeDataset(self._demonstrations)
            return Recording(listed, dataset.schema, dataset.whole(number).rows)
        with StoreReader(self._store) as reader:
            record = next(r for r in reader.episodes() if r.identifier == number)
            rows = reader.read_episode(record)
            return Recording(listed, reader.schema, rows)

    def _in_store(self) -> list[ListedEpisode]:
        if not is_store(self._store):
            return []
        with StoreReader(self._store) as reader:
            records = reader.episodes()  # sorted by number
        return [
            ListedEpisode(
                STORE,
                number=record.identifier,
                steps=record.environment_steps,
                intervened_steps=record.steps[SOURCE_INTERVENTION],
                source=SOURCE_NAMES[record.overall_source],
                success=record.success,
                complete=record.sealed,
                instruction=str(record.metadata.get("instruction", "")),
            )
            for record in records
        ]

    def _in_dataset(self) -> list[ListedEpisode]:
        if not self._demonstrations.exists():
            return []
        dataset = EpisodeDataset(self._demonstrations)
        return [
            ListedEpisode(
                DEMONSTRATIONS,
                number=index,
                steps=int(rows) - 1,
                intervened_steps=0,
                source=SOURCE_NAMES[int(dataset.sources[index])],
                success=bool(dataset.successes[index]),
                complete=True,
                instruction=dataset.instructions[index],
            )
            for index, rows in enumerate(np.diff(dataset.episode_ends, prepend=0))
        ]


class EpisodePlayer:
    """Plays one recording at its own rate, slower or faster, next to the live view."""

    def __init__(self) -> None:
        self._moved, self._changed = asyncio.Event(), asyncio.Event()
        self._recording: Recording | None = None
        self._position = 0.0
        self._playing = False
        self._speed = 1.0

    def load(self, recording: Recording) -> None:
        """Play a recording from the start."""
        self._recording, self._position = recording, 0.0
        self.control(playing=True)

    def control(
        self, *, playing: bool | None = None, row: int | None = None, speed: float | None = None
    ) -> None:
        """Play or pause, go to a row, or set one of `SPEEDS`.

        Playing at the end restarts at the beginning. A row out of range is clamped.
        """
        if speed is not None:
            if speed not in SPEEDS:
                raise ConsoleError("the replay has no such speed", got=speed, expected=SPEEDS)
            self._speed = speed
        if playing is not None:
            if playing and self.row == self._last:
                self._position = 0.0
            self._playing = playing
        if row is not None:
            self._position = float(min(max(row, 0), self._last))
        self._changed.set()
        self._moved.set()

    @property
    def row(self) -> int:
        """The row shown."""
        return min(int(self._position), self._last)

    def observation(self) -> Observation:
        """Observation of the row shown; empty without a recording."""
        if self._recording is None:
            return {}
        row = self._recording.rows[self.row]
        return {name: row[name] for name in self._recording.schema.observation_names}

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know about the whole recording."""
        assert self._recording is not None
        rows, schema = self._recording.rows, self._recording.schema
        return {
            "episode": asdict(self._recording.listed),
            "rate": schema.control_rate_hz,
            "rows": len(rows),
            "actions": list(schema.action_names),
            **{name: rows[name].tolist() for name in ("action", "reward", "intervened")},
        }

    def progress(self) -> dict[str, Any]:
        """Row, speed, and whether it is playing."""
        return {"row": self.row, "playing": self._playing, "speed": self._speed}

    async def moved(self) -> None:
        """Wait until another row is shown or a setting changes."""
        await self._moved.wait()
        self._moved.clear()

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            self._changed.clear()
            if not self._playing or self._recording is None:
                await self._changed.wait()
                continue
            before = time.monotonic()
            await asyncio.sleep(1.0 / _MOST_FRAMES_HZ)
            if self._playing and not self._changed.is_set():
                rate = self._recording.schema.control_rate_hz * self._speed
                seconds = time.monotonic() - before
                self._position = min(self._position + seconds * rate, float(self._last))
                self._playing = self._position < self._last
            self._moved.set()

    @property
    def _last(self) -> int:
        return len(self._recording.rows) - 1 if self._recording else 0
