"""Demonstrations, by the task's scripted expert or by a person."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack, closing

from omegaconf import DictConfig

from robot_rl.config import ConfigError, check_least, in_real_time
from robot_rl.data.episodes import DatasetError, EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import check_expert, make_expert
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.errors import RobotRLError
from robot_rl.learning.recipe import Stage
from robot_rl.learning.teleoperation import TeleoperatedSession
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress import WorkProgress
from robot_rl.rewards.source import HUMAN_VERSION
from robot_rl.rewards.wrapper import RewardWrapper, make_source, make_watched_env, reward_cameras
from robot_rl.run import DEMONSTRATIONS, RunDirectory

_MOST_FAILURES = 200
_MOST_ATTEMPTS = 100_000


class ExpertFails(RobotRLError):
    """The scripted expert does not solve the task."""


class Collect(Stage):
    """Records demonstrations until the wanted number has succeeded.

    The task's scripted expert drives, whose failures are not kept; or with a device of `teleop` a
    person, whose failures may be kept apart. The configured reward judges.

    A recording that was interrupted goes on where it stopped: the episodes are numbered, and
    their seeds follow from the run's seed and their number.
    """

    makes = (DEMONSTRATIONS,)

    def wanted(self, config: DictConfig) -> bool:
        """Not where `dataset` names demonstrations."""
        return config.dataset is None

    def check(self, config: DictConfig) -> None:
        """Check that somebody demonstrates, and that somebody says whether that was a success.

        Raises:
            ConfigError: Nobody does, or none are wanted.
            RobotRLError: There is no expert, nor a person who demonstrates.
        """
        check_least(config, {"demonstrations": 1})
        if config.teleop.device is not None:
            return
        check_expert(config)
        if make_source(config).version == HUMAN_VERSION:  # no person looks at a scripted expert
            raise ConfigError(
                "nobody says whether the scripted expert has succeeded",
                got=f"reward={config.choices.reward} and teleop={config.choices.teleop}",
                hint="drive the demonstrations with teleop=DEVICE; or record them with robot-rl"
                " collect reward=task, and name them with dataset=RUN/demonstrations.zarr",
            )

    def done(self, config: DictConfig, run: RunDirectory, *, recorded: bool) -> bool:
        """As soon as there are enough."""
        path, wanted = run.demonstrations, int(config.demonstrations)
        return path.exists() and len(EpisodeDataset(path)) >= wanted

    def run(self, bench: Workbench) -> None:
        """Record those that are missing.

        Raises:
            ExpertFails: The expert failed 200 times in a row.
            StorageFull: The disk is full; what was recorded before is kept.
        """
        config, run = bench.config, bench.run
        by_hand = config.teleop.device is not None
        with WorkProgress(int(config.demonstrations), "demonstrations") as progress:
            progress.phase("collecting")
            (_collect_by_hand if by_hand else _collect)(config, run, progress)


def _collect(config: DictConfig, run: RunDirectory, progress: WorkProgress) -> None:
    """Let the task's scripted expert demonstrate."""
    inner, hidden = make_watched_env(config, reward_cameras(config))
    env = RewardWrapper(inner, make_source(config), hidden=hidden)
    if not inner.robot.simulated:
        env.close()
        raise RobotRLError(
            "a scripted expert drives no robot that is not simulated",
            got=f"robot={config.choices.robot} without a device of teleop",
            hint="demonstrate with teleop=keyboard, spacemouse or another of configs/teleop",
        )
    recorder = RowBuilder(env.schema, SOURCE_DEMONSTRATION)
    controller = ExpertController(make_expert(config, inner))
    wanted = int(config.demonstrations)
    seed = int(config.seed)
    facts = {"robot": config.choices.robot}
    with closing(env), EpisodeWriter(run.demonstrations, env.schema, facts) as writer:
        known = EpisodeDataset(run.demonstrations).seeds.tolist()
        first = attempts = _attempts_behind(known, seed)
        seeds = (_seed(seed, number) for number in itertools.count(first))
        failures = 0
        progress.update(len(writer))
        while len(writer) < wanted:
            result = next(rollout([env], controller, seeds, recorder=recorder))
            attempts += 1
            progress.episode(result.success)
            failures = 0 if result.success else failures + 1
            if failures == _MOST_FAILURES:
                raise ExpertFails(
                    f"the scripted expert has failed {failures} times in a row",
                    got=f"{len(writer)} demonstrations in {attempts} attempts",
                    hint="make the task or the expert's imperfections easier, or look at what"
                    f" has judged it: reward={config.choices.reward}",
                )
            if result.success:
                result.keep(writer, SOURCE_DEMONSTRATION)
                progress.update(len(writer))
    if attempts > first:
        progress.note(
            f"collected {wanted} demonstrations of {config.task.name} in {attempts} attempts"
            f" ({100 * wanted / attempts:.0f} % succeeded)"
        )


def _collect_by_hand(config: DictConfig, run: RunDirectory, progress: WorkProgress) -> None:
    """Let a person drive the demonstrations; see `TeleoperatedSession`."""
    config = in_real_time(config)
    facts = {"robot": config.choices.robot, "teleop": config.choices.teleop}
    with ExitStack() as stack:
        session = TeleoperatedSession(config, run, progress)
        stack.callback(session.close)
        schema, seed = session.schema, int(config.seed)
        writer = stack.enter_context(EpisodeWriter(run.demonstrations, schema, facts))
        failures = None
        if config.recording.keep_failures:
            failures = stack.enter_context(EpisodeWriter(run.failures, schema, facts))
        first = _attempts_behind(EpisodeDataset(run.demonstrations).seeds.tolist(), seed)
        seeds = (_seed(seed, number) for number in itertools.count(first))
        session.record(int(config.demonstrations), seeds, writer, failures)


def _seed(run_seed: int, attempt: int) -> int:
    return training_seed(run_seed, SeedStream.DEMONSTRATIONS, attempt)


def _attempts_behind(seeds: Sequence[int], run_seed: int) -> int:
    """Number of the attempt after the last recorded one."""
    if not seeds:
        return 0
    for number in range(_MOST_ATTEMPTS):
        if _seed(run_seed, number) == seeds[-1]:
            return number + 1
    raise DatasetError(
        "the last demonstration was not recorded with this run's seed",
        got=f"seed {seeds[-1]} of the episode",
        expected=f"one that follows from seed={run_seed}",
        hint="use them as they are, in a new run, with dataset=PATH",
    )
