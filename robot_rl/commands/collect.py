"""`robot-rl collect`: demonstrations by the task's scripted expert."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack, closing

from omegaconf import DictConfig

from robot_rl.commands.nodes import check_nodes, robot_nodes
from robot_rl.commands.resumable import working_run
from robot_rl.commands.teleoperation import TeleoperatedSession
from robot_rl.config import ConfigError, check_least, in_real_time
from robot_rl.data.episodes import DatasetError, EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import check_expert, make_expert
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.errors import RobotRLError
from robot_rl.processes.progress import WorkProgress
from robot_rl.rewards.factory import make_source, make_watched_env, reward_cameras
from robot_rl.rewards.source import HUMAN_VERSION
from robot_rl.rewards.wrapper import RewardWrapper
from robot_rl.run import RunDirectory

_MOST_FAILURES = 200
_MOST_ATTEMPTS = 100_000


class ExpertFails(RobotRLError):
    """The scripted expert does not solve the task."""


def collect(config: DictConfig, run: RunDirectory, progress: WorkProgress) -> EpisodeDataset:
    """Record demonstrations until the wanted number has succeeded; failures are not kept.

    The task's scripted expert drives, or with a device of `teleop` a person, whose failures may be
    kept apart. The configured reward judges.

    A recording that was interrupted goes on where it stopped: the episodes are numbered, and
    their seeds follow from the run's seed and their number.

    Args:
        config: The configuration.
        run: Where to write.
        progress: Where to show how far it is.

    Raises:
        ExpertFails: It failed 200 times in a row.
        StorageFull: The disk is full; what was recorded before is kept.
    """
    if config.teleop.device is not None:
        return _collect_by_hand(config, run, progress)
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
    controller = ExpertController(make_expert(config, inner), env.schema.action_dimension)
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
                writer.append(
                    result.rows,
                    seed=result.seed,
                    instruction=env.task.instruction,
                    success=True,
                    source=SOURCE_DEMONSTRATION,
                )
                progress.update(len(writer))
    if attempts > first:
        progress.note(
            f"collected {wanted} demonstrations of {config.task.name} in {attempts} attempts"
            f" ({100 * wanted / attempts:.0f} % succeeded)"
        )
    return EpisodeDataset(run.demonstrations)


def check_expert_is_judged(config: DictConfig) -> None:
    """Check that somebody says whether an expert has succeeded; no person looks at a scripted one.

    Raises:
        ConfigError: Nobody does.
        RobotRLError: There is no expert, nor a person who demonstrates.
    """
    if config.teleop.device is None:
        check_expert(config)
    if config.teleop.device is None and make_source(config).version == HUMAN_VERSION:
        raise ConfigError(
            "nobody says whether the scripted expert has succeeded",
            got=f"reward={config.choices.reward} and teleop={config.choices.teleop}",
            hint="drive the demonstrations with teleop=DEVICE; or record them with robot-rl collect"
            " reward=task, and name them with dataset=RUN/demonstrations.zarr",
        )


def _collect_by_hand(
    config: DictConfig, run: RunDirectory, progress: WorkProgress
) -> EpisodeDataset:
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
    return EpisodeDataset(run.demonstrations)


def run(config: DictConfig) -> None:
    """Collect into a new run directory, or go on in that of `run`."""
    check_nodes(config)  # what cannot work is said before anything is made
    check_expert_is_judged(config)
    check_least(config, {"demonstrations": 1})
    with (
        working_run(config) as directory,
        directory.claim("train"),
        robot_nodes(config, directory.path / "logs"),
        WorkProgress(int(config.demonstrations), "demonstrations") as progress,
    ):
        progress.phase("collecting")
        collect(config, directory, progress)
        progress.note(f"written to {directory.demonstrations}")


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
