"""Charts of a run as inline SVG, in a palette for colour-blind readers.

Lines differ in dash and marker as well as in colour, so that greyscale prints stay readable.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from robot_rl.evaluation.statistics import THRESHOLD, EvaluationResult

# Okabe-Ito palette: distinct under the common colour-vision deficiencies.
BLUE, ORANGE, GREEN, _ = _COLORS = ["#0072B2", "#D55E00", "#009E73", "#AA4499"]
GREY, _INK = "#5F6B76", "#102A43"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.edgecolor": "#9AA5B1",
    "axes.labelcolor": "#3E4C59",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E7EB",
    "grid.linewidth": 0.8,
    "xtick.color": "#52606D",
    "ytick.color": "#52606D",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}

Numbers = Sequence[float]


@dataclass(frozen=True)
class Series:
    """One line of a chart; NaN in `y` marks an unknown value."""

    label: str
    x: Numbers
    y: Numbers


def learning_curve(
    evaluations: Sequence[EvaluationResult],
    training: Series,
    confirmed: int | None,
    cloned: EvaluationResult | None,
    final: EvaluationResult | None,
    deployed: Series,
) -> str:
    """Plot success rate against environment steps.

    Args:
        evaluations: Periodic evaluations of the learned policy.
        training: Rolling success rate of the training episodes.
        confirmed: Steps at which the threshold was reached and confirmed, or None.
        cloned: The last evaluation of the cloned policy, if any.
        final: The last evaluation of the learned policy, shown if it is final.
        deployed: Success rate of the deployed policy at each of these evaluations; empty if the
            learned policy was always deployed.
    """
    with _figure("Success rate against environment steps", 9.6, 3.7) as (axes, svg):
        style: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "alpha": 0.7}
        axes.plot(training.x, training.y, label=training.label, **style)
        steps = [e.environment_steps for e in evaluations]
        lows = [e.confidence_low for e in evaluations]
        highs = [e.confidence_high for e in evaluations]
        rates = [e.success_rate for e in evaluations]
        axes.fill_between(steps, lows, highs, color=BLUE, alpha=0.16, linewidth=0)
        axes.plot(steps, rates, color=BLUE, marker="o", markersize=4, label="learned")
        if deployed.x:
            style = {"color": _INK, "linestyle": "-.", "linewidth": 1.4, "drawstyle": "steps-post"}
            axes.plot(deployed.x, deployed.y, label=deployed.label, **style)
        if cloned is not None:
            axes.axhline(cloned.success_rate, color=ORANGE, linestyle="--", label="cloned policy")
        dotted: dict[str, Any] = {"color": GREEN, "linestyle": ":", "linewidth": 1.3}
        axes.axhline(THRESHOLD, **dotted, label=f"{THRESHOLD:.0%}")
        if confirmed is not None:
            axes.axvline(confirmed, **dotted)
        if final is not None and final.seed_set == "final":
            rate, low, high = final.success_rate, final.confidence_low, final.confidence_high
            point: dict[str, Any] = {"color": _INK, "marker": "D", "linestyle": "none"}
            error = [[rate - low], [high - rate]]
            place = [final.environment_steps]
            axes.errorbar(place, [rate], yerr=error, capsize=3, label="learned, final", **point)
        axes.set_ylim(-0.02, 1.03)
        axes.set_xlim(left=0)
        axes.set_yticks(np.arange(0, 1.01, 0.2))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        _finish(axes, "success rate", columns=7)
    return svg[0]


def line_chart(title: str, series: Sequence[Series], *, stop: float, unit: str = "") -> str:
    """Draw one small line chart against environment steps, from 0 to `stop`."""
    with _figure(title, 3.75, 2.35) as (axes, svg):
        axes.set_prop_cycle(color=_COLORS, linestyle=["-", "--", "-.", ":"])
        for line in series:
            axes.plot(line.x, line.y, marker="o" if len(line.x) < 3 else "", label=line.label)
        values: npt.NDArray[np.float64] = np.concatenate([np.asarray(s.y, float) for s in series])
        finite = values[np.isfinite(values)]
        if len(finite) and np.ptp(finite) < 1e-9 * max(1.0, float(np.abs(finite).max())):
            # Constant data: matplotlib would scale rounding errors to the full height of the chart.
            centre = float(finite[0])
            margin = 0.5 * max(abs(centre), 0.1)
            axes.set_ylim(centre - margin, centre + margin)
        axes.set_xlim(0, max(1.0, 1.02 * stop))
        _finish(axes, unit, columns=2 if len(series) > 1 else 0)
    return svg[0]


@contextmanager
def _figure(title: str, width: float, height: float) -> Iterator[tuple[Axes, list[str]]]:
    """Yield axes to draw on, and a list that holds the SVG after the context ends."""
    drawing: list[str] = []
    # The salt keeps identifiers reproducible, and unique among the charts of a page.
    salt = f"{title} {width}"
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.add_subplot(), drawing
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # Strip what only a standalone file needs, and add a label for screen readers.
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    drawing.append(svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1))


def _finish(axes: Axes, y_label: str, *, columns: int) -> None:
    axes.set_xlabel("environment steps")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if columns:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=columns,
            fontsize=8.5,
            borderaxespad=0.2,
            handlelength=1.8,
            columnspacing=1.4,
        )
