"""The learning algorithms, one module each, their shared parts, and `make_algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies import registry
from policies.behaviour import Behaviour
from robot_rl.config.sections import Settings
from robot_rl.learning.algorithms.base import Algorithm, AlgorithmError
from robot_rl.learning.algorithms.generative import Generative


def check_algorithm(settings: Settings) -> None:
    """Check the configured algorithm without creating it, before a policy is cloned for it.

    Raises:
        AlgorithmError: A setting is out of range, or the algorithm cannot improve this policy.
    """
    registry.try_parts(settings.algorithm, Algorithm)
    if improves_clone(settings.algorithm) and "process" not in settings.policy:
        raise AlgorithmError(
            f"algorithm={settings.choices['algorithm']} improves a generative policy",
            got=f"policy={settings.choices['policy']}",
            hint="choose policy=diffusion or policy=flow, or algorithm=residual",
        )


def improves_clone(algorithm: Mapping[str, Any]) -> bool:
    """Return whether the configured algorithm improves the cloned policy itself."""
    return issubclass(registry.find_class(algorithm["_target_"], Algorithm), Generative)


def make_algorithm(config: Mapping[str, Any], cloned: Behaviour, seed: int) -> Algorithm:
    """Create the algorithm configured under `algorithm`.

    Every algorithm takes `base`, the cloned policy, and the `seed` of weights and draws. Algorithms
    that treat an action column by name also take `action_names`.

    Raises:
        AlgorithmError: The algorithm does not fit the policy or the task's action.
    """
    arguments: dict[str, Any] = {"base": cloned.policy, "seed": seed}
    if registry.takes(config, Algorithm, "action_names"):
        arguments["action_names"] = cloned.interface.action_names
    return registry.make(config, Algorithm, **arguments)
