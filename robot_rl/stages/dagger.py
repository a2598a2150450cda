"""HG-DAgger: the cloned policy acts, an operator corrects it, and it is cloned again.

Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human Experts": only the steps in
which the person drives are added to what is imitated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.runner import PolicyRunner
from robot_rl.compute import compute_device
from robot_rl.config_overrides import ConfigError
from robot_rl.console.telemetry import TelemetryEnv
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY, Row
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.operator import OperatorEvent
from robot_rl.progress import WorkProgress
from robot_rl.run import RunDirectory
from robot_rl.stages.driven import make_driven_env


def correct(
    config: DictConfig, run: RunDirectory, behaviour: Behaviour, number: int
) -> list[EpisodeDataset]:
    """Let the policy act for the episodes of one round, and record what the operator corrects.

    No episode begins while the operator has halted the robot; nothing is recorded of one that is
    discarded.

    Corrections of an earlier start of the run are kept and used too.

    Args:
        config: The configuration; its `operator` or `teleop` says who corrects.
        run: Where `corrections.zarr` is.
        behaviour: The policy; its exploration is not used.
        number: Of the round, from 1.

    Returns:
        All corrections so far; none where the operator never saw a reason.

    Raises:
        ConfigError: There is no operator.
    """
    if config.operator.simulated is None and config.teleop.device is None:
        raise ConfigError(
            "nobody corrects the cloned policy",
            got=f"dagger.rounds={config.dagger.rounds} with operator=none and teleop=none",
            hint="add operator=simulated, or teleop=DEVICE clock=realtime",
        )
    count = int(config.dagger.episodes)
    env, operated = make_driven_env(config, run)
    runner = PolicyRunner(behaviour.exploring("mean").to(compute_device(config)))
    first = (number - 1) * count
    with (
        closing(env),
        EpisodeWriter(run.corrections, env.schema) as writer,
        WorkProgress(count, "episodes") as progress,
    ):
        progress.phase(f"correcting, round {number}")
        steps = intervened = 0
        recorder = RowBuilder(env.schema, SOURCE_POLICY)
        numbered = (
            training_seed(int(config.seed), SeedStream.CORRECTIONS, episode)
            for episode in range(first, first + count)
        )
        seeds = _once_free(numbered, env, progress)
        for done, result in enumerate(rollout([env], runner, seeds, recorder=recorder), 1):
            names = [field.name for field in env.schema.fields]
            rows = [{name: row[name] for name in names} for row in result.rows]
            discarded = operated.ended_by is OperatorEvent.DISCARD
            for segment in [] if discarded else corrections(rows):
                writer.append(
                    segment,
                    seed=result.seed,
                    instruction=env.task.instruction,
                    success=True,
                    source=SOURCE_INTERVENTION,
                )
            steps, intervened = steps + result.steps, intervened + result.intervened_steps
            progress.episode(result.success, result.intervened_steps / max(1, result.steps))
            progress.update(done)
        progress.note(
            f"round {number}: the operator took {intervened} of {steps} steps"
            f" ({100 * intervened / max(1, steps):.0f} %)"
        )
        found = len(writer)
    return [EpisodeDataset(run.corrections)] if found else []


def _once_free(seeds: Iterator[int], shown: TelemetryEnv, progress: WorkProgress) -> Iterator[int]:
    """Hand on each seed once the operator lets an episode begin."""
    for seed in seeds:
        shown.wait_until_free(lambda: False, progress.note)
        yield seed


def corrections(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut the operator's stretches out of an episode; each becomes an episode of its own.

    Args:
        rows: T + 1 rows of an episode.

    Returns:
        For each stretch of n steps its n + 1 rows, the last of which has only the observation.
        What follows in the episode is unknown to a stretch, which so ends as truncated, but for
        one that the episode ended with.
    """
    found = []
    indices = itertools.groupby(range(len(rows) - 1), lambda at: bool(rows[at]["intervened"]))
    for by_hand, stretch in indices:
        if not by_hand:
            continue
        steps = list(stretch)
        part = [dict(rows[at]) for at in (*steps, steps[-1] + 1)]
        for at, row in enumerate(part):
            row["episode_step"] = np.int32(at)
        part[-2]["truncated"] = np.bool_(not part[-2]["terminated"])
        part[-1] |= _final(part[-1])
        found.append(part)
    return found


def _final(row: Row) -> Row:
    """What a final row holds in place of a step."""
    nothing = {
        name: np.zeros_like(row[name])
        for name in ("action", "policy_action", "reward", "terminated", "truncated", "success")
    }
    return {**nothing, "intervened": np.False_, "is_last": np.True_}
