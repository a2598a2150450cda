"""Connections to the console's web server that are slow, half-open or too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import aiohttp
import pytest
from console_links import make_run, with_console

from robot_rl.extras.console.access import MOST_CONNECTIONS

HALVES = [b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"\x16\x03\x01"]


@contextlib.contextmanager
def half_open(port, count):
    with contextlib.ExitStack() as opened:
        places = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(count)
        ]
        for number, place in enumerate(places):
            with contextlib.suppress(OSError):  # it has been closed already
                place.sendall(HALVES[number % len(HALVES)])
        yield places


async def closed(places):
    """How many of these the server has closed."""

    def is_closed(place):
        place.setblocking(False)
        try:
            return place.recv(4096) == b"" or is_closed(place)
        except BlockingIOError:
            return False
        except OSError:
            return True

    return sum(map(is_closed, places))


def test_a_page_stays_and_another_comes_in_beside_many_half_open_connections(tmp_path):
    async def use(port):
        address = f"http://127.0.0.1:{port}"
        async with (
            aiohttp.ClientSession() as browser,
            browser.ws_connect(f"{address}/socket") as page,
        ):
            with contextlib.ExitStack() as held:
                many = half_open(port, 2 * MOST_CONNECTIONS)
                places = await asyncio.to_thread(held.enter_context, many)
                async with aiohttp.ClientSession() as other, other.get(f"{address}/") as answer:
                    assert answer.status == 200
                await page.send_json({"do": "nothing of the kind"})
                while json.loads((await page.receive()).data)["type"] != "problem":
                    await page.send_json({"do": "shown"})
                while await closed(places) < MOST_CONNECTIONS:
                    await asyncio.sleep(0.1)

    with_console(make_run(tmp_path / "run"), use)


@pytest.mark.parametrize(
    "request_", [b"GET /" + b"a" * 9000, b"GET / HTTP/9.9\r\n\r\n", b"\0\xff no HTTP\r\n\r\n"]
)
def test_a_request_that_is_no_http_is_refused_without_a_word(tmp_path, request_, caplog):
    async def use(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()

    with_console(make_run(tmp_path / "run"), use)
    assert not caplog.records


def test_who_asks_nothing_whole_is_closed_and_a_page_is_not(tmp_path):
    async def use(port):
        async with (
            aiohttp.ClientSession() as browser,
            browser.ws_connect(f"http://127.0.0.1:{port}/socket") as page,
        ):
            with half_open(port, 8) as places:
                while await closed(places) < 8:
                    await asyncio.sleep(0.1)
            assert not page.closed
            await page.send_json({"do": "nothing of the kind"})

    with_console(make_run(tmp_path / "run"), use, idle_seconds=1.0)
