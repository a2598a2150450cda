"""`robot-rl inspect PATH`: the contents of a dataset, store, checkpoint or run directory.

Each kind of path has a function that returns its facts as JSON, and one that formats them as lines.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from json import dumps, loads
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from robot_rl.commands.runs import MAY_DIFFER, compare_run, load_resolved
from robot_rl.data.episodes import EpisodeDataset, importing
from robot_rl.data.intervals import interval_over_runs
from robot_rl.data.schema import SOURCE_NAMES
from robot_rl.data.transfer import SummarizedEpisodes
from robot_rl.errors import in_shell
from robot_rl.evaluation.ledger import deployed_policy, open_policy, steps_behind
from robot_rl.evaluation.records import read_run
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.plugins import format_of, resolve
from robot_rl.processes.files import MANIFEST, CheckpointError, check_manifest
from robot_rl.processes.progress_display import WorkProgress, plain_console
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.store import rebuild_catalogue
from robot_rl.replay.store_reader import summarize_store
from robot_rl.run import (
    ACCEPTED,
    CLONED,
    CLONED_POLICY,
    CONFIG_FILE,
    LAST,
    LEARNED_POLICY,
    STUDENT,
    RunDirectory,
    RunError,
    policy_folder,
)

Facts = dict[str, Any]


def run(path: str, *further: str, rebuild: bool, runs_directory: str, json: bool) -> None:
    """Print what is at `path`, or the combined results of several runs.

    Changes nothing, except that `rebuild` first rebuilds a store's catalogue.
    """
    if rebuild:
        at = Path(path)
        store = RunDirectory(at).store if (at / CONFIG_FILE).is_file() else at
        sys.stderr.write(rebuild_catalogue(store) + "\n")
    if further:
        facts = _runs([path, *further], runs_directory)
    else:
        facts = describe(Path(path), runs_directory)
    if json:
        sys.stdout.write(dumps(facts) + "\n")
        return
    console = plain_console()
    for line in _PAGES[facts["kind"]](facts, console):
        console.print(line)


class Kind(StrEnum):
    """The kind of a path."""

    RUN = "run"
    STORE = "store"
    POLICY = "policy"
    DATASET = "dataset"
    RUNS = "runs"


def look(path: Path, runs_directory: str = "runs") -> tuple[Kind, Path]:
    """Return the kind and location of a path; `RunError` if it is no known kind and no run."""
    if not path.exists():
        path = RunDirectory.open(path, runs_directory).path
    # Check this before runs: an exported policy has its run's configuration in the same folder.
    if (policy := policy_folder(path)) is not None:
        return Kind.POLICY, policy
    if (path / CONFIG_FILE).is_file():
        return Kind.RUN, path
    if is_store(path):
        return Kind.STORE, path
    if (path / "zarr.json").is_file() or format_of(path) is not None:
        return Kind.DATASET, path
    names = [] if path.is_file() else sorted(p.name for p in path.iterdir())[:5]
    raise RunError(
        f"{path} is nothing that robot_rl writes",
        got="a file" if path.is_file() else f"a folder with {', '.join(names) or 'nothing'}",
        expected="a run, store, checkpoint or dataset",
        hint=importing(path),
    )


def describe(path: Path, runs_directory: str = "runs") -> Facts:
    """Return what is at a path: ``kind``, ``path``, and the facts of that kind."""
    kind, place = look(path, runs_directory)
    return {"kind": kind.value, "path": str(place), **_FACTS[kind](place)}


def first_episodes_of(run: RunDirectory) -> Path:
    """Return the path of a run's demonstrations, present or future, or of its exploration."""
    config = load_resolved(run.path)
    if config.dataset:
        return Path(config.dataset)
    return run.demonstrations if config.demonstrations else run.exploration


def _run_directory(path: Path) -> Facts:
    run = RunDirectory(path)
    first = first_episodes_of(run)
    places = {
        "exploration" if first == run.exploration else "demonstrations": first,
        "store": run.store if is_store(run.store) else None,
        "gathered": run.gathered,
    }
    verdicts = run.read_jsonl("gate")
    for name in (CLONED, *(v["candidate"] for v in verdicts), ACCEPTED, LAST, STUDENT):
        if run.has_folder(name):
            run.complete_folder(name)  # the facts name the link, not a generation
            places[name] = run.path / name
    damaged = None
    try:  # as far as the checksums of the summary and checkpoints show
        run.read_summary()
        for manifest in sorted(run.path.glob(f"**/[!.]*/{MANIFEST}")):
            check_manifest(manifest.parent.resolve())  # one generation, which is never modified
    except (RunError, CheckpointError) as error:
        damaged = str(error)
    records = read_run(run)
    return {
        # If the run has learned more since its decision, it has not decided again yet.
        "finished": records.summary.get("environment_steps") == steps_behind(run),
        "damaged": damaged,
        "working": run.claimed(),
        "learns": bool(records.episodes or any("update_to_data" in r for r in records.learner)),
        "deployed": deployed_policy(run) if run.has_policy() else None,
        "decision": str(records.ledger) or None,
        "policies": {
            name: {**asdict(entry), "count": entry.count}
            for name, entry in records.ledger.entries.items()
        },
        "evaluations": [
            {
                "environment_steps": e.environment_steps,
                "seed_set": e.seed_set,
                "success_rate": e.success_rate,
                "mean_return": e.mean_return,
                "rate": e.rate.replace(".0 %", " %"),
                "held_back": e.held_back or e.deployed is False,
                "words": f"{e.name}: {e}",
            }
            for e in records.evaluations
        ],
        "gate": verdicts,
        "stages": list(
            dict.fromkeys(r["stage"] for r in run.read_jsonl("stages") if r["finished"])
        ),
        "evaluated": run.read_jsonl("evaluate"),
        "compared": run.read_jsonl("compare"),
        "work": records.work(),
        "parts": {name: describe(at) for name, at in places.items() if at and at.exists()},
    }


def _runs(paths: Sequence[str], runs_directory: str) -> Facts:
    """Results of several runs that differ only in their training seed."""
    runs = [RunDirectory.open(path, runs_directory) for path in paths]
    configs = [load_resolved(run.path) for run in runs]
    may_differ = (*MAY_DIFFER, "dataset", "seed")
    hint = "name runs that differ in their training seed alone"
    for config in configs[1:]:
        compare_run(config, configs[0], may_differ=may_differ, hint=hint)
    seeds = [int(config.seed) for config in configs]
    if len(set(seeds)) < len(seeds):
        hint = "train others with another seed=, and name each run once"
        raise RunError("runs of one training seed say nothing of another", got=seeds, hint=hint)
    records = [read_run(run) for run in runs]
    finals = {
        name: [found.final(name) for found in records] for name in (CLONED_POLICY, LEARNED_POLICY)
    }
    return {
        "kind": Kind.RUNS.value,
        "runs": [{"path": str(r.path), "seed": s} for r, s in zip(runs, seeds, strict=True)],
        "policies": {name: _over_runs(found) for name, found in finals.items()},
    }


def _over_runs(results: Sequence[EvaluationResult | None]) -> Facts:
    """Final evaluations of a policy; with one per run, also the expectation for further seeds."""
    words = [f"{r.seed_set}, {r}" if r else "not evaluated yet" for r in results]
    final = [r for r in results if r is not None and r.seed_set == "final"]
    if len(final) < len(results):
        return {"words": words}
    rates = [result.success_rate for result in final]
    scenes = [range(r.first_seed, r.first_seed + r.episodes) for r in final]
    return {
        "words": words,
        "successes": sum(result.successes for result in final),
        "episodes": sum(result.episodes for result in final),
        "rates": rates,
        "mean": sum(rates) / len(rates),
        "interval": list(interval_over_runs(rates)),
        "scenes_shared": any(a[0] in b or b[0] in a for a, b in itertools.combinations(scenes, 2)),
    }


def _dataset(path: Path) -> Facts:
    if (found := format_of(path)) is not None:
        name, format = found
        other: SummarizedEpisodes = resolve(format.open)(path)
        return {
            "format": name,
            "title": format.title,
            "schema": loads(other.schema.to_json()),
            "metadata": other.metadata,
            "episodes": len(other),
            "steps": other.steps,
            "successes": other.successes,
        }
    dataset = EpisodeDataset(path)
    for index in range(len(dataset)):
        dataset.whole(index)  # raises if a row is missing or damaged
    return {
        "format": "zarr",
        "schema": loads(dataset.schema.to_json()),
        "metadata": dataset.metadata,
        "episodes": len(dataset),
        "steps": dataset.rows_total - len(dataset),
        "successes": int(dataset.successes.sum()),
        "sources": Counter(SOURCE_NAMES[int(source)] for source in dataset.sources),
    }


def _policy(path: Path) -> Facts:
    if (path.parent / MANIFEST).is_file():
        check_manifest(path.parent)
    behaviour, _ = open_policy(path)
    face, policy = behaviour.interface, behaviour.policy
    return {
        "policy": policy.kind,
        "task": face.task,
        "control_rate_hz": face.control_rate_hz,
        "version": behaviour.version,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()) or None,
        "execute_steps": behaviour.execute_steps,
        "action_names": list(face.action_names),
        "observation": dict(policy.observation),
    }


def _run_page(run: Facts, console: Console) -> Iterator[str]:
    from robot_rl.commands.train import Feed  # late import: loads torch

    directory, config = RunDirectory(Path(run["path"])), load_resolved(Path(run["path"]))
    chosen = f"task={config.task.name} algorithm={config.choices.algorithm} seed={config.seed}"
    yield f"run directory {run['path']}: {chosen}"
    if run["stages"]:
        yield f"stages done: {', '.join(run['stages'])}"
    if run["learns"]:
        with WorkProgress(int(config.environment_steps), console=console) as progress:
            Feed(directory, progress).show()
    rates = [
        f"{e['environment_steps']}: {e['rate']}{' held back' * e['held_back']}"
        for e in run["evaluations"]
        if e["seed_set"] == "periodic"
    ]
    if rates:
        yield f"evaluations by environment steps: {', '.join(rates)}"
    for evaluation in run["evaluations"]:
        if evaluation["seed_set"] == "final":
            yield f"final, {evaluation['words']}"
    for verdict in run["gate"]:
        yield f"gate, {verdict['candidate']}: {verdict['decision']}, {verdict['reason']}"
    for name, entry in run["policies"].items():
        yield f"the {name} policy: {entry['count']}, {entry['verdict']}"
    if run["decision"] is not None:
        yield run["decision"]
    for record in run["evaluated"]:
        words = " ".join([record.get("path", run["path"]), *record["overrides"]])
        result = EvaluationResult.from_json(record)
        yield f"evaluated {record['time']}, {words}: {result.name}: {result}"
    for record in run["compared"]:
        yield f"compared {record['time']}, {', '.join(record['policies'])}: {record['words']}"
    if run["work"]:
        yield run["work"]
    yield "in it, of which robot-rl inspect PATH says more:"
    for part in run["parts"].values():
        if part["kind"] == Kind.POLICY:
            held = f"{part['policy']} policy, version {part['version']}"
        else:
            held = _counts(part) if "schema" in part else "no rows"
        if part["kind"] == Kind.STORE:
            damage = "DAMAGED, " * bool(part.get("missing_rows"))
            held = f"{damage}{part['disk_bytes'] / 1e6:.1f} MB; {held}"
        yield f"  {part['path']}: {held}"
    if run["damaged"]:
        yield f"DAMAGED: {run['damaged']}"
    else:
        yield (
            "checksums of checkpoints, demonstrations and summary are right;"
            " records (*.jsonl), films and stored rows have none"
        )
    if run["working"]:
        yield f"at work: {', '.join(run['working'])}"
    elif not run["finished"] and not run["damaged"]:
        again = in_shell("robot-rl", "train", f"resume={run['path']}")
        yield f"not finished; to go on: {again}"


def _runs_page(facts: Facts, _: Console) -> Iterator[str]:
    for name, over in facts["policies"].items():
        yield f"the {name} policy"
        for run, words in zip(facts["runs"], over["words"], strict=True):
            yield f"  seed {run['seed']}, {run['path']}: {words}"
        if "interval" in over:
            least, most = 100 * min(over["rates"]), 100 * max(over["rates"])
            low, high = (100 * bound for bound in over["interval"])
            scenes = "these scenes, which they share" * over["scenes_shared"] or "further scenes"
            yield (
                f"  together {over['successes']} of {over['episodes']}, by run {least:.1f} to"
                f" {most:.1f} %, mean {100 * over['mean']:.1f} %; expected rate of a further"
                f" training seed on {scenes}: 95 % interval {low:.0f} to {high:.0f} %"
            )


def _counts(held: Facts) -> str:
    return f"{held['episodes']} episodes, {held['steps']} steps, {held['successes']} successful"


def _dataset_page(dataset: Facts, _: Console) -> Iterator[str | Table]:
    title = dataset.get("title")
    yield f"\n{f'{title} dataset' if title else 'dataset'} {dataset['path']}"
    yield from _schema_lines(dataset["schema"])
    yield _counts(dataset)
    if title:
        yield "its tables and videos were not read through"
    if "sources" in dataset:
        counts = ", ".join(f"{name} {count}" for name, count in dataset["sources"].items())
        yield f"by source: {counts}"


def _store_page(store: Facts, _: Console) -> Iterator[str | Table]:
    rows = store.get("rows")
    a_row = f", {store['bytes_per_row']:,.0f} bytes a row" * bool(rows)
    yield f"\nstore {store['path']}, {store['disk_bytes'] / 1e6:.1f} MB on disk{a_row}"
    if store["identity"] is not None:
        yield f"identity {store['identity']}"
    for name, version in store["weights"].items():
        yield f"weights {name}: version {version}"
    if "schema" not in store:
        return
    yield from _schema_lines(store["schema"])
    yield (
        f"{store['episodes']} episodes ({store['sealed']} sealed, {store['cut']} of them cut;"
        f" {store['episodes'] - store['sealed']} open), {store['steps']} steps,"
        f" {store['successes']} successful"
    )
    counts = Table("source", "episodes", "sealed", "successful", "steps", box=None, pad_edge=False)
    for source, found in store["sources"].items():
        if found["episodes"]:
            sealed, successes = found["sealed"], found["successes"]
            rate = f" ({100 * successes / sealed:.0f} %)" if sealed else ""
            numbers = (found["episodes"], sealed, f"{successes}{rate}", found["steps"])
            counts.add_row(source, *map(str, numbers))
    yield counts
    yield f"{rows} rows of {store['row_bytes']:,} bytes in {store['sessions']} sessions"
    if missing := store["missing_rows"]:
        episodes = f"{len(missing)} episodes: {', '.join(map(str, list(missing)[:10]))}"
        yield f"DAMAGED: {sum(missing.values())} rows are missing, of {episodes}"
    else:
        yield "no row is missing; what is in them has no checksum and was not read"
    for name, values in store["annotations"].items():
        yield f"annotation {name}: {values} values"
    if store["evicted_rows"]:
        yield f"{store['evicted_rows']} rows were evicted"
    if store["first_stamp"] is not None:
        stamps = (store["first_stamp"], store["last_stamp"])
        begin, end = (datetime.fromtimestamp(stamp // 10**9) for stamp in stamps)
        yield f"recorded {begin} to {end} ({end - begin})"
    elif rows:
        yield "recorded in simulated time"


def _policy_page(policy: Facts, _: Console) -> Iterator[str]:
    count = policy["parameters"]
    size = "exported" if count is None else f"{count:,} parameters"
    yield f"\npolicy {policy['path']}"
    yield (
        f"{policy['policy']} for {policy['task']} at {policy['control_rate_hz']:g} Hz, version"
        f" {policy['version']}, {size}, executes {policy['execute_steps']} actions a plan"
    )
    yield f"actions: {', '.join(policy['action_names'])}"
    for name, width in policy["observation"].items():
        yield f"observes {name} ({width})"


def _schema_lines(schema: Facts) -> Iterator[str | Table]:
    rate, version = schema["control_rate_hz"], schema["version"]
    yield f"task {schema['task']}, {rate:g} Hz, version {version}"
    table = Table("field", "dtype", "shape", box=None, pad_edge=False)
    for name, dtype, shape in schema["fields"]:
        table.add_row(name, dtype, str(tuple(shape)))
    yield table


_FACTS: dict[Kind, Callable[[Path], Facts]] = {
    Kind.RUN: _run_directory,
    Kind.STORE: summarize_store,
    Kind.POLICY: _policy,
    Kind.DATASET: _dataset,
}
_PAGES: dict[str, Callable[[Facts, Console], Iterator[str | Table]]] = {
    Kind.RUN: _run_page,
    Kind.RUNS: _runs_page,
    Kind.STORE: _store_page,
    Kind.POLICY: _policy_page,
    Kind.DATASET: _dataset_page,
}
