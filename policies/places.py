"""Where code comes from: robot_rl's own packages, plug-ins, and the user's folders.

`ROBOT_RL_PATH` lists those folders; `--config-dir` and a cell on the command line add to it. A run
or checkpoint never adds code, because it may come from another machine. Plug-ins and folders share
one layout: Python modules, and `configs/` with files for robot_rl's config groups.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

from policies.errors import RobotRLError

PATH_VARIABLE = "ROBOT_RL_PATH"
"""The user's folders, separated as in PATH; child processes inherit it."""

PACKAGES_VARIABLE = "ROBOT_RL_PACKAGES"
"""Installed packages with environments, named by the user; child processes inherit it."""

ENTRY_POINTS = "robot_rl.plugins"
EXTRAS = "robot_rl.extras"
OWN_PACKAGES = ("robot_rl", "policies", "drivers")


class RegistryError(RobotRLError):
    """A name that is not in the registry, or arguments that its class does not take."""


def folders() -> tuple[Path, ...]:
    """Return the folders of `ROBOT_RL_PATH` as absolute paths.

    Raises:
        RegistryError: A folder is missing, or has neither modules nor `configs/`.
    """
    named = [text for text in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if text]
    found: dict[Path, None] = {}
    for folder in (Path(text).expanduser().resolve() for text in named):
        # FOLDER/configs means FOLDER.
        inner = folder.name == "configs" and not (folder / "configs").is_dir()
        found[folder.parent if inner else folder] = None
    for folder in found:
        if not (folder / "configs").is_dir() and not any(folder.glob("*.py")):
            raise RegistryError(
                "this is no folder of your own: it has neither configs/ nor Python modules"
                if folder.is_dir()
                else "a folder of your own is not there",
                got=str(folder),
                hint=f"correct --config-dir or {PATH_VARIABLE}: see examples/1_task",
            )
    return tuple(found)


def add_folder(folder: str) -> None:
    """Prepend a folder to `ROBOT_RL_PATH`, for this process and its children.

    Raises:
        RegistryError: It is missing, or has neither modules nor `configs/`.
    """
    before = os.environ.get(PATH_VARIABLE, "")
    os.environ[PATH_VARIABLE] = f"{folder}{os.pathsep}{before}"
    # Absolute, because a child may run in another folder.
    os.environ[PATH_VARIABLE] = os.pathsep.join(str(each) for each in folders())


def add_package(name: str) -> None:
    """Allow this process and its children to import environments of an installed package."""
    known = [each for each in os.environ.get(PACKAGES_VARIABLE, "").split(os.pathsep) if each]
    os.environ[PACKAGES_VARIABLE] = os.pathsep.join(dict.fromkeys([*known, name.partition(".")[0]]))


def may_import(name: str) -> bool:
    """Whether a module is in the registry or in a package added with `add_package`."""
    named = os.environ.get(PACKAGES_VARIABLE, "").split(os.pathsep)
    return is_registered(name) or name.partition(".")[0] in named


def config_folders() -> tuple[Path, ...]:
    """Return the `configs/` folders of plug-ins and of `ROBOT_RL_PATH`."""
    specs = [importlib.util.find_spec(name) for name in plugin_packages()]
    places = [Path(p) for s in specs if s is not None for p in s.submodule_search_locations or ()]
    return tuple(each / "configs" for each in (*folders(), *places) if (each / "configs").is_dir())


@functools.cache
def plugin_packages() -> tuple[str, ...]:
    """Return the plug-in packages: robot_rl's own extras, then those from entry points."""
    from importlib.metadata import entry_points  # late: slow to import

    extras = importlib.util.find_spec(EXTRAS)
    places = extras.submodule_search_locations if extras is not None else None
    own = sorted(f"{EXTRAS}.{each.name}" for each in pkgutil.iter_modules(places or []))
    others = {each.module.partition(".")[0] for each in entry_points(group=ENTRY_POINTS)}
    return (*own, *sorted(others))


def make_importable(module_name: str) -> Path | None:
    """Make a module in a user folder importable; return that folder."""
    root = module_name.partition(".")[0]
    folder = None if root in OWN_PACKAGES else _own_folder(root)
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that it hides no other module
    return folder


def _own_folder(root: str) -> Path | None:
    """Return the folder of `ROBOT_RL_PATH` that has this module or package."""
    own = (f for f in folders() if (f / f"{root}.py").is_file() or (f / root).is_dir())
    return next(own, None)


def is_registered(name: str) -> bool:
    """Whether a dotted name is in robot_rl, a plug-in or a user folder."""
    root = name.partition(".")[0]
    return root in OWN_PACKAGES or _own_folder(root) is not None or root in plugin_packages()


def imported(name: str, module_name: str) -> Any:
    """Import the module of a dotted name.

    Raises:
        RegistryError: It is not in the registry or cannot be imported.
    """
    root = module_name.partition(".")[0]
    if not is_registered(module_name):
        own = ", ".join(map(str, folders())) or "none"
        others = ", ".join(each for each in plugin_packages() if "." not in each) or "none"
        raise RegistryError(
            f"{name!r} is not in the registry",
            got=f"a module {root!r} of no known place",
            expected=f"a module of {', '.join(OWN_PACKAGES)}, of a plug-in ({others}),"
            f" or in a folder of {PATH_VARIABLE} ({own})",
            hint=f"name the folder with {root}.py: {PATH_VARIABLE}=FOLDER, --config-dir FOLDER, or"
            " in Python robot_rl.add_folder(FOLDER)",
        )
    folder = make_importable(module_name)
    try:
        module = importlib.import_module(module_name)
    except RobotRLError:
        raise
    except Exception as error:  # user code may raise anything
        got, hint = repr(error), "fix that module, or install what it imports"
        if isinstance(error, ModuleNotFoundError):
            # Either the module itself or a package that it imports is missing.
            ours = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
            got, install = f"no module named {error.name!r}", "install the package that provides"
            hint = "check the spelling" if ours else f"{install} {error.name!r}"
        raise RegistryError(f"{name!r} cannot be imported", got=got, hint=hint) from error
    if folder is not None:
        _check_not_hidden(root, folder)
    return module


def _check_not_hidden(root: str, folder: Path) -> None:
    """Check that the imported module is the user's, not another one of the same name."""
    spec = sys.modules[root].__spec__
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if not any(place and Path(place).resolve().is_relative_to(folder) for place in places):
        raise RegistryError(
            f"the module {root!r} of {folder} is hidden by another of that name",
            got=places[0] if places else "a module without a file",
            hint="rename yours",
        )
