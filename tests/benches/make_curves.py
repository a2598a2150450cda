"""Make docs/efficiency.svg, and print its table: how many steps an algorithm needs for a task.

python tests/benches/make_curves.py OUT.svg RUN...
"""

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from robot_rl.evaluation.records import RunRecords, read_run
from robot_rl.run import RunDirectory

RATE = 0.95
COLOURS = {"peg_insert": "#0072B2", "pick_cube": "#D55E00", "push_t": "#009E73"}


def steps_needed(run: RunRecords) -> int | None:
    """Environment steps to the first of two evaluations in a row, or the last, with `RATE`."""
    final = run.summary["environment_steps"], run.summary["rl_success_rate"]
    deployed = [(e.environment_steps, e.success_rate) for e in run.periodic()] + [final, final]
    for (steps, rate), (_, following) in pairwise(deployed):
        if min(rate, following) >= RATE:
            return steps
    return None


def main(out: Path, *paths: str) -> None:
    """Read the runs, draw and print."""
    found: dict[str, dict[str, list[RunRecords]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        run = read_run(RunDirectory(Path(path)))
        found[run.summary["task"]][run.summary["algorithm"]].append(run)
    names = sorted({name for by_name in found.values() for name in by_name})
    figure = Figure(figsize=(9.6, 1.0 + 0.3 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    rows = ["| task | algorithm | seeds | steps to 95 % | cloned | learned |", "|" + 6 * "---|"]
    for axes, (task, by_name) in zip(panels, found.items(), strict=True):
        last = max(run.summary["environment_steps"] for runs in by_name.values() for run in runs)
        for name, runs in sorted(by_name.items()):
            runs.sort(key=lambda run: int(run.summary["seed"]))
            needed = [steps_needed(run) for run in runs]
            place = names.index(name)
            reached = [steps for steps in needed if steps is not None]
            style = {"color": COLOURS[task], "linestyle": "none"}
            axes.plot(reached, [place] * len(reached), marker="o", alpha=0.7, **style)
            missed = len(needed) - len(reached)
            axes.plot([1.08 * last] * missed, [place] * missed, marker="x", **style)
            if missed:
                axes.annotate(f"{missed}", (1.12 * last, place), va="center", fontsize=8)
            rows.append(row(task, name, runs, needed))
        axes.set(title=task, xlabel="environment steps to 95 %", xlim=(0, 1.2 * last))
        axes.grid(axis="x", color="#E4E7EB")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.savefig(out, metadata={"Date": None})
    sys.stdout.write("\n".join([*rows, ""]))


def row(task: str, name: str, runs: list[RunRecords], needed: list[int | None]) -> str:
    """One line of the table, a number for each seed."""
    cells = [
        ", ".join(str(run.summary["seed"]) for run in runs),
        ", ".join(f"{steps:,}" if steps else "–" for steps in needed),
        ", ".join(f"{100 * run.summary['bc_success_rate']:.0f}" for run in runs),
        ", ".join(f"{100 * run.summary['rl_success_rate']:.0f}" for run in runs),
    ]
    return f"| {task} | {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
