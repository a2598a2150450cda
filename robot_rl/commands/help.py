"""The help pages of `robot-rl`, 80 columns wide: what a key means is its comment in the YAML."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robot_rl.commands.table import Command

_WIDTH, _COLUMN = 80, 32


def overview(commands: Mapping[str, Command]) -> str:
    """Say what each command does, in a line each."""
    lines = ["robot-rl COMMAND [key=value ...]", ""]
    for name, command in commands.items():
        lines += _entry(" ".join((name, *command.positionals)), command.summary)
    return "\n".join([*lines, "", "robot-rl COMMAND --help says more. Start with: robot-rl train"])


def page(name: str, command: Command, words: Sequence[str], names: Sequence[str]) -> str:
    """Say what a command does, and what may follow it.

    The values are those with the overrides among the words that were typed, of which `all` shows
    every key; `names` may stand for its first argument.
    """
    settings = " [key=value ...]" if command.takes_overrides or command.options else ""
    lines = [" ".join(("robot-rl", name, *command.positionals)) + settings, ""]
    lines += textwrap.wrap(f"{command.summary} {command.details}", _WIDTH)
    if names:
        lines += ["", *textwrap.wrap(f"NAME is one of {', '.join(names)}.", _WIDTH)]
    lines += [""] if settings else []
    for option in command.options:
        choices = f"{' or '.join(option.choices)}: " if option.choices else ""
        lines += _entry(f"{option.name}={option.default or ''}", choices + option.summary)
    if command.takes_overrides:
        for key, value, meaning in _settings(command, words):
            lines += _entry(f"{key}={value}", meaning)
        if "all" not in words:
            lines += ["", f"robot-rl {name} --help all shows every key."]
    return "\n".join(lines)


def _settings(command: Command, words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Keys of the configuration with their values and meanings."""
    # Late: Hydra takes a moment.
    from robot_rl.config import choice_file, compose, flatten, group_choices
    from robot_rl.processes.resources import find_resource

    config, groups = compose([word for word in words if "=" in word]), group_choices()
    values = {k: v for k, v in flatten(config).items() if not k.startswith("choices.")}
    meanings = _meanings(find_resource("configs") / "config.yaml", "")
    for group in groups:
        file = choice_file(group, str(config.choices[group]))
        meanings |= _meanings(file, group) if file is not None else {}
    for key in [*groups, *values] if "all" in words else command.keys.split():
        place = command.short.get(key, key)
        value, meaning = config.choices.get(key), meanings.get(place, "")
        if key in groups:
            others = ", ".join(choice for choice in groups[key] if choice != value)
            meaning = f"{meaning.partition('. ')[0].rstrip('.')}. Or: {others or 'nothing else'}."
        else:
            # As it is typed: null, true, [a,b].
            value = json.dumps(values[place], separators=(",", ":")).replace('"', "")
        yield key, value, meaning


def _meanings(file: Path, group: str) -> dict[str, str]:
    """What a file's comments, and those it builds on, say of its group and its keys.

    Those of the group are at its top, those of a key above or beside it.
    """
    from robot_rl.config import choice_file

    lines = file.read_text(encoding="utf-8").splitlines()
    top = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    everywhere = "# @package _global_" in top
    found: dict[str, str] = {}
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in lines[len(top) :]:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if text.startswith("#"):
            above.append(text.strip("# "))
            continue
        if key := re.match(r"([\w.]+):(?:\s|$)", text):
            path = [*(part for part in path if part[0] < indent), (indent, key[1])]
            names = [name for _, name in path]
            beside = text.partition(" # ")[2].strip()
            place = ".".join(names if everywhere or not group else [group, *names])
            found[place] = beside or " ".join(above)
        elif path[-1:] == [(0, "defaults")] and (part := re.fullmatch(r"- ((?!_self_)\w+)", text)):
            built_on = choice_file(group, part[1])
            found |= _meanings(built_on, group) if built_on is not None else {}
        above = []
    return found | {group: " ".join(line.strip("# ") for line in top if "@package" not in line)}


def _entry(left: str, right: str) -> list[str]:
    """A key in the left column, and what it means beside it or, where it is long, below it."""
    begin, below = f"  {left}".ljust(_COLUMN), " " * _COLUMN
    key = textwrap.wrap(left, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(left) > _COLUMN - 4:
        return [*key, *textwrap.wrap(right, _WIDTH, initial_indent=below, subsequent_indent=below)]
    return textwrap.wrap(right, _WIDTH, initial_indent=begin, subsequent_indent=below) or key
