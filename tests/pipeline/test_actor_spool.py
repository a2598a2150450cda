"""The actor while the replay server is away: it pauses between episodes, and loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_runs import Command, ServerProcess, lines, publish_cloned, starting

from robot_rl.replay.spool import size_for
from robot_rl.replay.store_reader import StoreReader

pytestmark = pytest.mark.faults

# Room for two episodes of `reach`: 31 rows of some 300 bytes.
SMALL = f"replay.spool_bytes={size_for(100, 400)}"


class Actor(Command):
    """`robot-rl actor` of a run."""

    def __init__(self, run: Path, *words: str) -> None:
        super().__init__(run, "actor", f"run={run}", *words)

    @property
    def paused(self) -> bool:
        return self.text.count("pausing before") > self.text.count("going on")


@pytest.fixture
def start_actor() -> Iterator[Callable[..., Actor]]:
    """Start an actor; whatever a failed test leaves is killed."""
    with starting(Actor) as start:
        yield start


@pytest.fixture
def server(server_process: ServerProcess) -> ServerProcess:
    """A server with weights that may act for ever."""
    publish_cloned(server_process.run)
    return server_process


def check_store(run: Path) -> int:
    """Check that each session is whole; return the environment steps of all of them."""
    reader = StoreReader(run / "store")
    episodes = reader.episodes()
    following: dict[int, int] = {}
    for episode in episodes:
        assert episode.first_sequence == following.get(episode.session, 0)
        following[episode.session] = episode.first_sequence + episode.rows
        steps = reader.read_episode(episode)["episode_step"]
        assert steps.tolist() == list(range(episode.rows))
    reader.close()
    return sum(episode.environment_steps for episode in episodes)


def test_the_actor_pauses_between_episodes_and_keeps_its_rows(
    server: ServerProcess, start_actor: Callable[..., Actor]
) -> None:
    run = server.run
    spool = run / "spool" / "actor-1.rows"
    actor = start_actor(run, "environment_steps=1000000", SMALL)

    def recorded() -> int:
        return len(lines(run / "episodes.jsonl"))

    actor.wait_until(lambda: recorded() >= 3)
    server.kill()
    time.sleep(1.0)  # a server that is slow for a moment makes it pause too
    actor.wait_until(lambda: actor.paused)
    assert "pausing before the next episode, whose 31 rows" in actor.text
    paused_at = recorded()
    assert "rows are not in the store yet" in actor.text
    server.start()
    actor.wait_until(lambda: recorded() >= paused_at + 3)
    assert "going on" in actor.text

    server.kill()
    time.sleep(1.0)
    actor.wait_until(lambda: actor.paused)
    assert actor.interrupt() == 130
    waiting = f"rows wait in {spool} for the next start (robot-rl train resume={run})"
    assert waiting in actor.text
    assert "Traceback" not in actor.text
    steps = lines(run / "episodes.jsonl")[-1]["environment_steps"]

    server.start()
    assert check_store(run) < steps
    actor = start_actor(run, "environment_steps=1", SMALL)
    assert actor.end() == 0, actor.text
    assert "first sending the" in actor.text
    assert check_store(run) == steps
    assert not spool.exists()


def test_a_killed_actor_is_followed_by_one_that_sends_its_rows_first(
    server: ServerProcess, start_actor: Callable[..., Actor]
) -> None:
    run = server.run
    actor = start_actor(run, "environment_steps=1000000", SMALL)
    actor.wait_until(lambda: len(lines(run / "episodes.jsonl")) >= 2)
    server.kill()
    actor.wait_until(lambda: "pausing" in actor.text)
    actor.process.kill()
    actor.end()
    steps = lines(run / "episodes.jsonl")[-1]["environment_steps"]
    server.start()
    actor = start_actor(run, f"environment_steps={steps + 60}", SMALL)
    assert actor.end() == 0, actor.text
    assert check_store(run) == steps + 60
    assert lines(run / "episodes.jsonl")[-1]["environment_steps"] == steps + 60


def test_a_spool_without_room_for_an_episode_is_refused_with_numbers(
    server: ServerProcess, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor(server.run, "replay.spool_bytes=70000")
    assert actor.end() == 2
    (error,) = [line for line in actor.text.splitlines() if line.startswith("robot-rl:")]
    assert "no room for one episode of 31 rows" in error
    assert "got: 70000 bytes; expected: >= " in error
    assert "set replay.spool_bytes=" in error
    assert not (server.run / "spool").exists()
