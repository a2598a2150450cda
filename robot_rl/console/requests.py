"""What a page asks for: operator events, jogging, lists of episodes, and the replay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from robot_rl.console.client import LoopClient
from robot_rl.console.episodes import EpisodeLibrary
from robot_rl.console.link import ConsoleError
from robot_rl.console.pages import Page, Pages, packed
from robot_rl.console.player import EpisodePlayer
from robot_rl.errors import RobotRLError

_LISTED_EPISODES = 100
_NO_MOTION = [0.0] * 6

Request = dict[str, Any]


class Requests:
    """Does what pages ask for, and says to the page what could not be done.

    Args:
        client: The end of the link to the control loop.
        library: The stored episodes.
        player: The replay.
        pages: All open pages.
    """

    def __init__(
        self, client: LoopClient, library: EpisodeLibrary, player: EpisodePlayer, pages: Pages
    ) -> None:
        self._client, self._library = client, library
        self._player, self._pages = player, pages
        self._jogging: set[Page] = set()
        self._replays_asked = 0
        self._known: dict[str, Callable[[Page, Request], Awaitable[None]]] = {
            "shown": self._note_shown,
            "event": self._say,
            "jog": self._jog,
            "episodes": self._list_episodes,
            "replay": self._replay,
            "control": self._control_replay,
        }

    async def answer(self, page: Page, request: Request) -> None:
        """Do what one message of a page asks for."""
        kind = request.get("do")
        try:
            if kind not in self._known:
                raise ConsoleError("unknown request", got=kind, expected=sorted(self._known))
            await self._known[kind](page, request)
        except RobotRLError as error:
            page.put("problem", packed("problem", {"of": kind, "text": str(error)}))
        except (KeyError, TypeError, ValueError) as error:
            text = f"the request {kind} is not valid: {error!r}"
            page.put("problem", packed("problem", {"of": kind, "text": text}))

    def left(self, page: Page) -> None:
        """A page was closed: if it was jogging, the robot stops moving."""
        if page in self._jogging:
            self._jogging.discard(page)
            self._client.jog(_NO_MOTION, None)

    async def _note_shown(self, page: Page, request: Request) -> None:
        page.note_shown()

    async def _say(self, page: Page, request: Request) -> None:
        event = str(request["event"])
        await self._client.post(event)
        seconds = self._client.round_trip_seconds or 0.0
        page.put("said", packed("said", {"event": event, "ms": round(1e3 * seconds, 1)}))

    async def _jog(self, page: Page, request: Request) -> None:
        motion = [float(value) for value in request["motion"]]
        gripper = None if request["gripper"] is None else float(request["gripper"])
        self._client.jog(motion, gripper)
        if any(motion):
            self._jogging.add(page)
        else:
            self._jogging.discard(page)
        self._client.check_jogged()

    async def _list_episodes(self, page: Page, request: Request) -> None:
        place, before = str(request["place"]), request["before"]
        found = await asyncio.to_thread(self._library.newest, place, _LISTED_EPISODES, before)
        listed = [asdict(episode) for episode in found]
        content = {"place": place, "before": before, "episodes": listed}
        page.put(f"episodes/{before}", packed("episodes", content))

    async def _replay(self, page: Page, request: Request) -> None:
        place, number = str(request["place"]), int(request["number"])
        self._replays_asked += 1
        mine = self._replays_asked
        recording = await asyncio.to_thread(self._library.read, place, number)
        if mine != self._replays_asked:
            return  # another one was chosen while this one was read
        self._pages.forget("replay")
        self._player.load(recording)
        self._pages.tell("recording", self._player.describe())

    async def _control_replay(self, page: Page, request: Request) -> None:
        if "playing" in request:
            self._player.play(bool(request["playing"]))
        if "row" in request:
            self._player.seek(int(request["row"]))
        if "speed" in request:
            self._player.set_speed(float(request["speed"]))
