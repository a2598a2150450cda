"""The open browser pages of a console: responses to their requests, and pushed updates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from robot_rl.console.feed import jpegs
from robot_rl.data.schema import Observation
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.records import read_run, rolling_mean
from robot_rl.extras.console.library import EpisodeLibrary, EpisodePlayer
from robot_rl.extras.console.loop_client import LoopClient
from robot_rl.processes.progress_display import RECENT_EPISODES
from robot_rl.run import RunDirectory

if TYPE_CHECKING:
    from robot_rl.extras.console.scene import RobotScene

# Ends a batch of messages; the page replies once it has shown them.
_MARK = json.dumps({"type": "mark"})
_LISTED_EPISODES = 100
LIVE, REPLAY = "live", "replay"
_CURVES_SECONDS = 2.0
_STATUS_SECONDS = 0.25
# Numeric observations that a page shows.
_SHOWN = ("state/tcp_pose", "state/tcp_velocity", "state/tcp_wrench")
_MOST_POINTS = 400
_MOST_PENDING = 64


def _kind(name: str) -> str:
    return name.removeprefix("Page").lower()


class PageRequest(msgspec.Struct, tag_field="do", tag=_kind):
    """A request from a page; its kind is the class name without `Page`: `PageJog` is jog."""


class Shown(PageRequest):
    """The page has shown the last batch."""


class PageEvent(PageRequest):
    """An operator event for the control loop."""

    event: str


class PageJog(PageRequest):
    """A jog motion by the operator, for a moment."""

    motion: list[float]
    gripper: float | None = None


class PageEpisodes(PageRequest):
    """Request for the latest episodes of a place, or those before a number."""

    place: str
    before: int | None = None


class Replay(PageRequest):
    """Request to replay an episode."""

    place: str
    number: int


class Control(PageRequest):
    """A change of the replay's state."""

    playing: bool | None = None
    row: int | None = None
    speed: float | None = None


_REQUESTS = msgspec.json.Decoder(Shown | PageEvent | PageJog | PageEpisodes | Replay | Control)


class Page:
    """One browser page. Messages that it is not ready for are replaced by newer ones.

    It gets the next batch only after confirming that the previous one is shown. Otherwise the
    network would buffer seconds of images for a slow browser, and the operator would see the past.
    """

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._pending: dict[str, str | bytes] = {}
        self._filled = asyncio.Event()
        self.shown = asyncio.Event()

    def put(self, key: str, message: str | bytes) -> None:
        """Send a message once the page is ready, unless a newer one with this key replaces it."""
        self._pending[key] = message
        if len(self._pending) > _MOST_PENDING:  # answers that a page requests but never shows
            del self._pending[next(iter(self._pending))]
        self._filled.set()

    async def write(self) -> None:
        """Send the pending messages until the page is closed."""
        while not self._socket.closed:
            await self._filled.wait()
            self._filled.clear()
            messages, self._pending = list(self._pending.values()), {}
            self.shown.clear()
            for message in (*messages, _MARK):
                if isinstance(message, str):
                    await self._socket.send_str(message)
                else:
                    await self._socket.send_bytes(message)
            await self.shown.wait()


class Pages:
    """All open pages. A page that is opened or reloaded gets everything that the others have.

    Requests are handled concurrently: a stop does not wait for a list of episodes. Of the pushed
    messages, only the latest of each kind counts. `scenes` are `live` and `replay`; empty for a
    robot without a model.
    """

    def __init__(
        self,
        run: RunDirectory,
        client: LoopClient,
        library: EpisodeLibrary,
        player: EpisodePlayer,
        scenes: Mapping[str, RobotScene],
    ) -> None:
        self._run, self._scenes = run, scenes
        self._client, self._library, self._player = client, library, player
        self._open: set[Page] = set()
        self._last: dict[str, str | bytes] = {}
        self._jogging: set[Page] = set()
        self._replays_asked = 0

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Coroutines that push updates to the pages while the console runs."""
        return [self._send_live(), self._send_status(), self._send_replay(), self._send_curves()]

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Send a message to all pages, and to new pages until a newer message of its kind."""
        message = _packed(kind, content)
        if self._last.get(kind) != message:
            self.send_packed(kind, message)

    def send_packed(self, key: str, message: str | bytes) -> None:
        """Send an encoded message; a page stores only the latest of each key."""
        self._last[key] = message
        for page in self._open:
            page.put(key, message)

    def add(self, page: Page) -> None:
        """Add an open page."""
        self._open.add(page)
        for key, message in self._last.items():
            page.put(key, message)

    def remove(self, page: Page) -> None:
        """Remove a closed page; if it was jogging, the robot stops moving."""
        self._open.discard(page)
        if page in self._jogging:
            self._jogging.discard(page)
            self._client.jog([0.0] * 6, None)

    async def answer(self, page: Page, text: str) -> None:
        """Answer one request of a page, or report its error."""
        try:
            await self._do(page, _REQUESTS.decode(text))
        except (RobotRLError, msgspec.MsgspecError) as error:
            page.put("problem", _packed("problem", {"text": str(error)}))

    async def _do(self, page: Page, request: PageRequest) -> None:
        match request:
            case Shown():
                page.shown.set()
            case PageEvent(event):
                await self._client.post(event)
                seconds = self._client.round_trip_seconds or 0.0
                page.put("said", _packed("said", {"event": event, "ms": round(1e3 * seconds, 1)}))
            case PageJog(motion, gripper):
                self._client.jog(motion, gripper)
                (self._jogging.add if any(motion) else self._jogging.discard)(page)
                self._client.check_jogged()
            case PageEpisodes(place, before):
                list_newest = self._library.newest
                found = await asyncio.to_thread(list_newest, place, _LISTED_EPISODES, before)
                content = {"place": place, "before": before, "episodes": list(map(asdict, found))}
                page.put(f"episodes/{before}", _packed("episodes", content))
            case Replay(place, number):
                await self._replay(place, number)
            case Control(playing, row, speed):
                self._player.control(playing=playing, row=row, speed=speed)

    async def _replay(self, place: str, number: int) -> None:
        self._replays_asked += 1
        mine = self._replays_asked
        recording = await asyncio.to_thread(self._library.read, place, number)
        if mine != self._replays_asked:
            return  # the operator has selected another one since
        # New pages must not get images of the previous recording.
        self._last = {k: m for k, m in self._last.items() if not k.startswith("replay")}
        self._player.load(recording)
        self.send("recording", self._player.describe())

    async def _send_live(self) -> None:
        while True:
            snapshot = await self._client.next_snapshot()
            await self._picture(LIVE, snapshot.observation)
            seen = snapshot.observation
            shown = {name: seen[name].astype(float).tolist() for name in _SHOWN if name in seen}
            self.send(LIVE, {**asdict(snapshot.situation), "states": shown})

    async def _send_status(self) -> None:
        while True:
            seconds = self._client.round_trip_seconds
            status = {
                "connected": self._client.connected,
                "round_trip_ms": None if seconds is None else round(1e3 * seconds, 1),
            }
            self.send("status", status)
            await asyncio.sleep(_STATUS_SECONDS)

    async def _send_replay(self) -> None:
        while True:
            await self._player.moved()
            self.send("progress", self._player.progress())
            await self._picture(REPLAY, self._player.observation())

    async def _send_curves(self) -> None:
        while True:
            if self._open:
                try:
                    curves = await asyncio.to_thread(read_curves, self._run)
                except RobotRLError as error:
                    curves = {"problem": str(error)}
                self.send("curves", curves)
            await asyncio.sleep(_CURVES_SECONDS)

    async def _picture(self, view: str, observation: Observation) -> None:
        """Show an observation in the 3-D scene and as camera images."""
        if not self._open:
            return
        if view in self._scenes:
            self._scenes[view].show(observation)
        encoded = await asyncio.to_thread(jpegs, observation)
        for camera, jpeg in encoded.items():
            head = f"{view}/{camera}".encode()
            # Header length, header, JPEG.
            self.send_packed(f"{view}/{camera}", bytes((len(head),)) + head + jpeg)


def _packed(kind: str, content: dict[str, Any]) -> str:
    return json.dumps({"type": kind, **content})


def read_curves(run: RunDirectory) -> dict[str, Any]:
    """Read the data for the console's charts.

    `evaluations`: environment steps, success rate, and the ends of its 95 % interval. `success` and
    `interventions` (fraction of operator steps): environment steps, and the mean over the last
    `window` episodes.
    """
    records = read_run(run)
    steps = [float(record["environment_steps"]) for record in records.episodes]
    success = [float(record["success"]) for record in records.episodes]
    shares = [r["intervened_steps"] / max(1, int(r["length"])) for r in records.episodes]
    return {
        "evaluations": [
            [e.environment_steps, e.success_rate, e.confidence_low, e.confidence_high]
            for e in records.periodic()
        ],
        "success": _running_mean(steps, success),
        "interventions": _running_mean(steps, shares),
        "episodes": len(records.episodes),
        "window": RECENT_EPISODES,
    }


def _running_mean(x: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Rolling mean over the last episodes at each x, thinned to the chart's resolution."""
    every = max(1, -(-len(values) // _MOST_POINTS))
    return list(zip(x, rolling_mean(values, RECENT_EPISODES), strict=True))[::-1][::every][::-1]
