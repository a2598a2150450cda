"""One ledger says which policy of a run is deployed; every command and page says the same."""

from __future__ import annotations

import json

import pytest
from policy_examples import behaviour, diffusion

from policies import checkpoint
from policies.improved import FallbackPolicy
from robot_rl import cli
from robot_rl.commands.runs import save_resolved
from robot_rl.config import Settings, compose
from robot_rl.evaluation.ledger import (
    deployed_policy,
    enter,
    held_back,
    load_policy,
    read_ledger,
)
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.extras.card.card import CARD, write_card
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.stages.decide import decide
from robot_rl.learning.workbench import Workbench
from robot_rl.run import CLONED, LAST, SUMMARY, RunDirectory, RunError

STEPS = 500


@pytest.fixture
def config(tmp_path):
    return compose(["task=reach", "demonstrations=1", f"runs_directory={tmp_path}"])


@pytest.fixture
def run(config, tmp_path):
    """A run that has cloned a policy and learned online, and whose training held that back."""
    run = RunDirectory.create("reach", tmp_path)
    save_resolved(config, run.path)
    learned = FallbackPolicy(diffusion(), diffusion(), enabled=False)
    for name, policy, steps in ((CLONED, diffusion(), 0), (LAST, learned, STEPS)):
        write(run, name, policy, steps)
    return run


def write(run, name, policy, steps):
    with run.atomic_folder(name) as folder:
        checkpoint.save(folder / "policy", behaviour(policy))
        state = {"environment_steps": steps, "taken": {}}
        (folder / "state.json").write_text(json.dumps(state))


def evaluated(**counts):
    """Final evaluations of 20 episodes, by policy."""
    made = {"cloned": 0, "learned": STEPS}
    return {
        name: EvaluationResult.of_episodes(
            [n < count for n in range(20)],
            [2.0] * 20,
            policy="diffusion",
            policy_name=name,
            seed_set="final",
            first_seed=20_000,
            wall_seconds=1.0,
            environment_steps=made[name],
            gradient_updates=made[name],
        )
        for name, count in counts.items()
    }


def decided(run, **counts):
    """What `train` does when a run has learned from all its steps."""
    results = evaluated(**counts)
    for result in results.values():
        run.append_jsonl("evaluations", result.to_json())
    ledger = decide(run, results, held_back=held_back(run))
    enter(run, ledger)
    return ledger


SUMMARISED = {
    "task": "reach",
    "algorithm": "residual",
    "seed": 0,
    "mean_seconds_to_success": 2.0,
    "longest_success_run": 3,
    "machine": {},
    "demonstrations": 1,
    "environment_steps": STEPS,
    "steps_to_97": None,
    "worse_than_start": [],
    "gradient_updates": STEPS,
    "taken_by_learner": {},
    "wall_seconds": 1.0,
    "peak_memory_bytes": 1,
    "evaluation_episodes": 200,
}


@pytest.mark.parametrize(
    ("learned", "deployed", "verdicts"),
    [
        (19, "cloned", ["deployed", "held back"]),  # better, but not beyond noise
        (20, "learned", ["not deployed", "deployed"]),
    ],
)
def test_every_place_says_the_same_of_a_run(
    run, config, capsys, learned, deployed, verdicts, monkeypatch
):
    """Of one that deployed the clone explain said that it had learned, and the report agreed."""
    Collect(settings := Settings.of(config)).run(Workbench(settings, run))
    run.append_jsonl("stages", {"stage": "online", "seconds": 1.0, "finished": True})
    sentence = str(decided(run, cloned=15, learned=learned))
    assert sentence.startswith(f"deployed: the {deployed} policy (")
    assert [entry.verdict for entry in read_ledger(run).entries.values()] == verdicts
    run.save_json(SUMMARY, SUMMARISED)
    write_card(run, config)
    capsys.readouterr()
    for command in ("explain", "inspect"):
        assert cli.main([command, str(run.path)]) == 0
    told = capsys.readouterr().out
    assert told.count(sentence) == 2
    assert "has learned" not in told
    for name, verdict in zip(("cloned", "learned"), verdicts, strict=True):
        assert f"the {name} policy: {read_ledger(run).entries[name].count}, {verdict}" in told
    card = (run.path / CARD).read_text()
    report = write_report(run).read_text()
    assert sentence in card
    assert sentence in report
    for verdict in verdicts:
        assert f"| {verdict} |" in card
        assert f'<div class="verdict">{verdict}</div>' in report
    assert cli.main(["inspect", str(run.path), "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["deployed"] == deployed == deployed_policy(run)


def test_a_train_that_is_killed_amid_its_decision_comes_to_the_same(run):
    whole = decided(run, cloned=15, learned=20)
    ledger = run.path / "policies.jsonl"
    content = ledger.read_bytes()
    assert content.count(b"\n") == len(whole.entries)
    line = content.index(b"\n") + 1
    for size in (0, 1, line - 1, line, line + 1, len(content) - 1):
        ledger.write_bytes(content[:size])
        assert not read_ledger(run).entries  # so nothing is deployed yet that was not before
        assert deployed_policy(run) == "cloned"
        enter(run, whole)
        assert read_ledger(run) == whole
    enter(run, whole)
    assert read_ledger(run) == whole
    assert ledger.read_bytes().count(b'"deployed"') == 1  # it stands there once


def test_a_decision_holds_until_the_run_learns_on_or_decides_again(run):
    decided(run, cloned=15, learned=20)
    assert deployed_policy(run) == "learned"
    assert load_policy(run)[0].policy.enabled
    improved = FallbackPolicy(diffusion(), diffusion(), enabled=False)
    write(run, LAST, improved, 2 * STEPS)
    assert deployed_policy(run) == "cloned"
    assert not read_ledger(run).entries
    write(run, LAST, FallbackPolicy(diffusion(), diffusion()), 2 * STEPS)
    assert deployed_policy(run) == "learned"
    decided(run, cloned=15, learned=2)
    assert deployed_policy(run) == "cloned"
    assert read_ledger(run).entries["learned"].environment_steps == STEPS
    assert read_ledger(run).entries["learned"].parent == CLONED


def test_a_damaged_ledger_is_named(run):
    (run.path / "policies.jsonl").write_text('{"policy": "cloned"}\n')
    with pytest.raises(
        RunError, match=r"policies\.jsonl is damaged; got: .*missing required field"
    ):
        read_ledger(run)
