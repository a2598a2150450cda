"""Parse overrides such as `seed=3`, and check keys, types and values."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from robot_rl.errors import RobotRLError, did_you_mean, printable
from robot_rl.run import POLICIES

# Keys with a fixed set of values.
VALUES = {
    "clock": ("stepped", "realtime"),
    "device": ("auto", "cpu", "cuda"),
    "evaluation.policy": POLICIES,
    "proof.score": ("success", "return"),
}
_SEEDS = ("seed", "evaluation.seed", "evaluation.final_seed", "proof.seed")
_SEEDS_END = 1 << 31  # first seed of the training episodes
# Keys whose value is a path: any text, unparsed, or `null` for none.
PATHS = (
    *("artifacts", "cell", "dataset", "resume", "run", "runs_directory", "replay.keys"),
    *("classifier.test", "console.certificate", "console.model", "console.token_file"),
    *("policy.path", "policy.tokenizer", "reward.source.path", "robot.model"),
    *("teleop.device.path", "teleop.device.port"),
)
NOT_GIVEN = "not given"


class ConfigError(RobotRLError):
    """An override, file or run configuration that cannot be used."""


@functools.cache  # each is parsed several times: for the cell, the task and the value
def parse(text: str) -> Override:
    """Parse an override in Hydra's grammar; values of `PATHS` keys are not parsed.

    `ConfigError` unless it sets exactly one value.
    """
    key, equals, value = text.partition("=")
    if equals and key in PATHS:
        return given(key, None if value == "null" else check_path(value))
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, equals, value = text.partition("=") if "=" in text else ("key", "=", "value")
        raise ConfigError(
            f"the override {text!r} cannot be read",
            got=" ".join(str(error).split()),
            expected="key=value",
            hint="put a value that holds spaces, = or , in two pairs of quotes:"
            f" \"{key}{equals}'{value}'\"",
        ) from error
    if override.is_sweep_override():
        raise ConfigError(
            f"the override {text!r} gives several values",
            expected="one value: a command makes one run",
            hint="give the command once for each value",
        )
    return override


def given(key: str, value: Any) -> Override:
    """Return an override with this value; text may contain any characters."""
    line = f"{key}={value}"
    return Override(OverrideType.CHANGE, key, ValueType.ELEMENT, value, input_line=line)


def check_path(path: str | Path) -> str:
    """Return a path as text; `ConfigError` if a configuration file cannot store it."""
    if "${" in (text := str(path)) or text == "???":
        problem = "a path must not hold ${ or be ???, which configuration files read otherwise"
        raise ConfigError(problem, got=text, hint="rename that folder or file")
    return text


def check_value(
    key: str, value: object, valid: Sequence[str], searched: str = "", further: str = ""
) -> None:
    """Raise `ConfigError`, with the nearest valid value, if a value is not valid.

    `searched` names other places that were searched, `further` what else the user can do.
    """
    if value not in valid:
        raise ConfigError(
            f"unknown {key} {value!r}",
            got=f"{key}={value}{searched and f' ({searched})'}",
            expected=f"one of {', '.join(valid)}",
            hint="; ".join(filter(None, (did_you_mean(str(value), valid, f"{key}="), further)))
            or None,
        )


def check_values(config: DictConfig) -> None:
    """Raise `ConfigError` for an option, seed or path that its key does not accept."""
    flat = flatten(config)
    for key, value in flat.items():
        if (found := printable(text := f"{key}: {value}")) != text:
            raise ConfigError("a value has control characters", got=found)
    for key in VALUES.keys() & flat.keys():  # a run of another version may lack some
        check_value(key, flat[key], VALUES[key])
    for key in _SEEDS:
        seed, expected = OmegaConf.select(config, key), f"0 to {_SEEDS_END - 1}"
        if seed is not None and (type(seed) is not int or not 0 <= seed < _SEEDS_END):
            raise ConfigError(f"{key} is out of range", got=seed, expected=expected)
    for key in PATHS:
        if not isinstance(path := OmegaConf.select(config, key), str | None):
            raise ConfigError(f"{key} is no path", got=path, expected="a path, or null")


def check_types(config: DictConfig, made: DictConfig) -> None:
    """Raise `ConfigError` if a value of a run has another type than in the composed `made`."""
    defaults, values = (OmegaConf.to_container(each) for each in (made, config))
    assert isinstance(defaults, dict)
    assert isinstance(values, dict)
    for key, value in values.items():
        of_same_type(str(key), defaults.get(key), value)
    for arm, own in values.get("arms", {}).items():
        whole = defaults["arms"].get(arm) or defaults
        try:
            for key, value in of_same_type(arm, {}, own).items():
                of_same_type(key, whole.get(key), value)
        except ConfigError as error:
            raise ConfigError(f"arms.{arm}: {error}") from error


def check_key(key: str, value: object, defaults: Mapping[str, Any]) -> Any:
    """Return the default of a dotted key; `ConfigError`, with the valid names, if unknown."""
    level: Any = defaults
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(level, Mapping) or part not in level:
            above = ".".join(parts[:depth])
            names = sorted(level) if isinstance(level, Mapping) else []
            below = f"below {above}, " if above else ""
            raise ConfigError(
                f"unknown key {key!r}",
                got=part if names else f"{above} is one value and has no parts",
                expected=f"{below}one of {', '.join(names)}" if names else None,
                hint=did_you_mean(part, names, above and f"{above}."),
            )
        level = level[part]
    if isinstance(value, Mapping) and isinstance(level, Mapping):
        for name, item in value.items():
            check_key(f"{key}.{name}", item, defaults)
    return level


def of_same_type(key: str, default: Any, value: Any) -> Any:
    """Return a value in its default's type, int as float; `ConfigError` for another type."""
    if default in (None, "???", NOT_GIVEN) or (value is None and key.startswith("nodes.")):
        return value
    if isinstance(value, str) and ("${" in value or value == "???"):
        return value  # from a cell: references are resolved later
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        return {k: of_same_type(f"{key}.{k}", default.get(k), v) for k, v in value.items()}
    if isinstance(default, list) and isinstance(value, list):
        if value == default:
            return default  # its items may have several types
        first = default[0] if len({type(item) for item in default}) == 1 else None
        return [of_same_type(f"{key}[{i}]", first, item) for i, item in enumerate(value)]
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is type(default):
        return value
    composite = isinstance(default, Mapping | list)
    hint = "robot-rl train --help all says what each setting means"
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
    return {dict: "mapping", type(None): "null"}.get(type(value), type(value).__name__)


def flatten(config: DictConfig | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration's values by dotted key; a list is one value."""
    plain = OmegaConf.to_container(config) if isinstance(config, DictConfig) else config
    flat: dict[str, Any] = {}
    for key, value in dict(plain).items():  # type: ignore[arg-type]
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
