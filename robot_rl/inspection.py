"""`robot-rl inspect PATH`: what a dataset, store, checkpoint or run directory holds."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.lerobot import open_lerobot
from robot_rl.data.schema import SOURCE_NAMES, RowSchema
from robot_rl.evaluation.records import read_run
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.inspection_facts import Kind, demonstrations_of, describe, look
from robot_rl.replay.summary import TableSummary, summarize_store
from robot_rl.run import CLONED, LAST, RunDirectory


def run(path: str, **options: str | None) -> None:
    """Print what is at `path`; nothing is changed.

    Args:
        path: A dataset, store, checkpoint or run directory.
        **options: `json`, "true" to print one JSON object in place of the page.

    Raises:
        RobotRLError: It is nothing that robot_rl writes.
    """
    where = Path(path)
    if options.get("json") == "true":
        sys.stdout.write(json.dumps(describe(where)) + "\n")
        return
    pages: dict[Kind, Callable[[Console, Path], None]] = {
        Kind.RUN: _run_directory,
        Kind.STORE: _store,
        Kind.POLICY: _policy,
        Kind.LEROBOT: _lerobot,
        Kind.DATASET: _dataset,
    }
    kind, place = look(where)
    pages[kind](Console(highlight=False, soft_wrap=True), place)


def _run_directory(console: Console, path: Path) -> None:
    run = RunDirectory(path)
    console.print(f"run directory {run.path}")
    demonstrations = demonstrations_of(run)
    if demonstrations.exists():
        _dataset(console, demonstrations)
    if (run.store / "data.mdb").exists():
        _store(console, run.store)
    for name in (CLONED, LAST):
        if run.has_folder(name):
            _policy(console, run.complete_folder(name) / "policy")
    results = read_run(run.path)
    rates = [(e.environment_steps, e.success_rate) for e in results.periodic()]
    if rates:
        text = ", ".join(f"{steps}: {100 * rate:.0f} %" for steps, rate in rates)
        console.print(f"\nsuccess by environment steps: {text}")
    for final in (e for e in results.evaluations if e.seed_set == "final"):
        console.print(f"final, {final.name}: {final}")
    if "decision" in results.summary:
        console.print(results.summary["decision"])
    for told in run.read_jsonl("evaluate"):
        words = " ".join(told["overrides"]) or "as trained"
        console.print(f"evaluated {told['time']}, {words}: {EvaluationResult.from_json(told)}")
    if not results.summary:
        console.print(f"not finished; to go on: robot-rl train resume={run.path}")


def _dataset(console: Console, path: Path) -> None:
    dataset = EpisodeDataset(path)
    console.print(f"\ndataset {path}")
    _schema(console, dataset.schema)
    steps = dataset.rows_total - len(dataset)
    success = int(dataset.successes.sum())
    console.print(f"{len(dataset)} episodes, {steps} steps, {success} successful")
    _sources(console, (SOURCE_NAMES[int(source)] for source in dataset.sources))


def _store(console: Console, path: Path) -> None:
    summary = summarize_store(path)
    rows = sum(table.rows for table in summary.tables)
    size = f"\nstore {path}, {summary.disk_bytes / 1e6:.1f} MB on disk"
    console.print(f"{size}, {summary.bytes_per_row:,.0f} bytes a row" if rows else size)
    if summary.identity is not None:
        console.print(f"identity {summary.identity}")
    for name, version in summary.weights.items():
        console.print(f"weights {name}: version {version}")
    for table in summary.tables:
        _store_table(console, table)


def _store_table(console: Console, table: TableSummary) -> None:
    schema, total = table.info.schema, table.total
    console.print(f"\ntable {table.info.name}")
    _schema(console, schema)
    console.print(
        f"{total.episodes} episodes ({total.sealed} sealed, {table.cut} of them cut;"
        f" {total.episodes - total.sealed} open), {total.steps} steps, {total.successes} successful"
    )
    counts = Table("source", "episodes", "sealed", "successful", "steps", box=None, pad_edge=False)
    for source, found in table.sources.items():
        if found.episodes:
            rate = f" ({100 * found.successes / found.sealed:.0f} %)" if found.sealed else ""
            numbers = (found.episodes, found.sealed, f"{found.successes}{rate}", found.steps)
            counts.add_row(source, *map(str, numbers))
    console.print(counts)
    console.print(
        f"{table.rows} rows of {schema.dtype.itemsize:,} bytes in {table.sessions} sessions"
    )
    if table.missing_rows:
        episodes = ", ".join(map(str, list(table.missing_rows)[:10]))
        console.print(
            f"DAMAGED: {sum(table.missing_rows.values())} rows are missing, of"
            f" {len(table.missing_rows)} episodes: {episodes}"
        )
    else:
        console.print("no row is missing")
    for name, field in table.annotations.items():
        console.print(f"annotation {name}: {field.dtype} {field.shape}, {field.written} values")
    if table.gone_sequences:
        console.print(f"{table.gone_sequences} rows of whole episodes were evicted")
    if table.first_stamp is not None and table.last_stamp is not None:
        console.print(f"recorded {_time_span(table.first_stamp, table.last_stamp)}")
    elif table.rows:
        console.print("recorded in simulated time")


def _time_span(first: int, last: int) -> str:
    """Name the local times of two stamps [ns], and what lies between them."""
    begin, end = (datetime.fromtimestamp(stamp // 10**9) for stamp in (first, last))
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} ({end - begin})"


def _lerobot(console: Console, path: Path) -> None:
    episodes = open_lerobot(path)
    console.print(f"\nLeRobot dataset {path}")
    _schema(console, episodes.schema)
    console.print(
        f"{len(episodes)} episodes, {episodes.steps} steps, {episodes.successes} successful"
    )


def _policy(console: Console, path: Path) -> None:
    from policies import checkpoint  # late: loads torch

    behaviour = checkpoint.load(path)
    count = sum(parameter.numel() for parameter in behaviour.policy.parameters())
    face = behaviour.interface
    console.print(f"\npolicy {path}")
    console.print(
        f"{behaviour.kind} for {face.task} at {face.control_rate_hz:g} Hz, version"
        f" {behaviour.version}, {count:,} parameters, executes {behaviour.execute_steps} actions"
        f" a plan\nactions: {', '.join(face.action_names)}"
    )
    for name, width in behaviour.policy.observation.items():
        console.print(f"observes {name} ({width})")


def _schema(console: Console, schema: RowSchema) -> None:
    console.print(f"task {schema.task}, {schema.control_rate_hz:g} Hz, version {schema.version}")
    table = Table("field", "dtype", "shape", box=None, pad_edge=False)
    for field in schema.fields:
        table.add_row(field.name, field.dtype, str(field.shape))
    console.print(table)


def _sources(console: Console, sources: Iterable[str]) -> None:
    counts = Counter(sources)
    console.print("by source: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
