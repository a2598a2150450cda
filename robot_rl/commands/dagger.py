"""HG-DAgger: the cloned policy acts, an operator corrects it, and it is cloned again.

Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human Experts": only the steps in
which the person drives are added to what is imitated.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.compute import compute_device
from policies.runner import PolicyRunner
from robot_rl.commands.driven import make_attended_env, once_free
from robot_rl.config import ConfigError
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY, Row
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.processes.progress import WorkProgress
from robot_rl.processes.signals import deferred_signals
from robot_rl.run import RunDirectory

_FINISHED = "corrections"  # the episodes that are, in RUN/corrections.jsonl


def correct(
    config: DictConfig, run: RunDirectory, behaviour: Behaviour, number: int
) -> list[EpisodeDataset]:
    """Let the policy act for the episodes of one round, and record what the operator corrects.

    No episode begins while the operator has halted the robot; nothing is recorded of one that is
    discarded. Episodes that an earlier start of the run has finished are not repeated.

    Args:
        config: The configuration; its `operator` or `teleop` says who corrects.
        run: Where `corrections.zarr` is.
        behaviour: The policy; its exploration is not used.
        number: Of the round, from 1.

    Returns:
        The corrections of this round and those before; none where the operator never saw a reason.

    Raises:
        ConfigError: There is no operator.
    """
    if config.operator.simulated is None and config.teleop.device is None:
        raise ConfigError(
            "nobody corrects the cloned policy",
            got=f"dagger.rounds={config.dagger.rounds} with operator=none and teleop=none",
            hint="add operator=simulated, or teleop=DEVICE clock=realtime",
        )
    if len(_finished(run, number)) < int(config.dagger.episodes):
        _act(config, run, behaviour, number)
    count = max((record["corrections"] for record in _finished(run, number)), default=0)
    return [EpisodeDataset(run.corrections).first(count)] if count else []


def _act(config: DictConfig, run: RunDirectory, behaviour: Behaviour, number: int) -> None:
    """Go through the episodes of a round that are left."""
    count = int(config.dagger.episodes)
    env, operated = make_attended_env(config, run)
    runner = PolicyRunner(behaviour.exploring("mean").to(compute_device(config)))
    with (
        closing(env),
        EpisodeWriter(run.corrections, env.schema) as writer,
        WorkProgress(count, "episodes") as progress,
    ):
        progress.phase(f"correcting, round {number}")
        done = len(_finished(run, number))
        progress.update(done)
        recorder = RowBuilder(env.schema, SOURCE_POLICY)
        numbered = (
            training_seed(int(config.seed), SeedStream.CORRECTIONS, (number - 1) * count + episode)
            for episode in range(done, count)
        )
        seeds = once_free(numbered, env, progress.note)
        for result in rollout([env], runner, seeds, recorder=recorder, note=progress.note):
            names = [field.name for field in env.schema.fields]
            rows = [{name: row[name] for name in names} for row in result.rows]
            discarded = operated.ended_by is OperatorEvent.DISCARD
            with deferred_signals():  # or its corrections would be recorded again
                for segment in [] if discarded else corrections(rows):
                    writer.append(
                        segment,
                        seed=result.seed,
                        instruction=env.task.instruction,
                        success=True,
                        source=SOURCE_INTERVENTION,
                    )
                finished = {
                    "round": number,
                    "seed": result.seed,
                    "steps": result.steps,
                    "intervened_steps": result.intervened_steps,
                    "success": result.success,
                    "corrections": len(writer),  # in the file with this episode's
                }
                run.append_jsonl(_FINISHED, finished)
            done += 1
            progress.episode(result.success, result.intervened_steps / max(1, result.steps))
            progress.update(done)
        progress.note(_share(number, _finished(run, number)))


def _finished(run: RunDirectory, number: int) -> list[dict[str, Any]]:
    """What is noted of the episodes of a round that are finished."""
    return [record for record in run.read_jsonl(_FINISHED) if record["round"] == number]


def _share(number: int, finished: Sequence[Mapping[str, Any]]) -> str:
    steps, intervened = (
        sum(record[name] for record in finished) for name in ("steps", "intervened_steps")
    )
    return (
        f"round {number}: the operator took {intervened} of {steps} steps"
        f" ({100 * intervened / max(1, steps):.0f} %)"
    )


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
