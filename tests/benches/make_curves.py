"""Add runs to docs/efficiency.csv, draw it as docs/efficiency.svg, and print its table.

python tests/benches/make_curves.py RUN...
"""

import csv
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from robot_rl.commands.runs import load_resolved
from robot_rl.evaluation import charts
from robot_rl.evaluation.records import read_run
from robot_rl.evaluation.statistics import first_confirmed
from robot_rl.run import CLONED_POLICY, LEARNED_POLICY, RunDirectory

RATE = 0.95
TABLE = Path(__file__).parents[2] / "docs" / "efficiency.csv"
KEY = ("task", "algorithm", "seed")
COLUMNS = (*KEY, "environment_steps", "steps_to_95", "cloned", "learned")
LATE = 1.08  # where those that missed it are drawn, in steps of the latest that did not
LINE: dict[str, Any] = {"color": charts.GREY, "linewidth": 1.0}
Row = dict[str, str]


def row(path: str) -> Row:
    """What one run says; `steps_to_95` is empty where what was deployed never got there.

    A recipe that gathers in rounds stands by its own name, with the steps that it gathered. Where
    its gate has accepted nothing, the clone stands for what was learned.
    """
    run, recipe = read_run(RunDirectory(Path(path))), load_resolved(Path(path)).choices.recipe
    said, cloned = run.summary, run.final(CLONED_POLICY)
    last = run.final(LEARNED_POLICY) or cloned
    if not said or last is None or cloned is None:
        raise SystemExit(f"{path} has no final evaluation: go on with robot-rl train resume={path}")
    steps = first_confirmed([*run.deployed_curve(), last, last], RATE)
    values = [
        said["task"],
        said["algorithm"] if recipe == "residual" else recipe,
        said["seed"],
        said["gathered_steps"] + (0 if last is cloned else said["environment_steps"]),
        "" if steps is None else steps,
        *(f"{100 * result.success_rate:g}" for result in (cloned, last)),
    ]
    return dict(zip(COLUMNS, map(str, values), strict=True))


def draw(rows: list[Row]) -> None:
    """One panel a task, one line an algorithm, one point a training, a tick at the median."""
    names, tasks = (sorted({row[key] for row in rows}) for key in ("algorithm", "task"))
    figure = Figure(figsize=(9.6, 1.0 + 0.3 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        runs = [row for row in rows if row["task"] == task]
        last = max(int(row["steps_to_95"] or 0) for row in runs)
        for place, name in enumerate(names):
            needed = [row["steps_to_95"] for row in runs if row["algorithm"] == name]
            reached = [int(steps) for steps in needed if steps]
            missed = len(needed) - len(reached)
            ordered = sorted(reached) + [LATE * last] * missed
            axes.plot(ordered[:: len(ordered) - 1 or 1], [place] * min(2, len(ordered)), **LINE)
            axes.plot(ordered[len(ordered) // 2], place, "|", markersize=14, **LINE)
            axes.plot(reached, [place] * len(reached), "o", color=charts.BLUE, alpha=0.6)
            if missed:
                axes.plot(LATE * last, place, "x", color=charts.ORANGE)
                axes.annotate(f"{missed}", (1.12 * last, place), va="center", fontsize=8)
        axes.set(title=task, xlabel="environment steps to 95 %", xlim=(-0.03 * last, 1.2 * last))
        axes.grid(axis="x", color=charts.GREY, alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    with mpl.rc_context({"svg.hashsalt": TABLE.stem}):
        figure.savefig(TABLE.with_suffix(".svg"), metadata={"Date": None})


def main(*paths: str) -> None:
    """Merge, write, draw and print."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        known = [*csv.DictReader(file), *map(row, paths)]
    merged = {tuple(each[key] for key in KEY): each for each in known}
    rows = [merged[key] for key in sorted(merged)]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows)
    lines = ["| task | algorithm | seeds | steps to 95 % | cloned | learned |", "|" + 6 * "---|"]
    for (task, name), group in groupby(rows, itemgetter("task", "algorithm")):
        runs = list(group)
        steps = (f"{int(run['steps_to_95']):,}" if run["steps_to_95"] else "–" for run in runs)
        rates = (", ".join(f"{float(run[key]):.0f}" for run in runs) for key in COLUMNS[-2:])
        seeds = ", ".join(run["seed"] for run in runs)
        lines.append(f"| {task} | {name} | {seeds} | {'; '.join(steps)} | {' | '.join(rates)} |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
