"""The episodes that a run begins with, demonstrated or explored, also as rows of its store."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from policies.behaviour import Behaviour
from policies.runner import PolicyRunner
from robot_rl.config.sections import Part, Settings
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


def first_episodes(settings: Settings, run: RunDirectory) -> EpisodeDataset:
    """The demonstrations, or the exploration in place of them; see `open_demonstrations`."""
    if not settings.demonstrated:
        return EpisodeDataset(run.exploration)
    return open_demonstrations(settings.dataset, run)


def open_demonstrations(dataset: str | None, run: RunDirectory | None) -> EpisodeDataset:
    """Open the demonstrations of a path, or of the run. No robot is made.

    Raises:
        SchemaMismatch: They are of another schema version.
        RobotRLError: There are no demonstrations, or no successful ones.
    """
    path = Path(str(dataset)) if dataset or run is None else run.demonstrations
    if not path.exists():
        raise RobotRLError(
            "there are no demonstrations",
            got=f"nothing at {path}",
            hint="record some with: robot-rl collect; or name some with dataset=PATH",
        )
    found = EpisodeDataset(path)
    if not found.successes.any():
        raise RobotRLError(
            f"none of the demonstrations in {path} is successful",
            got=f"{len(found)} episodes",
            expected="at least one to learn from",
        )
    return found


def check_demonstrations(environment: Mapping[str, Any], dataset: EpisodeDataset) -> None:
    """Check that demonstrations fit the task and the robot, which is made for this alone.

    Raises:
        SchemaMismatch: They are of another task, shape, rate or schema version.
    """
    env = make_env(environment)
    env.close()
    dataset.expect(env.schema)
    scaled = dataset.metadata.get("action_range")  # where robot-rl import has scaled them
    if scaled is None or not isinstance(env.robot, GymRobot):
        return
    if not np.allclose(scaled, own := env.robot.action_range, rtol=1e-3):
        raise SchemaMismatch(
            f"the dataset {dataset.path}: its actions were scaled from other bounds",
            got=scaled,
            expected=own.tolist(),
            hint="correct action_low and action_high in its mapping file, and import it again",
        )


def fill_from_demonstrations(
    algorithm: Part, annotation: str | None, first: EpisodeDataset
) -> Part:
    """The algorithm's configuration, with its open values filled in from the first episodes.

    With a discount γ the start of an episode must still count its success: the horizon 1 / (1 - γ)
    is two thirds of the steps to it. Demonstrations are imitated as long as 100 of them take.

    Args:
        algorithm: Its configuration.
        annotation: Name of the annotations that are its rewards, whose scale is another one; None
            or `LABELS` where these are of the recorded scale.
        first: The first episodes of the run.
    """
    filled = copy.deepcopy(algorithm)
    schedule, settings = filled["schedule"], filled.get("settings", {})
    success = first.arrays(("success",))["success"]
    took = steps_to_success(np.split(success, first.episode_ends[:-1]))
    steps = float(np.median(took)) if took else 0.0
    if schedule["discount"] is None:
        schedule["discount"] = max(LEAST_DISCOUNT, 1.0 - 1.5 / max(steps, 1.0))
    known = annotation in (None, LABELS) and schedule["discount"] < 1
    if known and settings.get("value_range", ()) is None:
        settings["value_range"] = list(value_range(first, schedule["discount"]))
    if settings.get("imitation_updates", 0) is None:
        imitated = max(_LEAST_IMITATED_STEPS, round(100 * steps))
        settings["imitation_updates"] = schedule["updates_per_step"] * imitated
    return filled


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
