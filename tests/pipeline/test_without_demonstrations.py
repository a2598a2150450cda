"""Training that begins with random actions, as a user runs it with `demonstrations=0`."""

import json
from pathlib import Path

import pytest
from tiny_runs import TINY, lines

from robot_rl import cli
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.replay.store_reader import StoreReader

ALONE = (
    *(word for word in TINY if not word.startswith("demonstrations=")),
    "demonstrations=0",
    "algorithm=sac",
    "environment_steps=100",
    "evaluation.videos=0",
)
NEAR = ("task.environment.tolerance=0.1", "task.environment.angle_tolerance=0.6")


def refused(capsys, command, *words):
    assert cli.main([command, *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in said
    return said


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_random_actions_are_the_beginning(capsys):
    assert cli.main(["train", *ALONE, *NEAR, "reward=distance", "stage=explore"]) == 0
    assert "episodes succeeded, rewards from" in capsys.readouterr().out
    columns = EpisodeDataset(Path("runs/latest/exploration.zarr")).arrays(("action", "is_last"))
    taken = columns["action"][~columns["is_last"]]
    assert len(taken) >= 75
    assert abs(taken.mean()) < 0.1
    assert taken.std() == pytest.approx(1 / 3**0.5, abs=0.05)


@pytest.mark.slow  # a whole run
def test_a_run_learns_from_its_own_random_actions_alone(capsys):
    assert cli.main(["train", *ALONE, *NEAR, "reward=distance"]) == 0
    printed, run = capsys.readouterr().out, Path("runs/latest").resolve()
    assert "— nothing was cloned that it could be compared with" in printed

    explored = EpisodeDataset(run / "exploration.zarr").read("is_last")
    reader = StoreReader(run / "store")
    steps = [e.environment_steps for e in reader.episodes() if e.source == "policy"]
    reader.close()
    assert sum(steps) == 100  # the random ones among them
    assert not (run / "demonstrations.zarr").exists()
    assert not (run / "checkpoints/bc").exists()

    summary = json.loads((run / "summary.json").read_text())
    assert (summary["demonstrations"], summary["deployed"]) == (0, "learned")
    assert summary["exploration_steps"] == int((~explored).sum())
    assert summary["bc_success_rate"] is None
    assert summary["rl_success_rate"] is not None
    assert all(record["environment_steps"] for record in lines(run / "evaluations.jsonl"))
    assert "Cloned from demonstrations" not in (run / "report.html").read_text()

    assert cli.main(["evaluate"]) == 0
    assert "the learned policy (gaussian) after" in capsys.readouterr().out
    assert "has cloned nothing" in refused(capsys, "evaluate", "evaluation.policy=cloned")
    assert cli.main(["inspect", str(run)]) == 0
    assert "the learned policy (gaussian) after" in capsys.readouterr().out


@pytest.mark.slow
def test_such_a_run_goes_on_where_it_was_stopped(tmp_path, start_train):
    train = start_train(tmp_path, *ALONE, *NEAR, "reward=distance", "environment_steps=1000")
    train.wait_until(lambda: train.learned() >= 100)
    assert train.interrupt() != 0
    learned, run = train.learned(), train.run
    resumed = start_train(tmp_path, "resume=latest", f"environment_steps={learned + 50}")
    assert resumed.end() == 0
    steps = [block["environment_steps"] for block in lines(run / "learner.jsonl")]
    assert steps == list(range(25, learned + 51, 25))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm=residual"], "algorithm=residual learns from demonstrations; got:"),
        (["algorithm=dsrl_plain"], "algorithm=dsrl_plain learns from demonstrations; got:"),
        (["algorithm=rlpd"], "next: add algorithm=sac, which needs none"),
        (
            ["observation=pixels"],
            "observation=pixels learns from demonstrations; got:",
        ),
        (["dagger.rounds=1", "operator=simulated"], "'dagger' needs demonstrations.zarr"),
    ],
)
def test_what_needs_demonstrations_is_refused_before_anything_is_made(capsys, words, message):
    assert message in refused(capsys, "train", "task=reach", *ALONE[-4:], *words)
    assert not Path("runs").exists()


def test_a_task_in_which_random_actions_find_nothing_is_refused_as_soon_as_that_is_seen(capsys):
    said = refused(capsys, "train", *ALONE)
    assert (
        "found nothing to learn from; got: 0 of 3 episodes succeeded, rewards from 0 to 0" in said
    )
    assert "reward=distance" in said


def test_nobody_demonstrates_nothing(capsys):
    assert "there is nothing to do" in refused(capsys, "collect", "task=reach", "demonstrations=0")
    said = refused(capsys, "train", *ALONE, "dataset=shown.zarr")
    assert "got: demonstrations=0 dataset=" in said
    assert "shown.zarr; next: leave out one of the two" in said
    assert not Path("runs").exists()
