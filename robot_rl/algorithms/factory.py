"""From a configuration and a cloned policy to an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.behaviour import Behaviour
from robot_rl import devices
from robot_rl.algorithms.base import Algorithm


def make_algorithm(config: Mapping[str, Any], cloned: Behaviour, seed: int) -> Algorithm:
    """Make the algorithm that `config` describes.

    Every algorithm takes `base`, the cloned policy, and `seed`. One that treats an action column
    by its name takes `action_names` too.

    Args:
        config: The configuration's `algorithm`.
        cloned: The cloned policy and what it was made for.
        seed: Seed of weights and draws.

    Raises:
        AlgorithmError: The algorithm does not fit the task's action.
    """
    arguments: dict[str, Any] = {"base": cloned.policy, "seed": seed}
    if devices.takes(config, "action_names"):
        arguments["action_names"] = cloned.interface.action_names
    algorithm: Algorithm = devices.make(config, **arguments)
    return algorithm
