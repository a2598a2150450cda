"""Read the records of a run, which may be in progress or interrupted."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import LAST_COMMAND, RowSchema
from robot_rl.evaluation.ledger import Ledger, read_ledger
from robot_rl.evaluation.statistics import Comparison, EvaluationResult
from robot_rl.run import ATTEMPTS, CLONED, FAULTS, UNTRAINED, RunDirectory, RunError

Record = dict[str, Any]

# Folder of a run with the videos of its final evaluation, and the index file in it.
VIDEOS, CLIPS = "videos", "clips.json"


@dataclass(frozen=True)
class RunRecords:
    """The records of a run so far."""

    summary: dict[str, Any]  # `summary.json`; empty until the run ends
    ledger: Ledger  # which policy is deployed; empty until the run has decided
    evaluations: list[EvaluationResult]  # by environment steps
    episodes: list[Record]  # training episodes of all actors, by environment steps
    learner: list[Record]  # the learner's records, by environment steps
    # Robot faults in order: `time`, `kind` and `problem`; some are `part_of` another fault.
    faults: list[Record]
    attempts: list[Record]  # attempts of `robot-rl run`, in order

    def final(self, which: str) -> EvaluationResult | None:
        """Return the last final evaluation of the cloned, accepted or learned policy.

        Falls back to the last periodic evaluation. None for a policy before its first update.
        """
        mine = [
            e for e in self.evaluations if e.which == which and (e.cloned or e.gradient_updates)
        ]
        chosen = [e for e in mine if e.seed_set == "final"] or mine
        return chosen[-1] if chosen else None

    def beside(
        self, which: str, other: str
    ) -> tuple[EvaluationResult, EvaluationResult, Comparison] | None:
        """Compare two policies on the same scenes: final evaluations, else periodic ones.

        None if they were not both evaluated on them.
        """
        for seed_set in ("final", "periodic"):
            scenes = [e for e in self.evaluations if e.seed_set == seed_set]
            mine, theirs = (replace(self, evaluations=scenes).final(n) for n in (which, other))
            if mine and theirs and (compared := mine.beside(theirs)):
                return mine, theirs, compared
        return None

    def learned_curve(self) -> list[EvaluationResult]:
        """Return the learned policy's periodic evaluations, also while it was not deployed."""
        return [e for e in self.periodic() if not e.cloned]

    def deployed_curve(self) -> list[EvaluationResult]:
        """Return the deployed policy's evaluation at each point of the learning curve.

        While training had not deployed the learned policy, this is the initial policy's evaluation
        on the same scenes. The point is left out if there is none.
        """
        start = next((e for e in self.periodic() if e.cloned), None)
        acted = []
        for each in self.learned_curve():
            if each.deployed is not False:
                acted.append(each)
            elif start is not None:
                acted.append(replace(start, environment_steps=each.environment_steps))
        return acted

    def work(self) -> str:
        """The attempts of `robot-rl run` as text; empty if there were none."""
        if not self.attempts:
            return ""
        made = [each for each in self.attempts if each["interrupted"] is None]
        successes = sum(bool(each["success"]) for each in made)
        faults = len(self.attempts) - len(made)
        cut = f", {faults} cut by a fault" if faults else ""
        return (
            f"robot-rl run: {successes} of {len(made)} attempts succeeded{cut};"
            f" {self.attempts[0]['time']} to {self.attempts[-1]['time']}"
        )

    def periodic(self) -> list[EvaluationResult]:
        """Return the evaluations of the learning curve, including the cloned policy's at step 0."""
        return [e for e in self.evaluations if e.seed_set == "periodic"]


class PolicyInputs(NamedTuple):
    """The observations of a schema that a policy sees, and the rest, in schema order.

    The last command is in neither: it is not an observation of the robot.
    """

    seen: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, observed: Collection[str], schema: RowSchema) -> PolicyInputs:
        """Split a schema's columns into `observed`, which the policy sees, and the rest."""
        names = [name for name in schema.observation_names if name != LAST_COMMAND]
        seen = tuple(name for name in names if name in observed)
        return cls(seen, tuple(name for name in names if name not in observed))

    @property
    def pictures(self) -> bool:
        """Whether the policy sees images or point clouds."""
        return any(name.startswith(("images/", "points/")) for name in self.seen)

    def __str__(self) -> str:
        """Return the inputs as one line."""
        left = f", and leaves out {', '.join(self.left_out)}" if self.left_out else ", which is all"
        return f"the policy sees {', '.join(self.seen) or 'nothing'}{left}"


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values at each position; fewer values at the start."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(stop - window, 0)
    means: list[float] = ((sums[stop] - sums[start]) / (stop - start)).tolist()
    return means


def intervention_rates(episodes: Sequence[Record], window: int) -> list[tuple[float, float]]:
    """Fraction of operator steps over the last `window` episodes, at each episode's end.

    Returns environment steps and fraction in [0, 1]; empty if there were no interventions.
    """
    counted = [e for e in episodes if "intervened_steps" in e and e.get("length")]
    if not any(e["intervened_steps"] for e in counted):
        return []
    names = ("intervened_steps", "length")
    taken, steps = (rolling_mean([e[name] for e in counted], window) for name in names)
    ends = (float(e["environment_steps"]) for e in counted)
    return [(at, a / b) for at, a, b in zip(ends, taken, steps, strict=True)]


def read_run(run: RunDirectory) -> RunRecords:
    """Read the records of a run.

    Raises:
        RunError: A line of a record is damaged.
        StatisticsError: A line of `evaluations.jsonl` is not an evaluation.
    """
    evaluations = map(EvaluationResult.from_json, run.read_jsonl("evaluations"))
    summary: Record = {}
    with suppress(RunError):  # a damaged one does not fail the run
        summary = run.read_summary()
    return RunRecords(
        summary=summary,
        ledger=read_ledger(run),
        evaluations=sorted(evaluations, key=lambda e: (e.environment_steps, e.seed_set == "final")),
        episodes=sorted(run.read_jsonl("episodes"), key=lambda e: float(e["environment_steps"])),
        learner=run.read_jsonl("learner"),
        faults=run.read_jsonl(FAULTS),
        attempts=run.read_jsonl(ATTEMPTS),
    )


def inputs_of(run: RunDirectory, dataset: str | None) -> PolicyInputs | None:
    """Return the inputs of a run's policy, from the schema of its first recorded episodes.

    None if the run has no policy, or no longer has the episodes.
    """
    folder = next((run.path / n / "policy" for n in (CLONED, UNTRAINED) if run.has_folder(n)), None)
    schema = recorded_schema(run, dataset)
    if folder is None or schema is None:
        return None
    described = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    return PolicyInputs.of(described["observation"], schema)


def recorded_schema(run: RunDirectory, dataset: str | None) -> RowSchema | None:
    """Return the schema of the first episodes that a run recorded; None if it has none."""
    given = [Path(dataset)] if dataset else []
    for path in (*given, run.demonstrations, run.exploration):
        if path.exists():
            return EpisodeDataset(path).schema
    return None
