"""Frames that show success and frames that do not, for a classifier."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from omegaconf import DictConfig

from policies import registry
from policies.runner import PolicyRunner
from robot_rl.config import on_stepped_clock
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY
from robot_rl.env.controllers import ExpertController, IdleController
from robot_rl.env.factory import make_env, make_expert, make_session
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.rollout import Controller, SeedStream, rollout, training_seed
from robot_rl.env.session import EpisodeResult, Session
from robot_rl.env.sim.task import Imperfections
from robot_rl.env.task import Expert, RewardError
from robot_rl.evaluation.ledger import load_policy
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.collect import attempts_after
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.rewards.examples import (
    OPERATOR,
    REACTION_FRAMES,
    CollectionOptions,
    Lingering,
    OperatorLabels,
    StallingController,
)
from robot_rl.run import CLONED, EXAMPLES, LAST, RunDirectory

_MOST_VAIN = 200
_WANDERING = "normal", 0.3  # exploration of a policy whose failures are wanted

Attempt = Callable[[int], EpisodeResult]


class CollectReward(Stage):
    """Records frames of success and of failure, by the task's expert or labelled by an operator."""

    makes = (EXAMPLES,)

    @property
    def needs(self) -> Sequence[str]:
        """Somebody who drives: a person, the scripted expert or the policy of the run."""
        run, environment = self.settings.run, self.settings.environment
        task, teleop = environment.task, environment.teleop
        drives = teleop.device is not None or task.expert is not None
        if not drives and not (run and RunDirectory.open(run).has_policy()):
            choice = self.settings.choices["teleop"]
            raise RewardError(
                "nobody drives the robot to success and to failure",
                got=f"teleop={choice}, and no scripted expert of {task.name}",
                hint="add teleop=DEVICE, one of configs/teleop: you drive, and say success or"
                " failure at the end of each episode",
            )
        return ()

    def run(self, bench: Workbench) -> None:
        """Record what is missing."""
        config, directory = self.settings.environment, bench.run
        options = config.classifier.collection
        expected = options.negative_episodes
        expected += options.positive_frames // options.frames_after_success
        with WorkProgress(expected, "episodes") as progress:
            progress.phase("collecting examples of success and failure")
            if options.labels == OPERATOR:
                dataset = collect_by_operator(config, directory, progress)
            else:
                dataset = ExampleCollector(config, directory, progress).collect()
            frames = _positive_frames(dataset)
            successes = int(dataset.successes.sum())
            progress.note(
                f"{frames} frames show success, in {successes} episodes; the other"
                f" {dataset.rows_total - frames} do not, {len(dataset) - successes} episodes"
                f" never\nwritten to {directory.reward_examples}; next: robot-rl train-reward"
            )


class ExampleCollector:
    """Runs episodes of several kinds and records those that are wanted in the run's `reward.zarr`.

    The policy of the run, if it has one, gives negatives too.
    """

    def __init__(self, config: DictConfig, run: RunDirectory, progress: WorkProgress) -> None:
        self._config, self._run, self._progress = config, run, progress
        self._options = registry.make(config.classifier.collection, CollectionOptions)
        self._source = Lingering(self._options.frames_after_success)
        self._session = make_session(
            config,
            operated=False,
            resets=False,
            cameras=config.classifier.cameras,
            source=self._source,
        )
        self._ahead = Session(make_env(on_stepped_clock(config)))
        self._recorder = RowBuilder(self._session.schema, SOURCE_DEMONSTRATION)

    def collect(self) -> EpisodeDataset:
        """Record what is missing; an interrupted recording goes on where it stopped.

        Raises:
            RewardError: Nothing wanted came of 200 episodes in a row; or what is recorded there
                was labelled by an operator.
        """
        path, options = self._run.reward_examples, self._options
        facts = _facts(self._config)
        with (
            closing(self._session),
            closing(self._ahead),
            EpisodeWriter(path, self._session.schema, facts) as writer,
        ):
            known = _labelled_alike(EpisodeDataset(path), facts)
            self._progress.update(len(known))
            frames, failures = _missing(options, known)
            attempts = self._attempts(known, True, itertools.cycle([self._by(self._expert())]))
            while frames > 0:
                self._source.frames = min(options.frames_after_success, frames)
                frames -= _keep(next(attempts), writer)
                self._progress.update(len(writer))
            self._source.frames = 1  # what succeeds is not recorded
            attempts = self._attempts(known, False, itertools.cycle(self._negative_kinds()))
            for _ in range(failures):
                _keep(next(attempts), writer)
                self._progress.update(len(writer))
        return EpisodeDataset(path)

    def _attempts(
        self, known: EpisodeDataset, success: bool, kinds: Iterator[Attempt]
    ) -> Iterator[EpisodeResult]:
        """Wanted episodes of numbered seeds, from behind the last that is recorded.

        One that the robot has cut is none: nobody knows what would have come of it.
        """
        stream = SeedStream.SUCCESS_EXAMPLES if success else SeedStream.FAILURE_EXAMPLES
        recorded = known.seeds[known.successes == success]
        first, seeds = attempts_after(recorded, int(self._config.seed), stream)
        vain = 0
        for seed, kind in zip(seeds, itertools.islice(kinds, first, None), strict=False):
            result = kind(seed)
            if result.interrupted is None and result.success is success:
                vain = 0
                yield result
                continue
            vain += 1
            if vain > _MOST_VAIN:
                what = "succeeds" if success else "fails"
                raise RewardError(
                    f"no episode {what}",
                    got=f"none of {vain}, the last: {result.interrupted or 'to its end'}",
                    hint="see classifier.collection",
                )

    def _negative_kinds(self) -> list[Attempt]:
        """Everything that fails in a way of its own."""
        options = self._options
        kinds = [self._stalling()]
        if registry.takes(self._config.task.expert, Expert, "imperfections"):
            misplaced = self._expert(
                offset=options.offset, yaw_offset=options.yaw_offset, correction=1.0
            )
            wandering = self._expert(action_noise=options.action_noise)
            kinds += [self._by(misplaced), self._by(wandering)]
        if self._run.has_folder(LAST) or self._run.has_folder(CLONED):
            behaviour = load_policy(self._run)[0].exploring("mean", *_WANDERING)
            kinds.append(self._by(PolicyRunner(behaviour), SOURCE_POLICY))
        return kinds

    def _stalling(self) -> Attempt:
        """The expert, which stops for good shortly before it would have succeeded."""
        foresight = ExpertController(make_expert(self._config, self._ahead))
        names, fidget = self._session.schema.action_names, self._options.fidget
        controller = StallingController(self._expert(), names, fidget)

        def attempt(seed: int) -> EpisodeResult:
            steps = next(rollout([self._ahead], foresight, iter([seed]))).steps
            rng = np.random.default_rng(seed)
            controller.stall_at = steps - int(rng.integers(1, self._options.stall_steps + 1))
            return _one(self._session, controller, seed, self._recorder, self._progress.note)

        return attempt

    def _by(self, controller: Controller, source: int = SOURCE_DEMONSTRATION) -> Attempt:
        recorder = RowBuilder(self._session.schema, source)
        return lambda seed: _one(self._session, controller, seed, recorder, self._progress.note)

    def _expert(self, **flaws: float) -> ExpertController:
        """The task's expert, with other imperfections than its own if they are given."""
        replaced: dict[str, Any] = {}
        if flaws:
            own: Any = registry.make(self._config.task.expert.imperfections, Imperfections)
            replaced["imperfections"] = dataclasses.replace(own, **flaws)
        expert = make_expert(self._config, self._session, **replaced)
        return ExpertController(expert)


def collect_by_operator(
    config: DictConfig,
    run: RunDirectory,
    progress: WorkProgress,
    inbox: OperatorInbox | None = None,
) -> EpisodeDataset:
    """Record episodes of an operator, whose events `success` and `failure` are the labels.

    An episode without a label is not kept, nor is one that something else has cut: another event,
    or a robot that could not go on. The time in which somebody sees a success and has yet to say so
    is recorded, and is an example of neither. The policy of the run acts while nobody has taken
    over; without one the robot rests. `inbox` is where they are heard, by default a new one.

    Raises:
        RewardError: What is recorded there was labelled by the task, or more quickly or slowly.
    """
    options = registry.make(config.classifier.collection, CollectionOptions)
    source = OperatorLabels(options.frames_after_success)
    session = make_session(
        config, run, inbox=inbox, resets=False, cameras=config.classifier.cameras, source=source
    )
    recorder = RowBuilder(session.schema, SOURCE_POLICY)
    reaction = math.ceil(options.reaction_s * session.schema.control_rate_hz)
    facts = _facts(config) | {REACTION_FRAMES: reaction}
    with closing(session), EpisodeWriter(run.reward_examples, session.schema, facts) as writer:
        controller: Controller = IdleController(session.schema.action_names)
        if run.has_folder(LAST) or run.has_folder(CLONED):
            controller = PolicyRunner(load_policy(run)[0].exploring("mean"))
        known = _labelled_alike(EpisodeDataset(run.reward_examples), facts)
        frames, failures = _missing(options, known)
        stream, recorded = SeedStream.LABELLED_EXAMPLES, set(known.seeds.tolist())
        numbered = (training_seed(int(config.seed), stream, n) for n in itertools.count())
        seeds = (seed for seed in numbered if seed not in recorded)
        while frames > 0 or failures > 0:
            session.wait_until_free(lambda: False, progress.note)
            source.frames = max(1, min(options.frames_after_success, frames))
            result = _one(session, controller, next(seeds), recorder, progress.note)
            cut = result.ended_by or result.interrupted
            if cut is not None or not source.labelled:
                progress.note(f"not kept: {cut or 'nobody said success or failure'}")
                continue
            frames -= _keep(result, writer)
            failures -= not result.success
            progress.update(len(writer))
    return EpisodeDataset(run.reward_examples)


def _labelled_alike(known: EpisodeDataset, facts: Mapping[str, Any]) -> EpisodeDataset:
    """Check that what is recorded was labelled as what comes now: a dataset says it once."""
    recorded, now = (
        f"labels=operator with a reaction of {about[REACTION_FRAMES]} frames"
        if REACTION_FRAMES in about
        else "labels=task"
        for about in (known.metadata, facts)
    )
    if recorded != now:
        raise RewardError(
            "the examples of this run were labelled in another way",
            got=now,
            expected=recorded,
            hint="set classifier.collection.labels and reaction_s as before, or leave run=... out",
        )
    return known


def _missing(options: CollectionOptions, known: EpisodeDataset) -> tuple[int, int]:
    """How many frames that show success are to be recorded still, and episodes that never do."""
    frames = options.positive_frames - _positive_frames(known)
    return frames, options.negative_episodes - int((~known.successes).sum())


def _keep(result: EpisodeResult, writer: EpisodeWriter) -> int:
    """Record an episode; gives how many of its frames show success."""
    result.keep(writer, int(result.rows[0]["source"]))
    return sum(bool(row["success"]) for row in result.rows)


def _one(
    session: Session,
    controller: Controller,
    seed: int,
    recorder: RowBuilder,
    note: Callable[[str], None],
) -> EpisodeResult:
    result = next(rollout([session], controller, iter([seed]), recorder=recorder, note=note))
    # What was reached may have come undone while the episode went on.
    result.success = any(bool(row["success"]) for row in result.rows)
    return result


def _positive_frames(dataset: EpisodeDataset) -> int:
    return int(dataset.read("success").sum()) if len(dataset) else 0


def _facts(config: DictConfig) -> dict[str, Any]:
    return {"robot": str(config.choices.robot)}
