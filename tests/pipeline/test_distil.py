"""From a policy to its student, and to a folder that a robot computer plays."""

from __future__ import annotations

import pytest
from tiny_runs import lines

from policies.processes.one_step import OneStep
from robot_rl import cli
from robot_rl.evaluation.ledger import load_policy
from robot_rl.learning.stages import distil
from robot_rl.run import RunDirectory

CERTAIN = ("task.environment.tolerance=1.0", "task.environment.angle_tolerance=3.0")


@pytest.fixture
def told(folder, capsys, monkeypatch):
    """Give what runs a command, and returns its exit code and all that it printed."""
    monkeypatch.chdir(folder)

    def run(*words):
        code = cli.main(list(words))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_student_is_taught_and_measured_beside_its_teacher(folder, told):
    code, said = told("evaluate", "evaluation.policy=student", "episodes=4")
    assert code == 2
    assert "has no student; next: robot-rl distil" in said
    code, said = told("distil", "runs/latest/checkpoints/bc")
    assert code == 2
    assert "bc is not a run directory; got: no config.yaml" in said
    assert "next: it is a checkpoint: name its run" in said
    code, said = told("distil", "distil.updates=100")
    assert code == 0, said
    run = (folder / "runs/latest").resolve()
    assert f"the teacher: the cloned policy (diffusion), {run}/checkpoints/bc\n" in said
    student, _ = load_policy(RunDirectory(folder / "runs/latest"), "student")
    assert isinstance(student.policy.process, OneStep)
    assert lines(run / "stages.jsonl")[-1]["stage"] == "distil"
    code, said = told("evaluate", "evaluation.policy=student", "episodes=4", *CERTAIN)
    assert code == 0, said
    assert "on the same scenes: 4 of 4 against 4 of 4" in said
    records = lines(folder / "runs/latest/evaluate.jsonl")
    assert [record["policy_name"] for record in records] == ["cloned", "student"]


def test_a_stopped_lesson_says_that_it_begins_again(told, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(distil, "recorded_rows", stopped)
    code, said = told("distil")
    assert code == 130
    assert "to go on: from the beginning, by the same command with run=" in said


def test_an_exported_policy_is_played_and_has_a_card(folder, told):
    pytest.importorskip("onnx", reason="needs the extra export")
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    assert told("evaluate", "episodes=4", "evaluation.videos=0")[0] == 0
    code, said = told("export-policy", "latest", "out")
    assert code == 0, said
    card = (folder / "out/CARD.md").read_text()
    assert "| **this one** |" in card
    assert "| cloning.updates | 60 | 3000 |" in card
    assert "| demonstrations.zarr | 4 | 4 |" in card
    code, said = told("run", "out", "episodes=2", *CERTAIN)
    assert code == 0, said
    assert "2 of 2 attempts succeeded" in said
    code, said = told("compare", "latest", "out", "scenes=2")
    assert code == 0, said
    code, said = told("compare", "out", "out", "scenes=2")
    assert "are the same policy" in said
    assert "out exists" in told("export-policy", "latest", "out")[1]
    code, said = told("inspect", "out")
    assert code == 0, said
    assert ", exported, executes 2 actions a plan" in said
    assert "is one policy, not a run" in told("evaluate", "out", "evaluation.policy=cloned")[1]
    assert "out is a policy, not a run" in told("train", "resume=out")[1]
    code, said = told("export-policy", "runs/latest/checkpoints/bc/policy", "again")
    assert code == 0, said
    assert "checkpoints/bc/policy of " in said
