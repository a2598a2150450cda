"""Learning from recorded episodes alone, through the stage and its workbench."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from tiny_runs import TINY

from policies import checkpoint
from robot_rl.config import Settings, compose
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY
from robot_rl.evaluation.ledger import open_policy
from robot_rl.learning.stages.offline import Offline, OfflineTraining, stored_rows
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.signals import StopEvent
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SampleSpec
from robot_rl.run import CLONED, OFFLINE, RunDirectory

GATHERED = "gathered.zarr"


def configured() -> DictConfig:
    words = [word for word in TINY if "actor_hidden" not in word]
    offline = ("algorithm=action_gradient", "algorithm.schedule.offline_updates=250")
    return compose([*words, *offline])


@pytest.fixture
def run(folder: Path) -> RunDirectory:
    return RunDirectory.open(folder / "runs/latest")


def tensors(run: RunDirectory) -> dict[str, torch.Tensor]:
    with Workbench(Settings.of(configured()), run) as bench:
        return bench.training_state(OFFLINE)[0]


@pytest.mark.slow
def test_a_stage_that_was_stopped_goes_on_to_the_same_weights(
    run: RunDirectory, tmp_path: Path
) -> None:
    other = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "other")))
    with Workbench(Settings.of(configured()), run) as bench:
        Offline(bench.settings).run(bench)
    through = tensors(run)
    assert int(through["updates"]) == 250

    class Once(StopEvent):
        """Set after the first block of updates."""

        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 1

    with Workbench(Settings.of(configured()), other, Once()) as bench:
        Offline(bench.settings).run(bench)
    assert int(tensors(other)["updates"]) == 100
    with Workbench(Settings.of(configured()), other) as bench:
        Offline(bench.settings).run(bench)
    again = tensors(other)
    assert again.keys() == through.keys()
    assert all(torch.equal(again[name], value) for name, value in through.items())
    learned = checkpoint.load(other.complete_folder(OFFLINE) / "policy")
    assert learned.version == 250
    assert open_policy(other.path / OFFLINE)[1] == 0  # environment steps; evaluate asks for them


def test_of_other_episodes_failures_are_learned_from_as_the_policys_own(run: RunDirectory) -> None:
    shown = EpisodeDataset(run.demonstrations)
    with EpisodeWriter(run.path / GATHERED, shown.schema) as writer:
        for success in (True, False):
            columns = shown.episode(0)
            names = [field.name for field in shown.schema.fields]
            rows = [{n: columns[n][at] for n in names} for at in range(len(columns["reward"]))]
            writer.append(rows, seed=5, instruction="", success=success, source=SOURCE_POLICY)
    with Workbench(Settings.of(configured()), run) as bench:
        training = OfflineTraining(bench, (GATHERED,))
        assert training.train(2)["critic_loss"] > 0
        training.close()
        cloned = bench.policy(CLONED)
    spec = SampleSpec(("action",), 256, demonstration_share=0.5)
    rows = stored_rows(shown, [EpisodeDataset(run.path / GATHERED)], cloned, spec)
    batch = Sampler(rows, spec, np.random.default_rng(0)).sample()
    kinds, counts = np.unique(batch["source"], return_counts=True)
    assert kinds.tolist() == [SOURCE_DEMONSTRATION, SOURCE_POLICY]
    assert counts.tolist() == [128, 128]
    own = 2 * (len(shown.episode(0)["reward"]) - 1)
    assert len(rows.indices) - own == sum(
        len(shown.episode(at)["reward"]) - 1 for at in np.flatnonzero(shown.successes)
    )
