"""Replays a stored episode in the console, beside the live view and without disturbing it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from robot_rl.console.episodes import Recording
from robot_rl.console.link import ConsoleError
from robot_rl.data.schema import Observation

_MOST_FRAMES_HZ = 15.0
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)


class EpisodePlayer:
    """Plays one recording at its own rate, which can be slowed down and speeded up."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self._recording: Recording | None = None
        self._changed = asyncio.Event()
        self._position = 0.0
        self._playing = False
        self._speed = 1.0

    def load(self, recording: Recording) -> None:
        """Begin a recording, playing."""
        self._recording, self._position, self._playing = recording, 0.0, True
        self._wake()

    def play(self, playing: bool) -> None:
        """Go on or pause; at the end it begins anew."""
        if playing and self._recording and self.row == len(self._recording.rows) - 1:
            self._position = 0.0
        self._playing = playing
        self._wake()

    def seek(self, row: int) -> None:
        """Go to a row, counted from 0; beyond the ends to the nearest one."""
        self._position = float(min(max(row, 0), self._last))
        self._wake()

    def set_speed(self, speed: float) -> None:
        """Play at a multiple of the recording's rate.

        Raises:
            ConsoleError: Not one of `SPEEDS`.
        """
        if speed not in SPEEDS:
            raise ConsoleError("the replay has no such speed", got=speed, expected=SPEEDS)
        self._speed = speed
        self._wake()

    @property
    def row(self) -> int:
        """The row that is shown."""
        return min(int(self._position), self._last)

    def observation(self) -> Observation:
        """What was observed in the row that is shown; empty without a recording."""
        if self._recording is None:
            return {}
        row = self._recording.rows[self.row]
        return {name: row[name] for name in self._recording.schema.observation_names}

    def describe(self) -> dict[str, Any]:
        """What the page needs of the whole recording, once."""
        if self._recording is None:
            return {"episode": None}
        rows, schema = self._recording.rows, self._recording.schema
        return {
            "episode": asdict(self._recording.listed),
            "rate": schema.control_rate_hz,
            "rows": len(rows),
            "actions": list(schema.action_names),
            "action": rows["action"].tolist(),
            "reward": rows["reward"].tolist(),
            "intervened": rows["intervened"].tolist(),
        }

    def progress(self) -> dict[str, Any]:
        """Where it is."""
        return {"row": self.row, "playing": self._playing, "speed": self._speed}

    async def moved(self) -> None:
        """Wait until something else is to be seen."""
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

    def _wake(self) -> None:
        self._changed.set()
        self._moved.set()
