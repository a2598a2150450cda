"""Progress of `collect` and `train`: a live terminal display, or a line every ten seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress
from rich.table import Table

from robot_rl.errors import printable

RECENT_EPISODES = 20
LOG_INTERVAL_S = 10.0
# "Time left" uses the rate of the last minute, since the stages of a run differ in speed.
_RATE_WINDOW_S = 60.0


def _console(kind: type[Console] = Console, **options: Any) -> Console:
    """Return a console that prints text unchanged: a path may contain [brackets] or :colons:."""
    return kind(highlight=False, markup=False, emoji=False, **options)


class _PlainConsole(Console):
    """Console for untrusted file content, which could contain terminal escape sequences."""

    def print(self, *objects: Any, **options: Any) -> None:
        texts = (printable(each) if isinstance(each, str) else each for each in objects)
        super().print(*texts, **options)


def plain_console() -> Console:
    """Return a console for results: lines of any length, no colours or cursor motion."""
    return _console(_PlainConsole, soft_wrap=True, force_terminal=False)


class WorkProgress:
    """Context manager that shows the progress of a long job.

    A terminal gets a display that is redrawn in place. Elsewhere (CI, a log file) `update` prints a
    plain line about every ten seconds. `label` names what is counted.
    """

    def __init__(
        self, total: int, label: str = "environment steps", *, console: Console | None = None
    ) -> None:
        self._label = label
        self._console = console or _console()
        bar = BarColumn(bar_width=60)
        self._bar = Progress(bar, speed_estimate_period=_RATE_WINDOW_S, get_time=time.monotonic)
        self._bar.add_task("", total=total)
        self._phase = ""
        self._successes: deque[bool] = deque(maxlen=RECENT_EPISODES)
        self._intervened: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._figures: dict[str, str] = {}
        self._printed = ""
        self._next_line = time.monotonic() + LOG_INTERVAL_S
        live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)
        self._live = live if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._print_line()

    def phase(self, name: str) -> None:
        """Set the current phase, for example `cloning` or `online learning`."""
        self._phase = name
        self._print_line_if_due()

    def note(self, text: str) -> None:
        """Print a permanent line, for example the result of an evaluation."""
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def episode(self, success: bool, intervened: float = 0.0) -> None:
        """Add an episode to the figures of the last 20; `intervened` is the operator's fraction."""
        self._successes.append(success)
        self._intervened.append(intervened)

    def update(self, done: int, block: Mapping[str, Any] | None = None) -> None:
        """Report the work done since the job's first start, and the learner's last block.

        The display shows the block's `updates_per_second`, `update_to_data` (None while the learner
        warms up) and `replay_transitions`.
        """
        self._bar.update(self._bar.task_ids[0], completed=done)
        if block is not None:
            ratio = block["update_to_data"]
            self._figures = {
                "updates/s": f"{block['updates_per_second']:.1f}",
                "update-to-data ratio": "none, warming up" if ratio is None else f"{ratio:.2f}",
                "replay transitions": f"{int(block['replay_transitions']):,}",
            }
        self._print_line_if_due()

    def _rows(self) -> dict[str, str]:
        (task,) = self._bar.tasks
        rows = {self._label: f"{task.completed:,} of {task.total:,}"}
        if self._successes:
            count, successes = len(self._successes), sum(self._successes)
            rows[f"success of the last {count} episodes"] = f"{100 * successes / count:.0f} %"
        if any(self._intervened):
            rows["by the operator"] = f"{100 * sum(self._intervened) / len(self._intervened):.0f} %"
        rows |= self._figures
        if (left := task.time_remaining) is not None:
            rows["time left"] = str(timedelta(seconds=left))
        return rows

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, value in self._rows().items():
            table.add_row(name, value)
        return Group(self._phase or self._label, self._bar, table)

    def _print_line_if_due(self) -> None:
        if self._live is None and time.monotonic() >= self._next_line:
            self._print_line()

    def _print_line(self) -> None:
        parts = [f"{name} {value}" for name, value in self._rows().items()]
        line = " | ".join([self._phase, *parts] if self._phase else parts)
        if line != self._printed:
            self._console.print(line, soft_wrap=True, markup=False, emoji=False)
            self._console.file.flush()
        self._printed = line
        self._next_line = time.monotonic() + LOG_INTERVAL_S
