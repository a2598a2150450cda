"""What a dataset, store, checkpoint or run directory holds, as JSON for other programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from robot_rl.config import load_resolved
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.lerobot import open_lerobot
from robot_rl.data.lerobot.layout import INFO_PATH
from robot_rl.data.schema import SOURCE_NAMES, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.records import read_run
from robot_rl.replay.summary import TableSummary, summarize_store
from robot_rl.run import CLONED, LAST, RunDirectory

Facts = dict[str, Any]


class Kind(StrEnum):
    """What a path is."""

    RUN = "run"
    STORE = "store"
    POLICY = "policy"
    LEROBOT = "lerobot"
    DATASET = "dataset"


def look(path: Path) -> tuple[Kind, Path]:
    """Find out what a path is; return also where exactly it is.

    Raises:
        RobotRLError: There is nothing.
    """
    if not path.exists():
        raise RobotRLError(
            "there is nothing to inspect", got=str(path), expected="an existing path"
        )
    if (path / "config.yaml").is_file():
        return Kind.RUN, path
    if (path / "data.mdb").is_file():
        return Kind.STORE, path
    for place in (path, path / "policy"):
        if (place / "policy.json").is_file():
            return Kind.POLICY, place
    return (Kind.LEROBOT if (path / INFO_PATH).is_file() else Kind.DATASET), path


def describe(path: Path) -> Facts:
    """Return what is at a path: ``kind``, ``path``, and what that kind has.

    Raises:
        RobotRLError: It is nothing that robot_rl writes.
    """
    describers: dict[Kind, Callable[[Path], Facts]] = {
        Kind.RUN: _run_directory,
        Kind.STORE: _store,
        Kind.POLICY: _policy,
        Kind.LEROBOT: _lerobot,
        Kind.DATASET: _dataset,
    }
    kind, place = look(path)
    return {"kind": kind.value, "path": str(place), **describers[kind](place)}


def demonstrations_of(run: RunDirectory) -> Path:
    """Return where the demonstrations of a run are, or would be."""
    dataset = load_resolved(run.path).dataset
    return Path(dataset) if dataset else run.demonstrations


def _run_directory(path: Path) -> Facts:
    run = RunDirectory(path)
    places = {"demonstrations": demonstrations_of(run)}
    if (run.store / "data.mdb").exists():
        places["store"] = run.store
    for name in (CLONED, LAST):
        if run.has_folder(name):
            places[name] = run.complete_folder(name)
    records = read_run(run.path)
    evaluations = [
        {
            "environment_steps": e.environment_steps,
            "seed_set": e.seed_set,
            "success_rate": e.success_rate,
        }
        for e in records.evaluations
    ]
    return {
        "finished": bool(records.summary),
        "deployed": records.summary.get("deployed"),
        "evaluations": evaluations,
        "evaluated": run.read_jsonl("evaluate"),
        "parts": {name: describe(place) for name, place in places.items() if place.exists()},
    }


def _store(path: Path) -> Facts:
    summary = summarize_store(path)
    return {
        "identity": summary.identity,
        "disk_bytes": summary.disk_bytes,
        "bytes_per_row": summary.bytes_per_row,
        "weights": summary.weights,
        "tables": {table.info.name: _store_table(table) for table in summary.tables},
    }


def _store_table(table: TableSummary) -> Facts:
    return {
        "schema": _schema(table.info.schema),
        "metadata": dict(table.info.metadata),
        **asdict(table.total),
        "sources": {name: asdict(counts) for name, counts in table.sources.items()},
        "cut": table.cut,
        "sessions": table.sessions,
        "rows": table.rows,
        "row_bytes": table.info.schema.dtype.itemsize,
        "missing_rows": table.missing_rows,
        "evicted_rows": table.gone_sequences,
        "first_stamp": table.first_stamp,
        "last_stamp": table.last_stamp,
        "annotations": {
            name: {"dtype": field.dtype, "shape": field.shape, "values": field.written}
            for name, field in table.annotations.items()
        },
    }


def _dataset(path: Path) -> Facts:
    dataset = EpisodeDataset(path)
    return {
        "schema": _schema(dataset.schema),
        "metadata": dataset.metadata,
        "episodes": len(dataset),
        "steps": dataset.rows_total - len(dataset),
        "successes": int(dataset.successes.sum()),
        "sources": Counter(SOURCE_NAMES[int(source)] for source in dataset.sources),
    }


def _lerobot(path: Path) -> Facts:
    episodes = open_lerobot(path)
    return {
        "schema": _schema(episodes.schema),
        "metadata": episodes.metadata,
        "episodes": len(episodes),
        "steps": episodes.steps,
        "successes": episodes.successes,
    }


def _policy(path: Path) -> Facts:
    from policies import checkpoint  # late: loads torch

    behaviour = checkpoint.load(path)
    face = behaviour.interface
    return {
        "policy": behaviour.kind,
        "task": face.task,
        "control_rate_hz": face.control_rate_hz,
        "version": behaviour.version,
        "parameters": sum(parameter.numel() for parameter in behaviour.policy.parameters()),
        "execute_steps": behaviour.execute_steps,
        "action_names": list(face.action_names),
        "observation": dict(behaviour.policy.observation),
    }


def _schema(schema: RowSchema) -> Facts:
    content: Facts = json.loads(schema.to_json())
    return content
