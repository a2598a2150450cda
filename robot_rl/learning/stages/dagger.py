"""HG-DAgger: the cloned policy acts, an operator corrects it, and it is cloned again.

Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human Experts". Only the steps
driven by the person are added to the demonstrations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from policies.behaviour import Behaviour
from robot_rl.config import ConfigError, Settings
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_INTERVENTION, Row
from robot_rl.env.rollout import SeedStream
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import check_unused, clone, save_cloned
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.signals import deferred_signals
from robot_rl.run import CLONED, DEMONSTRATIONS

CORRECTIONS = "corrections"  # the run's episode records
# Columns missing from a final row.
_OF_A_STEP = ("action", "policy_action", "reward", "terminated", "truncated", "success")


class Dagger(Stage):
    """Runs rounds in which an operator corrects the policy, then re-clones it from all data.

    Episodes finished by an earlier start of the run are not repeated.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.makes = (CLONED,) if settings.dagger.rounds else ()

    @property
    def needs(self) -> Sequence[str]:
        """Return the clone. Raise `ConfigError` if no operator can correct it."""
        environment, rounds = self.settings.environment, self.settings.dagger.rounds
        if environment.operator.simulated is None and environment.teleop.device is None:
            raise ConfigError(
                "nobody corrects the cloned policy",
                got=f"dagger.rounds={rounds} with operator=none and teleop=none",
                hint="add operator=simulated, or teleop=DEVICE clock=realtime",
            )
        return (DEMONSTRATIONS, CLONED)

    def run(self, bench: Workbench) -> None:
        """Run the rounds, then save."""
        check_unused(bench.run, self.settings.dataset)
        behaviour, generator = bench.policy(CLONED), bench.generator("dagger")
        for number in range(1, self.settings.dagger.rounds + 1):
            shown = [bench.demonstrations(), *correct(bench, behaviour, number)]
            behaviour = clone(bench, shown, behaviour.vision, generator)
        save_cloned(bench, behaviour)


def correct(bench: Workbench, behaviour: Behaviour, number: int) -> list[EpisodeDataset]:
    """Run the policy for the episodes of one round and record the operator's corrections.

    Rounds count from 1. The policy acts without exploration. Returns the corrections of this and
    all earlier rounds, an empty list if there are none.
    """

    def finished() -> list[dict[str, Any]]:
        return [r for r in bench.run.read_jsonl(CORRECTIONS) if r["round"] == number]

    count, done = bench.settings.dagger.episodes, len(finished())
    if done < count:
        acting, stream = behaviour.exploring("mean"), SeedStream.CORRECTIONS
        first, words = (number - 1) * count, f"correcting, round {number}"
        with EpisodeWriter(bench.run.corrections, bench.demonstrations().schema) as writer:
            for episode in bench.gather(acting, count, stream, words, first=first, done=done):
                with deferred_signals():  # or its corrections would be recorded twice
                    for segment in corrections(episode.rows):
                        correction = replace(episode, rows=segment, success=True)
                        correction.keep(writer, SOURCE_INTERVENTION)
                    record = {
                        "round": number,
                        "seed": episode.seed,
                        "steps": episode.steps,
                        "intervened_steps": episode.intervened_steps,
                        "success": episode.success,
                        "corrections": len(writer),  # in the file, including this episode's
                    }
                    bench.run.append_jsonl(CORRECTIONS, record)
        steps, taken = (sum(r[n] for r in finished()) for n in ("steps", "intervened_steps"))
        share = f"{100 * taken / max(1, steps):.0f} %"
        bench.say(f"round {number}: the operator took {taken} of {steps} steps ({share})")
    recorded = max((record["corrections"] for record in finished()), default=0)
    return [EpisodeDataset(bench.run.corrections).first(recorded)] if recorded else []


def corrections(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut the operator's segments from an episode's T + 1 rows, as separate episodes.

    A segment of n steps has n + 1 rows. The last row has only the observation. How the episode
    continued is unknown, so a segment ends as truncated unless the episode terminated there.
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
        last = part[-1]
        last |= {name: np.zeros_like(last[name]) for name in _OF_A_STEP}
        last |= {"intervened": np.False_, "is_last": np.True_}
        found.append(part)
    return found
