"""The configuration of a command: composed by Hydra, checked, then read by typed sections."""

from robot_rl.config.cells import Cell, is_task_named, named_cell, own_file, read_cell
from robot_rl.config.composition import (
    changed_settings,
    check_missing,
    compose,
    composed,
    file_defaults,
    group_choices,
    missing_keys,
    on_stepped_clock,
)
from robot_rl.config.sections import Settings, section
from robot_rl.config.values import (
    NOT_GIVEN,
    PATHS,
    ConfigError,
    check_types,
    check_value,
    check_values,
    flatten,
    given,
    parse,
)

__all__ = [
    "NOT_GIVEN",
    "PATHS",
    "Cell",
    "ConfigError",
    "Settings",
    "changed_settings",
    "check_missing",
    "check_types",
    "check_value",
    "check_values",
    "compose",
    "composed",
    "file_defaults",
    "flatten",
    "given",
    "group_choices",
    "is_task_named",
    "missing_keys",
    "named_cell",
    "on_stepped_clock",
    "own_file",
    "parse",
    "read_cell",
    "section",
]
