"""A person puts back the scene of an evaluation, as its console shows it to them."""

from __future__ import annotations

import io
import json
import shutil
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

pytest.importorskip("aiohttp", reason="needs the extra console")

import aiohttp
import numpy as np
from console_links import WAIT_SECONDS, make_run, with_console
from PIL import Image
from untrained_policy import untrained

from robot_rl.config import compose
from robot_rl.console.feed import jpegs
from robot_rl.console.link import ConsoleLink, Situation, Snapshot
from robot_rl.env.factory import make_env
from robot_rl.env.operator import OperatorInbox
from robot_rl.evaluation.evaluator import Evaluator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SEED = 20003
CAMERA = "{_target_: robot_rl.env.sim.cameras.CameraOptions, name: front, width: 32, height: 24}"


class Ready:
    """A person who has always put the scene back."""

    def __init__(self, inbox):
        self.inbox = inbox

    def begin(self, seed):
        pass

    def watch(self, observation):
        pass

    def listen(self, observation):
        self.inbox.post("start")

    def close(self):
        pass


@pytest.fixture
def evaluate(monkeypatch):
    """Evaluates an attended robot, which here is simulated on the stepped clock."""
    place, people = "robot_rl.evaluation.evaluator", []
    attended = SimpleNamespace(clock="realtime")
    monkeypatch.setattr(f"{place}.on_stepped_clock", lambda config: attended)
    monkeypatch.setattr(
        "robot_rl.env.factory.make_devices",
        lambda config, env, inbox: [who(inbox) for who in people],
    )

    words = ("reset=human", f"evaluation.seed={SEED}", "task.environment.time_limit_steps=200")
    config = compose(
        ["task=reach", "evaluation.episodes=1", f"observation.cameras=[{CAMERA}]", *words]
    )
    behaviour = untrained(make_env(compose(["task=reach"])).schema)

    def made(run, width, *present):
        people[:], noted = present, []
        config.observation.cameras[0].width = width
        with closing(Evaluator(config, run, noted.append)) as evaluator:
            evaluator.evaluate(behaviour, 0, "periodic")
        return [line for line in noted if "the scene" in line]

    return made


def with_page(run, use):
    """Run `use` with an open page's connection to the console, and the console's address."""

    async def open_page(port):
        address = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as browser, browser.ws_connect(f"{address}/socket") as p:
            await use(browser, p, address)

    with_console(run, open_page)


async def shown(page, found):
    """What a page is told until it was told this; it says that it has shown all."""
    while True:
        data = (await page.receive()).data
        message = json.loads(data) if isinstance(data, str) else {"type": data[1 : 1 + data[0]]}
        if message["type"] == "mark":
            await page.send_json({"do": "shown"})
        elif found(message):
            return message


def test_who_meets_a_scene_again_is_shown_how_it_was_met_first(evaluate, tmp_path):
    run = make_run(tmp_path / "run")
    assert evaluate(run, 32, Ready) == []
    picture = run.path / "scenes" / str(SEED) / "front.jpg"
    first, noted = picture.read_bytes(), []
    # The rival, whose camera shows that the picture is not its own.
    again = threading.Thread(target=lambda: noted.extend(evaluate(run, 40)))

    async def use(browser, page, address):
        again.start()
        waiting = await shown(page, lambda m: m.get("wanted_scene") == SEED and m["reason"])
        assert waiting["activity"] == "waiting"
        assert "a person has to put the scene back" in waiting["reason"]
        await shown(page, lambda m: m["type"] == b"live/front")
        async with browser.get(f"{address}/wanted/{SEED}/front.jpg") as answer:
            assert await answer.read() == first
        for other in (f"{SEED}/wrist", f"{SEED}/..%2f..%2fconsole%2fother", "../config"):
            async with browser.get(f"{address}/wanted/{other}.jpg") as answer:
                assert answer.status == 404
        await page.send_json({"do": "event", "event": "start"})
        begun = await shown(page, lambda m: m["type"] == "live" and m["activity"] == "acting")
        assert begun["wanted_scene"] is None

    with_page(run, use)
    again.join()
    assert noted == [f"evaluation: episode {SEED}: put the scene back as in {picture.parent}"]
    assert picture.read_bytes() == first


async def grey(figure):
    """How bright the middle of a figure is, from 0 to 255."""
    seen = Image.open(io.BytesIO(await figure.screenshot())).convert("L")
    return seen.getpixel((seen.width // 2, seen.height // 2))


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_a_wanted_scene_lies_half_transparent_over_the_live_picture(tmp_path):
    playwright = pytest.importorskip("playwright.async_api", reason="needs the extra browser")
    playwright.expect.set_options(timeout=500 * WAIT_SECONDS)  # [ms]; half of the whole
    run = make_run(tmp_path / "run")
    black, white = (np.full((24, 32, 3), value, np.uint8) for value in (0, 255))
    live = {"images/front": black, "images/wrist": black}
    picture = run.path / "scenes" / str(SEED) / "front.jpg"  # none of the wrist's
    picture.parent.mkdir(parents=True)
    picture.write_bytes(jpegs({"images/front": white})["front"])

    async def use(browser, page, address):
        async with playwright.async_playwright() as started:
            words = {"executable_path": CHROMIUM, "args": ["--no-sandbox"]}
            console = await (await started.chromium.launch(**words)).new_page()
            await console.goto(address)
            front, wrist = (console.locator(f'[data-camera="{c}"]') for c in ("front", "wrist"))
            over, choice = front.locator(".wanted"), console.get_by_label("wanted scene")

            link.publish(Snapshot(Situation(), live))
            await playwright.expect(wrist.locator("img")).to_be_visible()
            assert not await choice.is_visible()
            link.publish(Snapshot(Situation(wanted_scene=SEED), live))
            await playwright.expect(over).to_be_visible()
            assert await over.bounding_box() == await front.locator("img").first.bounding_box()
            assert await grey(front) in (127, 128)
            assert await grey(wrist) == 0
            assert not await wrist.locator(".wanted").is_visible(), "it would be a broken image"
            await console.keyboard.press("w")
            await playwright.expect(over).to_have_count(0)
            assert await grey(front) == 0
            await choice.check()
            await playwright.expect(over).to_be_visible()
            link.publish(Snapshot(Situation(), live))
            await playwright.expect(over).to_have_count(0)
            assert not await choice.is_visible()

    with closing(ConsoleLink(run, OperatorInbox())) as link:
        with_page(run, use)
