"""The episodes a run starts from (demonstrations or exploration), also as replay rows."""

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

DEMONSTRATOR = 0  # actor number of demonstrations
_OWNER = "demonstrations"
_LEAST_IMITATED_STEPS = 4000  # minimum environment steps of imitation


def first_episodes(settings: Settings, run: RunDirectory) -> EpisodeDataset:
    """Return the demonstrations, or the exploration instead. See `open_demonstrations`."""
    if not settings.demonstrated:
        return EpisodeDataset(run.exploration)
    return open_demonstrations(settings.dataset, run)


def open_demonstrations(dataset: str | None, run: RunDirectory | None) -> EpisodeDataset:
    """Open the demonstrations at a path or of the run, without creating a robot.

    Raises:
        SchemaMismatch: The demonstrations have a different schema version.
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
    """Check that demonstrations fit the task and the robot, which is created only for this check.

    Raises:
        SchemaMismatch: The task, shape, rate or schema version differs.
    """
    env = make_env(environment)
    env.close()
    dataset.expect(env.schema)
    scaled = dataset.metadata.get("action_range")  # set if robot-rl import scaled the actions
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
    """Fill open values of the algorithm's configuration from the first episodes.

    The discount γ must be high enough that the success still counts at the start of an episode: the
    horizon 1 / (1 - γ) is two thirds of the steps to success. Imitation lasts as many steps as 100
    demonstrations.

    Args:
        algorithm: Configuration of the algorithm.
        annotation: Name of the annotation used as reward, which has a different scale. None or
            `LABELS` if the rewards have the recorded scale.
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
    """Return bounds on the return of any policy, given the range of demonstrated rewards.

    A terminating reward is received once. Any other reward may recur forever, discounted by γ < 1
    per step.

    Raises:
        RobotRLError: All rewards are 0, so there is no learning signal.
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
    """Insert the first episodes of a run into the store, with the clone's proposals.

    Only successful demonstrations are inserted, as for cloning, because an imitating actor learns
    what to do from these rows. Rows from an earlier, interrupted insertion are not sent again. Rows
    are tagged with `source` regardless of what recorded them. Rows of `SOURCE_POLICY` are the run's
    first environment steps.

    Raises:
        Stopped: `stop` was set. Raised between two episodes.
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
    """Return the columns of an episode as stored: with a clone's features and proposals."""
    columns, instruction = dataset.episode(index), dataset.instructions[index]
    columns |= runner.behaviour.features(columns, [instruction] * len(columns["reward"]))
    columns["base_action"] = runner.label(columns, int(dataset.seeds[index]), instruction)
    return columns
