"""What the open pages are told without asking: the live robot, the replay, and the curves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from robot_rl.console.client import LoopClient
from robot_rl.console.episodes import EpisodePlayer
from robot_rl.console.pages import Pages
from robot_rl.console.pictures import jpegs
from robot_rl.data.schema import Observation
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.records import read_run
from robot_rl.processes.progress import RECENT_EPISODES
from robot_rl.run import RunDirectory

LIVE, REPLAY = "live", "replay"
_CURVES_SECONDS = 2.0
_STATUS_SECONDS = 0.25
# Numbers of the observation that a page shows.
_SHOWN = ("state/tcp_pose", "state/tcp_velocity", "state/tcp_wrench")
_MOST_POINTS = 400


@dataclass(frozen=True)
class Scene:
    """A 3-D scene: what moves it to an observation, and its viewer's port on loopback."""

    show: Callable[[Observation], None]
    port: int


@dataclass(frozen=True)
class Feeds:
    """Tells the pages what happens. Of what comes faster than that, the newest counts."""

    run: RunDirectory
    client: LoopClient
    player: EpisodePlayer
    pages: Pages
    scenes: dict[str, Scene]  # `live` and `replay`; there are none of a robot without a model

    def works(self) -> Iterator[Any]:
        """The coroutines that run as long as the console does."""
        yield self._tell_live()
        yield self._tell_status()
        yield self._tell_replay()
        yield self._tell_curves()

    async def _tell_live(self) -> None:
        while True:
            snapshot = await self.client.next_snapshot()
            await self._picture(LIVE, snapshot.observation)
            seen = snapshot.observation
            shown = {name: seen[name].astype(float).tolist() for name in _SHOWN if name in seen}
            self.pages.tell(LIVE, {**asdict(snapshot.situation), "states": shown})

    async def _tell_status(self) -> None:
        while True:
            seconds = self.client.round_trip_seconds
            status = {
                "connected": self.client.connected,
                "round_trip_ms": None if seconds is None else round(1e3 * seconds, 1),
            }
            self.pages.tell("status", status)
            await asyncio.sleep(_STATUS_SECONDS)

    async def _tell_replay(self) -> None:
        while True:
            await self.player.moved()
            self.pages.tell("progress", self.player.progress())
            await self._picture(REPLAY, self.player.observation())

    async def _tell_curves(self) -> None:
        while True:
            if self.pages:
                try:
                    curves = await asyncio.to_thread(read_curves, self.run)
                    self.pages.tell("curves", curves)
                except RobotRLError as error:
                    self.pages.tell("curves", {"problem": str(error)})
            await asyncio.sleep(_CURVES_SECONDS)

    async def _picture(self, view: str, observation: Observation) -> None:
        """Show what was observed: in the 3-D scene and as camera images."""
        if not self.pages:
            return
        if view in self.scenes:
            self.scenes[view].show(observation)
        encoded = await asyncio.to_thread(jpegs, observation)
        for camera, jpeg in encoded.items():
            head = f"{view}/{camera}".encode()
            # The length of the head, the head, the JPEG.
            self.pages.tell_bytes(f"{view}/{camera}", bytes((len(head),)) + head + jpeg)


def read_curves(run: RunDirectory) -> dict[str, Any]:
    """Read what the console draws.

    Returns:
        `evaluations`: [environment steps, success rate, its 95 % interval's ends] of each;
        `success` and `interventions`: [environment steps, mean over the last `window` training
        episodes] of whether an episode succeeded and of the share of its steps that the operator
        took; `episodes`: how many training episodes there are.
    """
    records = read_run(run.path)
    steps = [float(record["environment_steps"]) for record in records.episodes]
    success = [float(record["success"]) for record in records.episodes]
    shares = [r["intervened_steps"] / max(1, int(r["length"])) for r in records.episodes]
    return {
        "evaluations": [
            [e.environment_steps, e.success_rate, e.confidence_low, e.confidence_high]
            for e in records.periodic()
        ],
        "success": running_mean(steps, success),
        "interventions": running_mean(steps, shares),
        "episodes": len(records.episodes),
        "window": RECENT_EPISODES,
    }


def running_mean(x: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """The mean of the last episodes at each x, at no more points than a chart shows."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - RECENT_EPISODES, 0)
    means = (sums[ends] - sums[begins]) / (ends - begins)
    every = max(1, -(-len(values) // _MOST_POINTS))
    return list(zip(x, means.tolist(), strict=True))[::-1][::every][::-1]
