"""A vision-language-action policy through the real processes, frozen under a residual."""

from __future__ import annotations

import json

import pytest
from tiny_runs import TINY, lines

from policies import checkpoint
from policies.columns import INSTRUCTION_FEATURES
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.replay.store_reader import StoreReader


@pytest.mark.slow  # six processes that load transformers: about a minute
def test_a_residual_is_trained_on_a_frozen_vla(tmp_path, robot_rl_command):
    words = [word for word in TINY if not word.startswith(("task=", "policy."))]
    done = robot_rl_command(
        "train",
        *words,
        "task=reach_instructed",
        "policy=vla_tiny",
        "environment_steps=200",
        "cloning.updates=20",
        "cloning.batch_size=16",
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = (tmp_path / "runs" / "latest").resolve()
    policies = [e["policy"] for e in lines(run / "evaluations.jsonl")]
    assert policies == ["vla", "residual", "residual", "vla", "residual"]
    assert json.loads((run / "summary.json").read_text())["environment_steps"] == 200
    assert checkpoint.load(run / "checkpoints/last/policy").policy.base.kind == "vla"
    env = make_env(compose(["task=reach_instructed"]))
    reader = StoreReader(run / "store")
    episodes = reader.episodes()
    told = {e.metadata["instruction"]: set() for e in episodes}
    for episode in episodes:
        rows = reader.read_episode(episode)[INSTRUCTION_FEATURES]
        told[episode.metadata["instruction"]] |= {row.tobytes() for row in rows}
    reader.close()
    assert [len(signs) for signs in told.values()] == [1, 1]
    assert len(set().union(*told.values())) == 2
    assert {episode.source for episode in episodes} == {"demo", "policy"}
    for episode in episodes:
        env.reset(seed=episode.metadata["seed"])
        assert episode.metadata["instruction"] == env.task.instruction
    assert len({episode.metadata["instruction"] for episode in episodes}) == 2
