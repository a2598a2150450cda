"""The report of one run: `report.html`, a single printable file that works offline.

`train` writes it at the end, from the summary and the records of the run's processes.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from robot_rl.evaluation import charts
from robot_rl.evaluation.charts import Series
from robot_rl.evaluation.records import (
    CLIPS,
    VIDEOS,
    PolicyInputs,
    Record,
    RunRecords,
    intervention_rates,
    read_run,
    rolling_mean,
)
from robot_rl.evaluation.statistics import NOISE_LEVEL, EvaluationResult, Labels
from robot_rl.processes.files import replace_text
from robot_rl.processes.machine import package_version
from robot_rl.run import (
    ACCEPTED_POLICY,
    CLONED_POLICY,
    CONFIG_FILE,
    LEARNED_POLICY,
    RunDirectory,
)

_ROLLING_EPISODES = 20
_LATEST_FAULTS = 10
_PACKAGES = ("robot_rl", "torch", "numpy", "mujoco", "gymnasium", "zarr")
_ABSENT = "\N{EN DASH}"
_HEADLINE = (
    ("bc", CLONED_POLICY, "Cloned from demonstrations"),
    ("bc", ACCEPTED_POLICY, "Accepted by the gate"),
    ("rl", LEARNED_POLICY, "After reinforcement learning"),
)
_NOT_METRICS = {"environment_steps", "gradient_updates"}


def write_report(run: RunDirectory) -> Path:
    """Write `report.html` into a run that has its summary; see `read_run`.

    Returns its path. An older report is replaced atomically.
    """
    return write_page(run.path / "report.html", "report.html.jinja", _content(run))


def write_page(path: Path, template: str, content: Mapping[str, Any]) -> Path:
    """Render a template and write it to `path`, atomically replacing an older page.

    The template is a file in this folder that extends `page.html.jinja` and shows at least `title`
    and `subtitle`.
    """
    environment = Environment(
        loader=FileSystemLoader(str(resources.files(__package__))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z")
    page = environment.get_template(template).render({**content, "written": written})
    replace_text(path, page)
    return path


def _content(directory: RunDirectory) -> dict[str, Any]:
    run = read_run(directory)
    summary = run.summary
    domains = dict.fromkeys(e.domain for e in run.evaluations if e.domain)
    domain = f", domain {' and '.join(domains)}" if domains else ""
    return {
        "title": f"{summary['task']} · {summary['algorithm']}",
        "subtitle": f"Run {directory.path.name}, seed {summary['seed']}{domain}",
        "notes": list(_notes(directory, run)),
        "policies": _policies(run),
        "decision": str(run.ledger),
        "figures": _figures(run),
        "rolling": _ROLLING_EPISODES,
        "learning_curve": _learning_curve(run),
        "gathered": f"{summary.get('gathered_steps') or 0:,}",
        "periodic": bool(run.learned_curve()),
        "held_back": _held_back(run),
        "clips": _clips(directory.path / VIDEOS),
        "charts": _charts(run),
        "evaluations": run.evaluations,
        "verdicts": {e.which: run.ledger.verdict(e.which) for e in run.evaluations},
        "facts": _facts(summary["machine"]),
        "taken": _taken(summary["taken_by_learner"]),
        "configuration": (directory.path / CONFIG_FILE).read_text(encoding="utf-8"),
    }


def _notes(directory: RunDirectory, run: RunRecords) -> Iterator[str]:
    """Notes to read before the figures: problems, and operator involvement."""
    if inputs := run.summary.get("inputs"):
        yield f"{PolicyInputs(**inputs)}."
    if steps := run.summary["worse_than_start"]:
        held = {e.environment_steps for e in run.periodic() if e.deployed is False}
        back = [at for at in steps if at in held]
        meanwhile = f" Training held it back after {_listed(back)} steps." if back else ""
        yield (
            "The learned policy was worse than what it began with, by more than noise, after"
            f" {_listed(steps)} steps (one-sided sign test on the same scenes, at"
            f" {100 * NOISE_LEVEL:.0f} % for all evaluations of the run together).{meanwhile}"
        )
    for verdict in directory.read_jsonl("gate"):
        yield f"gate, {verdict['candidate']}: {verdict['decision']}, {verdict['reason']}"
    for evaluation in run.evaluations:
        if evaluation.conduct:
            yield f"{evaluation.name}: {evaluation.conduct}"
    ended = Counter(e["ended_by"] for e in run.episodes if e.get("ended_by"))
    ended["cut"] = sum(e.get("interrupted") is not None for e in run.episodes)
    training = [f"{count} episodes ended by {why}" for why, count in ended.items() if count]
    training += filter(None, [str(Labels.of(run.episodes) or "")])
    if training:
        yield f"training: {', '.join(training)}"
    if run.attempts:
        yield run.work()
    kinds = Counter(fault["kind"] for fault in run.faults if "part_of" not in fault)
    if kinds:
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        yield f"faults: {counted}; the latest:"
        for fault in run.faults[-_LATEST_FAULTS:]:
            part = "with it " if "part_of" in fault else ""
            yield f"{fault['time']} {part}{fault['kind']}: {fault['problem']}"


def _clips(folder: Path) -> list[dict[str, Any]]:
    listed = folder / CLIPS
    if not listed.exists():
        return []
    clips = []
    for fact in json.loads(listed.read_text(encoding="utf-8")):
        content = base64.b64encode((folder / fact["file"]).read_bytes()).decode()
        outcome = "success" if fact["success"] else "failure"
        words = f"seed {fact['seed']}: {outcome} after {fact['seconds']:.1f} s"
        clips.append({"uri": f"data:video/mp4;base64,{content}", "words": words})
    return clips


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(f"{at:,}" for at in steps)


def _policies(run: RunRecords) -> list[dict[str, str]]:
    """The policies of the headline in the order they were made, with the run's verdict on each."""
    shown = []
    for kind, name, title in _HEADLINE:
        result = run.final(name)
        cloned_none = name == CLONED_POLICY and run.summary["demonstrations"] == 0
        if not cloned_none and (result or name != ACCEPTED_POLICY):
            verdict = run.ledger.verdict(name)
            shown.append({"kind": kind, "title": title, "verdict": verdict, **_success(result)})
    return shown


def _success(result: EvaluationResult | None) -> dict[str, str]:
    if result is None:
        return {"rate": _ABSENT, "count": "not evaluated", "interval": ""}
    if result.mean_return is not None:
        return {"rate": _ABSENT, "count": result.count, "interval": ""}
    seeds = "" if result.seed_set == "final" else " (periodic)"
    return {
        "rate": result.rate.replace(".0 %", " %"),
        "count": f"{result.count} episodes{seeds}",
        "interval": f"95 % interval {result.interval}",
    }


def _figures(run: RunRecords) -> list[tuple[str, str]]:
    summary = run.summary
    confirmed, seconds = summary["steps_to_97"], summary["mean_seconds_to_success"]
    measured = len(run.learned_curve()) > 1  # confirmation takes two in a row
    missed = "not reached" if measured else "not measured"
    steps = ["gathered_steps"] if summary.get("gathered_steps") else []
    steps += ["environment_steps"] if run.episodes or not steps else []
    return [
        ("Steps to 97 %", missed if confirmed is None else f"{confirmed:,}"),
        *((_words(name), f"{summary[name]:,}") for name in steps),
        ("Gradient updates online", f"{summary['gradient_updates']:,}"),
        ("Demonstrations", f"{summary['demonstrations']:,}"),
        ("Mean time to success", _ABSENT if seconds is None else f"{seconds:.1f} s"),
        ("Longest run of successes", f"{summary['longest_success_run']:,}"),
        ("Wall time", _duration(summary["wall_seconds"])),
        ("Peak memory", f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"),
    ]


def _learning_curve(run: RunRecords) -> Markup | None:
    curve = run.learned_curve()
    steps, won = _columns(run.episodes, "success")
    if not (curve or steps) or any(e.mean_return is not None for e in curve):
        return None  # without a success count, the table shows the returns
    # The first means cover too few episodes and jump.
    full = max(0, min(_ROLLING_EPISODES, len(won)) - 1)
    rolling = rolling_mean(won, _ROLLING_EPISODES)
    training = Series(f"last {_ROLLING_EPISODES} training episodes", steps[full:], rolling[full:])
    cloned, final = run.final(CLONED_POLICY), run.final(LEARNED_POLICY)
    confirmed = run.summary["steps_to_97"]
    deployed = run.deployed_curve() if _held_back(run) else []
    points = [e.environment_steps for e in deployed], [e.success_rate for e in deployed]
    acted = Series("deployed meanwhile", *points)
    return Markup(charts.learning_curve(curve, training, confirmed, cloned, final, acted))


def _held_back(run: RunRecords) -> bool:
    """Whether training ever withheld the learned policy from deployment."""
    return any(e.deployed is False for e in run.periodic())


def _charts(run: RunRecords) -> list[dict[str, Any]]:
    drawn: list[tuple[str, list[Series], str]] = []
    rates = intervention_rates(run.episodes, _ROLLING_EPISODES)
    if rates:
        intervened = Series("by the operator", [r[0] for r in rates], [100 * r[1] for r in rates])
        title = f"Steps by the operator, last {_ROLLING_EPISODES} episodes"
        drawn.append((title, [intervened], "%"))
    learned = [e.to_json() for e in run.learned_curve()]
    seconds = Series("evaluation", *_columns(learned, "mean_seconds_to_success"))
    if seconds.x:
        drawn.append(("Mean time to success", [seconds], "seconds"))
    drawn += [(title, series, "") for title, series in _metrics(run.learner)]
    stop = max((x for _, lines, _ in drawn for line in lines for x in line.x), default=0.0)
    return [
        {"title": title, "svg": Markup(charts.line_chart(title, series, stop=stop, unit=unit))}
        for title, series, unit in drawn
    ]


def _metrics(learner: Sequence[Record]) -> Iterator[tuple[str, list[Series]]]:
    """Group the learner's metrics: Q values share a chart, every other metric has its own."""
    names = {k for r in learner for k, v in r.items() if type(v) in (int, float)} - _NOT_METRICS
    groups: dict[str, list[str]] = {}
    # Losses come first.
    for name in sorted(names, key=lambda name: (not name.endswith("loss"), name)):
        title = "Q values" if name == "q" or name.startswith("q_") else _words(name)
        groups.setdefault(title, []).append(name)
    for title, group in groups.items():
        yield title, [Series(_words(name), *_columns(learner, name)) for name in group]


def _columns(records: Sequence[Record], name: str) -> tuple[list[float], list[float]]:
    """Environment steps and values of the metric `name`."""
    known = [r for r in records if isinstance(r.get(name), int | float)]
    return [float(r["environment_steps"]) for r in known], [float(r[name]) for r in known]


def _words(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _taken(found: Record) -> list[tuple[str, str]]:
    """Values that the learner chose for settings the configuration may leave open."""
    if not found:
        return []
    bounds, share = found["value_range"], found.get("hindsight_share", 0.0)
    return [
        ("Discount per step", f"{found['discount']:.4g}"),
        ("Range of values", f"{bounds[0]:g} to {bounds[1]:g}" if bounds else "no limits"),
        ("In hindsight", f"{100 * share:g} % of each batch"),
        ("Symmetric views of each step", f"{found['symmetric_views']}"),
    ]


def _facts(machine: Record) -> list[tuple[str, str]]:
    """The machine and software that the run was made with."""
    facts = [(_words(str(k)), str(v)) for k, v in machine.items()]
    return [*facts, ("Packages", ", ".join(f"{n} {package_version(n)}" for n in _PACKAGES))]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
