"""Reading the records of a run, which may go on, or have been interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robot_rl.data.intervals import StatisticsError
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.run import CONFIG_FILE, SUMMARY, RunDirectory

Record = dict[str, Any]

# Folder of a run with the films of its final evaluation, and the list of them in it.
VIDEOS, CLIPS = "videos", "clips.json"


class ReportError(RobotRLError):
    """The run directory cannot be reported on."""


@dataclass(frozen=True)
class RunRecords:
    """What a run has written so far."""

    directory: Path  # the run directory
    configuration: str  # text of `config.yaml`, empty if there is none
    config: dict[str, Any]  # the same as plain containers, empty if it cannot be read
    summary: dict[str, Any]  # `summary.json`, empty while the run goes on
    # In order of time, without those that a resumed run repeated.
    evaluations: list[EvaluationResult]
    episodes: list[Record]  # training episodes, likewise
    learner: list[Record]  # the learner's records, likewise
    notes: list[str]  # what is missing or unreadable, as sentences for the reader

    def final(self, *, cloned: bool) -> EvaluationResult | None:
        """Return the last final evaluation of the cloned, or of the learned policy.

        For want of one, the last periodic. Before its first update no policy has learned.
        """
        mine = [e for e in self.evaluations if e.cloned == cloned]
        mine = [e for e in mine if cloned or e.gradient_updates]
        chosen = [e for e in mine if e.seed_set == "final"] or mine
        return chosen[-1] if chosen else None

    def periodic(self) -> list[EvaluationResult]:
        """Return the evaluations of the learning curve, the cloned policy's at step 0 included."""
        return [e for e in self.evaluations if e.seed_set == "periodic"]


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values at each position; fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(stop - window, 0)
    means: list[float] = ((sums[stop] - sums[start]) / (stop - start)).tolist()
    return means


def intervention_rates(episodes: Sequence[Record], window: int) -> list[tuple[float, float]]:
    """Share of steps that an operator took, over the last `window` episodes at each one's end.

    Gives environment steps and share in [0, 1]; nothing where nobody ever intervened.
    """
    told = [e for e in episodes if "intervened_steps" in e and e.get("length")]
    if not any(e["intervened_steps"] for e in told):
        return []
    names = ("intervened_steps", "length")
    taken, steps = (rolling_mean([e[name] for e in told], window) for name in names)
    ends = (float(e["environment_steps"]) for e in told)
    return [(at, a / b) for at, a, b in zip(ends, taken, steps, strict=True)]


def without_superseded(
    records: Sequence[Record], kind: Callable[[Record], Hashable] = lambda record: None
) -> list[Record]:
    """Drop what a resumed run did again.

    Those are the records that later ones of their kind with fewer environment steps replace.
    Records without that number are dropped too.
    """
    kept: list[Record] = []
    lowest: dict[Hashable, float] = {}
    for record in reversed(records):
        steps, of = record.get("environment_steps"), kind(record)
        if isinstance(steps, int | float) and steps <= lowest.get(of, float("inf")):
            lowest[of] = steps
            kept.append(record)
    return kept[::-1]


def read_run(directory: Path) -> RunRecords:
    """Read the records of a run; see `write_report` for the errors."""
    files = ("config.yaml", "summary.json", "evaluations.jsonl", "episodes.jsonl", "learner.jsonl")
    if not any((directory / name).is_file() for name in files):
        raise ReportError(
            f"{directory} is no run directory",
            got="none of its files" if directory.is_dir() else "no such directory",
            expected=f"some of {', '.join(files)}",
            hint="give a directory below runs/, or runs/latest",
        )
    run, notes = RunDirectory(directory), list[str]()
    configuration, summary = run.path / CONFIG_FILE, run.path / SUMMARY
    text = configuration.read_text("utf-8", "replace") if configuration.is_file() else ""
    if not summary.is_file():
        notes.append("This run has not finished: there is no summary.json. All figures are so far.")
    # Each actor counts by itself the steps that all of them have done.
    episodes = without_superseded(run.read_jsonl("episodes"), lambda e: str(e.get("actor", 1)))
    return RunRecords(
        directory=run.path,
        configuration=text,
        config=_object(configuration, yaml.safe_load, notes),
        summary=_object(summary, json.loads, notes),
        evaluations=_evaluations(run.read_jsonl("evaluations"), notes),
        episodes=sorted(episodes, key=lambda record: float(record["environment_steps"])),
        learner=without_superseded(run.read_jsonl("learner")),
        notes=notes,
    )


def _object(path: Path, parse: Callable[[bytes], Any], notes: list[str]) -> Record:
    """The mapping in a file; empty where there is none, which a note says of a broken file."""
    try:
        content = parse(path.read_bytes()) if path.is_file() else {}
    except (ValueError, yaml.YAMLError) as error:
        notes.append(f"{path.name} could not be read: {error}")
        return {}
    return content if isinstance(content, dict) else {}


def _evaluations(records: Sequence[Record], notes: list[str]) -> list[EvaluationResult]:
    results, incomplete = [], 0
    for record in without_superseded(records, _policy_and_seeds):
        try:
            results.append(EvaluationResult.from_json(record))
        except StatisticsError:
            incomplete += 1
    if incomplete:
        notes.append(f"evaluations.jsonl: {incomplete} lines lack keys and were left out.")
    return sorted(results, key=lambda e: (e.environment_steps, e.seed_set == "final"))


def _policy_and_seeds(evaluation: Record) -> Hashable:
    return evaluation.get("environment_steps") == 0, str(evaluation.get("seed_set"))
