"""`robot-rl collect-reward`: frames that show success and frames that do not, for a classifier."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
from omegaconf import DictConfig

from policies.runner import PolicyRunner
from robot_rl import devices
from robot_rl.config import on_stepped_clock, save_resolved
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.rollout import Controller, EpisodeResult, rollout, training_seed
from robot_rl.errors import RobotRLError
from robot_rl.progress import WorkProgress
from robot_rl.rewards.collection import CollectionOptions, Lingering, StallingController
from robot_rl.rewards.factory import make_watched_env
from robot_rl.rewards.wrapper import RewardWrapper
from robot_rl.run import CLONED, LAST, RunDirectory
from robot_rl.stages.evaluate import load_newest

# Apart from those of collecting, acting and exploring.
_POSITIVE_STREAM, _NEGATIVE_STREAM = (1 << 31) - 3, (1 << 31) - 2
_MOST_VAIN = 200
_WANDERING = "normal", 0.3  # exploration of a policy whose failures are wanted

Attempt = Callable[[int], EpisodeResult]


class NoExamples(RobotRLError):
    """Whoever acts never brings about what is to be recorded."""


class ExampleCollector:
    """Runs episodes of several kinds and records those that are wanted.

    Args:
        config: The configuration.
        run: Where `reward.zarr` is written; its policy, if it has one, gives negatives too.
    """

    def __init__(self, config: DictConfig, run: RunDirectory) -> None:
        """Make the environment; see the class."""
        self._config, self._run = config, run
        self._options: CollectionOptions = devices.make(config.classifier.collection)
        self._source = Lingering(self._options.frames_after_success)
        self._inner, _ = make_watched_env(config, config.classifier.cameras)
        self._env = RewardWrapper(self._inner, self._source)
        self._recorder = RowBuilder(self._env.schema, SOURCE_DEMONSTRATION)

    def collect(self, progress: WorkProgress) -> EpisodeDataset:
        """Record what is missing; an interrupted recording goes on where it stopped.

        Raises:
            NoExamples: Nothing wanted came of 200 episodes in a row.
        """
        path, options = self._run.reward_examples, self._options
        facts = {"robot": self._config.choices.robot}
        with EpisodeWriter(path, self._env.schema, facts) as writer:
            known = EpisodeDataset(path)
            done = int(known.read("success").sum()) if len(known) else 0
            expert = self._expert(self._inner)
            for result in self._attempts(known, True, itertools.cycle([self._by(expert)])):
                if done >= options.positive_frames:
                    break
                if result.success:
                    self._record(writer, result, True)
                    done += sum(bool(row["success"]) for row in result.rows)
                    self._source.frames = min(
                        options.frames_after_success, max(options.positive_frames - done, 1)
                    )
                    progress.update(len(writer))
            self._source.frames = 1  # what succeeds is not recorded
            failed = int((~known.successes).sum())
            kinds = itertools.cycle(self._negative_kinds())
            for result in self._attempts(known, False, kinds):
                if failed >= options.negative_episodes:
                    break
                if not result.success:
                    self._record(writer, result, False)
                    failed += 1
                    progress.update(len(writer))
        self._env.close()
        return EpisodeDataset(path)

    def _attempts(
        self, known: EpisodeDataset, success: bool, kinds: Iterator[Attempt]
    ) -> Iterator[EpisodeResult]:
        """Episodes of numbered seeds, from behind the last that is recorded."""
        stream = _POSITIVE_STREAM if success else _NEGATIVE_STREAM
        recorded = known.seeds[known.successes == success].tolist()
        vain = 0
        for number, kind in zip(itertools.count(), kinds, strict=False):
            seed = training_seed(int(self._config.seed), stream, number)
            if recorded:
                recorded = [] if seed == recorded[-1] else recorded
                continue
            result = kind(seed)
            vain = vain + 1 if result.success is not success else 0
            if vain > _MOST_VAIN:
                what = "succeeds" if success else "fails"
                raise NoExamples(
                    f"no episode {what}", got=f"none of {vain}", hint="see classifier.collection"
                )
            yield result

    def _record(self, writer: EpisodeWriter, result: EpisodeResult, success: bool) -> None:
        writer.append(
            result.rows,
            seed=result.seed,
            instruction=self._env.task.instruction,
            success=success,
            source=SOURCE_DEMONSTRATION,
        )

    def _negative_kinds(self) -> list[Attempt]:
        """Everything that fails in a way of its own."""
        options = self._options
        kinds = [self._stalling()]
        if devices.takes(self._config.task.expert, "imperfections"):
            misplaced = self._expert(
                self._inner,
                offset=options.offset,
                yaw_offset=options.yaw_offset,
                correction=1.0,
            )
            wandering = self._expert(self._inner, action_noise=options.action_noise)
            kinds += [self._by(misplaced), self._by(wandering)]
        if self._run.has_folder(LAST) or self._run.has_folder(CLONED):
            behaviour = load_newest(self._run)[0].exploring("mean", *_WANDERING)
            kinds.append(self._by(PolicyRunner(behaviour), SOURCE_POLICY))
        return kinds

    def _stalling(self) -> Attempt:
        """The expert, which stops for good shortly before it would have succeeded."""
        ahead = make_env(on_stepped_clock(self._config))
        foresight = ExpertController(
            make_expert(self._config, ahead), ahead.schema.action_dimension
        )
        names, fidget = self._env.schema.action_names, self._options.fidget
        controller = StallingController(self._expert(self._inner), names, fidget)

        def attempt(seed: int) -> EpisodeResult:
            steps = next(rollout([ahead], foresight, iter([seed]))).steps
            rng = np.random.default_rng(seed)
            controller.stall_at = steps - int(rng.integers(1, self._options.stall_steps + 1))
            return self._run_one(controller, seed, self._recorder)

        return attempt

    def _by(self, controller: Controller, source: int = SOURCE_DEMONSTRATION) -> Attempt:
        recorder = RowBuilder(self._env.schema, source)
        return lambda seed: self._run_one(controller, seed, recorder)

    def _run_one(self, controller: Controller, seed: int, recorder: RowBuilder) -> EpisodeResult:
        result = next(rollout([self._env], controller, iter([seed]), recorder=recorder))
        # It may have come out again while the episode went on.
        result.success = any(bool(row["success"]) for row in result.rows)
        return result

    def _expert(self, env: RobotEnv, **flaws: float) -> ExpertController:
        """The task's expert, with other imperfections than its own if they are given."""
        replaced = {}
        if flaws:
            own = devices.make(self._config.task.expert.imperfections)
            replaced["imperfections"] = dataclasses.replace(own, **flaws)
        expert = make_expert(self._config, env, **replaced)
        return ExpertController(expert, env.schema.action_dimension)


def run(config: DictConfig) -> None:
    """Collect into a new run directory, or go on in that of `run`."""
    if config.run:
        directory = RunDirectory.open(config.run, config.runs_directory)
    else:
        directory = RunDirectory.create(config.task.name, config.runs_directory)
        save_resolved(config, directory.path)
    options = config.classifier.collection
    expected = options.negative_episodes + options.positive_frames // options.frames_after_success
    with directory.claim("train"), WorkProgress(expected, "episodes") as progress:
        progress.phase("collecting examples of success and failure")
        dataset = ExampleCollector(config, directory).collect(progress)
        frames = int(dataset.read("success").sum())
        progress.note(
            f"{frames} frames show success, in {int(dataset.successes.sum())} episodes; the other"
            f" {dataset.rows_total - frames} do not, {int((~dataset.successes).sum())} episodes"
            f" never\nwritten to {directory.reward_examples}; next: robot-rl train-reward"
        )
