"""The operator's console in a real browser, on a real training run in real time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs the extra browser")
from playwright.sync_api import Page, expect, sync_playwright

from robot_rl.console.link import loop_folder
from robot_rl.processes.waiting import wait_until
from robot_rl.run import RunDirectory
from robot_rl.wire.endpoint import ENDPOINT_FILE, read_endpoint

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
WAIT_SECONDS = 600.0
OPTIONS = "{_target_: robot_rl.env.sim.cameras.CameraOptions, name: %s}"
CAMERAS = ", ".join(OPTIONS % name for name in ("front", "wrist", "overview"))
TINY = (
    "task=peg_insert",
    "task.environment.time_limit_steps=3000",
    "replay.spool_bytes=536870912",
    f"observation.cameras=[{CAMERAS}]",
    "demonstrations=2",
    "cloning.updates=60",
    "environment_steps=100000",
    "block_steps=25",
    "algorithm.schedule.warmup_steps=75",
    "algorithm.schedule.critic_only_updates=20",
    "algorithm.schedule.updates_per_step=1",
    "algorithm.schedule.batch_size=32",
    "evaluation.every_steps=100000",
    "evaluation.episodes=1",
    "evaluation.slots=1",
    "evaluation.videos=0",
)


class Training:
    """`robot-rl train` in real time, with its console."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self._command("collect", "runs_directory=demonstrations").wait(WAIT_SECONDS)
        dataset = next(folder.glob("demonstrations/*/*/demonstrations.zarr"))
        port = self.address.rpartition(":")[2]
        console = ("console.open=true", f"console.port={port}")
        self.process = self._command("train", "clock=realtime", f"dataset={dataset}", *console)

    @property
    def run(self) -> RunDirectory:
        return RunDirectory.open("latest", self.folder / "runs")

    @property
    def output(self) -> str:
        return "".join(path.read_text() for path in self.folder.rglob("*.log"))

    def wait_until(self, reached: Callable[[], Any]) -> None:
        def asked() -> Any:
            assert self.process.poll() is None, self.output
            return reached()

        assert wait_until(asked, WAIT_SECONDS, every_s=0.1), self.output

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_SECONDS)

    def _command(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "robot_rl.cli", *words, *TINY],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    made = Training(tmp_path_factory.mktemp("training"))
    try:
        made.wait_until(lambda: "console: http" in made.output)
        made.wait_until((loop_folder(made.run, 1) / ENDPOINT_FILE).exists)
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    software = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *software]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, training: Training) -> Iterator[Page]:
    """The console without its 3-D viewer, which takes a machine without a GPU to its limits."""
    opened = browser.new_page(viewport={"width": 1360, "height": 850})
    opened.set_default_timeout(1000 * WAIT_SECONDS)
    expect.set_options(timeout=1000 * WAIT_SECONDS)
    opened.route("**/scene/**", lambda route: route.abort())
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(training.address)
    yield opened
    opened.close()
    assert problems == []


def state(page: Page) -> Any:
    return page.locator("#state-title")


def picture(page: Page, name: str) -> None:
    """Keep a screenshot where the environment says so."""
    folder = os.environ.get("ROBOT_RL_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def tcp(page: Page) -> list[float]:
    text = page.locator("#facts div", has_text="TCP").locator("dd").inner_text()
    return [float(value) for value in text.split()]


def episode(page: Page) -> int:
    text = page.locator("#episode").inner_text()
    return int(re.findall(r"\d+", text)[0])


def test_a_whole_take_over_with_a_reload_in_it_and_a_label(page: Page, training: Training):
    expect(state(page)).to_have_text("Policy in control")
    for camera in ("front", "wrist", "overview"):
        expect(page.locator(f'#cameras-live [data-camera="{camera}"] img')).to_be_visible()
    picture(page, "policy")
    page.keyboard.press("t")
    expect(state(page)).to_have_text("Operator in control")
    number, before = episode(page), tcp(page)
    page.keyboard.down("ArrowLeft")
    training.wait_until(lambda: tcp(page)[1] > before[1] + 0.01)
    picture(page, "jogging")
    page.keyboard.up("ArrowLeft")

    page.reload()
    expect(state(page)).to_have_text("Operator in control")
    assert episode(page) == number

    before = tcp(page)
    page.get_by_role("button", name="z+").hover()
    page.mouse.down()
    training.wait_until(lambda: tcp(page)[2] > before[2] + 0.01)
    page.mouse.up()
    page.keyboard.press("s")
    episodes = training.run.read_jsonl
    training.wait_until(lambda: any(e["intervened_steps"] for e in episodes("episodes")))
    labelled = next(e for e in episodes("episodes") if e["intervened_steps"])
    assert labelled["success"]
    assert labelled["return"] == 1.0


def test_stop_halts_the_robot_until_it_is_cleared(page: Page, training: Training):
    expect(state(page)).to_have_text("Policy in control")
    page.locator("#stop").click()
    expect(state(page)).to_have_text("Stopped")
    held = tcp(page)
    picture(page, "stopped")
    page.keyboard.press("t")
    time.sleep(1.0)
    assert tcp(page) == held
    page.locator("#clear").click()
    expect(state(page)).to_have_text(re.compile("in control"))


def test_space_stops_wherever_the_focus_is(page: Page):
    expect(state(page)).to_have_text(re.compile("in control"))
    page.locator("#tab-episodes").focus()
    page.keyboard.press("Space")
    expect(state(page)).to_have_text("Stopped")
    assert page.locator("#live").is_visible(), "the focused button was not pressed"
    page.keyboard.press("Shift+C")
    expect(state(page)).to_have_text(re.compile("in control"))


def test_a_stop_while_the_actor_is_gone_holds_the_one_that_comes_next(
    page: Page, training: Training
):
    expect(state(page)).to_have_text(re.compile("in control"))
    loop = read_endpoint(loop_folder(training.run, 1))
    assert loop is not None
    os.kill(loop.pid, signal.SIGKILL)
    page.locator("#stop").click()
    expect(page.locator("#problem")).to_contain_text("no control loop answers")
    picture(page, "nobody")
    expect(state(page)).to_have_text("Stopped")
    page.keyboard.press("Shift+C")
    expect(state(page)).to_have_text(re.compile("in control"))


def test_the_gripper_button_does_what_it_says(page: Page):
    """Also where the policy or another page told the gripper last."""
    said = page.evaluate(
        """async () => {
            const { Jog } = await import("./jog.js");
            const said = [], button = document.getElementById("gripper");
            const jog = new Jog({ say: message => said.push(message.gripper) }, () => true);
            button.hidden = false;
            for (const closed of [true, true, false]) {
                button.dataset.closed = closed;
                jog.toggleGripper();
            }
            return said;
        }"""
    )
    assert said == [-1, -1, 1]


def test_a_key_that_is_held_when_control_is_lost_says_nothing_more(page: Page):
    """The end of an episode that the operator has brought about; another page may jog meanwhile."""
    before, after, timer, shown = page.evaluate(
        """async () => {
            const { Jog } = await import("./jog.js");
            const wait = ms => new Promise(done => setTimeout(done, ms));
            let allowed = true;
            const said = [];
            const jog = new Jog({ say: message => said.push(message.motion) }, () => allowed);
            jog.press("q", 0, 1);
            allowed = false;
            await wait(120);
            jog.lift("q");
            const before = said.length;
            await wait(200);
            const shown = document.querySelectorAll("[data-jog].pressed").length;
            return [said.slice(before - 1), said.length - before, jog.timer, shown];
        }"""
    )
    assert before == [[0] * 6]  # the robot is told to rest, once
    assert (after, timer, shown) == (0, None, 0)


def test_pause_and_resume(page: Page):
    expect(state(page)).to_have_text(re.compile("in control"))
    page.keyboard.press("p")
    expect(state(page)).to_have_text("Paused")
    page.keyboard.press("p")
    expect(state(page)).to_have_text(re.compile("in control"))


@pytest.mark.parametrize("place", ["store", "demonstrations"])
def test_any_stored_episode_is_replayed_while_the_robot_goes_on(page: Page, place: str):
    expect(state(page)).to_have_text(re.compile("in control"))
    page.locator("#tab-episodes").click()
    page.locator(f"#place-{place}").click()
    rows = page.locator("#episode-rows tr", has_text=re.compile("success|failure"))
    rows.first.click()
    expect(page.locator("#replay-title")).to_contain_text("steps")
    expect(page.locator("#play")).to_have_text("Pause")
    expect(page.locator('#cameras-replay [data-camera="front"] img')).to_be_visible()
    page.locator("#play").click()
    page.locator("#seek").fill("3")
    expect(page.locator("#seek-text")).to_contain_text("3 /")
    picture(page, f"replay-{place}")
    expect(state(page)).to_have_text(re.compile("in control"))


def test_the_robot_is_drawn(browser: Any, training: Training):
    page = browser.new_page(viewport={"width": 1360, "height": 850})
    page.set_default_timeout(1000 * WAIT_SECONDS)
    page.goto(training.address)
    frame = page.frame_locator("#scene-live")
    expect(frame.locator("canvas").first).to_be_visible(timeout=1000 * WAIT_SECONDS)
    page.wait_for_timeout(5000)
    picture(page, "scene")
    # Seen in the viewer's own picture: something that is neither the background nor the grid.
    colours = page.locator("#scene-live").screenshot()
    assert len(colours) > 8000
    page.close()


def test_a_closed_console_leaves_the_run_alone_and_can_be_opened_again(training: Training):
    steps = len(training.run.read_jsonl("episodes"))
    command = [sys.executable, "-m", "robot_rl.cli", "console", f"run={training.run.path}"]
    second = subprocess.Popen(
        [*command, "console.port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert second.stdout is not None
    try:
        assert any("console: http://127.0.0.1:" in line for line in second.stdout)
    finally:
        second.terminate()
    assert second.wait(WAIT_SECONDS) == 0
    assert training.process.poll() is None
    assert len(training.run.read_jsonl("episodes")) >= steps
