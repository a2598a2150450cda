"""Stage `CollectReward`: success and failure frames for training a classifier."""

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

_MOST_DROPPED = 200  # consecutive episodes
_WANDERING = "normal", 0.3  # exploration noise for a policy that should fail


class CollectReward(Stage):
    """Records success and failure frames, by the task's expert or labelled by an operator."""

    makes = (EXAMPLES,)

    @property
    def needs(self) -> Sequence[str]:
        """Return no artifacts. Raise if there is no person, scripted expert or policy to drive."""
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
        """Record the missing examples."""
        config, directory = self.settings.environment, bench.run
        options = config.classifier.collection
        expected = options.negative_episodes
        expected += options.positive_frames // options.frames_after_success
        with WorkProgress(expected, "episodes") as progress:
            progress.phase("collecting examples of success and failure")
            if options.labels == OPERATOR:
                dataset = collect_by_operator(config, directory, progress)
            else:
                dataset = collect_by_expert(config, directory, progress)
            frames = _positive_frames(dataset)
            successes = int(dataset.successes.sum())
            progress.note(
                f"{frames} frames show success, in {successes} episodes; the other"
                f" {dataset.rows_total - frames} do not, {len(dataset) - successes} episodes"
                f" never\nwritten to {directory.reward_examples}; next: robot-rl train-reward"
            )


def collect_by_expert(
    config: DictConfig, run: RunDirectory, progress: WorkProgress
) -> EpisodeDataset:
    """Record successful episodes of the task's expert, then failed episodes of all drivers.

    The run's policy, if there is one, also provides negatives. An interrupted recording resumes
    where it stopped.

    Raises:
        RewardError: More than 200 consecutive episodes ended the wrong way, or the recorded
            examples were labelled by an operator.
    """
    options = registry.make(config.classifier.collection, CollectionOptions)
    source = Lingering(options.frames_after_success)
    cameras = config.classifier.cameras
    session = make_session(config, operated=False, resets=False, cameras=cameras, source=source)
    ahead = Session(make_env(on_stepped_clock(config)))
    facts = _facts(config)

    def expert(**flaws: float) -> ExpertController:
        """Return the task's expert, with its imperfections replaced by `flaws` if given."""
        replaced: dict[str, Any] = {}
        if flaws:
            own: Any = registry.make(config.task.expert.imperfections, Imperfections)
            replaced["imperfections"] = dataclasses.replace(own, **flaws)
        return ExpertController(make_expert(config, session, **replaced))

    def stalls_at(seed: int) -> int:
        """Return a step shortly before the one at which the expert would succeed."""
        steps = next(rollout([ahead], foresight, iter([seed]))).steps
        return steps - int(np.random.default_rng(seed).integers(1, options.stall_steps + 1))

    def attempts(
        success: bool, drivers: Sequence[tuple[Controller, int]]
    ) -> Iterator[EpisodeResult]:
        """Yield episodes with this outcome, alternating drivers, from the first unused seed on.

        Episodes cut by the robot are skipped, since their outcome is unknown.
        """
        stream = SeedStream.SUCCESS_EXAMPLES if success else SeedStream.FAILURE_EXAMPLES
        recorded = known.seeds[known.successes == success]
        first, seeds = attempts_after(recorded, int(config.seed), stream)
        dropped = 0
        for number, seed in enumerate(seeds, first):
            controller, driver = drivers[number % len(drivers)]
            recorder = RowBuilder(session.schema, driver)
            result = _one(session, controller, seed, recorder, progress.note)
            if result.interrupted is None and result.success is success:
                dropped = 0
                yield result
                continue
            dropped += 1
            if dropped > _MOST_DROPPED:
                what = "succeeds" if success else "fails"
                raise RewardError(
                    f"no episode {what}",
                    got=f"none of {dropped}, the last: {result.interrupted or 'to its end'}",
                    hint="see classifier.collection",
                )

    with (
        closing(session),
        closing(ahead),
        EpisodeWriter(run.reward_examples, session.schema, facts) as writer,
    ):
        known = _labelled_alike(EpisodeDataset(run.reward_examples), facts)
        progress.update(len(known))
        frames, failures = _missing(options, known)
        shown = attempts(True, [(expert(), SOURCE_DEMONSTRATION)])
        while frames > 0:
            source.frames = min(options.frames_after_success, frames)
            frames -= _keep(next(shown), writer)
            progress.update(len(writer))

        foresight = ExpertController(make_expert(config, ahead))
        names = session.schema.action_names
        failing: list[Controller] = [StallingController(expert(), names, options.fidget, stalls_at)]
        if registry.takes(config.task.expert, Expert, "imperfections"):
            misplaced = {"offset": options.offset, "yaw_offset": options.yaw_offset}
            failing.append(expert(**misplaced, correction=1.0))
            failing.append(expert(action_noise=options.action_noise))
        drivers = [(controller, SOURCE_DEMONSTRATION) for controller in failing]
        if run.has_folder(LAST) or run.has_folder(CLONED):
            behaviour = load_policy(run)[0].exploring("mean", *_WANDERING)
            drivers.append((PolicyRunner(behaviour), SOURCE_POLICY))
        source.frames = 1  # successes are not recorded here
        for result in itertools.islice(attempts(False, drivers), max(0, failures)):
            _keep(result, writer)
            progress.update(len(writer))
    return EpisodeDataset(run.reward_examples)


def collect_by_operator(
    config: DictConfig,
    run: RunDirectory,
    progress: WorkProgress,
    inbox: OperatorInbox | None = None,
) -> EpisodeDataset:
    """Record episodes of an operator, whose `success` and `failure` events are the labels.

    Episodes without a label are discarded, as are those cut by another event or by the robot.
    Frames within the operator's reaction time before a `success` event are recorded but are
    examples of neither class. The run's policy acts until the operator takes over. Without a policy
    the robot holds still. `inbox` receives the events (default: a new one).

    Raises:
        RewardError: The recorded examples were labelled by the task or with another reaction time.
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
    """Check that the recorded examples were labelled in the same way as the next ones."""
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
    """Return how many success frames and how many failed episodes are still missing."""
    frames = options.positive_frames - _positive_frames(known)
    return frames, options.negative_episodes - int((~known.successes).sum())


def _keep(result: EpisodeResult, writer: EpisodeWriter) -> int:
    """Record an episode. Returns how many of its frames show success."""
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
    # Count the success even if the goal was lost later in the episode.
    result.success = any(bool(row["success"]) for row in result.rows)
    return result


def _positive_frames(dataset: EpisodeDataset) -> int:
    return int(dataset.read("success").sum()) if len(dataset) else 0


def _facts(config: DictConfig) -> dict[str, Any]:
    return {"robot": str(config.choices.robot)}
