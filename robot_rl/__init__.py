"""Real-world robot reinforcement learning: environments, replay, algorithms and evaluation.

What a notebook or another program may rely on is listed here and explained in docs/api.md; all else
is private. Each name is loaded when it is asked for, so that importing robot_rl takes no time. It
also gives the simulated tasks their ids for `gymnasium.make`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from robot_rl.env.ids import register_when_gymnasium_is_there

if TYPE_CHECKING:
    from robot_rl.commands.api import *

__all__ = [
    "Episode",
    "Field",
    "LoadedPolicy",
    "ReplayClient",
    "RobotRLError",
    "RowSchema",
    "SampleSpec",
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
    """Load the interface when one of its names is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("robot_rl.commands.api"), name)


register_when_gymnasium_is_there()
