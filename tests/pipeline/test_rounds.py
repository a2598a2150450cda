"""Recipes whose stages are repeated: what RL-100 consists of."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from tiny_runs import TINY, lines

from robot_rl import cli
from robot_rl.commands.runs import save_resolved
from robot_rl.config import ConfigError, Settings, compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.evaluation.ledger import load_policy, made
from robot_rl.learning.recipe import Recipe, RecipeError
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.workbench import Workbench
from robot_rl.run import DEMONSTRATIONS, STATE_FILE, STUDENT, RunDirectory, RunError

DECIDED = ("policies.jsonl", "summary.json")
ROUNDS = "recipe.stages.rounds"
SMALL = (
    *(word for word in TINY if "actor_hidden" not in word and "schedule" not in word),
    "recipe=rl100",
    "algorithm.schedule.batch_size=32",
    "algorithm.schedule.critic_only_updates=20",
    "algorithm.schedule.offline_updates=40",
    f"{ROUNDS}.repeat=2",
    f"{ROUNDS}.of.gather.episodes=4",
    "recipe.stages.improve_online.iterations=2",
    "recipe.stages.improve_online.episodes=3",
    "recipe.stages.improve_online.ppo.critic_only_updates=2",
    "gate.pairs=5",
)


def test_repeated_stages_are_numbered_and_know_their_round():
    recipe = Recipe(Settings.of(compose(["recipe=rl100", f"{ROUNDS}.repeat=2"])))
    assert list(recipe.stages) == [
        *("collect", "clone", "gather_1", "reclone_1", "improve_offline_1"),
        *("gather_2", "reclone_2", "improve_offline_2", "improve_online", "decide", "distil"),
    ]
    rounds = [recipe.stages[f"improve_offline_{number}"].makes[0] for number in (1, 2)]
    assert rounds == ["checkpoints/round_1", "checkpoints/round_2"]
    alone = Recipe(Settings.of(compose(["recipe=rl100", "stage=gather_3"])))
    assert alone.left(None) == ["gather_3"]


def test_a_documented_recipe_runs_by_its_name_and_teaches_its_student_after_the_decision():
    for choice in ("rl100", "rl100_action_gradient", "dppo", "uni_o4"):
        recipe = Recipe(Settings.of(compose([f"recipe={choice}"])))
        recipe.check(None, list(recipe.stages))
        assert "distil" not in recipe.stages or list(recipe.stages)[-2:] == ["decide", "distil"]


@pytest.mark.parametrize("count", ["0", "-1"])
def test_a_repetition_that_is_none_is_refused(count):
    with pytest.raises(RecipeError, match=r"'rounds'.*cannot be repeated.*repeat: "):
        Recipe(Settings.of(compose(["recipe=rl100", f"{ROUNDS}.repeat={count}"])))


def test_rounds_that_would_leave_the_policy_as_it_is_are_refused():
    """The gate compared the policy with itself, for as many episodes as it may."""
    recipe = Recipe(
        Settings.of(compose(["recipe=rl100_action_gradient", "recipe.offline_updates=1000"]))
    )
    with pytest.raises(ConfigError, match=r"only its critics would learn.*updates=1000, and"):
        recipe.check(None, list(recipe.stages))


def test_a_finished_run_whose_gate_accepted_nothing_says_what_is_left_to_do(tmp_path, capsys):
    rounds = ("recipe=rl100", f"{ROUNDS}.repeat=2", "~recipe.stages.distil")
    config = compose(["task=reach", *rounds, "demonstrations=1"])
    run = RunDirectory.create("reach", tmp_path)
    save_resolved(config, run.path)
    Collect(settings := Settings.of(config)).run(Workbench(settings, run))
    for name, stage in Recipe(settings).stages.items():
        run.append_jsonl("stages", {"stage": name, "seconds": 1.0, "finished": True})
        for artifact in {*stage.makes, "checkpoints/round_1"} - {DEMONSTRATIONS, *DECIDED}:
            with run.atomic_folder(artifact):
                pass
    run.append_jsonl("gate", {"candidate": "checkpoints/round_1", "decision": "undecided"})
    facts = {"environment_steps": 0, "wall_seconds": 1.0}
    run.save_json("summary.json", {**facts, "evaluation": asdict(settings.evaluation)})
    assert cli.main(["train", f"resume={run.path}", "environment_steps=16000"]) == 0
    said = capsys.readouterr().out
    assert f"new run, with {ROUNDS}.repeat=4" in said
    assert "environment_steps=" not in said
    with pytest.raises(
        RunError, match=r"the gate.*accepted nothing.*the deployed policy; .*/round_1$"
    ):
        load_policy(run, "learned")


def recorded(run):
    return [EpisodeDataset(run / "gathered.zarr"), lines(run / "gate.jsonl")]


@pytest.mark.slow
def test_rounds_that_are_killed_again_and_again_are_the_run(tmp_path, start_train):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    assert start_train(whole, *SMALL).end() == 0
    points = (
        lambda run: len(EpisodeDataset(run / "gathered.zarr")) == 2,  # amid gather_1
        lambda run: bool(lines(run / "gate.jsonl")),
        lambda run: len(lines(run / "learner.jsonl")) == 1,  # amid improve_online
    )
    train = start_train(cut, *SMALL)
    for reached in points:
        train.wait_until(partial(_there, train, reached))
        train.kill()
        train = start_train(cut, f"resume={train.run}")
    assert train.end() == 0, train.text
    runs = (whole / "runs/latest").resolve(), train.run
    (one, one_gate), (other, other_gate) = map(recorded, runs)
    assert np.array_equal(one.seeds, other.seeds)
    assert np.array_equal(one.read("action"), other.read("action"))
    assert one_gate == other_gate
    stages = {r["stage"] for r in lines(runs[1] / "stages.jsonl") if r["finished"]}
    assert {"gather_1", "reclone_2", "improve_offline_2", "improve_online"} <= stages
    assert "stage improve_offline_2  done" in train.text


def _there(train, reached):
    run = train.run
    return (run / "gathered.zarr/meta").exists() and reached(run)


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["none", "ope"])
def test_what_a_gate_accepts_is_deployed(tmp_path, start_train, robot_rl_command, gate):
    changes = [f"{ROUNDS}.repeat=1", "evaluation.videos=0", f"gate={gate}"]
    words = [word for word in SMALL if not word.startswith("gate.")]
    small = ["gate.model.updates=30", "gate.model.chunks=4"] if gate == "ope" else []
    train = start_train(tmp_path, *words, *changes, *small)
    assert train.end() == 0, train.text
    run = RunDirectory(train.run)
    verdicts = lines(train.run / "gate.jsonl")
    accepted = [v for v in verdicts if v["decision"] == "accepted"]
    assert [v["gate"] for v in verdicts] == [gate, gate]
    if gate == "ope":
        assert all(v["figures"]["standard_error"] > 0 for v in verdicts)
    if accepted:
        assert made(run)["learned"] == "checkpoints/accepted"
        learned, steps = load_policy(run, "learned")
        assert steps == accepted[-1]["gathered_steps"]
        assert learned.version > 0
        assert "the learned policy (diffusion)" in train.text
    teacher = json.loads((run.complete_folder(STUDENT) / STATE_FILE).read_text())["teacher"]
    assert teacher == json.loads((train.run / "summary.json").read_text())["checkpoint"]
    done = robot_rl_command(
        "evaluate", str(train.run / "checkpoints/round_1"), "evaluation.videos=0"
    )
    assert done.returncode == 0, done.stderr
    assert f"after {verdicts[0]['gathered_steps']:,} steps" in done.stdout
