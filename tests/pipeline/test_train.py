"""The whole pipeline on a tiny configuration, as a user runs, stops, resumes and inspects it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import av
import pytest
from safetensors import safe_open
from tiny_runs import TINY, lines, without

from robot_rl import cli
from robot_rl.commands.train import Feed
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.errors import in_shell
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import RunDirectory

SUMMARY_KEYS = {
    "task",
    "seed",
    "bc_success_rate",
    "rl_success_rate",
    "evaluation_episodes",
    "demonstrations",
    "environment_steps",
    "steps_to_97",
    "gradient_updates",
    "wall_seconds",
    "peak_memory_bytes",
    "machine",
}
TIMES = ("wall_seconds", "updates_per_second", "median_decision_ms", "max_decision_ms")


def _online_steps(run: Path) -> int:
    reader = StoreReader(run / "store")
    steps = sum(e.environment_steps for e in reader.episodes() if e.source == "policy")
    reader.close()
    return steps


def check_films(run, failures):
    """Two episodes are filmed, a failure first, and the report shows them."""
    clips = json.loads((run / "videos" / "clips.json").read_text())
    assert len(clips) == 2
    if failures:
        assert clips[0]["seed"] == 20000 + failures[0]
    for clip in clips:
        with av.open(str(run / "videos" / clip["file"])) as film:
            pictures = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        # One before each step and one after the last, then a still of 0.7 s.
        assert len(pictures) == round(10 * clip["seconds"]) + 1 + 7
        assert pictures[0].shape == (240, 320, 3)
        assert pictures[0].std() > 10
    assert (run / "report.html").read_text().count("data:video/mp4;base64,") == 2
    assert "| **this one** |" in (run / "CARD.md").read_text()


def test_an_evaluation_that_cannot_be_saved_is_printed_whole(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    saved = (folder / "runs" / "latest").resolve() / "evaluate.jsonl"
    saved.mkdir()  # it cannot be written, as on a disk that is full
    try:
        capsys.readouterr()
        assert cli.main(["evaluate", "evaluation.final_episodes=2", "evaluation.videos=0"]) == 2
    finally:
        saved.rmdir()
    told = capsys.readouterr()
    assert json.loads(told.out.splitlines()[-1])["episodes"] == 2
    assert f"robot-rl: {saved} cannot be written" in told.err


def test_a_log_has_a_line_before_the_learner_has_its_first_block(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("robot_rl.processes.progress_display.LOG_INTERVAL_S", 0.0)
    with WorkProgress(400) as progress:
        progress.phase("online learning")
        Feed(RunDirectory.create("reach", str(tmp_path)), progress).show()
        assert "online learning | environment steps 0 of 400" in capsys.readouterr().out


def said_by(capsys, *words: str) -> str:
    """What a command prints that needs no process of its own."""
    capsys.readouterr()
    cli.main(list(words))
    return "".join(capsys.readouterr())


def test_inspect_says_in_short_how_far_a_run_is_that_trains(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    run = RunDirectory.open("latest")
    for number in range(30):
        episode = {"success": number >= 15, "intervened_steps": 5, "length": 10}
        run.append_jsonl("episodes", {"environment_steps": 10 * number, **episode})
    pace = {"updates_per_second": 60.0, "update_to_data": 3.0, "replay_transitions": 340}
    run.append_jsonl("learner", {"environment_steps": 300, "gradient_updates": 900, **pace})
    facts = {"policy": "residual", "seed_set": "periodic", "first_seed": 1, "wall_seconds": 1.0}
    for steps in (100, 200):
        learned = {"environment_steps": steps, "gradient_updates": steps, "deployed": steps >= 200}
        result = EvaluationResult.of_episodes([True], [1.0], **facts, **learned)
        run.append_jsonl("evaluations", result.to_json())
    verdict = {"candidate": "checkpoints/round_1", "decision": "undecided", "reason": "neither"}
    run.append_jsonl("gate", verdict)
    run.append_jsonl("stages", {"stage": "gather_1", "seconds": 1.0, "finished": True})
    with run.claim("train"):
        page = said_by(capsys, "inspect", "runs/latest")
    for part in (
        "environment steps 300 of 400 | success of the last 20 episodes 75 % | by the operator 50 %"
        " | updates/s 60.0",
        "evaluations by environment steps: 100: 100 % held back, 200: 100 %",
        f"{run.path}/checkpoints/bc/policy: diffusion policy, version 0",
        f"{run.demonstrations}: 4 episodes",
        "at work: train",
        "gate, checkpoints/round_1: undecided, neither",
        "gather_1\n",
    ):
        assert part in page
    assert len(page.splitlines()) < 12
    assert "not finished; to go on: " in said_by(capsys, "inspect", "runs/latest")


def test_a_policy_is_tested_outside_of_its_training(folder, capsys, monkeypatch):
    """Every result is kept, with what made it."""
    monkeypatch.chdir(folder)
    run = (folder / "runs" / "latest").resolve()
    config = (run / "config.yaml").read_text()
    easy = ["task.environment.tolerance=1.0", "task.environment.angle_tolerance=3.0", "domain=lab"]
    bc = "runs/latest/checkpoints/bc"
    for words in (["seed=7", *easy], ["seed=7"], ["seed=8"], [f"run={run}"], [str(run)], [bc]):
        said = said_by(capsys, "evaluate", "episodes=3", "evaluation.videos=0", *words)
        assert (", with task.environment.tolerance=1.0 task.env" in said) == (easy[0] in words)
    results = lines(run / "evaluate.jsonl")
    assert [r["first_seed"] for r in results] == [7, 7, 8, 20000, 20000, 20000]
    assert [r["path"] for r in results] == [*[str(run)] * 5, bc]
    assert [r["episodes"] for r in results] == [3] * 6
    assert results[0]["overrides"] == ["episodes=3", "evaluation.videos=0", "seed=7", *easy]
    assert results[3]["overrides"] == ["episodes=3", "evaluation.videos=0"]
    assert [r["domain"] for r in results] == ["lab", *["ideal"] * 5]
    assert results[0]["successes"] == 3 > results[1]["successes"]
    assert (run / "config.yaml").read_text() == config
    page = said_by(capsys, "inspect", "runs/latest")
    assert f"seed=7 {' '.join(easy)}: the cloned policy (diffusion): 3/3 = 100.0 %" in page
    facts = json.loads(said_by(capsys, "inspect", "runs/latest", "json=true"))
    assert facts["evaluated"] == results
    refused = said_by(capsys, "evaluate", "seed=-1")
    assert "evaluation.final_seed is out of range; got: -1; expected: 0 to" in refused


def test_train_stop_resume_evaluate_inspect(cloned, tmp_path, start_train, capsys, monkeypatch):
    """In a folder of an odd name, whose printed commands a shell takes back."""
    folder = tmp_path / cloned.name
    shutil.copytree(cloned / "runs", folder / "runs", symlinks=True)
    monkeypatch.chdir(folder)
    run = (folder / "runs" / "latest").resolve()
    train = start_train(folder, "resume=latest", "environment_steps=125")
    train.wait_until(lambda: train.learned() >= 50)
    assert train.interrupt() == 130
    assert in_shell("train", f"resume={run}") in train.text
    assert "Traceback" not in train.text
    state = json.loads((run / "checkpoints/last/state.json").read_text())
    stopped_at = state["environment_steps"]
    assert 50 <= stopped_at < 150
    assert stopped_at == train.learned() <= _online_steps(run)
    assert not (run / "summary.json").exists()
    # Of the stages that commands of their own have run nothing is repeated.
    begun = [("collect", True), ("clone", True), ("online", False)]
    assert [(r["stage"], r["finished"]) for r in lines(run / "stages.jsonl")] == begun
    assert "stage clone    done " in train.text

    # A longer run with other evaluations, which the processes must hear of.
    train = start_train(folder, "resume=latest", "environment_steps=150", "evaluation.episodes=6")
    assert train.end() == 0, train.text
    blocks = lines(run / "learner.jsonl")
    assert blocks[0]["update_to_data"] is None  # it warms up
    assert blocks[-1]["update_to_data"] == pytest.approx(1.0)
    assert [b["environment_steps"] for b in blocks] == list(range(25, 151, 25))  # none twice
    assert [r["stage"] for r in lines(run / "stages.jsonl") if r["finished"]] == [
        "collect",
        "clone",
        "online",
        "decide",
    ]
    assert re.search(r"stage online   started \d+:\d\d", train.text)
    assert re.search(r"stage online   done \d+:\d\d", train.text)
    assert _online_steps(run) == 150
    episodes = lines(run / "episodes.jsonl")
    assert [e["episode"] for e in episodes] == list(range(len(episodes)))
    assert [e["environment_steps"] for e in episodes] == sorted(
        {e["environment_steps"] for e in episodes}
    )
    assert len({e["seed"] for e in episodes}) == len(episodes)
    assert episodes[-1]["environment_steps"] == 150

    evaluations = lines(run / "evaluations.jsonl")
    best = evaluations[-1]["environment_steps"]
    assert run.joinpath(f"checkpoints/step_{best:07d}").exists()
    assert [(e["environment_steps"], e["policy"], e["seed_set"]) for e in evaluations] == [
        (0, "diffusion", "periodic"),
        (100, "residual", "periodic"),
        (150, "residual", "periodic"),
        (0, "diffusion", "final"),
        (best, "residual", "final"),
    ]
    assert evaluations[-3]["episodes"] == 6
    # So early nobody knows whether what was learned is better.
    assert not any(e["held_back"] for e in evaluations)  # but what was learned is measured
    assert [e["deployed"] for e in evaluations] == [True, False, False, None, None]
    assert "held back: what it began with stays deployed" in train.text
    for said in ("learner: discount 0.97", "learner: the warm-up is over", "actor: done, "):
        assert said in train.text
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= SUMMARY_KEYS
    assert summary["task"] == "reach"
    assert summary["demonstrations"] == 4
    assert summary["environment_steps"] == 150
    assert summary["gradient_updates"] == 20 + 75 == blocks[-1]["gradient_updates"]
    taken = {"discount": 0.97, "value_range": [0.0, 1.0]}
    taken |= {"imitation_updates": 4000, "symmetric_views": 1}  # one update a step
    assert summary["taken_by_learner"] == taken
    assert "learner: discount 0.97, value range" in (run / "logs/learner.log").read_text()
    assert summary["evaluation_episodes"] == 10
    assert summary["rl_success_rate"] == evaluations[-1]["success_rate"]
    assert summary["wall_seconds"] > 5
    assert 100e6 < summary["peak_memory_bytes"] < 4 * 2**30
    assert "final" in (run / "report.html").read_text()
    deployed = evaluations[-2 if summary["deployed"] == "cloned" else -1]
    check_films(run, deployed["failures"])
    assert f"deployed: the {summary['deployed']} policy" in train.text
    assert (folder / "runs" / "latest").resolve() == run

    before = (run / "summary.json").stat().st_mtime_ns
    finished = said_by(capsys, "train", "resume=latest")
    assert "is finished: deployed: " in finished
    told = finished.partition("to measure its policy again: ")[2].partition("; to learn on: ")
    again, learn_on = shlex.split(told[0]), shlex.split(told[2])
    assert again == ["robot-rl", "evaluate", str(run)]
    assert learn_on[:3] == ["robot-rl", "train", f"resume={run}"]
    # Fewer steps than it has learned from are no way to learn on.
    learned = int(summary["environment_steps"])
    fewer = said_by(capsys, "train", "resume=latest", f"environment_steps={learned - 50}")
    assert f"environment_steps={2 * learned}\n" in fewer
    assert (run / "summary.json").stat().st_mtime_ns == before
    assert len(lines(run / "evaluations.jsonl")) == 5
    assert len(lines(run / "learner.jsonl")) == 6

    monkeypatch.chdir(tmp_path)
    said = said_by(capsys, *again[1:], "evaluation.final_episodes=5", "evaluation.videos=0")
    assert f"details: {run}/evaluate.jsonl" in said
    (result,) = lines(run / "evaluate.jsonl")
    assert (result["episodes"], result["environment_steps"]) == (5, deployed["environment_steps"])
    assert result["overrides"] == ["evaluation.final_episodes=5", "evaluation.videos=0"]

    page = said_by(capsys, "inspect", f"{folder.name}/runs/latest")
    learned = f"final, the learned policy (residual) after {best}"
    assert f"{run}/checkpoints/" in page  # on one line
    for part in ("4 episodes", "150 steps", "evaluations by environment steps: 0:", learned):
        assert part in " ".join(page.split()), page
    page = said_by(capsys, "inspect", f"{folder.name}/runs/latest/store")
    assert "recorded in simulated time" in page
    assert "1970" not in page


@pytest.mark.slow
def test_two_runs_with_one_seed_are_the_same(tmp_path, cloned, robot_rl_command):
    runs = []
    for name in ("a", "b"):
        shutil.copytree(cloned / "runs", tmp_path / name, symlinks=True)
        done = robot_rl_command(
            "train", "resume=latest", f"runs_directory={name}", "environment_steps=200", timeout=400
        )
        assert done.returncode == 0, done.stdout + done.stderr
        runs.append((tmp_path / name / "latest").resolve())
    for name in ("learner", "episodes", "evaluations"):
        first, second = (without(lines(run / f"{name}.jsonl"), *TIMES) for run in runs)
        assert first == second
        assert first
    for name in ("policy/policy.safetensors", "algorithm.safetensors"):
        first, second = (_contents(run / "checkpoints/last" / name) for run in runs)
        assert first == second


def _contents(path: Path) -> tuple[dict[str, str] | None, dict[str, bytes]]:
    """Metadata and tensors; safetensors writes the metadata in no fixed order."""
    with safe_open(path, "numpy") as file:
        names = list(file.keys())
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in names}


@pytest.mark.faults
def test_collect_and_clone_do_not_depend_on_interruptions(folder, tmp_path, start_train, cloned):
    """Ctrl-C while recording and while cloning; resuming gives the run that was never stopped."""
    words = [*TINY, "runs_directory=other", "demonstrations=60", "cloning.updates=600"]
    train = start_train(tmp_path, *words, "environment_steps=100", "evaluation.every_steps=25")

    def latest() -> Path:
        return (tmp_path / "other" / "latest").resolve()

    def recorded() -> int:
        there = (latest() / "demonstrations.zarr").exists()
        return len(EpisodeDataset(latest() / "demonstrations.zarr")) if there else 0

    train.wait_until(lambda: recorded() >= 5)
    assert train.interrupt() == 130
    kept = recorded()
    assert 5 <= kept < 60
    train = start_train(tmp_path, f"resume={latest()}")
    train.wait_until(lambda: recorded() == 60)
    assert train.interrupt() == 130
    assert not (latest() / "checkpoints/bc").exists()
    whole = EpisodeDataset(latest() / "demonstrations.zarr")
    tiny = EpisodeDataset(folder / "runs/latest/demonstrations.zarr")
    assert whole.seeds[:4].tolist() == tiny.seeds.tolist()
    assert len(set(whole.seeds.tolist())) == 60


@pytest.mark.faults
def test_interrupted_final_evaluation_is_made_up_for(folder, start_train):
    words = ("resume=latest", "environment_steps=100", "evaluation.final_episodes=400")
    train = start_train(folder, *words)
    train.wait_until(lambda: "final evaluation of 400" in train.text)
    assert train.interrupt() == 130
    assert not (train.run / "summary.json").exists()
    train = start_train(folder, "resume=latest", "evaluation.final_episodes=20")
    assert train.end() == 0, train.text
    assert json.loads((train.run / "summary.json").read_text())["evaluation_episodes"] == 20


@pytest.mark.slow
def test_a_good_clone_that_learning_spoils_is_what_is_deployed(
    tmp_path, robot_rl_command, capsys, monkeypatch
):
    """The last checkpoint was, without a word."""
    done = robot_rl_command(
        "train",
        *TINY,
        "demonstrations=30",
        "cloning.updates=1500",
        "environment_steps=200",
        "evaluation.episodes=20",
        "evaluation.final_episodes=20",
        "evaluation.slots=20",
        "evaluation.videos=0",
        "algorithm=rlpd_pretrained",  # which holds nothing back
        "algorithm.settings.actor_rate=0.03",  # steps so large that they lead anywhere
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs/latest").resolve()
    said = " ".join(done.stdout.split())
    assert "WORSE than what it began with: of the same scenes it lost" in said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rl_success_rate"] < summary["bc_success_rate"] - 0.2
    assert (summary["deployed"], summary["checkpoint"]) == ("cloned", "checkpoints/bc")
    assert 200 in summary["worse_than_start"]
    assert summary["decision"].startswith("deployed: the cloned policy (")
    best = lines(run / "evaluations.jsonl")[-1]["environment_steps"]
    page = (run / "report.html").read_text()
    for place in (said, page):
        assert summary["decision"] in place
    assert "worse than what it began with, by more than noise, after" in page

    monkeypatch.chdir(tmp_path)

    def judged(*words: str) -> str:
        return said_by(capsys, "evaluate", "evaluation.videos=0", *words)

    assert "reach, the cloned policy (diffusion): " in judged()
    learned = f"reach, the learned policy (gaussian) after {best} steps: "
    assert learned in judged("evaluation.policy=learned")
    # As on a robot, which would be busy for as long again with the cloned policy.
    again = said_by(capsys, "train", "resume=latest", "evaluation.compare=false")
    assert "deployed: the learned policy (" in again
    assert "evaluation.compare=true evaluates both" in again
    assert learned in judged()


@pytest.mark.slow
def test_two_actors_share_the_steps_and_keep_pace_with_the_learner(tmp_path, robot_rl_command):
    done = robot_rl_command("train", *TINY, "actors=2", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs/latest").resolve()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["environment_steps"] == 400
    assert summary["gradient_updates"] == 20 + 325
    assert {episode["actor"] for episode in lines(run / "episodes.jsonl")} == {1, 2}
    reader = StoreReader(run / "store")
    episodes = [e for e in reader.episodes() if e.source == "policy"]
    reader.close()
    by_actor = {n: sum(e.environment_steps for e in episodes if e.actor == n) for n in (1, 2)}
    assert min(by_actor.values()) > 0
    assert 400 <= sum(by_actor.values()) <= 400 + 25  # each may learn late that all are there
    assert len({e.metadata["seed"] for e in episodes}) == len(episodes)


@pytest.mark.slow
def test_a_stage_alone_runs_again_on_the_artifacts_of_another_run(folder, robot_rl_command):
    """The stages after it then go on from what it has made, and the other run stays as it is."""
    other = (folder / "runs/latest").resolve()
    before = {path: path.stat().st_mtime_ns for path in other.rglob("*")}
    words = ["train", *TINY, "environment_steps=150"]
    done = robot_rl_command(*words, "stage=clone", "artifacts=latest", "cloning.updates=80")
    assert done.returncode == 0, done.stdout + done.stderr
    run = (folder / "runs/latest").resolve()
    assert run != other
    assert [record["stage"] for record in lines(run / "stages.jsonl")] == ["clone"]
    assert "stage online   to do" in done.stdout
    assert not (run / "summary.json").exists()
    for name in ("demonstrations.zarr", "checkpoints/bc"):
        assert (run / name).exists()
    first, again = (_contents(r / "checkpoints/bc/policy/policy.safetensors") for r in (other, run))
    assert first != again
    done = robot_rl_command("train", f"resume={run}", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["stage"] for record in lines(run / "stages.jsonl")] == ["clone", "online"]
    assert json.loads((run / "summary.json").read_text())["demonstrations"] == 4

    assert {path: path.stat().st_mtime_ns for path in other.rglob("*")} == before

    more = ("demonstrations=9", "stage=online", f"artifacts={run}")  # it learns from the four
    done = robot_rl_command(*words, *more, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stage collect  done" in done.stdout
    assert len(EpisodeDataset((folder / "runs/latest").resolve() / "demonstrations.zarr")) == 4

    refused = robot_rl_command(*words, "stage=online", "runs_directory=elsewhere")
    assert refused.returncode == 2
    assert "the stage 'online' needs demonstrations.zarr, which no stage before" in refused.stderr
    assert not (folder / "elsewhere").exists()
    refused = robot_rl_command(*words, "stage=clones")
    assert "has no stage 'clones' here; expected: one of collect, clone, online" in refused.stderr
