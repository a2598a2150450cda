"""The card of a policy says which policy it is, and what became of the others of its run."""

from pathlib import Path

import pytest
from policy_examples import behaviour, diffusion

from policies import checkpoint
from robot_rl.commands.runs import save_resolved
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeWriter
from robot_rl.data.schema import Field, row_schema
from robot_rl.evaluation.ledger import enter, load_policy
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.extras.card.card import CARD, card, policy_facts, write_card
from robot_rl.learning.stages.decide import decide
from robot_rl.run import ACCEPTED, CLONED, STUDENT, RunDirectory


@pytest.fixture
def config():
    return compose(["task=reach", "distil.updates=7"])


@pytest.fixture
def run(config, tmp_path):
    """Give a run that has cloned, and in which a gate has accepted something."""
    run = RunDirectory.create("reach", tmp_path)
    save_resolved(config, run.path)
    student = ', "teacher": "checkpoints/bc", "distil": {"updates": 5, "batch_size": 64}'
    for name, steps, more in ((CLONED, 0, ""), (ACCEPTED, 900, ""), (STUDENT, 0, student)):
        with run.atomic_folder(name) as folder:
            checkpoint.save(folder / "policy", behaviour(diffusion()))
            (folder / "state.json").write_text(f'{{"environment_steps": {steps}{more}}}')
    return run


def test_where_the_clone_stays_deployed_the_card_says_so_and_why(run, config):
    reason = "it does better: 10 of 12 against 5 of 12"
    verdict = {"candidate": "checkpoints/round_1", "decision": "accepted", "reason": reason}
    run.append_jsonl("gate", {**verdict, "gathered_steps": 900})
    facts = {"seed_set": "final", "first_seed": 20000, "policy": "diffusion", "wall_seconds": 1.0}
    results = {
        name: EvaluationResult.of_episodes(
            [n < count for n in range(20)],
            [1.0] * 20,
            environment_steps=steps,
            gradient_updates=steps,
            policy_name=name,
            **facts,
        )
        for name, count, steps in (("cloned", 9, 0), ("learned", 3, 900))
    }
    enter(run, decide(run, results))
    decision = "deployed: the cloned policy (9 of 20) — the learned policy solved 3 of 20 on the"
    write_card(run, config)
    text = (run.path / CARD).read_text()
    assert "| checkpoint | checkpoints/bc |" in text
    assert f"| checkpoints/round_1 | 900 | accepted | {reason} |" in text
    assert f"What the run has decided: {decision} same scenes." in text
    assert "| cloned | checkpoints/bc |  | 0 | 9 of 20 | deployed |" in text
    learned = "| learned | checkpoints/accepted | checkpoints/bc | 900 | 3 of 20 | not deployed |"
    assert learned in text
    assert "This policy is the clone. It has learned nothing from later stages." in text


def test_demonstrations_of_another_place_are_among_the_data(run, config, tmp_path):
    schema = row_schema("reach", [Field("state/relative", "float32", (3,))], ("x",), 10.0)
    config.dataset = str(tmp_path / "shown.zarr")
    EpisodeWriter(Path(config.dataset), schema).close()
    save_resolved(config, run.path)
    write_card(run, config)
    text = (run.path / CARD).read_text()
    assert f"The demonstrations are {config.dataset}." in text
    assert "| shown.zarr | 0 | 0 | 0 |" in text


def test_a_students_card_says_how_it_was_taught_whatever_the_run_was_set_to(run, config):
    policy, steps = load_policy(run, "student")
    folder = Path(run.complete_folder(STUDENT)) / "policy"
    text = card(run, policy_facts(run, config, STUDENT, folder, policy, steps))
    assert "| its teacher | checkpoints/bc |" in text
    assert "| distilled in | 5 updates of 64 rows |" in text
    assert "distil.updates" not in text
