"""`robot-rl run`: a policy at work, in simulation, as a process that a person watches."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tiny_runs import Command, lines, starting

from robot_rl.console.link import loop_folder
from robot_rl.extras.console.loop_client import LoopClient
from robot_rl.run import RunDirectory

CERTAIN = ("task.environment.tolerance=1.0", "task.environment.angle_tolerance=3.0")
IMPOSSIBLE = ("task.environment.tolerance=1e-9",)


def say(run: Path, event: str) -> None:
    """Press a button of the console."""

    async def press() -> None:
        client = LoopClient(loop_folder(RunDirectory(run), 1))
        following = asyncio.create_task(client.run())
        await client.next_snapshot()
        await client.post(event)
        following.cancel()

    asyncio.run(press())


def test_attempts_are_made_and_counted(folder, robot_rl_command):
    done = robot_rl_command("run", "episodes=3", *CERTAIN)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 attempts succeeded (100.0 %)" in done.stdout
    records = lines(folder / "runs/latest/attempts.jsonl")
    assert [record["counters"]["successes"] for record in records] == [1, 2, 3]
    assert all(record["time"] and record["seconds"] > 0 for record in records)


def test_after_failures_in_a_row_the_robot_holds_until_a_person_says_start(folder):
    run = (folder / "runs/latest").resolve()
    with starting(Command) as start:
        command = start(folder, "run", "most_failures=2", *IMPOSSIBLE)
        command.wait_until(lambda: "got: 2 attempts in a row have failed" in command.text)
        say(run, "start")
        command.wait_until(lambda: "got: 4 attempts in a row have failed" in command.text)
        assert command.interrupt() == 130
    assert "0 of 4 attempts succeeded" in command.text
    assert len(lines(run / "attempts.jsonl")) == 4
