"""Who may use the console, over real connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from robot_rl import cli
from robot_rl.console.link import ConsoleError
from robot_rl.extras.console.access import (
    AccessGate,
    certificate,
    check_host,
    is_loopback,
    read_token,
)

TOKEN = "0123456789abcdef0123"
PATHS = ("/", "/socket", "/scene/live/", "/console.js")


async def hello(request: web.Request) -> web.StreamResponse:
    if request.path == "/socket" and "Upgrade" in request.headers:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket
    return web.Response(text="inside")


def behind(gate: AccessGate, use: Callable[[aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    """Run `use` with a browser without cookies and the address of a server behind a gate."""

    async def main() -> None:
        app = web.Application(middlewares=[gate.middleware])
        app.router.add_get("/{path:.*}", hello)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
                await use(browser, address)
        finally:
            await runner.cleanup()

    asyncio.run(main())


async def status(browser: aiohttp.ClientSession, address: str, **headers: str) -> int:
    async with browser.get(address, headers=headers) as answer:
        return answer.status


def test_on_this_machine_everybody_may_come():
    async def use(browser, address):
        assert [await status(browser, address + path) for path in PATHS] == [200] * len(PATHS)

    behind(AccessGate(None, secure=False), use)


def test_pages_of_others_may_not_even_on_this_machine():
    async def use(browser, address):
        for path in PATHS:
            assert await status(browser, address + path, Origin="http://evil.example") == 403
            assert await status(browser, address + path, Host="evil.example") == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await browser.ws_connect(f"{address}/socket", origin="http://evil.example")
        async with browser.ws_connect(f"{address}/socket", origin=address):
            pass

    behind(AccessGate(None, secure=False), use)


def test_with_a_token_nothing_is_given_to_who_does_not_have_it():
    async def use(browser, address):
        for path in PATHS:
            assert await status(browser, address + path) == 401
            assert await status(browser, f"{address}{path}?token=wrong") == 401
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await browser.ws_connect(f"{address}/socket", origin=address)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await browser.ws_connect(f"{address}/scene/live?token={TOKEN}")

    behind(AccessGate(TOKEN, secure=False), use)


def test_the_token_is_given_once_and_then_a_cookie_tells():
    async def use(browser, address):
        async with browser.get(f"{address}/?token={TOKEN}") as answer:
            assert answer.status == 200
            assert "token" not in str(answer.url)
        (cookie,) = browser.cookie_jar
        assert cookie["httponly"]
        assert cookie["samesite"] == "Strict"
        assert [await status(browser, address + path) for path in PATHS] == [200] * len(PATHS)
        async with browser.ws_connect(f"{address}/socket", origin=address):
            pass
        assert await status(browser, address, Origin="http://evil.example") == 403

    behind(AccessGate(TOKEN, secure=False), use)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "robot.lab"])
def test_beyond_this_machine_a_token_is_asked_for(host):
    assert not is_loopback(host)
    with pytest.raises(ConsoleError, match="token"):
        check_host(host, None)
    check_host(host, TOKEN)


def test_loopback_needs_none():
    for host in ("127.0.0.1", "localhost", "::1"):
        check_host(host, None)
        assert certificate(host, None, folder=None) is None


def test_a_token_that_can_be_guessed_is_refused(tmp_path):
    file = tmp_path / "token"
    for text in ("", "robot", "x" * 15, "with a space, and long enough"):
        file.write_text(text)
        with pytest.raises(ConsoleError, match="too weak"):
            read_token(str(file))
    with pytest.raises(ConsoleError, match="cannot be read"):
        read_token(str(tmp_path / "absent"))
    file.write_text(TOKEN + "\n")
    assert read_token(str(file)) == TOKEN


def test_beyond_this_machine_it_is_encrypted(tmp_path):
    made = certificate("0.0.0.0", None, tmp_path)
    assert isinstance(made, ssl.SSLContext)
    file = tmp_path / "certificate.pem"
    assert file.stat().st_mode & 0o077 == 0
    before = file.read_bytes()
    assert certificate("0.0.0.0", None, tmp_path) is not None
    assert file.read_bytes() == before, "browsers know the certificate: it stays"
    file.write_text("nothing")
    with pytest.raises(ConsoleError, match="cannot be used"):
        certificate("0.0.0.0", str(file), tmp_path)


def test_the_command_refuses_a_network_without_a_token(tmp_path, monkeypatch, capsys):
    from robot_rl.commands.runs import save_resolved
    from robot_rl.config import compose

    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    save_resolved(compose(["task=reach"]), run)
    assert cli.main(["console", f"run={run}", "console.host=0.0.0.0"]) == cli.EXIT_ERROR
    assert "token" in capsys.readouterr().err
