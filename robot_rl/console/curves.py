"""Success and interventions over a run, from the records that its processes write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robot_rl.evaluation.records import read_run
from robot_rl.run import RunDirectory

# Training episodes that are averaged for one point of a curve.
WINDOW_EPISODES = 20
_MOST_POINTS = 400

Curve = list[tuple[float, float]]


def read_curves(run: RunDirectory) -> dict[str, Any]:
    """Read what the console draws.

    Returns:
        `evaluations`: [environment steps, success rate, its 95 % interval's ends] of each;
        `success` and `interventions`: [environment steps, mean over the last `WINDOW_EPISODES`
        training episodes] of whether an episode succeeded and of the share of its steps that the
        operator took; `episodes`: how many training episodes there are.
    """
    records = read_run(run.path)
    evaluations = [
        [e.environment_steps, e.success_rate, e.confidence_low, e.confidence_high]
        for e in records.periodic()
    ]
    steps = [float(record["environment_steps"]) for record in records.episodes]
    success = [float(record["success"]) for record in records.episodes]
    shares = [
        float(record["intervened_steps"]) / max(1, int(record["length"]))
        for record in records.episodes
    ]
    return {
        "evaluations": evaluations,
        "success": running_mean(steps, success),
        "interventions": running_mean(steps, shares),
        "episodes": len(records.episodes),
        "window": WINDOW_EPISODES,
    }


def running_mean(
    x: Sequence[float], values: Sequence[float], window: int = WINDOW_EPISODES
) -> Curve:
    """The mean of the last `window` values at each x, at no more points than a chart shows."""
    points: Curve = []
    total = 0.0
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        points.append((x[index], total / min(index + 1, window)))
    every = -(-len(points) // _MOST_POINTS) if points else 1
    return points[::-1][::every][::-1]
