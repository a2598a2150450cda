"""HG-DAgger: the cloned policy acts, an operator corrects it, and it is cloned again.

Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human Experts": only the steps in
which the person drives are added to what is imitated.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from robot_rl.config import ConfigError, check_least
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_INTERVENTION, Row
from robot_rl.env.rollout import SeedStream
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import check_unused, clone, save_cloned
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.signals import deferred_signals
from robot_rl.run import CLONED, DEMONSTRATIONS


class Dagger(Stage):
    """Rounds in which an operator corrects what was cloned, which is then cloned from all of it.

    Episodes that an earlier start of the run has finished are not repeated.
    """

    needs = (DEMONSTRATIONS, CLONED)
    makes = (CLONED,)
    records = "corrections"

    def wanted(self, config: DictConfig) -> bool:
        """Only where there are rounds."""
        check_least(config, {"dagger.rounds": 0})
        return bool(config.dagger.rounds)

    def check(self, config: DictConfig) -> None:
        """Check that somebody corrects.

        Raises:
            ConfigError: There is no operator.
        """
        if config.operator.simulated is None and config.teleop.device is None:
            raise ConfigError(
                "nobody corrects the cloned policy",
                got=f"dagger.rounds={config.dagger.rounds} with operator=none and teleop=none",
                hint="add operator=simulated, or teleop=DEVICE clock=realtime",
            )

    def run(self, bench: Workbench) -> None:
        """Go through the rounds, then save."""
        check_unused(bench.config, bench.run)
        behaviour, generator = bench.policy(CLONED), bench.generator("dagger")
        for number in range(1, int(bench.config.dagger.rounds) + 1):
            shown = [bench.demonstrations(), *correct(bench, behaviour, number)]
            behaviour = clone(bench.config, shown, behaviour.vision, generator)
        save_cloned(bench, behaviour)


def correct(bench: Workbench, behaviour: Behaviour, number: int) -> list[EpisodeDataset]:
    """Let the policy act for the episodes of one round, and record what the operator corrects.

    Args:
        bench: The workbench.
        behaviour: The policy; its exploration is not used.
        number: Of the round, from 1.

    Returns:
        The corrections of this round and those before; none where the operator never saw a reason.
    """
    count, done = int(bench.config.dagger.episodes), len(_finished(bench, number))
    if done < count:
        _act(bench, behaviour, number, count, done)
    recorded = max((record["corrections"] for record in _finished(bench, number)), default=0)
    return [EpisodeDataset(bench.run.corrections).first(recorded)] if recorded else []


def _act(bench: Workbench, behaviour: Behaviour, number: int, count: int, done: int) -> None:
    """Go through the episodes of a round that are left."""
    acting = behaviour.exploring("mean")
    first, words = (number - 1) * count, f"correcting, round {number}"
    with EpisodeWriter(bench.run.corrections, bench.demonstrations().schema) as writer:
        for episode in bench.gather(
            acting, count, SeedStream.CORRECTIONS, words, first=first, done=done
        ):
            with deferred_signals():  # or its corrections would be recorded again
                for segment in corrections(episode.rows):
                    writer.append(
                        segment,
                        seed=episode.seed,
                        instruction=episode.instruction,
                        success=True,
                        source=SOURCE_INTERVENTION,
                    )
                bench.note(
                    {
                        "round": number,
                        "seed": episode.seed,
                        "steps": episode.steps,
                        "intervened_steps": episode.intervened_steps,
                        "success": episode.success,
                        "corrections": len(writer),  # in the file with this episode's
                    }
                )
    bench.say(_share(number, _finished(bench, number)))


def _finished(bench: Workbench, number: int) -> list[dict[str, Any]]:
    """What is noted of the episodes of a round that are finished."""
    return [record for record in bench.notes() if record["round"] == number]


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
