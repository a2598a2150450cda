"""What the console shows of the past: episodes of the store and demonstrations, and curves."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from console_links import make_run
from tiny_runs import RunServer

from robot_rl.config import Settings, compose
from robot_rl.console.link import ConsoleError
from robot_rl.extras.console.library import EpisodeLibrary, EpisodePlayer
from robot_rl.extras.console.pages import Pages, read_curves
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.client import ReplayClient


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with three demonstrations, whose rows are in its store as well."""
    made = make_run(tmp_path_factory.mktemp("runs") / "run")
    config = compose(["task=reach", "demonstrations=3"])
    bench = Workbench(Settings.of(config), made)
    Collect(bench.settings).run(bench)
    dataset = bench.demonstrations()
    with closing(RunServer(made.path)), ReplayClient(made.store) as client:
        client.open_session(dataset.schema, 1)
        for number in range(len(dataset)):
            columns = dataset.episode(number)
            for row in range(len(columns["is_last"])):
                facts = {"seed": 1, "instruction": "go"} if row == 0 else None
                client.append({name: column[row] for name, column in columns.items()}, facts)
        client.flush(30.0)
    return SimpleNamespace(directory=made, dataset=dataset)


@pytest.mark.parametrize("place", ["demonstrations", "store"])
def test_episodes_are_listed_newest_first_and_in_parts(run, place):
    library = EpisodeLibrary(run.directory)
    listed = library.newest(place, 2)
    assert len(listed) == 2
    assert listed[0].number > listed[1].number
    older = library.newest(place, 2, before=listed[-1].number)
    assert len(older) == 1
    assert all(episode.success and episode.complete for episode in (*listed, *older))
    assert all(episode.source == "demo" for episode in listed)


@pytest.mark.parametrize("place", ["demonstrations", "store"])
def test_a_recording_has_the_rows_that_were_written(run, place):
    library = EpisodeLibrary(run.directory)
    oldest = library.newest(place, 10)[-1]
    recording = library.read(place, oldest.number)
    np.testing.assert_array_equal(
        recording.rows["state/tcp_pose"], run.dataset.episode(0)["state/tcp_pose"]
    )
    assert recording.listed.steps == len(recording.rows) - 1


def test_what_is_not_there_is_named(run):
    library = EpisodeLibrary(run.directory)
    for place in ("demonstrations", "store"):
        with pytest.raises(ConsoleError, match="no such episode"):
            library.read(place, 99)
    with pytest.raises(ConsoleError, match="no such place"):
        library.newest("attic", 1)


def test_a_run_that_has_just_begun_has_no_episodes(tmp_path):
    library = EpisodeLibrary(make_run(tmp_path / "run"))
    assert library.newest("store", 10) == library.newest("demonstrations", 10) == []


def test_a_replay_goes_from_first_to_last_row_and_obeys(run):
    recording = EpisodeLibrary(run.directory).read("demonstrations", 0)
    last = len(recording.rows) - 1

    async def main() -> None:
        player = EpisodePlayer()
        task = asyncio.create_task(player.run())
        player.load(recording)
        player.control(speed=4.0)
        while player.progress()["playing"]:
            await asyncio.wait_for(player.moved(), 30)
        assert player.row == last
        player.control(playing=True)
        assert player.row == 0
        player.control(playing=False, row=5)
        seen = player.observation()
        np.testing.assert_array_equal(seen["state/tcp_pose"], recording.rows["state/tcp_pose"][5])
        player.control(row=10_000)
        assert player.row == last
        with pytest.raises(ConsoleError, match="no such speed"):
            player.control(speed=3.0)
        task.cancel()

    asyncio.run(main())


def test_of_two_replays_that_are_asked_for_the_later_is_shown(run, monkeypatch):
    library, player = EpisodeLibrary(run.directory), EpisodePlayer()
    read, may_go_on = library.read, threading.Event()

    def slow_for_the_first(place, number):
        if number == 0:
            may_go_on.wait(30)
        return read(place, number)

    monkeypatch.setattr(library, "read", slow_for_the_first)

    async def main() -> None:
        pages = Pages(None, None, library, player, {})
        replay = '{"do": "replay", "place": "demonstrations", "number": %d}'
        slow = asyncio.create_task(pages.answer(None, replay % 0))
        await asyncio.sleep(0)
        await pages.answer(None, replay % 1)
        may_go_on.set()
        await slow

    asyncio.run(main())
    assert player.describe()["episode"]["number"] == 1


def test_curves_show_success_and_interventions(tmp_path):
    run = make_run(tmp_path / "run")
    for number in range(30):
        record = {"environment_steps": 10 * (number + 1), "success": number >= 10, "length": 10}
        run.append_jsonl("episodes", {**record, "intervened_steps": 5 if number < 20 else 0})
    curves = read_curves(run)
    assert curves["success"][-1] == (300.0, 1.0)
    assert curves["interventions"][0] == (10.0, 0.5)
    assert curves["interventions"][-1] == (300.0, 0.25)
    assert json.loads(json.dumps(curves))["episodes"] == 30


def test_a_long_curve_keeps_its_ends_and_few_points(tmp_path):
    run = make_run(tmp_path / "run")
    facts = {"length": 10, "intervened_steps": 0}
    records = ({"environment_steps": n, "success": bool(n % 2), **facts} for n in range(10_000))
    (run.path / "episodes.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    points = read_curves(run)["success"]
    assert len(points) <= 400
    assert points[-1] == (9999, 0.5)
