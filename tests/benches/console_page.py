"""Stands in for a browser in `bench console`; its arguments are the address and a number of stops.

It shows what it is sent as fast as it comes. With stops to make it takes over, moves the robot, and
says stop at random moments. When its standard input closes it prints what it saw, as one JSON
object.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from typing import Any

import aiohttp

_RETRY_SECONDS = 0.5
_MOTION = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
_JOG_SECONDS = 0.05
_SETTLED_SECONDS = 0.5


class StandIn:
    """A page that keeps what it was told last."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._live: dict[str, Any] = {}
        self._news = asyncio.Event()
        self.pictures: dict[str, int] = {}

    async def read(self) -> None:
        """Take in what comes."""
        async for message in self._socket:
            if message.type == aiohttp.WSMsgType.BINARY:
                head = message.data[1 : 1 + message.data[0]].decode()
                self.pictures[head] = self.pictures.get(head, 0) + 1
                continue
            content = json.loads(message.data)
            if content["type"] == "mark":
                await self.say("shown")
            elif content["type"] == "live":
                self._live = content
                self._news.set()

    async def say(self, what: str, **content: object) -> None:
        """Say something to the console."""
        await self._socket.send_str(json.dumps({"do": what, **content}))

    async def reach(
        self, activity: str, control: str | None = None, since: int = 0
    ) -> dict[str, Any]:
        """Wait until the loop does something, and return the first observation of that.

        `control` is who moves the robot then, if that matters; the observation is of a later time
        than `since` (system clock [ns]).
        """
        while True:
            live = self._live
            if (
                live.get("activity") == activity
                and control in (None, live["in_control"])
                and live["stamp_observation"] > since
            ):
                return live
            self._news.clear()
            await self._news.wait()

    async def stop_in_motion(self, rng: random.Random) -> dict[str, float]:
        """Take over, move up or down, and stop after a random time.

        Returns:
            `ms` from saying stop to the first observation in which the robot is held, a whole
            control period in which it was held included; `mm_per_s` its speed then,
            `mm_per_s_before` the last speed before.
        """
        await self.reach("acting")
        await self.say("event", event="take_over")
        await self.reach("acting", "operator")
        motion = [rng.choice((-1.0, 1.0)) * value for value in _MOTION]
        until = time.monotonic() + rng.uniform(0.5, 1.0)
        while time.monotonic() < until:
            await self.say("jog", motion=motion, gripper=None)
            await asyncio.sleep(_JOG_SECONDS)
        before = _speed(self._live)
        said = time.time_ns()
        await self.say("event", event="stop")
        held = await self.reach("stopped", since=said)
        await asyncio.sleep(_SETTLED_SECONDS)
        await self.say("event", event="clear_errors")
        await self.reach("acting")
        milliseconds = 1e-6 * (held["stamp_observation"] - said)
        return {"ms": milliseconds, "mm_per_s": _speed(held), "mm_per_s_before": before}


async def main(address: str, stops: int) -> dict[str, Any]:
    """Show the console at an address until standard input closes, or all stops are made."""
    async with aiohttp.ClientSession() as session:
        socket = await _connected(session, address)
        page = StandIn(socket)
        reading = asyncio.create_task(page.read())
        began = time.monotonic()
        rng = random.Random(0)
        made: list[dict[str, float]] = []

        async def stop_again_and_again() -> None:
            while len(made) < stops:
                made.append(await page.stop_in_motion(rng))
            await asyncio.Event().wait()

        works = [reading, asyncio.create_task(stop_again_and_again())]
        works.append(asyncio.create_task(asyncio.to_thread(_wait_for_end_of_input)))
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for work in done:
            work.result()
        seconds = time.monotonic() - began
        for work in works:
            work.cancel()
    rates = {camera: count / seconds for camera, count in page.pictures.items()}
    return {"pictures_hz": rates, "stops": made}


def _wait_for_end_of_input() -> None:
    sys.stdin.read()


def _speed(live: dict[str, Any]) -> float:
    """Speed of the TCP [mm/s]."""
    return 1e3 * math.hypot(*live["states"]["state/tcp_velocity"][:3])


async def _connected(
    session: aiohttp.ClientSession, address: str
) -> aiohttp.ClientWebSocketResponse:
    while True:
        try:
            return await session.ws_connect(f"{address}/socket")
        except aiohttp.ClientError:
            await asyncio.sleep(_RETRY_SECONDS)


if __name__ == "__main__":
    result = asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    sys.stdout.write(json.dumps(result) + "\n")
