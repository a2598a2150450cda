"""Cells: a user's robot in one YAML file, with its choices and values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from yaml import MarkedYAMLError

from policies import places
from robot_rl.config.values import ConfigError, flatten, parse
from robot_rl.errors import in_shell
from robot_rl.processes.resources import find_resource
from robot_rl.run import CELL_FILE

_TWICE = "found duplicate key "  # start of a YAML error message


class Cell(NamedTuple):
    """A robot, described by its owner in a file."""

    path: Path  # absolute
    choices: Mapping[str, str]  # choice per named configuration group
    values: Mapping[str, Any]  # configuration values, nested


def own_file(named: str | Path) -> Path:
    """Path of a user's file, or of `cell.yaml` in a folder; `ConfigError` inside robot_rl."""
    path = Path(os.path.expanduser(named)).resolve()
    path = path / CELL_FILE if path.is_dir() else path
    own, code = find_resource("configs"), Path(__file__).resolve().parents[1]
    if path.parent == own.parent or path.is_relative_to(own) or path.is_relative_to(code):
        raise ConfigError(
            f"{path} is inside robot_rl", hint="put it into a folder of its own, such as lab"
        )
    return path


def read_cell(named: str) -> Cell:
    """Read a cell, without loading code from its folder; `ConfigError` if absent or not a cell."""
    path = Path(os.path.expanduser(named)).resolve()
    path = own_file(path) if path.exists() else path
    if not path.is_file():
        hint = f"write one: {in_shell('robot-rl', 'cell', named, 'arm=ur')}"
        raise ConfigError("there is no such cell", got=path, expected="a YAML file", hint=hint)
    try:
        found = OmegaConf.load(path)
        plain = flatten(found) if isinstance(found, DictConfig) else {}
    except Exception as error:  # OSError, or a YAML or OmegaConf error
        if isinstance(error, MarkedYAMLError) and _TWICE in str(error.problem):
            raise _stands_twice(path, error) from error
        problem = " ".join(str(error).split())
        raise ConfigError(f"the cell {path} is no YAML", got=problem) from error
    nested = OmegaConf.create()
    for key, value in plain.items():  # also dotted keys, such as nodes.arm.parameters
        OmegaConf.update(nested, key, value)
    values: dict[str, Any] = OmegaConf.to_container(nested)  # type: ignore[assignment]
    choices = values.pop("choices", {})
    if not plain or not isinstance(choices, dict):
        expected = "a mapping, with `choices: {robot: ur}` and values such as `robot: ...`"
        raise ConfigError(f"{path} is no cell", got=found, expected=expected)
    return Cell(path, {group: str(choice) for group, choice in choices.items()}, values)


def _stands_twice(path: Path, error: MarkedYAMLError) -> ConfigError:
    """Return the error for a key that appears twice in one mapping, with its lines."""
    key, mark = str(error.problem).removeprefix(_TWICE), error.problem_mark
    assert mark is not None
    begin, lines = f"{' ' * mark.column}{key}:", path.read_text(encoding="utf-8").splitlines()
    above = [n for n, line in enumerate(lines[: mark.line], 1) if line.startswith(begin)]
    where = f"lines {above[-1]} and {mark.line + 1}" if above else f"line {mark.line + 1}"
    return ConfigError(f"{key} stands twice in {path}: {where}", hint="delete the first")


def named_cell(overrides: Sequence[str]) -> Cell | None:
    """Read the last cell named in the overrides, if any; its folder joins the registry.

    Code is loaded only from this cell's folder: a run's copy may come from another machine.
    """
    named = [o.value() for o in map(parse, overrides) if o.key_or_group == "cell"][-1:]
    if not named or named[0] is None:
        return None
    cell = read_cell(str(named[0]))
    folder = cell.path.parent
    if (folder / "configs").is_dir() or any(folder.glob("*.py")):
        places.add_folder(str(folder))
    robot = cell.values.get("robot")
    name_environment(robot.get("id") if isinstance(robot, dict) else None)
    return cell


def name_environment(id: object) -> None:
    """Allow the import of a Gymnasium environment's package: the user has named its id."""
    if isinstance(id, str) and (package := re.match(r"[\w.]+(?=[:/])", id)):
        places.add_package(package[0])


def is_task_named(overrides: Sequence[str], cell: Cell | None) -> bool:
    """Whether the overrides or the cell name the task."""
    typed = any(parse(text).key_or_group == "task" for text in overrides)
    return typed or (cell is not None and "task" in cell.choices)
