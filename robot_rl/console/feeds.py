"""What the open pages are told without asking: the live robot, the replay, and the curves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from robot_rl.console import pictures
from robot_rl.console.client import LoopClient
from robot_rl.console.curves import read_curves
from robot_rl.console.pages import Pages
from robot_rl.console.player import EpisodePlayer
from robot_rl.console.snapshot import Snapshot
from robot_rl.data.schema import Observation
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory

LIVE, REPLAY = "live", "replay"
_CURVES_SECONDS = 2.0
_STATUS_SECONDS = 0.25
# Numbers of the observation that a page shows.
_SHOWN = ("state/tcp_pose", "state/tcp_velocity", "state/tcp_wrench")

ShowScene = Callable[[Observation], None]


@dataclass(frozen=True)
class Scene:
    """A 3-D scene.

    Attributes:
        show: Moves it to an observation.
        port: Where its viewer listens on loopback.
    """

    show: ShowScene
    port: int


class Feeds:
    """Tells the pages what happens. Of what comes faster than that, the newest counts.

    Args:
        run: The run directory.
        client: The end of the link to the control loop.
        player: The replay.
        pages: Who is told.
        scenes: `live` and `replay`; empty for robots without a model.
    """

    def __init__(
        self,
        run: RunDirectory,
        client: LoopClient,
        player: EpisodePlayer,
        pages: Pages,
        scenes: dict[str, Scene],
    ) -> None:
        self._run, self._client, self._player = run, client, player
        self._pages, self._scenes = pages, scenes

    def works(self) -> Iterator[Any]:
        """The coroutines that run as long as the console does."""
        yield self._tell_live()
        yield self._tell_status()
        yield self._tell_replay()
        yield self._tell_curves()

    async def _tell_live(self) -> None:
        while True:
            snapshot = await self._client.next_snapshot()
            await self._picture(LIVE, snapshot.observation)
            self._pages.tell(LIVE, _describe(snapshot))

    async def _tell_status(self) -> None:
        while True:
            seconds = self._client.round_trip_seconds
            status = {
                "connected": self._client.connected,
                "round_trip_ms": None if seconds is None else round(1e3 * seconds, 1),
            }
            self._pages.tell("status", status)
            await asyncio.sleep(_STATUS_SECONDS)

    async def _tell_replay(self) -> None:
        while True:
            await self._player.moved()
            self._pages.tell("progress", self._player.progress())
            await self._picture(REPLAY, self._player.observation())

    async def _tell_curves(self) -> None:
        while True:
            if len(self._pages):
                try:
                    curves = await asyncio.to_thread(read_curves, self._run)
                    self._pages.tell("curves", curves)
                except RobotRLError as error:
                    self._pages.tell("curves", {"problem": str(error)})
            await asyncio.sleep(_CURVES_SECONDS)

    async def _picture(self, view: str, observation: Observation) -> None:
        """Show what was observed: in the 3-D scene and as camera images."""
        if not len(self._pages):
            return
        if view in self._scenes:
            self._scenes[view].show(observation)
        encoded = await asyncio.to_thread(pictures.encode, observation)
        for camera, jpeg in encoded.items():
            self._pages.tell_bytes(f"{view}/{camera}", pictures.message(view, camera, jpeg))


def _describe(snapshot: Snapshot) -> dict[str, Any]:
    seen = snapshot.observation
    shown = {name: seen[name].astype(float).tolist() for name in _SHOWN if name in seen}
    return {**asdict(snapshot.situation), "states": shown}
