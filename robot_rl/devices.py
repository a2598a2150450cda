"""Make drivers and other configured objects from the `_target_` in their configuration.

This is the only place that turns a dotted name into an object, so that no module of robot_rl has to
import a driver by name.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from robot_rl.errors import RobotRLError


class DeviceError(RobotRLError):
    """A `_target_` that does not exist, or arguments that it does not take."""


def make(config: Mapping[str, Any], **arguments: Any) -> Any:
    """Call the class or function that `config["_target_"]` names with the other keys as arguments.

    Nested mappings that have a `_target_` of their own are made first. Lists are passed as lists.

    Args:
        config: A mapping (a plain dict or a Hydra node) with `_target_`, a dotted name such as
            `drivers.arm.sim.SimArm`, and keyword arguments.
        **arguments: Further keyword arguments; they replace those of the configuration.

    Returns:
        What the target returns.

    Raises:
        DeviceError: No `_target_`, a name that cannot be imported, or arguments that the target
            does not take or misses.
    """
    plain = _plain(config)
    if not isinstance(plain, dict) or "_target_" not in plain:
        raise DeviceError(
            "a configuration cannot be made into an object",
            got=sorted(plain) if isinstance(plain, dict) else plain,
            expected="a key `_target_` with the dotted name of a class or function",
        )
    target_name = plain.pop("_target_")
    target = _locate(target_name)
    values = {**{name: _made(value) for name, value in plain.items()}, **arguments}
    _check_arguments(target_name, target, values)
    return target(**values)


def takes(config: Mapping[str, Any], argument: str) -> bool:
    """Whether what `config["_target_"]` names has a parameter of this name.

    Raises:
        DeviceError: The name cannot be imported.
    """
    return argument in inspect.signature(_locate(config.get("_target_"))).parameters


def argument(config: Mapping[str, Any], name: str) -> Any:
    """The value of an argument of what `config["_target_"]` names, given or by default, or None.

    Raises:
        DeviceError: The name cannot be imported.
    """
    parameters = inspect.signature(_locate(config.get("_target_"))).parameters
    defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
    return config.get(name, defaults.get(name))


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


def _locate(name: Any) -> Callable[..., Any]:
    """Import the object behind a dotted name."""
    module_name, dot, attribute = str(name).rpartition(".")
    if not dot:
        raise DeviceError(
            "a `_target_` is not a dotted name", got=name, expected="package.module.Class"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing dependency of an existing driver is another problem than a wrong name.
        ours = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        raise DeviceError(
            f"the `_target_` {name!r} cannot be imported",
            got=f"no module named {error.name!r}",
            hint="check the spelling in the configuration"
            if ours
            else f"install the package that provides {error.name!r}",
        ) from error
    target = getattr(module, attribute, None)
    if not callable(target):
        public = [n for n, item in vars(module).items() if callable(item) and n[0] != "_"]
        raise DeviceError(
            f"module {module_name!r} has no class or function {attribute!r}",
            got=name,
            hint=_nearest(attribute, public) or "check the spelling in the configuration",
        )
    found: Callable[..., Any] = target
    return found


def _check_arguments(name: str, target: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Name the arguments that do not fit, before the call hides them in a traceback."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # a class of a compiled module; its own error is all there is
    parameters = signature.parameters.values()
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if open_ended else [key for key in values if key not in accepted]
    if unknown:
        raise DeviceError(
            f"{name} takes no argument {unknown[0]!r}",
            got=sorted(values),
            expected=accepted,
            hint=_nearest(unknown[0], accepted),
        )
    try:
        signature.bind(**values)
    except TypeError as error:
        raise DeviceError(
            f"{name}: {error}", got=sorted(values), expected=accepted, hint="add it to its config"
        ) from error


def _nearest(name: str, choices: list[str]) -> str | None:
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)
    return f"did you mean {close[0]!r}?" if close else None
