"""Overrides such as `task=reach`: read them, and answer a mistake with what would be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from robot_rl.errors import RobotRLError, nearest


class ConfigError(RobotRLError):
    """An override, a configuration file or a run's configuration that cannot be used."""


def parse(text: str) -> Override:
    """Read an override in Hydra's grammar, such as `task=reach` or `algorithm.scale=0.3`.

    Raises:
        ConfigError: It does not parse, or gives several values.
    """
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            f"the override {text!r} cannot be read",
            got=" ".join(str(error).split()),
            expected="key=value",
            hint=f"put a value that holds spaces, = or , in two pairs of quotes: {_quoted(text)}",
        ) from error
    if override.is_sweep_override():
        raise ConfigError(
            f"the override {text!r} gives several values",
            expected="one value",
            hint="start one run for each value",
        )
    return override


def _quoted(text: str) -> str:
    key, equal, value = text.partition("=")
    return f"\"{key}='{value}'\"" if equal else "\"key='value'\""


def text_of(override: Override) -> str:
    """The override as it was typed."""
    return str(override.input_line)


def check_choice(override: Override, choices: tuple[str, ...]) -> None:
    """Check that a group's override names one of its choices.

    Raises:
        ConfigError: It does not; the error suggests the nearest one.
    """
    if not override.is_delete():
        check_value(override.key_or_group, override.value(), choices)


def check_value(key: str, value: object, valid: Sequence[str]) -> None:
    """Check that a value is one of those that are valid.

    Raises:
        ConfigError: It is not; the error suggests the nearest one.
    """
    if value not in valid:
        raise ConfigError(
            f"unknown {key} {value!r}",
            got=f"{key}={value}",
            expected=f"one of {', '.join(valid)}",
            hint=f"did you mean {key}={nearest(str(value), valid)}?",
        )


def check_least(config: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Check that numbers are large enough.

    Args:
        config: The configuration.
        least: The least that each may be, by dotted key.

    Raises:
        ConfigError: Names the first that is not, what it is and what it may be.
    """
    for key, bound in least.items():
        value: Any = config
        for part in key.split("."):
            value = value[part]
        if value < bound:
            raise ConfigError(f"{key} is out of range", got=value, expected=f">= {bound}")


def check_key(key: str, value: object, defaults: Mapping[str, Any]) -> None:
    """Check that a dotted key is in the configuration.

    Raises:
        ConfigError: It is not; the error names the valid ones where it leaves the configuration.
    """
    level: Any = defaults
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(level, Mapping) or part not in level:
            above = ".".join(parts[:depth])
            names = sorted(level) if isinstance(level, Mapping) else []
            close = nearest(part, names)
            suggestion = ".".join([*parts[:depth], close or ""])
            raise ConfigError(
                f"unknown override {key!r}",
                got=part if names else f"{above} is one value and has no parts",
                expected=f"{f'below {above}, ' if above else ''}one of {', '.join(names)}"
                if names
                else None,
                hint=f"did you mean {suggestion}?" if close else None,
            )
        level = level[part]
    if isinstance(value, Mapping) and isinstance(level, Mapping):
        for name, item in value.items():
            check_key(f"{key}.{name}", item, defaults)


def keep_type(key: str, defaults: Mapping[str, Any], resolved: dict[str, Any]) -> None:
    """Check that an overridden value has its default's type; whole numbers serve as float.

    Args:
        key: The dotted key that was overridden.
        defaults: Values without the override.
        resolved: Values with it; a whole number that serves as float is made one here.

    Raises:
        ConfigError: It has another type.
    """
    *path, last = key.split(".")
    old: Any = defaults
    new: Any = resolved
    for part in path:
        old = old.get(part) if isinstance(old, Mapping) else None
        new = new.get(part) if isinstance(new, dict) else None
    if isinstance(old, Mapping) and last in old and isinstance(new, dict) and last in new:
        new[last] = _of_same_type(key, old[last], new[last])


def _of_same_type(key: str, default: Any, value: Any) -> Any:
    if default is None or default == "???":
        return value
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        return {k: _of_same_type(f"{key}.{k}", default.get(k), v) for k, v in value.items()}
    if isinstance(default, list) and isinstance(value, list):
        same = len({type(item) for item in default}) == 1
        first = default[0] if same else None
        return [_of_same_type(f"{key}[{i}]", first, item) for i, item in enumerate(value)]
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is type(default):
        return value
    composite = isinstance(default, Mapping | list)
    hint = None
    if type(default) is int and isinstance(value, float) and value.is_integer():
        hint = f"write {key}={int(value)}"
    elif isinstance(default, str) and value is not None:
        hint = f"put it in two pairs of quotes: \"{key}='{value}'\""
    raise ConfigError(
        f"{key} has another type than its default",
        got=f"{'null' if value is None else value} ({_type_name(value)})",
        expected=_type_name(default) + ("" if composite else f", as in {key}={default}"),
        hint=hint,
    )


def _type_name(value: object) -> str:
    names = {dict: "mapping", type(None): "null"}
    return names.get(type(value), type(value).__name__)
