"""The one registry: what a configuration or a checkpoint may name, and how it is made.

A name is the dotted path of a class or function, such as `policies.diffusion.create`. It is looked
up in robot_rl's own packages, in the packages of the entry points `robot_rl.plugins`, and in the
folders of `ROBOT_RL_PATH`, and nowhere else: neither a checkpoint nor the configuration of a run
can name `os.system`. A plug-in and a folder are laid out alike: Python modules, and `configs/` with
files for the groups of robot_rl's own. This module loads nothing until a name asks for it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from policies.errors import RobotRLError, did_you_mean

PATH_VARIABLE = "ROBOT_RL_PATH"
"""Folders of the user's own, separated as in PATH; child processes inherit it."""

ENTRY_POINTS = "robot_rl.plugins"
OWN_PACKAGES = ("robot_rl", "policies", "drivers")
CLASS = "class"
"""The key that names the class of a part which is made later, by what it is a part of."""

T = TypeVar("T")


class RegistryError(RobotRLError):
    """A name that is not in the registry, or arguments that do not fit what it names."""


def folders() -> tuple[Path, ...]:
    """Return the folders of `ROBOT_RL_PATH`, absolute.

    Raises:
        RegistryError: One of them is not there, or has nothing of use in it.
    """
    named = [text for text in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if text]
    found: dict[Path, None] = {}
    for folder in (Path(text).expanduser().resolve() for text in named):
        # Also the `configs` in a folder of the user's own stands for that folder.
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
    """Put a folder in front of `ROBOT_RL_PATH`, for this process and those that it starts.

    Raises:
        RegistryError: It is not there, or has nothing of use in it.
    """
    before = os.environ.get(PATH_VARIABLE)
    os.environ[PATH_VARIABLE] = os.pathsep.join([folder, *([before] if before else [])])
    # Absolute: a child may work in another folder.
    os.environ[PATH_VARIABLE] = os.pathsep.join(str(each) for each in folders())


def config_folders() -> tuple[Path, ...]:
    """Return the `configs/` folders of plug-ins and of `ROBOT_RL_PATH`."""
    specs = [importlib.util.find_spec(name) for name in _plugins()]
    places = [Path(p) for s in specs if s is not None for p in s.submodule_search_locations or ()]
    return tuple(each / "configs" for each in (*folders(), *places) if (each / "configs").is_dir())


def find(name: object) -> Callable[..., Any]:
    """Return the class or function of a dotted name.

    Raises:
        RegistryError: It is not in the registry, or cannot be imported.
    """
    module_name, dot, attribute = str(name).rpartition(".")
    if not dot:
        raise RegistryError("a class is not named in full", got=name, expected="module.Class")
    module = _imported(str(name), module_name)
    target = getattr(module, attribute, None)
    if not _is_ours(target):
        own = [n for n, each in vars(module).items() if n[0] != "_" and _is_ours(each)]
        raise RegistryError(
            f"module {module_name!r} has no class or function {attribute!r}",
            got=name,
            hint=did_you_mean(attribute, own) or "check the spelling",
        )
    return cast("Callable[..., Any]", target)


def find_class(name: object, family: type[T]) -> type[T]:
    """Return the class of a dotted name, which must be a subclass of `family`.

    Raises:
        RegistryError: As `find`, or it is another thing.
    """
    found = find(name)
    if isinstance(found, type) and issubclass(found, family):
        return found
    raise RegistryError(
        f"{name} is no {family.__name__}",
        expected=f"a subclass of {family.__module__}.{family.__qualname__}",
    )


def name_of(made: type) -> str:
    """Return the name under which `find` finds a class.

    Raises:
        RegistryError: It would not: nobody could read what is saved under this name.
    """
    name = f"{made.__module__}.{made.__qualname__}"
    if find(name) is not made:
        raise RegistryError("another class has this name", got=name)
    return name


def make(config: Mapping[str, Any], **arguments: Any) -> Any:
    """Call what `config["_target_"]` names with the other keys as arguments.

    The configuration is a plain dict or a Hydra node. Nested mappings that have a `_target_` of
    their own are made first. Lists are passed as lists. Further arguments replace those of the
    configuration.

    Raises:
        RegistryError: No `_target_`, as `find`, or arguments that the target does not take or
            misses.
    """
    plain = _plain(config)
    if not isinstance(plain, dict) or "_target_" not in plain:
        raise RegistryError(
            "a configuration cannot be made into an object",
            got=sorted(plain) if isinstance(plain, dict) else plain,
            expected="a key `_target_` with the dotted name of a class or function",
        )
    name = plain.pop("_target_")
    return _called(name, find(name), {**{k: _made(v) for k, v in plain.items()}, **arguments})


def build(family: type[T], config: Mapping[str, Any], **arguments: Any) -> T:
    """Make a part, such as a denoiser: the class that `config["class"]` names, with its options.

    It must be a subclass of `family`. The arguments are what a part is told by what it is part of.

    Raises:
        RegistryError: As `find`, or options that the class does not take.
    """
    options = dict(config)
    name = options.pop(CLASS, None)
    made: T = _called(str(name), find_class(name, family), {**options, **arguments})
    return made


def takes(config: Mapping[str, Any], argument: str) -> bool:
    """Whether what `config["_target_"]` names has a parameter of this name."""
    return argument in inspect.signature(find(config.get("_target_"))).parameters


def check_arguments(config: Mapping[str, Any]) -> None:
    """Check that what `config["_target_"]` names takes the other keys; nothing is made.

    Raises:
        RegistryError: As `find`, or it, or a part in it with a `_target_`, does not.
    """
    name, values = config.get("_target_"), {k: v for k, v in config.items() if k != "_target_"}
    _checked_signature(str(name), find(name), values)
    for value in values.values():
        if isinstance(value, Mapping) and "_target_" in value:
            check_arguments(value)


@functools.cache
def _plugins() -> tuple[str, ...]:
    """Names of the packages that the entry points name."""
    from importlib.metadata import entry_points  # late: it takes a moment

    found = entry_points(group=ENTRY_POINTS)
    return tuple(sorted({each.module.partition(".")[0] for each in found}))


def make_importable(module_name: str) -> Path | None:
    """Let a module in a folder of the user's own be imported by its name; returns that folder."""
    root = module_name.partition(".")[0]
    folder = None if root in OWN_PACKAGES else _own_folder(root)
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: it hides no module that is there already
    return folder


def _own_folder(root: str) -> Path | None:
    """The folder of `ROBOT_RL_PATH` that has this module or package."""
    own = (f for f in folders() if (f / f"{root}.py").is_file() or (f / root).is_dir())
    return next(own, None)


def _is_registered(module_name: str) -> bool:
    root = module_name.partition(".")[0]
    return root in OWN_PACKAGES or _own_folder(root) is not None or root in _plugins()


def _is_ours(target: Any) -> bool:
    """Whether the registry's own code defines it: `my_task.Popen`, merely imported, is no task."""
    return callable(target) and _is_registered(str(getattr(target, "__module__", "")))


def _imported(name: str, module_name: str) -> Any:
    root = module_name.partition(".")[0]
    if not _is_registered(module_name):
        own, plugins = (", ".join(map(str, each)) or "none" for each in (folders(), _plugins()))
        raise RegistryError(
            f"{name!r} is not in the registry",
            got=f"a module {root!r} that nobody has added",
            expected=f"a module of {', '.join(OWN_PACKAGES)}, of a plug-in ({plugins}),"
            f" or in a folder of {PATH_VARIABLE} ({own})",
            hint=f"name the folder with {root}.py: {PATH_VARIABLE}=FOLDER, or --config-dir FOLDER",
        )
    folder = make_importable(module_name)
    try:
        module = importlib.import_module(module_name)
    except RobotRLError:
        raise
    except Exception as error:  # whatever the code of a user's own module does
        got, hint = repr(error), "mend that module, or install what it imports"
        if isinstance(error, ModuleNotFoundError):
            # A missing dependency of an existing module is another problem than a wrong name.
            ours = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
            got, install = f"no module named {error.name!r}", "install the package that provides"
            hint = "check the spelling" if ours else f"{install} {error.name!r}"
        raise RegistryError(f"{name!r} cannot be imported", got=got, hint=hint) from error
    if folder is not None:
        _check_not_hidden(root, folder)
    return module


def _check_not_hidden(root: str, folder: Path) -> None:
    """Check that a module of the user's is the one that was imported under its name."""
    spec = sys.modules[root].__spec__
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if not any(place and Path(place).resolve().is_relative_to(folder) for place in places):
        raise RegistryError(
            f"the module {root!r} of {folder} is hidden by another of that name",
            got=places[0] if places else "a module without a file",
            hint="rename yours",
        )


def _plain(config: Any) -> Any:
    """Turn a Hydra node into dicts and lists; importing Hydra is left to who uses it."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(config):
        return omegaconf.OmegaConf.to_container(config, resolve=True)
    return dict(config) if isinstance(config, Mapping) else config


def _made(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return make(value)
        return {name: _made(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_made(item) for item in value]
    return value


def _checked_signature(
    name: str, target: Callable[..., Any], values: Mapping[str, Any]
) -> inspect.Signature | None:
    """The arguments that it takes, if it says so; `RegistryError` where it does not take these."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if open_ended else [key for key in values if key not in accepted]
    if unknown:
        raise RegistryError(
            f"{name} takes no argument {unknown[0]!r}",
            got=sorted(values),
            expected=accepted,
            hint=did_you_mean(unknown[0], accepted),
        )
    return signature


def _called(name: str, target: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call it, but say what does not fit before the call hides that in a traceback."""
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    if missing:
        raise RegistryError(
            f"the class {name} is not complete", hint=f"give it a method {', '.join(missing)}"
        )
    signature = _checked_signature(name, target, values)
    if signature is None:
        return target(**values)  # a class of a compiled module; its own error is all there is
    accepted = list(signature.parameters)
    try:
        signature.bind(**values)
    except TypeError as error:
        raise RegistryError(
            f"{name}: {error}", got=sorted(values), expected=accepted, hint="add it to its config"
        ) from error
    return target(**values)
