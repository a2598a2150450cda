"""Ids of the simulated tasks for `gymnasium.make`: `robot_rl/PegInsert-v0` is `task=peg_insert`.

Importing this takes no time: Gymnasium, the configuration and MuJoCo come when they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robot_rl.env.robot_env import RobotEnv

_GYMNASIUM = "gymnasium.envs.registration"
# Tasks of other people's Gymnasium environments, which have ids of their own.
_NOT_SIMULATED = ("gym", "gym_hil")


def make(task: str, overrides: Sequence[str] = ()) -> RobotEnv:
    """Make the environment of a task by its name: what `gymnasium.make` calls.

    `overrides` are of the configuration, such as `observation=pixels`; see `make_env`.
    """
    from robot_rl.config import compose
    from robot_rl.env.factory import make_env

    return make_env(compose([f"task={task}", *overrides]))


def tasks() -> dict[str, str]:
    """Return the id of each simulated task, those of the user's own folders included."""
    from policies import registry
    from robot_rl.processes.resources import find_resource

    places = (find_resource("configs"), *registry.config_folders())
    names = [path.stem for place in places for path in sorted(place.glob("task/[!_]*.yaml"))]
    simulated = (name for name in names if name not in _NOT_SIMULATED)
    return {name: f"robot_rl/{name.title().replace('_', '')}-v0" for name in simulated}


def register_when_gymnasium_is_there() -> None:
    """Register the ids now, or when Gymnasium is imported: importing it here takes 0.3 s."""
    if _GYMNASIUM in sys.modules:
        _register(sys.modules[_GYMNASIUM])
    else:
        sys.meta_path.insert(0, _Gymnasium())


class _Gymnasium:
    """Finds the module with Gymnasium's registry, once, and registers the ids when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; all other modules are left to the next finder."""
        if name != _GYMNASIUM:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register(module)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def _register(registration: ModuleType) -> None:
    for name, identifier in tasks().items():
        made_by = "robot_rl.env.ids:make"
        registration.register(identifier, entry_point=made_by, kwargs={"task": name})
