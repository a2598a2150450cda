"""What of a dataset becomes demonstrations in the replay store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from tiny_runs import RunServer, act_for

from policies import checkpoint
from robot_rl import cli
from robot_rl.commands.runs import load_resolved, save_resolved
from robot_rl.config import Settings, compose
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.errors import RobotRLError
from robot_rl.learning.demonstrations import fill_from_demonstrations, insert_episodes, value_range
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.spool import size_for
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import RunDirectory


@pytest.fixture
def mixed(server: RunServer) -> EpisodeDataset:
    """Episodes as `robot-rl export` gives them: the first and third of four have failed."""
    given = EpisodeDataset(server.run / "demonstrations.zarr")
    with EpisodeWriter(server.run / "mixed.zarr", given.schema) as writer:
        for index in range(4):
            columns = given.episode(index)
            rows = [
                {n: c[row] for n, c in columns.items()} for row in range(len(columns["action"]))
            ]
            seed, success = int(given.seeds[index]), index % 2 == 1
            writer.append(rows, seed=seed, success=success, source=SOURCE_POLICY)
    return EpisodeDataset(writer.path)


def test_failed_episodes_are_no_demonstrations(server: RunServer, mixed: EpisodeDataset) -> None:
    cloned = checkpoint.load(server.run / "checkpoints/bc/policy")
    with ReplayClient(server.run / "store") as client:
        for _ in range(2):  # the second time everything is there already
            insert_episodes(client, mixed, cloned, StopEvent())
    reader = StoreReader(server.run / "store")
    stored = [reader.read_episode(episode) for episode in reader.episodes()]
    reader.close()
    assert len(stored) == 2
    for index, episode in zip((1, 3), stored, strict=True):
        np.testing.assert_array_equal(episode["action"], mixed.episode(index)["action"])
        assert {str(source) for source in episode["source"]} == {"0"}  # a demonstration's


@pytest.mark.parametrize(
    ("rewards", "ends", "expected"),
    [
        ((0.0, 0.0, 1.0), True, (0.0, 1.0)),  # once, at success
        ((-1.0, -1.0, 0.0), True, (-10.0, 0.0)),
        ((-1.0, -1.0, 0.0), False, (-10.0, 0.0)),  # as Fetch has it
        ((0.0, 0.5, 0.8), False, (0.0, 8.0)),  # shaped, and never at an end
        ((-0.1, 0.0, 100.0), True, (-1.0, 100.0)),
    ],
)
def test_rewards_bound_what_returns_can_be(folder: Path, rewards, ends, expected) -> None:
    given = EpisodeDataset(folder / "runs/latest/demonstrations.zarr")
    columns = given.episode(0)
    names = ("reward", "terminated", "truncated", "is_last")
    for name in names:
        columns[name][:] = 0
    columns["reward"][:3], columns["is_last"][3], columns["action"][3] = rewards, True, 0
    columns["terminated" if ends else "truncated"][2] = True
    rows = [{n: c[row] for n, c in columns.items()} for row in range(4)]
    with EpisodeWriter(folder / "other.zarr", given.schema) as writer:
        writer.append(rows, seed=0, success=True, source=SOURCE_POLICY)
    assert value_range(EpisodeDataset(writer.path), 0.9) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("successes", "expected"),
    [
        ((20, 30, 40), {"discount": 0.97, "imitation_updates": 24_000}),  # as found on peg_insert
        ((90, 100, 110), {"discount": 0.985, "imitation_updates": 60_000}),
        ((100, 200, 300), {"discount": 0.9925, "imitation_updates": 120_000}),
        # Only a label of the whole episode says that it succeeded.
        ((), {"discount": 0.97, "imitation_updates": 24_000}),
    ],
)
def test_discount_and_imitation_reach_as_far_as_demonstrations_take_to_succeed(
    folder: Path, successes, expected
) -> None:
    given = EpisodeDataset(folder / "runs/latest/demonstrations.zarr")
    first = {name: column[0] for name, column in given.episode(0).items()}
    rest = dict.fromkeys(("success", "terminated", "truncated", "is_last"), False)
    with EpisodeWriter(folder / "other.zarr", given.schema) as writer:
        for after in successes or (0,):
            succeeded = [bool(after) and row + 1 >= after for row in range(301)]
            rows = [first | rest | {"success": success} for success in succeeded]
            rows[-2]["truncated"] = rows[-1]["is_last"] = True
            rows[-1]["action"] = 0 * first["action"]
            writer.append(rows, seed=0, success=True, source=SOURCE_POLICY)
    algorithm = Settings.of(compose([])).algorithm
    found = fill_from_demonstrations(algorithm, None, EpisodeDataset(writer.path))
    values = {**found["schedule"], **found["settings"]}
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_demonstrations_without_a_reward_are_refused(folder: Path) -> None:
    given = EpisodeDataset(folder / "runs/latest/demonstrations.zarr")
    columns = given.episode(0)
    columns["reward"][:] = 0
    rows = [{n: c[row] for n, c in columns.items()} for row in range(len(columns["reward"]))]
    with EpisodeWriter(folder / "other.zarr", given.schema) as writer:
        writer.append(rows, seed=0, success=True, source=SOURCE_POLICY)
    with pytest.raises(RobotRLError, match=r"no reward other than 0.*docs/rewards\.md"):
        value_range(EpisodeDataset(writer.path), 0.9)


def test_a_stop_ends_the_insertion(server: RunServer) -> None:
    cloned = checkpoint.load(server.run / "checkpoints/bc/policy")
    given = EpisodeDataset(server.run / "demonstrations.zarr")
    stop = StopEvent()
    stop.set()
    with ReplayClient(server.run / "store") as client, pytest.raises(Stopped):
        insert_episodes(client, given, cloned, stop)


def test_a_demonstration_beyond_the_spool_goes_on_where_it_was_interrupted(
    server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned = checkpoint.load(server.run / "checkpoints/bc/policy")
    given = EpisodeDataset(server.run / "demonstrations.zarr")
    push, sent = ReplayClient._push, []

    def interrupted(self: ReplayClient, *row: object) -> int:
        if len(sent) == 3:
            raise KeyboardInterrupt
        sent.append(row)
        return push(self, *row)

    def insert() -> None:
        row_bytes = stored_schema(given.schema, cloned).dtype.itemsize
        size = size_for(4, row_bytes)
        with ReplayClient(server.run / "store", spool_bytes=size) as client:
            insert_episodes(client, given, cloned, StopEvent())

    assert given.episode_ends[0] > 3 + 4
    with monkeypatch.context() as patch:
        patch.setattr(ReplayClient, "_push", interrupted)
        with pytest.raises(KeyboardInterrupt):
            insert()
    insert()
    reader = StoreReader(server.run / "store")
    stored = [reader.read_episode(episode) for episode in reader.episodes()]
    reader.close()
    for index, episode in enumerate(stored):
        np.testing.assert_array_equal(episode["action"], given.episode(index)["action"])
    assert len(stored) == len(given)


def test_a_learner_knows_no_robot(
    folder: Path,
    server: RunServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever made one to read the demonstrations' columns would command a real arm."""
    run = RunDirectory(server.run)
    act_for(50, run)
    config = load_resolved(run.path)
    OmegaConf.set_struct(config, False)
    config.robot = {"_target_": "drivers.no.such.Robot"}
    save_resolved(config, run.path)
    monkeypatch.chdir(folder)
    assert cli.main(["learner", "environment_steps=50", "evaluation.every_steps=50"]) == 0
    assert "learned from 50 environment steps" in capsys.readouterr().out


def test_demonstrations_of_another_task_are_refused_by_a_learner(
    folder: Path,
    server: RunServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = EpisodeDataset(server.run / "demonstrations.zarr")
    other = EpisodeWriter(folder / "other.zarr", dataclasses.replace(given.schema, task="other"))
    columns = given.episode(0)
    rows = [{n: c[row] for n, c in columns.items()} for row in range(len(columns["action"]))]
    other.append(rows, seed=1, success=True, source=SOURCE_POLICY)
    other.close()
    config = load_resolved(server.run)
    config.dataset = str(other.path)
    save_resolved(config, server.run)
    monkeypatch.chdir(folder)
    assert cli.main(["learner"]) == cli.EXIT_ERROR
    said = capsys.readouterr().err
    assert "the policy's task differs; got: reach; expected: other" in said
