"""Benchmarks that print one JSON object: `robot-rl bench NAME` runs the module of that name."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Sequence

from omegaconf import DictConfig

from robot_rl.config import check_value
from robot_rl.processes.machine import describe_machine


def run(config: DictConfig, names: Sequence[str]) -> None:
    """Run the named benchmark and print its result."""
    (name,) = names
    check_value("bench", name, [module.name for module in pkgutil.iter_modules(__path__)])
    machine = describe_machine()  # before the measurement: it records the load
    result = pkgutil.resolve_name(f"{__name__}.{name}:run")(config)
    print(json.dumps({"bench": name, **result, "machine": machine}), flush=True)
