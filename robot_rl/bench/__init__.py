"""Measurements that print one JSON object: `robot-rl bench NAME`, of a module here each."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Sequence

from omegaconf import DictConfig

from robot_rl.config import check_value
from robot_rl.processes.machine import describe_machine


def run(config: DictConfig, names: Sequence[str]) -> None:
    """Measure what the one name says, and print the result."""
    (name,) = names
    check_value("bench", name, [module.name for module in pkgutil.iter_modules(__path__)])
    machine = describe_machine()  # before the measurement, as it notes the load
    result = pkgutil.resolve_name(f"{__name__}.{name}:run")(config)
    print(json.dumps({"bench": name, **result, "machine": machine}), flush=True)
