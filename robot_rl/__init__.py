"""Real-world robot reinforcement learning: environments, replay, algorithms and evaluation.

What a notebook or another program may rely on is listed here and explained in docs/api.md; all else
is private. Each name is loaded when it is asked for, so that importing robot_rl loads little more
than Gymnasium. It also gives the simulated tasks their ids for `gymnasium.make`:
`robot_rl/PegInsert-v0` is `task=peg_insert`.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

import gymnasium

from policies import places
from robot_rl.errors import RobotRLError
from robot_rl.processes.resources import find_resource

if TYPE_CHECKING:
    from robot_rl.commands.api import *

__version__: str  # see `__getattr__`

# Tasks of other people's Gymnasium environments, which have ids of their own.
_NOT_SIMULATED = ("gym", "gym_hil")

__all__ = [
    "Episode",
    "Field",
    "LoadedPolicy",
    "ReplayClient",
    "RobotRLError",
    "RowSchema",
    "SampleSpec",
    "__version__",
    "add_folder",
    "blank_row",
    "compare_results",
    "exact_interval",
    "interval_over_runs",
    "load_policy",
    "open_sampler",
    "read_episodes",
    "row_schema",
    "serve_replay",
]


def __getattr__(name: str) -> object:
    """Load the interface, or read the version, when one of its names is asked for."""
    if name == "__version__":
        from robot_rl.processes.machine import package_version  # late: it needs psutil

        return package_version("robot_rl")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("robot_rl.commands.api"), name)


def _register_tasks() -> None:
    for folder in (find_resource("configs"), *places.config_folders()):
        for name in (path.stem for path in sorted(folder.glob("task/[!_]*.yaml"))):
            if name not in _NOT_SIMULATED:
                gymnasium.register(
                    f"robot_rl/{name.title().replace('_', '')}-v0",
                    entry_point="robot_rl.env.factory:make_task",
                    kwargs={"task": name},
                )


try:
    _register_tasks()
except RobotRLError as problem:  # who asks for a configuration is told so, too
    warnings.warn(f"no task has an id for gymnasium.make: {problem}", stacklevel=2)
