"""Reading the records of a run, which may have been interrupted in the middle of a line."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from robot_rl.data.intervals import StatisticsError
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.statistics import EvaluationResult

Record = dict[str, Any]

# Folder of a run with the films of its final evaluation, and the list of them in it.
VIDEOS, CLIPS = "videos", "clips.json"


class ReportError(RobotRLError):
    """The run directory cannot be reported on."""


@dataclass(frozen=True)
class RunRecords:
    """What a run has written so far, read leniently."""

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


def intervention_rates(episodes: Sequence[Record], window: int) -> list[tuple[float, float]]:
    """Share of steps that an operator took, over the last `window` episodes at each one's end.

    Gives environment steps and share in [0, 1]; nothing where nobody ever intervened.
    """
    told = [e for e in episodes if "intervened_steps" in e and e.get("length")]
    if not any(e["intervened_steps"] for e in told):
        return []
    rates = []
    for end in range(1, len(told) + 1):
        recent = told[max(0, end - window) : end]
        taken = sum(int(e["intervened_steps"]) for e in recent)
        steps = sum(int(e["length"]) for e in recent)
        rates.append((float(told[end - 1]["environment_steps"]), taken / steps))
    return rates


def read_json_lines(path: Path) -> tuple[list[Record], int]:
    """Read the objects of a file with one JSON object a line; returns them, and how many are cut.

    A process that is killed leaves a cut line, and a resumed one goes on behind it, so that
    unreadable lines are no error here. A missing file has no lines.
    """
    if not path.exists():
        return [], 0
    records: list[Record] = []
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    for line in lines:
        with suppress(ValueError):  # no JSON, or bytes that are no UTF-8
            content = json.loads(line)
            if isinstance(content, dict):
                records.append(content)
    return records, len(lines) - len(records)


def without_superseded(records: Sequence[Record], key: str) -> list[Record]:
    """Drop what a resumed run did again: records that later ones with a lower `key` replace.

    The key is a number that grows during a run; records without it are dropped too.
    """
    kept: list[Record] = []
    lowest = float("inf")
    for record in reversed(records):
        value = record.get(key)
        if isinstance(value, int | float) and value <= lowest:
            lowest = value
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
    notes: list[str] = []
    lines = {name: _lines(directory / name, notes) for name in files[2:]}
    configuration, config = _configuration(directory / "config.yaml", notes)
    # Each actor counts by itself the steps that all of them have done.
    actors: dict[str, list[Record]] = defaultdict(list)
    for record in lines["episodes.jsonl"]:
        actors[str(record.get("actor", 1))].append(record)
    mine = (without_superseded(actors[name], "environment_steps") for name in sorted(actors))
    kept = itertools.chain.from_iterable(mine)
    return RunRecords(
        directory=directory.resolve(),
        configuration=configuration,
        config=config,
        summary=_summary(directory / "summary.json", notes),
        evaluations=_evaluations(lines["evaluations.jsonl"], notes),
        episodes=sorted(kept, key=lambda record: float(record["environment_steps"])),
        learner=without_superseded(lines["learner.jsonl"], "environment_steps"),
        notes=notes,
    )


def _lines(path: Path, notes: list[str]) -> list[Record]:
    records, unreadable = read_json_lines(path)
    if unreadable:
        notes.append(
            f"{path.name}: {unreadable} of {len(records) + unreadable} lines could not be read "
            "(a killed process leaves a cut line)."
        )
    return records


def _summary(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notes.append("This run has not finished: there is no summary.json. All figures are so far.")
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        notes.append(f"summary.json could not be read: {error}")
        return {}
    return content if isinstance(content, dict) else {}


def _configuration(path: Path, notes: list[str]) -> tuple[str, dict[str, Any]]:
    if not path.is_file():
        return "", {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        notes.append(f"config.yaml could not be read: {error}")
        return text, {}
    return text, {str(k): v for k, v in content.items()} if isinstance(content, dict) else {}


def _evaluations(records: Sequence[Record], notes: list[str]) -> list[EvaluationResult]:
    results, incomplete = [], 0
    for cloned, seeds in itertools.product((True, False), ("periodic", "final")):
        mine = [
            record
            for record in records
            if (record.get("environment_steps") == 0, record.get("seed_set")) == (cloned, seeds)
        ]
        for record in without_superseded(mine, "environment_steps"):
            try:
                results.append(EvaluationResult.from_json(record))
            except StatisticsError:
                incomplete += 1
    if incomplete:
        notes.append(f"evaluations.jsonl: {incomplete} lines lack keys and were left out.")
    return sorted(results, key=lambda e: (e.environment_steps, e.seed_set == "final"))
