"""Stage `Distil`: distil the deployed policy into a student that needs one network call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies import checkpoint, registry
from policies.behaviour import Behaviour
from policies.columns import FEATURES
from policies.compute import compute_device, explained_memory
from policies.diffusion import DiffusionPolicy
from policies.improved import FallbackPolicy
from policies.networks import seeded
from policies.processes.one_step import OneStep
from robot_rl.config import Settings
from robot_rl.data.transfer import DatasetEpisodes, EpisodeSource, Selection
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.evaluation.ledger import load_policy, policy_checkpoint
from robot_rl.learning.algorithms.behavior_cloning import CloningOptions
from robot_rl.learning.demonstrations import first_episodes
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import fit_with_progress
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.store_reader import StoreEpisodes
from robot_rl.run import CLONED, STATE_FILE, STUDENT, RunDirectory

_JUDGED = 1024  # observations for the final comparison of student and teacher


class Distil(Stage):
    """Trains a one-step student to act like the deployed policy on the run's observations.

    The student keeps its teacher's encoders and normalisers.
    """

    makes = (STUDENT,)

    @property
    def needs(self) -> Sequence[str]:
        """Return the clone. Raise `ComputeError` if the device does not exist."""
        compute_device(self.settings.device)
        return (CLONED,)

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether the student's teacher is the currently deployed policy."""
        if not super().done(run, recorded=recorded):
            return False
        state = run.complete_folder(STUDENT) / STATE_FILE
        taught = json.loads(state.read_text(encoding="utf-8"))["teacher_checksum"]
        policy = run.complete_folder(policy_checkpoint(run)) / "policy"
        return bool(taught == checkpoint.checksum(policy))

    @explained_memory("lower distil.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Train and save."""
        torch.set_num_threads(1)
        settings, run = self.settings, bench.run
        behaviour, steps = load_policy(run)
        policy = behaviour.to(bench.device).policy
        teacher = policy.acting if isinstance(policy, FallbackPolicy) else policy
        if not isinstance(teacher, DiffusionPolicy):
            raise RobotRLError(
                "only a diffusion or flow policy can be distilled",
                got=f"the deployed policy of {run.path}, which is {teacher.kind}",
                hint="learn with an algorithm that improves the cloned policy itself, such as"
                " algorithm=action_gradient",
            )
        name = policy_checkpoint(run)
        words = "cloned policy" if name == CLONED else f"policy learned in {steps:,} steps"
        held = teacher is not policy and behaviour.held_back
        held_back = ", held back: the policy it began with acts" if held else ""
        bench.say(f"the teacher: the {words} ({teacher.kind}), {run.path / name}{held_back}")
        if run.has_folder(STUDENT):
            bench.say(f"the earlier student, {run.path / STUDENT}, will be replaced")
        rows = recorded_rows(settings, run, behaviour)
        options = registry.make(settings.distil, CloningOptions)
        lesson = Lesson(teacher)
        taught = fit_with_progress(lesson, rows, options, settings.seed, "distilling")
        difference = taught.difference(rows, _JUDGED)
        run.append_jsonl("notes", {"distilled_steps": steps, "student_difference": difference})
        bench.say(
            f"on {len(rows.indices):,} recorded steps the student's actions, in [-1, 1], differ"
            f" from its teacher's by {difference:.3f} (root mean square)",
        )
        asked = {"updates": options.updates, "batch_size": options.batch_size}
        checksum = checkpoint.checksum(run.complete_folder(name) / "policy")
        state = {"environment_steps": steps, "distil": asked}
        state |= {"teacher": name, "teacher_checksum": checksum}
        bench.checkpoint(STUDENT, replace(behaviour, policy=taught.student), state=state)
        command = in_shell("robot-rl", "evaluate", run.path, "evaluation.policy=student")
        bench.say(f"written to {run.path / STUDENT}; evaluate it with: {command}")


class Lesson(nn.Module):
    """A teacher and its student, whose network `fit` trains."""

    def __init__(self, teacher: DiffusionPolicy) -> None:
        super().__init__()
        self.teacher = teacher.under(teacher.process.noiseless()).requires_grad_(False)
        self.process = OneStep.student(self.teacher.process)
        self.student = self.teacher.under(self.process)
        self.horizon = teacher.horizon
        self.observation_steps = teacher.observation_steps

    @property
    def cloning_fields(self) -> tuple[str, ...]:
        """Names of the batch columns that `loss` reads."""
        return tuple(self.teacher.observation)

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the distillation loss on a batch of observations (B, n, ...)."""
        features = self.teacher.encoder(batch)
        return self.process.distillation_loss(self.teacher.process, features, generator)

    @torch.no_grad()
    def difference(self, rows: EpisodeRows, count: int) -> float:
        """Return the RMS difference between the student's and teacher's actions on sampled rows."""
        rng, steps = np.random.default_rng(0), self.observation_steps
        seen = rng.choice(rows.indices, min(count, len(rows.indices)), replace=False)
        # The history within an episode does not matter here, so repeat the row n times.
        batch = {n: rows.arrays[n][seen][:, None].repeat(steps, 1) for n in self.cloning_fields}
        noise = torch.randn(len(seen), *self.teacher.noise_shape, generator=seeded(0))
        student, teacher = (p.plan(batch, noise).actions for p in (self.student, self.teacher))
        apart = torch.as_tensor(student) - torch.as_tensor(teacher)
        return float(apart.square().mean().sqrt())


def recorded_rows(settings: Settings, run: RunDirectory, behaviour: Behaviour) -> EpisodeRows:
    """Return the policy's observations and the actions of all recorded episodes of a run.

    Raises:
        NotEnoughData: The run has no recorded steps.
    """
    names, vision = [*behaviour.policy.observation, "action"], behaviour.vision
    known = (run.reward_examples, run.demonstrations, run.exploration)
    paths = [path for path in sorted(run.path.glob("*.zarr")) if path not in known]
    sources: list[EpisodeSource] = []
    if is_store(run.store):  # it includes the first episodes
        sources.append(StoreEpisodes(run.store, Selection()))
    else:
        paths.append(first_episodes(settings, run).path)
    sources += [DatasetEpisodes(path, Selection()) for path in paths]
    episodes = []
    for episode in itertools.chain.from_iterable(source.episodes() for source in sources):
        columns: dict[str, Any] = {
            name: episode.rows[name].copy() for name in names if name != FEATURES
        }
        if vision is not None:
            columns[FEATURES] = vision.encode({n: episode.rows[n] for n in vision.cameras})
        episodes.append(columns)
    first = episodes[0] if episodes else {}
    arrays = {name: np.concatenate([each[name] for each in episodes]) for name in first}
    return EpisodeRows(arrays, np.cumsum([len(each["action"]) for each in episodes]))
