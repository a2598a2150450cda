"""What a user who makes a mistake is told, and that nothing is touched by it."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
import zmq
from tiny_runs import TINY

from robot_rl import cli
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.replay.store import StoreWriter


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a stage that must end with one message, and change nothing."""
    before, latest = _files(Path("runs")), os.readlink("runs/latest")
    assert cli.main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.count("robot-rl: ") == 1
    assert "Traceback" not in error
    assert (_files(Path("runs")), os.readlink("runs/latest")) == (before, latest)
    return error


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("demonstratons=3", "did you mean demonstrations?"),
        ("evaluation.every_steps=70", "must be a multiple of block_steps; got: 70 and 50"),
        ("block_steps=0", "block_steps is out of range; got: 0"),
        ("evaluation.episodes=0", "evaluation.episodes is out of range; got: 0; expected: >= 1"),
        ("evaluation.final_episodes=0", "evaluation.final_episodes is out of range; got: 0"),
        ("evaluation.slots=0", "evaluation.slots is out of range; got: 0"),
        ("environment_steps=-5", "got: -5; expected: more than algorithm.schedule.warmup_steps"),
        ("environment_steps=500", "ends with the warm-up, and nothing would be learned; got: 500"),
        ("demonstrations=-1", "demonstrations is out of range; got: -1; expected: >= 0"),
        ("cloning.updates=0", "cloning.updates is out of range; got: 0; expected: >= 1"),
        (
            "algorithm.schedule.discount=high",
            "'discount' is out of range; got: high",
        ),
        ("policy.horizon=0", "policy.horizon is out of range; got: 0; expected: >= 1"),
        ("policy.observation_steps=0", "policy.observation_steps is out of range; got: 0"),
        ("execute_steps=9", "execute_steps does not fit the chunk; got: 9; expected: 1 ... 8"),
        ("+policy.depth=3", "takes no argument 'depth'"),
        ("policy._target_=robot_rl.run.RunDirectory", "is no ChunkPolicy"),
        ("algorithm.scale=-1.0", "the residual scale is out of range; got: -1.0"),
        ("algorithm=rlpd_gripper", "needs a task that moves the gripper; got: action columns x, y"),
        (
            "policy=vla_tiny algorithm=action_gradient",
            "algorithm=action_gradient improves a generative policy; got: policy=vla_tiny; next: ",
        ),
        ("dataset=nowhere.zarr", "there are no demonstrations; got: nothing at"),
        (
            "observation=pixels observation.vision_training.motion_weight=-1",
            "'motion_weight' is out of range; got: -1.0; expected: >= 0",
        ),
    ],
)
def test_mistyped_words(capsys, word, message):
    assert message in _refused(capsys, "train", *word.split())


def test_a_policy_of_the_users_own_without_a_number_that_all_have_is_told_which(tmp_path, capsys):
    """It was a traceback of 45 lines."""
    (tmp_path / "configs/policy").mkdir(parents=True)
    (tmp_path / "configs/policy/own.yaml").write_text("_target_: policies.diffusion.create\n")
    error = _refused(capsys, "train", "policy=own", "--config-dir", str(tmp_path))
    assert "policy.horizon is missing; next: write it into" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA card")
@pytest.mark.parametrize("stage", ["train", "pretrain"])
def test_a_card_that_is_not_there(capsys, stage):
    assert "there is no CUDA device; got: device=cuda" in _refused(capsys, stage, "device=cuda")


@pytest.mark.parametrize("stage", ["train", "collect", "collect-reward"])
def test_a_failed_start_leaves_nothing(capsys, tmp_path, stage):
    """Not even in a folder of runs that was not there."""
    word = "task.environment.instruction=''", "robot.model=hardware/nothing.xml"
    _refused(capsys, stage, *word)
    assert cli.main([stage, *word, "runs_directory=other"]) == 2
    assert "nothing.xml" in capsys.readouterr().err
    assert not Path("other").exists()


@pytest.mark.slow
def test_a_run_whose_store_is_gone(capsys):
    assert cli.main(["train", "resume=latest", "environment_steps=100", "evaluation.videos=0"]) == 0
    capsys.readouterr()
    Path("runs/latest/store").rename("store")
    error = _refused(capsys, "train", "resume=latest", "environment_steps=150")
    assert "has learned from a store that is gone; got: nothing at" in error
    assert "dataset=" in error
    assert "next: put it back from a copy" in error
    StoreWriter(Path("runs/latest/store")).close()
    assert cli.main(["train", "resume=latest", "environment_steps=150"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "this is another store than the one that was learned from (got: " in said


def test_a_half_written_summary_is_damaged(capsys):
    Path("runs/latest/summary.json").write_text('{"task": "rea')
    assert cli.main(["inspect", "runs/latest"]) == 0
    said = capsys.readouterr().out
    assert "DAMAGED: " in said
    assert "summary.json is damaged" in said
    assert "not finished" not in said
    assert cli.main(["inspect", "runs/latest", "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finished"] is False
    assert "summary.json is damaged" in found["damaged"]


def test_a_checkpoint_that_a_run_does_not_have(capsys):
    error = _refused(capsys, "evaluate", "runs/latest/checkpoints/round_7")
    assert "latest has no checkpoints/round_7; expected: checkpoints/ and one of bc" in error
    assert "there is no run 'nowhere/bc'" in _refused(capsys, "evaluate", "nowhere/bc")


def test_an_evaluation_of_nothing(capsys):
    error = _refused(capsys, "evaluate", "evaluation.final_episodes=0")
    assert "evaluation.final_episodes is out of range; got: 0" in error


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["task=peg_insert"], ["task", "peg_insert", "reach"]),
        (["task=reach", "control_rate_hz=20.0"], ["control_rate_hz", "20", "10"]),
    ],
)
@pytest.mark.parametrize("stage", ["train", "pretrain"])
def test_demonstrations_that_do_not_fit(capsys, stage, words, parts):
    error = _refused(capsys, stage, "dataset=runs/latest/demonstrations.zarr", *words)
    assert all(part in error for part in ["expected", "got", *parts]), error


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"state/tcp_wrench", "float32", [6]', '"state/tcp_wrench", "float32", [5]', ["(5,)"]),
        ('"version": 3', '"version": 99', ["version", "got: 99", "expected: 3"]),
    ],
)
def test_demonstrations_of_another_shape_or_version(capsys, old, new, parts):
    shutil.copytree("runs/latest/demonstrations.zarr", "other.zarr")
    file = Path("other.zarr/zarr.json")
    content = json.loads(file.read_text())
    schema = content["attributes"]["schema"]
    assert old in schema
    content["attributes"]["schema"] = schema.replace(old, new)
    file.write_text(json.dumps(content))
    error = _refused(capsys, "train", "dataset=other.zarr", "task=reach")
    assert all(part in error for part in parts), error


@pytest.mark.parametrize("stage", ["pretrain", "train", "learner"])
def test_a_run_of_another_configuration(capsys, stage):
    key = "resume" if stage == "train" else "run"
    error = _refused(capsys, stage, f"{key}=latest", "seed=5")
    assert "made with another configuration: it differs in seed" in error
    assert "got: seed=5; expected: seed=0" in error


@pytest.mark.parametrize("words", [["train", "resume=latest"], ["evaluate"]])
def test_a_checkpoint_that_is_cut_in_half(capsys, words):
    file = Path("runs/latest/checkpoints/bc/policy/policy.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    error = _refused(capsys, *words)
    assert str(file.resolve()) in error
    assert f"got: {len(whole) // 2} bytes; expected: {len(whole)} bytes" in error


def test_a_port_in_use(capsys):
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    memory = resource.getrlimit(resource.RLIMIT_DATA)
    assert cli.main(["replay", f"replay.address=tcp://127.0.0.1:{port}"]) == 2
    assert resource.getrlimit(resource.RLIMIT_DATA) == memory  # a server's limit is its own
    assert f"cannot listen on tcp://127.0.0.1:{port}" in capsys.readouterr().err
    socket.close()
    context.term()


def test_cloning_again_under_a_policy_that_learned_is_refused(capsys):
    shutil.copytree("runs/latest/checkpoints/bc", "runs/latest/checkpoints/last")
    error = _refused(capsys, "pretrain")
    assert "has learned online from its cloned policy" in error


def test_cloning_again_under_rows_with_the_policys_proposals_is_refused(capsys):
    writer = StoreWriter(Path("runs/latest/store"))
    writer.open_session(make_env(compose([*TINY])).schema, 1, None, "actor")
    writer.close()
    before = _files(Path("runs/latest/checkpoints"))
    assert cli.main(["pretrain"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "holds rows of its cloned policy; next: clone into a new run" in said
    assert _files(Path("runs/latest/checkpoints")) == before


@pytest.mark.parametrize("stage", ["collect", "train"])
def test_a_keyboard_without_a_display_is_refused_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    words = ("robot=ros_sim", "task=reach", "teleop=keyboard")
    assert "the keyboard needs a display" in _refused(capsys, stage, *words)
