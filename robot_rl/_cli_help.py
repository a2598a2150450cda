"""The help pages of `robot-rl`, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from robot_rl.stages.table import Stage


def print_overview(stages: Mapping[str, Stage]) -> None:
    """Print the stages with a line each."""
    console = Console(highlight=False)
    _print(console, "robot-rl STAGE [key=value ...]\n")
    table = _table("stage", "what it does")
    for name, stage in stages.items():
        table.add_row(" ".join((name, *stage.arguments)), stage.summary)
    console.print(table)
    _print(console, "robot-rl STAGE --help lists choices and defaults. Start with: robot-rl train")


def print_stage(
    name: str, stage: Stage, overrides: Sequence[str], bench_names: Sequence[str]
) -> None:
    """Print what a stage does, the choices of each group, and every value with its default.

    Args:
        name: The stage's word.
        stage: Its description.
        overrides: Choices already typed; the values shown are those with them.
        bench_names: The names that may follow `bench`.

    Raises:
        ConfigError: An override that is not valid.
    """
    console = Console(highlight=False)
    words = ["robot-rl", name, *stage.arguments]
    if stage.takes_overrides or stage.options:
        words.append("[key=value ...]")
    _print(console, " ".join(words))
    _print(console, f"\n{stage.summary} {stage.details}\n")
    if bench_names:
        _print(console, f"NAME is one of {', '.join(bench_names)}.\n")
    if stage.options:
        _print_options(console, stage)
    if not stage.takes_overrides:
        return
    if stage.run_key is not None:
        last = f"; default {stage.default_run}" if stage.default_run else ""
        _print(
            console,
            f"{stage.run_key}=RUN takes a run directory or `latest`{last}. That run's own"
            " configuration is then used in place of the defaults below.\n",
        )
    # Hydra takes a moment to import: only here.
    from robot_rl.config import compose, flatten, group_choices

    config = compose(overrides)
    choices = group_choices()
    groups = _table("group", "choices (* is used if not given)")
    for group, names in choices.items():
        used = config.choices.get(group)
        groups.add_row(group, ", ".join(f"{c}*" if c == used else c for c in names))
    console.print(groups)
    flat = flatten(config)
    sections: dict[str, list[str]] = {"": []}
    for key in flat:
        if key.startswith("choices."):
            continue
        head = key.partition(".")[0]
        sections.setdefault(head if head in choices else "", []).append(key)
    values = _table("key", "default")
    for keys in sections.values():
        for key in keys:
            values.add_row(key, "null" if flat[key] is None else str(flat[key]))
        values.add_section()
    console.print(values)


def _print_options(console: Console, stage: Stage) -> None:
    table = _table("key", "choices (* is used if not given)")
    for option in stage.options:
        values = ", ".join(f"{c}*" if c == option.default else c for c in option.choices)
        table.add_row(option.name, f"{values or 'any'}: {option.summary}")
    console.print(table)


def _table(left: str, right: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(left, overflow="fold", no_wrap=True, max_width=46)
    table.add_column(right, overflow="fold")
    return table


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False)
