"""Charts of a run as inline SVG, in colours that colour-blind readers tell apart.

Lines differ in dash and marker as well as in colour, so that a print in grey can be read.
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

# Okabe and Ito's palette: distinct under the common colour-vision deficiencies.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#5F6B76"
_CYCLE = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"))
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
    """One line of a chart; `y` may hold NaN where a value is unknown."""

    label: str
    x: Numbers
    y: Numbers


@dataclass(frozen=True)
class Learning:
    """What the learning curve shows; all x in environment steps, all rates in [0, 1].

    Attributes:
        steps: Evaluations' environment steps.
        rates: Their success rates.
        lows: Lower interval bounds.
        highs: Upper interval bounds.
        baseline: Success rate of the cloned policy, or None.
        training: Success of the training episodes, rolling.
        confirmed: Steps at which the threshold was reached and confirmed, or None.
        threshold: Success rate that counts as solved.
        final: Final evaluation: steps, rate, lower and upper bound; or None.
    """

    steps: Numbers
    rates: Numbers
    lows: Numbers
    highs: Numbers
    baseline: float | None
    training: Series | None
    confirmed: int | None
    threshold: float = 0.97
    final: tuple[float, float, float, float] | None = None


def learning_curve(data: Learning, *, width: float, height: float) -> str:
    """Draw success against environment steps; sizes in inches."""
    with _figure("Success rate against environment steps", width, height) as (axes, svg):
        if data.training is not None and len(data.training.x):
            axes.plot(
                data.training.x,
                data.training.y,
                color=GREY,
                linewidth=1.0,
                alpha=0.7,
                label=data.training.label,
            )
        if len(data.steps):
            axes.fill_between(
                data.steps, data.lows, data.highs, color=BLUE, alpha=0.16, linewidth=0
            )
            axes.plot(
                data.steps, data.rates, color=BLUE, marker="o", markersize=4, label="evaluation"
            )
        if data.baseline is not None:
            axes.axhline(
                data.baseline, color=ORANGE, linestyle="--", linewidth=1.5, label="cloned policy"
            )
        axes.axhline(data.threshold, color=GREEN, linestyle=":", linewidth=1.3)
        axes.annotate(
            f"{data.threshold:.0%}",
            (1.0, data.threshold),
            xycoords=("axes fraction", "data"),
            xytext=(2, 0),
            textcoords="offset points",
            color=GREEN,
            fontsize=8.5,
            va="center",
        )
        if data.final is not None:
            _final_point(axes, data.final)
        if data.confirmed is not None:
            axes.axvline(data.confirmed, color=GREEN, linestyle=":", linewidth=1.3)
            axes.plot([], [], color=GREEN, linestyle=":", label=f"{data.threshold:.0%} confirmed")
        axes.set_ylim(-0.02, 1.03)
        axes.set_xlim(left=0)
        axes.set_yticks(np.arange(0, 1.01, 0.2))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        _finish(axes, "success rate", columns=2 if width < 5 else 5)
    return svg.text


def _final_point(axes: Axes, final: tuple[float, float, float, float]) -> None:
    steps, rate, low, high = final
    axes.errorbar(
        [steps],
        [rate],
        yerr=[[rate - low], [high - rate]],
        color="#102A43",
        marker="D",
        markersize=5.5,
        capsize=3,
        linewidth=1.3,
        linestyle="none",
        label="final evaluation",
        zorder=5,
    )


def line_chart(title: str, series: Sequence[Series], *, stop: float, unit: str = "") -> str:
    """Draw one small chart of lines against environment steps, from 0 to `stop`."""
    with _figure(title, 3.75, 2.35) as (axes, svg):
        for line, (color, dash) in zip(series, _cycle(len(series)), strict=True):
            marker = "o" if len(line.x) < 3 else ""
            axes.plot(line.x, line.y, color=color, linestyle=dash, marker=marker, label=line.label)
        values: npt.NDArray[np.float64] = np.concatenate([np.asarray(s.y, float) for s in series])
        finite = values[np.isfinite(values)]
        if len(finite) and np.ptp(finite) < 1e-9 * max(1.0, float(np.abs(finite).max())):
            # A constant: matplotlib would magnify rounding errors to the height of the chart.
            centre = float(finite[0])
            margin = 0.5 * max(abs(centre), 0.1)
            axes.set_ylim(centre - margin, centre + margin)
        axes.set_xlim(0, max(1.0, 1.02 * stop))
        _finish(axes, unit, columns=2 if len(series) > 1 else 0)
    return svg.text


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values at each position; fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(stop - window, 0)
    means: npt.NDArray[np.float64] = (sums[stop] - sums[start]) / (stop - start)
    return [float(mean) for mean in means]


@dataclass
class _Drawing:
    text: str = ""


@contextmanager
def _figure(title: str, width: float, height: float) -> Iterator[tuple[Axes, _Drawing]]:
    drawing = _Drawing()
    # The salt makes the identifiers of several drawings in one page differ, and repeatable.
    salt = f"{title} {width}"
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.add_subplot(), drawing
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawing.text = _inline(buffer.getvalue(), title)


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


def _cycle(count: int) -> list[tuple[str, str]]:
    return [_CYCLE[i % len(_CYCLE)] for i in range(count)]


def _inline(svg: str, title: str) -> str:
    """Strip what only a file of its own needs, and name the drawing for screen readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
