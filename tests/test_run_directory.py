"""The run directory keeps what it was given, whatever was killed while writing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from robot_rl import actor, cli, learner
from robot_rl.commands.runs import save_resolved
from robot_rl.config import compose
from robot_rl.evaluation.ledger import made
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.processes.files import CheckpointError
from robot_rl.run import RunDirectory, RunError

LAST = "checkpoints/last"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create("reach", tmp_path / "runs")


def _write(run: RunDirectory, text: str, name: str = LAST) -> None:
    with run.atomic_folder(name) as folder:
        (folder / "policy.json").write_text(text)
        (folder / "more").mkdir()
        (folder / "more" / "policy.bin").write_bytes(text.encode() * 1000)


def _write_half(run: RunDirectory, error: Exception) -> None:
    with run.atomic_folder(LAST) as folder:
        (folder / "policy.json").write_text("two")
        raise error


def test_runs_are_named_by_time_and_latest_points_to_the_newest(tmp_path: Path, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls):
            return cls(2025, 3, 4, 5, 6, 7)

    monkeypatch.setattr("robot_rl.run.datetime", Clock)
    runs = [RunDirectory.create("reach", tmp_path) for _ in range(3)]
    assert [r.path.name for r in runs] == [
        "20250304-050607",
        "20250304-050607-2",
        "20250304-050607-3",
    ]
    assert (tmp_path / "latest").resolve() == runs[-1].path
    assert not os.path.isabs(os.readlink(tmp_path / "latest"))  # runs/ can be moved


@pytest.mark.parametrize("task", ["my_module:ns/Env-v0", "ns/Env-v0", "a b:c"])
def test_a_run_has_a_plain_name_whatever_its_task_is_called(task: str, tmp_path: Path):
    run = RunDirectory.create(task, tmp_path)
    assert re.fullmatch(r"[\w-]+", run.path.parent.name)
    assert run.path.parent.parent == tmp_path  # where the list of runs looks for it


def test_open_finds_a_run_by_path_by_name_and_as_latest(run, tmp_path, monkeypatch):
    save_resolved(compose(), run.path)
    runs = tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    for name in (run.path, f"reach/{run.path.name}", f"runs/reach/{run.path.name}", "latest"):
        assert RunDirectory.open(name, runs).path == run.path
    assert RunDirectory.open("runs/latest").path == run.path
    newer = RunDirectory.create("reach", runs)
    save_resolved(compose(), newer.path)
    assert RunDirectory.open("latest", runs, with_policy=True).path == newer.path  # none has one
    _write(run, "one")
    assert RunDirectory.open("latest", runs, with_policy=True).path == run.path
    assert RunDirectory.open("latest", runs).path == newer.path


def test_what_is_no_run_is_refused(run: RunDirectory, tmp_path: Path):
    with pytest.raises(RunError, match=r"is not a run directory; got: no config\.yaml"):
        RunDirectory.open(run.path)
    save_resolved(compose(), run.path)
    with pytest.raises(RunError, match="there is no run 'nothing'") as caught:
        RunDirectory.open("nothing", tmp_path / "runs")
    assert str(run.path) in str(caught.value)  # the runs that there are
    with pytest.raises(RunError, match="there is no run 'latest'"):
        RunDirectory.open("latest", tmp_path / "elsewhere")


@pytest.mark.parametrize("config", ["", "seed: 1\n"])
def test_a_damaged_export_names_the_file(config: str, tmp_path: Path, capsys):
    (tmp_path / "policy.json").write_text('{"a":')
    if config:
        (tmp_path / "config.yaml").write_text(config)
    assert cli.main(["evaluate", str(tmp_path)]) == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert f"{tmp_path}/policy.json is damaged (not JSON); got: " in error
    assert f"next: copy {tmp_path} again, or export it again" in error


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match="cannot be made"):
        RunDirectory.create("reach", tmp_path / "runs")


OUTSIDE = [
    ".train.lock",
    ".learner.lock",
    ".actor-1.lock",
    "evaluate.jsonl",
    "logs/learner.log",
    "store/server.lock",
    "demonstrations.zarr/data/reward",
    "logs",
    "spool",
    "checkpoints",
    "store",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("command", ["train", "evaluate", "inspect"])
def test_a_run_whose_links_lead_out_of_it_is_refused(run, tmp_path, capsys, name, command):
    save_resolved(compose([]), run.path)
    elsewhere, link = tmp_path / "elsewhere", run.path / name
    kept = elsewhere / ".last-00000001" / "kept" if "." not in name[1:] else elsewhere
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    word = f"resume={run.path}" if command == "train" else str(run.path)
    assert cli.main([command, word]) == cli.EXIT_ERROR
    said = capsys.readouterr().err
    assert f"{name} -> {elsewhere}" in said
    assert f"cp -rL {run.path} COPY" in said
    assert kept.read_text() == "precious"
    assert [p for p in elsewhere.rglob("*") if p.is_file()] in ([], [kept])


def test_a_run_may_link_within_itself_and_lie_behind_links(run: RunDirectory, tmp_path: Path):
    _write(run, "one")
    (run.path / "absolute").symlink_to(run.path / "checkpoints")
    (run.path / "circle").symlink_to("circle")
    (tmp_path / "disk").symlink_to(tmp_path / "runs")
    found = RunDirectory(tmp_path / "disk" / "latest")
    assert found.path == run.path
    assert (found.complete_folder(LAST) / "policy.json").read_text() == "one"


def test_a_folder_that_hides_its_links_is_refused(run: RunDirectory, tmp_path: Path):
    (run.path / "logs").mkdir()
    (run.path / "logs" / "learner.log").symlink_to(tmp_path / "elsewhere")
    (run.path / "logs").chmod(0o300)
    with pytest.raises(RunError):  # as root, because of its link
        RunDirectory(run.path)
    (run.path / "logs").chmod(0o700)


def test_a_claim_leaves_a_file_of_its_name_as_it_is(run: RunDirectory):
    (run.path / ".train.lock").write_text("words")
    with run.claim("train"):
        assert run.claimed() == ["train"]
    assert (run.path / ".train.lock").read_text() == "words"


def test_jsonl_survives_a_cut_last_line(run: RunDirectory):
    assert run.read_jsonl("learner") == []
    for number in range(3):
        run.append_jsonl("learner", {"number": number, "loss": 0.5})
    path = run.path / "learner.jsonl"
    whole = path.read_bytes()
    for cut in range(1, 20):
        path.write_bytes(whole[:-cut])
        assert [r["number"] for r in run.read_jsonl("learner")] == [0, 1]
        run.append_jsonl("learner", {"number": 7})
        assert [r["number"] for r in run.read_jsonl("learner")] == [0, 1, 7]
    path.write_bytes(b'{"numb')
    run.append_jsonl("learner", {"number": 8})
    assert run.read_jsonl("learner") == [{"number": 8}]


@pytest.mark.parametrize("line", [b"{broken", b"[1, 2]"])
def test_jsonl_with_a_broken_line_in_the_middle_is_reported(run: RunDirectory, line: bytes):
    (run.path / "learner.jsonl").write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    with pytest.raises(RunError, match=r"learner\.jsonl, line 2"):
        run.read_jsonl("learner")


def test_summary_is_replaced(run: RunDirectory):
    run.save_json("summary.json", {"task": "reach", "rl_success_rate": 0.1})
    run.save_json("summary.json", {"task": "reach", "rl_success_rate": 0.9})
    assert '"rl_success_rate": 0.9' in (run.path / "summary.json").read_text()
    assert [p.name for p in run.path.iterdir()] == ["summary.json"]


def test_checkpoint_is_replaced_and_the_reader_of_the_old_one_can_finish(run: RunDirectory):
    assert not run.has_folder(LAST)
    _write(run, "one")
    old = run.complete_folder(LAST)
    _write(run, "two")
    new = run.complete_folder(LAST)
    assert (new / "policy.json").read_text() == "two"
    assert (run.path / LAST / "policy.json").read_text() == "two"
    assert (old / "more" / "policy.bin").read_bytes() == b"one" * 1000
    _write(run, "three")
    assert not old.exists()
    assert run.has_folder(LAST)


def test_failure_while_writing_keeps_the_checkpoint(run: RunDirectory):
    _write(run, "one")
    with pytest.raises(ZeroDivisionError):
        _write_half(run, ZeroDivisionError())
    with pytest.raises(RunError, match="the one before is kept") as caught:
        _write_half(run, OSError(28, "No space left on device"))
    assert "free some space" in str(caught.value)
    assert (run.complete_folder(LAST) / "policy.json").read_text() == "one"
    assert not list((run.path / "checkpoints").glob("*.partial"))


@pytest.mark.parametrize("name", ["policy.json", "more/policy.bin", "manifest.json"])
def test_a_cut_file_is_never_loaded(run: RunDirectory, name: str):
    _write(run, "one")
    path = run.path / LAST / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=name):
        run.complete_folder(LAST)


def test_a_changed_or_missing_file_is_named(run: RunDirectory):
    _write(run, "one")
    (run.path / LAST / "policy.json").write_text("two")  # the same length
    with pytest.raises(CheckpointError, match=r"policy\.json has changed"):
        run.complete_folder(LAST)
    (run.path / LAST / "policy.json").unlink()
    with pytest.raises(CheckpointError, match=r"policy\.json is missing"):
        run.complete_folder(LAST)
    with pytest.raises(CheckpointError, match="there is no complete checkpoint"):
        run.complete_folder("checkpoints/bc")


def test_a_copied_run_whose_links_became_folders_goes_on(run: RunDirectory, tmp_path: Path):
    _write(run, "one")
    shutil.copytree(run.path, tmp_path / "copy", symlinks=False)
    copy = RunDirectory(tmp_path / "copy")
    assert (copy.complete_folder(LAST) / "policy.json").read_text() == "one"
    for text in ("two", "three", "four"):
        _write(copy, text)
        assert (copy.complete_folder(LAST) / "policy.json").read_text() == text


@pytest.mark.parametrize(
    ("successes", "expected"),
    [
        ([], LAST),  # nothing was evaluated on the way
        ([30, 60, 88, 65], "checkpoints/step_0003000"),
        ([30, 60, 88, 85], "checkpoints/step_0004000"),  # which may be chance
        ([50, 50, 50, 50], "checkpoints/step_0004000"),
    ],
)
def test_the_checkpoint_that_is_measured_at_the_end(run: RunDirectory, successes, expected):
    def evaluate(steps: int, count: int) -> None:
        won = np.arange(100) < count
        facts = {
            "policy": "p",
            "wall_seconds": 1.0,
            "environment_steps": steps,
            "gradient_updates": steps,
        }
        result = EvaluationResult.of_episodes(won, won, seed_set="periodic", first_seed=0, **facts)
        run.append_jsonl("evaluations", result.to_json())

    _write(run, "last")
    evaluate(0, 99)  # the cloned policy is none of them
    for place, count in enumerate(successes, start=1):
        _write(run, "snapshot", run.snapshot_name(1000 * place))
        evaluate(1000 * place, count)
    assert made(run)["learned"] == expected


_WRITER = """
import sys
from pathlib import Path
from robot_rl.run import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
for number in range(10**6):
    with run.atomic_folder("checkpoints/last") as folder:
        for name in ("a", "b", "c"):
            (folder / name).write_text(str(number) * 2000)
    run.append_jsonl("learner", {"number": number})
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(run: RunDirectory):
    """Kill -9 at moments spread over the write; what is then loaded is of one generation."""
    newest = -1
    for attempt in range(8):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(run.path)])
        deadline = time.monotonic() + 20
        before = len(run.read_jsonl("learner"))
        while len(run.read_jsonl("learner")) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.0013 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        folder = run.complete_folder(LAST)
        texts = {(folder / name).read_text() for name in ("a", "b", "c")}
        assert len(texts) == 1
        assert len(run.read_jsonl("learner")) >= before + 2
        newest = max(newest, attempt)
    assert newest == 7
    assert len(list((run.path / "checkpoints").glob(".last-*"))) <= 4


def test_a_reader_beside_a_writer_always_gets_one_generation(run: RunDirectory):
    """What is promised: a folder that was opened stays valid while the next one is written."""
    # One generation a line, so that no more than one is written during each read.
    paced = _WRITER.replace("range(10**6)", "map(int, sys.stdin)")
    command = [sys.executable, "-c", paced, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        for number in range(100):
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            if number > 0:
                folder = run.complete_folder(LAST)
                assert len({(folder / name).read_text() for name in ("a", "b", "c")}) == 1
            while len(run.read_jsonl("learner")) <= number:
                assert writer.poll() is None
                time.sleep(0.001)
        writer.stdin.close()
        assert writer.wait() == 0


@pytest.mark.parametrize(("role", "process"), [("actor-1", actor), ("learner", learner)])
def test_a_second_process_is_refused_at_once_where_the_first_lives(run, role, process):
    config = compose([f"run={run.path}"])
    save_resolved(config, run.path)
    started = time.monotonic()
    with run.claim(role), pytest.raises(RunError, match=f"another {role} is at work"):
        process.run(config)
    assert time.monotonic() - started < 15  # a busy machine; it was half a minute
