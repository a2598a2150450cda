"""What a console is shown of a real simulated robot, and what it can do to it."""

from __future__ import annotations

import itertools
import threading

import pytest
from console_links import make_run, until, with_client

from robot_rl.config import compose
from robot_rl.console.feed import ConsoleFeed
from robot_rl.console.link import Activity, InControl
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_expert, make_session
from robot_rl.env.rollout import rollout
from robot_rl.extras.console.loop_client import LoopClient


class Loop:
    """A control loop in a thread, at 50 Hz of real time: the expert acts, an operator may."""

    def __init__(self, folder) -> None:
        config = compose(["task=reach", "clock=realtime", "control_rate_hz=50"])
        config.task.environment.time_limit_steps = 100_000
        config.task.environment.tolerance = 1e-9  # the episode lasts until somebody ends it
        self.run = make_run(folder)
        self._session = make_session(config)
        ConsoleFeed(self._session, self.run)
        self._controller = ExpertController(make_expert(config, self._session))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        seeds = itertools.count()
        for _ in rollout([self._session], self._controller, seeds, stop=self._stop.is_set):
            pass

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._session.close()


@pytest.fixture
def loop(tmp_path):
    with Loop(tmp_path / "run") as running:
        yield running


async def reach(client: LoopClient, *facts: object):
    while True:
        seen = await client.next_snapshot()
        if set(facts) <= {seen.situation.activity, seen.situation.in_control}:
            return seen


def test_a_take_over_a_jog_and_a_hand_back(loop):
    async def use(client: LoopClient) -> None:
        begin = await reach(client, Activity.ACTING, InControl.POLICY)
        assert begin.situation.episode == 1
        assert begin.situation.action_names[:3] == ("x", "y", "z")
        await client.post("take_over")
        held = await reach(client, InControl.OPERATOR)
        height = held.observation["state/tcp_pose"][2]
        seen = held
        while seen.observation["state/tcp_pose"][2] < height + 0.01:
            client.jog([0, 0, 1, 0, 0, 0], None)
            seen = await client.next_snapshot()
        assert seen.situation.intervened_steps > 0
        assert seen.situation.action[2] == 1.0
        await client.post("hand_back")
        assert (await reach(client, InControl.POLICY)).situation.episode == 1

    with_client(loop.run, use)


def test_a_stop_holds_the_robot_and_the_console_goes_on_seeing_it(loop):
    async def use(client: LoopClient) -> None:
        await reach(client, Activity.ACTING)
        await client.post("stop")
        first = await reach(client, Activity.STOPPED, InControl.NOBODY)
        await client.post("take_over")
        for _ in range(5):
            seen = await client.next_snapshot()
            assert seen.situation.activity is Activity.STOPPED
        assert "clear_errors" in seen.situation.reason
        before, after = (s.observation["state/tcp_pose"] for s in (first, seen))
        assert abs(before - after).max() < 1e-6
        await client.post("clear_errors")
        assert (await reach(client, Activity.ACTING)).situation.episode == 2

    with_client(loop.run, use)


def test_all_that_is_seen_says_when_it_was_seen(loop):
    async def use(client: LoopClient) -> None:
        stamps = [(await reach(client, Activity.ACTING)).situation.stamp_observation]
        await client.post("stop")
        seen = await reach(client, Activity.STOPPED)
        while "clear_errors" not in seen.situation.reason:
            stamps.append(seen.situation.stamp_observation)
            seen = await client.next_snapshot()
        stamps.append(seen.situation.stamp_observation)
        assert stamps[0] > 0
        assert stamps == sorted(stamps)

    with_client(loop.run, use)


def test_consoles_come_and_go_in_the_middle_of_an_episode(loop):
    async def use(client: LoopClient) -> None:
        seen = await reach(client, Activity.ACTING)
        assert seen.situation.episode == 1
        await until(lambda: client.connected)

    for _ in range(3):
        with_client(loop.run, use)
