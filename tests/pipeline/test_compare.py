"""Which policy is better, and how good one is at least: what is said is true, and kept."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tiny_runs import Command, lines, starting
from untrained_policy import untrained, untrained_residual

import robot_rl
from policies import checkpoint
from policies.encoders import StateEncoder
from robot_rl import cli
from robot_rl.config import Settings, compose
from robot_rl.env.factory import make_env
from robot_rl.evaluation.ledger import enter, held_back, load_policy
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.learning.stages.decide import decide, evaluate_final
from robot_rl.run import ACCEPTED, LAST, STATE_FILE, RunDirectory

EASY = ("task.environment.tolerance=0.03", "task.environment.angle_tolerance=3.0")
CERTAIN = ("task.environment.tolerance=1.0", "task.environment.angle_tolerance=3.0")
A, B = "runs/latest", "runs/trained"


@pytest.fixture(scope="module")
def rivals(cloned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny clone, one that was trained for longer, and one that knows nothing."""
    folder = tmp_path_factory.mktemp("rivals")
    shutil.copytree(cloned / "runs", folder / "runs", symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        clone = Path(A).resolve()
        words = ["task=reach", "task.environment.time_limit_steps=30", "cloning.updates=600"]
        words += ["policy.denoiser.hidden=[64,64]", f"dataset={clone}/demonstrations.zarr"]
        assert cli.main(["pretrain", *words]) == 0
        Path(A).resolve().rename(B)
        Path(A).unlink()
        Path(A).symlink_to(clone.relative_to(folder.resolve() / "runs"))
        schema = make_env(compose(["task=reach"])).schema
        checkpoint.save(Path(A).resolve() / "checkpoints/untrained/policy", untrained(schema))
    return folder


@pytest.fixture(autouse=True)
def _there(rivals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(rivals / "runs", tmp_path / "runs", symlinks=True)
    monkeypatch.chdir(tmp_path)


def _said(capsys, *words):
    capsys.readouterr()
    assert cli.main(list(words)) == 0
    return capsys.readouterr()


def test_the_better_policy_is_named_as_soon_as_that_is_known(capsys):
    printed = _said(capsys, "compare", A, B, *EASY, "scenes=60")
    record = lines(Path(A, "compare.jsonl"))[-1]
    *_, a, b, sentence, last = printed.out.splitlines()
    assert last == f"details: {Path(A, 'compare.jsonl').resolve()}"
    assert a.startswith(f"A ({A}): ")
    assert b.startswith(f"B ({B}): ")
    assert sentence == record["words"]
    assert sentence.startswith("B is better than A at 95 % confidence after ")
    comparison = robot_rl.compare_results(Path(A, "compare.jsonl"))
    assert comparison.won > comparison.lost
    assert comparison.chance <= comparison.level == pytest.approx(0.05)
    scenes = record["evaluations"][0]["episodes"]
    assert scenes == record["evaluations"][1]["episodes"] < 60
    assert record["overrides"] == [*EASY, "scenes=60"]
    assert {"time", "commit"} <= record.keys()
    assert f"{A}, {B}: {sentence}" in _said(capsys, "inspect", A).out
    # Alone on the robot they take turns, and nobody hears which one acts.
    printed = _said(capsys, "compare", A, B, *EASY, "scenes=60", "evaluation.slots=1")
    assert printed.err.count("policy 1 of 2") == printed.err.count("policy 2 of 2") == scenes
    assert B not in printed.err
    again = lines(Path(A, "compare.jsonl"))[-1]
    assert again["words"] == sentence  # however many act side by side


def held_back_policy():
    """A correction of A's clone that acts as the clone."""
    clone = checkpoint.load(Path(A, "checkpoints/bc").resolve() / "policy")
    keys = StateEncoder({"state/tcp_pose": 7})
    policy = untrained_residual(keys, clone.policy)
    policy.enabled = False
    return replace(clone, policy=policy)


def test_a_rival_that_acts_as_its_clone_is_named_before_scenes_are_spent(capsys):
    checkpoint.save(Path(A).resolve() / "checkpoints/held/policy", held_back_policy())
    held = f"{A}/checkpoints/held"
    assert cli.main(["compare", f"{A}/checkpoints/bc", held]) == cli.EXIT_ERROR
    told = capsys.readouterr().err
    assert "A and B are the same policy: B is held back, its clone acts; got: " in told
    printed = _said(capsys, "compare", B, held, *EASY, "scenes=1", "evaluation.slots=1")
    assert printed.err.index(f"B ({held}) is held back: ") < printed.err.index("scene 1: ")
    assert "held back: the policy it began with acts" in printed.out
    record = lines(Path(B, "compare.jsonl"))[-1]
    assert [e["held_back"] for e in record["evaluations"]] == [False, True]


def test_what_was_held_back_acts_once_it_was_found_better_at_the_end(tmp_path):
    run = RunDirectory.create("reach", str(tmp_path))
    with run.atomic_folder(LAST) as folder:
        checkpoint.save(folder / "policy", held_back_policy())
        (folder / STATE_FILE).write_text('{"environment_steps": 100}')
    assert not load_policy(run)[0].policy.enabled
    result = EvaluationResult.of_episodes(
        [True],
        [1.0],
        policy="residual",
        policy_name="learned",
        seed_set="final",
        first_seed=1,
        environment_steps=100,
        gradient_updates=100,
        wall_seconds=1.0,
    )
    enter(run, decide(run, {"learned": result}, held_back=True))
    assert load_policy(run)[0].policy.enabled


@pytest.mark.parametrize("compare", [True, False])
@pytest.mark.parametrize("gated", [False, True])
def test_what_was_held_back_is_measured_itself_beside_what_it_would_replace(gated, compare):
    """So no figure of the clone is told as one of what was learned."""
    run = RunDirectory(Path(A))
    words = ["task=reach", "evaluation.final_episodes=2", f"evaluation.compare={compare}", *CERTAIN]
    for name in (LAST, *([ACCEPTED] if gated else [])):
        with run.atomic_folder(name) as folder:
            checkpoint.save(folder / "policy", held_back_policy())
            (folder / STATE_FILE).write_text('{"environment_steps": 100}')
    assert load_policy(run, "learned")[0].policy.enabled
    results = evaluate_final(Settings.of(compose(words)), run, print)
    assert held_back(run)
    deployed = decide(run, results, held_back=True).deployed
    replaced = "accepted" if gated else "cloned"
    assert deployed.policy == ("cloned" if compare else replaced)  # 2 of 2 is as good
    everything = ["cloned", *(["accepted"] if gated else []), "learned"]
    assert list(results) == (everything if compare else [replaced])
    if compare:
        assert not results["learned"].held_back


def test_several_policies_are_compared_with_the_first(capsys):
    third = f"{A}/checkpoints/untrained"
    out = _said(capsys, "compare", third, A, B, *CERTAIN, "scenes=12", "score=return").out
    level = " are not told apart after "
    assert f"A and B{level}" in out
    assert f"A and C{level}" in out
    records = lines(Path(A, "compare.jsonl"))
    assert [record["policies"] for record in records] == [[third, A], [third, B]]
    assert [record["comparison"]["level"] for record in records] == pytest.approx([0.025] * 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([A], "compare takes at least A and B; got: runs/latest; next: robot-rl compare"),
        ([A, "nothing"], "there is no run 'nothing'"),
        ([A, f"{A}/checkpoints/bc"], "A and B are the same policy; got: runs/latest and"),
        ([A, "other"], "B cannot be compared with A: the policy's task differs; got: push_t"),
        (["other", A], "the checkpoint other lies in no run"),
        ([A, B, "confidence=1.5"], "proof.confidence is out of range; got: 1.5"),
        ([A, B, "score=sucess"], "did you mean proof.score=success?"),
        ([A, B, "scenes=0"], "proof.scenes is out of range; got: 0; expected: >= 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_the_robot_moves(capsys, words, told):
    checkpoint.save(Path("other"), untrained(make_env(compose(["task=push_t"])).schema))
    assert cli.main(["compare", *words]) == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
    assert not Path(A, "compare.jsonl").exists()


@pytest.mark.slow
def test_what_was_found_before_ctrl_c_is_kept(tmp_path):
    with starting(Command) as start:
        words = (A, f"{A}/checkpoints/untrained", "scenes=1000", "evaluation.slots=1")
        command = start(tmp_path, "compare", *words)
        command.wait_until(lambda: "3 of at most 1000 scenes" in command.text)
        assert command.interrupt() == 130
    (record,) = lines(Path(A, "compare.jsonl"))
    assert record["evaluations"][0]["episodes"] >= 3
    assert "scenes, but may be in 1000" in record["words"]


def test_a_claim_is_proved_or_given_up_with_the_first_failure_too_many(capsys):
    out = _said(capsys, "certify", A, "claim=0.8", *CERTAIN).out
    assert "14 with 0, 22 with 1" in out
    assert "\nproved: a success rate of 80 % at 95 % confidence; 0 of 14 episodes failed" in out
    out = _said(capsys, "certify", f"{A}/checkpoints/untrained", "claim=0.8", "episodes=22").out
    assert "\nnot proved: " in out
    proved, refuted = lines(Path(A, "evaluate.jsonl"))
    assert (proved["result"], proved["episodes"], proved["longest_success_run"]) == (
        "proved",
        14,
        14,
    )
    assert proved["at_least"] == pytest.approx(0.05 ** (1 / 14))
    assert proved["first_seed"] == 30000
    # In the order of the scenes, however many run side by side.
    assert (refuted["result"], refuted["failures"][-1]) == ("not proved", refuted["episodes"] - 1)
    assert len(refuted["failures"]) == 2
    capsys.readouterr()
    assert cli.main(["certify", A, "claim=0.8", "episodes=13"]) == cli.EXIT_ERROR
    assert "so few episodes cannot prove a success rate of 80 %" in capsys.readouterr().err


def test_a_run_of_another_version_is_refused(tmp_path, capsys):
    run = shutil.copytree(A, tmp_path / "older", symlinks=True)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    del settings["proof"]
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert cli.main(["certify", str(run), "claim=0.8"]) == cli.EXIT_ERROR
    said = capsys.readouterr().err
    assert "another version of robot_rl made this run: it has no setting proof" in said
