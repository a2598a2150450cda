"""The episodes that a run begins with, demonstrated or explored, also as rows of its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from policies.behaviour import Behaviour
from policies.runner import PolicyRunner
from robot_rl.config import ConfigError
from robot_rl.data.episodes import EpisodeDataset, steps_to_success
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY, SchemaMismatch
from robot_rl.env.factory import make_env
from robot_rl.env.gym import GymRobot
from robot_rl.errors import RobotRLError
from robot_rl.learning.algorithms.base import LEAST_DISCOUNT
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.windows import LABELS
from robot_rl.run import RunDirectory

DEMONSTRATOR = 0  # the actor that demonstrations come from
_OWNER = "demonstrations"
_LEAST_IMITATED_STEPS = 4000  # environment steps in which demonstrations are imitated


def demonstrated(config: DictConfig) -> bool:
    """Whether a run begins with demonstrations: with `demonstrations=0` it explores at random.

    `ConfigError` where it is to have some and none.
    """
    recorded = int(config.demonstrations) != 0
    if config.dataset is not None and not recorded:
        got, hint = f"demonstrations=0 dataset={config.dataset}", "leave out one of the two"
        raise ConfigError("a run with and without demonstrations", got=got, hint=hint)
    return config.dataset is not None or recorded


def first_episodes(config: DictConfig, run: RunDirectory) -> EpisodeDataset:
    """The demonstrations, or the exploration in place of them; see `open_demonstrations`."""
    shown = demonstrated(config)
    return open_demonstrations(config, run) if shown else EpisodeDataset(run.exploration)


def open_demonstrations(config: DictConfig, run: RunDirectory | None) -> EpisodeDataset:
    """Open the demonstrations of `dataset`, or of the run. No robot is made.

    `run` is not needed where `dataset` names the demonstrations.

    Raises:
        SchemaMismatch: They are of another schema version.
        RobotRLError: There are none, or none that succeeded.
    """
    path = Path(str(config.dataset)) if config.dataset or run is None else run.demonstrations
    if not path.exists():
        raise RobotRLError(
            "there are no demonstrations",
            got=f"nothing at {path}",
            hint="record some with: robot-rl collect; or name some with dataset=PATH",
        )
    dataset = EpisodeDataset(path)
    if not dataset.successes.any():
        raise RobotRLError(
            f"none of the demonstrations in {path} is successful",
            got=f"{len(dataset)} episodes",
            expected="at least one to learn from",
        )
    return dataset


def check_demonstrations(config: DictConfig, run: RunDirectory | None) -> None:
    """Check that the demonstrations fit the task and the robot, which is made for this alone.

    Raises:
        SchemaMismatch: They are of another task, shape, rate or schema version.
        RobotRLError: There are none, or none that succeeded.
    """
    dataset = open_demonstrations(config, run)
    env = make_env(config)
    env.close()
    dataset.expect(env.schema)
    scaled = dataset.metadata.get("action_range")  # where robot-rl import has scaled them
    if scaled is not None and isinstance(env.robot, GymRobot):
        own = env.robot.action_range
        if not np.allclose(scaled, own, rtol=1e-3):
            raise SchemaMismatch(
                f"the dataset {dataset.path}: its actions were scaled from other bounds",
                got=scaled,
                expected=own.tolist(),
                hint="correct action_low and action_high in its mapping file, and import it again",
            )


def with_what_episodes_tell(config: DictConfig, first: EpisodeDataset) -> DictConfig:
    """The algorithm's configuration, with what nobody has given and the first episodes tell.

    With a discount γ the start of an episode must still count its success: the horizon 1 / (1 - γ)
    is two thirds of the steps to it. Demonstrations are imitated as long as 100 of them take.
    """
    algorithm: DictConfig = config.algorithm
    schedule, settings = algorithm.schedule, algorithm.get("settings", {})
    found: dict[str, dict[str, Any]] = {"schedule": {}, "settings": {}}
    success = first.arrays(("success",))["success"]
    took = steps_to_success(np.split(success, first.episode_ends[:-1]))
    steps, gamma = float(np.median(took)) if took else 0.0, schedule.discount
    if gamma is None:
        gamma = max(LEAST_DISCOUNT, 1.0 - 1.5 / max(steps, 1.0))
        found["schedule"]["discount"] = gamma
    # Annotations may be rewards of another scale.
    known = config.reward.annotation in (None, LABELS) and gamma < 1
    if known and settings.get("value_range", ()) is None:
        found["settings"]["value_range"] = list(value_range(first, gamma))
    if settings.get("imitation_updates", 0) is None:
        imitated = max(_LEAST_IMITATED_STEPS, round(100 * steps))
        found["settings"]["imitation_updates"] = schedule.updates_per_step * imitated
    sections = {name: section for name, section in found.items() if section}
    return cast("DictConfig", OmegaConf.merge(algorithm, sections))


def value_range(dataset: EpisodeDataset, gamma: float) -> tuple[float, float]:
    """Bounds of the return of any policy, if no reward is lower or higher than those demonstrated.

    A reward with which an episode terminates is had once, any other perhaps for ever, discounted
    by γ < 1 per step.

    Raises:
        RobotRLError: All rewards are 0, so that there is nothing to learn from.
    """
    columns = dataset.arrays(("reward", "terminated"))
    reward, ended = columns["reward"].astype(np.float64), columns["terminated"]
    bounds = [
        float(bound(reward[~ended], initial=0.0) / (1.0 - gamma))
        + float(bound(reward[ended], initial=0.0))
        for bound in (np.min, np.max)
    ]
    if bounds[0] == bounds[1]:
        raise RobotRLError(
            "the recorded episodes hold no reward other than 0",
            got=f"{len(reward)} rows",
            hint="record them with a reward, or say which of them succeeded: see docs/rewards.md",
        )
    return bounds[0], bounds[1]


def insert_episodes(
    client: ReplayClient,
    dataset: EpisodeDataset,
    cloned: Behaviour,
    stop: StopEvent,
    source: int = SOURCE_DEMONSTRATION,
) -> None:
    """Put the first episodes of a run into the store, with the clone's proposals along them.

    Of demonstrations only the successful ones, as for cloning: an actor that imitates learns from
    these rows what to do. Rows that an earlier, interrupted insertion has put there are not sent
    again. They count as of `source`, whatever recorded them: rows of `SOURCE_POLICY` are the run's
    first environment steps.

    Raises:
        Stopped: `stop` was set, and the episode is in.
    """
    schema = stored_schema(dataset.schema, cloned)
    opened = client.open_session(schema, DEMONSTRATOR, 0, owner=_OWNER)
    present = opened.next_sequence
    runner = PolicyRunner(cloned)
    lengths = np.diff(dataset.episode_ends, prepend=0)
    start = 0
    for index in np.flatnonzero(dataset.successes | (source == SOURCE_POLICY)).tolist():
        if stop.is_set():
            raise Stopped
        length = int(lengths[index])
        if start + length > present:
            seed, instruction = int(dataset.seeds[index]), dataset.instructions[index]
            columns = stored_columns(dataset, index, runner)
            columns["source"] = np.full(length, source, np.uint8)
            facts = {"task": schema.task, "seed": seed, "instruction": instruction}
            rows = [
                {name: column[row] for name, column in columns.items()} for row in range(length)
            ]
            client.append_episode(rows, facts, stored=max(0, present - start))
        start += length
    client.flush()


def stored_columns(dataset: EpisodeDataset, index: int, runner: PolicyRunner) -> dict[str, Any]:
    """Columns of an episode as a store has them: with features and proposals of a clone."""
    columns, instruction = dataset.episode(index), dataset.instructions[index]
    columns |= runner.behaviour.features(columns, [instruction] * len(columns["reward"]))
    columns["base_action"] = runner.label(columns, int(dataset.seeds[index]), instruction)
    return columns
