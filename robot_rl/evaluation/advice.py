"""Advice that fits a run: a robot or an algorithm takes only some of all settings."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from omegaconf import DictConfig

_OR = "; or "  # between several ways
_SETTING = re.compile(
    r"(?<![\w/.])(?:([a-z_]+(?:\.[a-z_]+)*)=|([a-z_]+(?:\.[a-z_]+)+\*?)(?![\w/]|\.\w))"
)


def settings_named(words: str, config: DictConfig) -> list[str]:
    """Keys of a configuration that a text names: with a dot in them, or with = behind them."""
    found = (one or other for one, other in _SETTING.findall(words))
    return [key for key in found if "." not in key or key.split(".")[0] in config]


def has_setting(config: DictConfig, key: str) -> bool:
    """Whether a configuration has a key; a `*` at its end stands for any rest of a name."""
    *sections, name = key.split(".")
    node: Any = config
    for section in sections:
        node = node.get(section) if isinstance(node, DictConfig) else None
    names = list(node) if isinstance(node, DictConfig) else []
    return any(fnmatchcase(str(each), name) for each in names)


def possible(advice: str, config: DictConfig) -> str:
    """Of the ways that an advice gives, those whose settings a configuration has."""
    ways = advice.split(_OR)
    return _OR.join(
        w for w in ways if all(has_setting(config, k) for k in settings_named(w, config))
    )
