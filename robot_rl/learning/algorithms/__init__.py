"""One module for each algorithm, their shared parts, and `make_algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies import registry
from policies.behaviour import Behaviour
from robot_rl.config.sections import Settings
from robot_rl.learning.algorithms.base import Algorithm, AlgorithmError
from robot_rl.learning.algorithms.generative import Generative


def check_algorithm(settings: Settings) -> None:
    """Check the configured algorithm without making it: before a policy is cloned for it.

    Raises:
        AlgorithmError: Names the setting that is out of range, or a policy that it cannot improve.
    """
    registry.try_parts(settings.algorithm, Algorithm)
    if improves_clone(settings.algorithm) and "process" not in settings.policy:
        raise AlgorithmError(
            f"algorithm={settings.choices['algorithm']} improves a generative policy",
            got=f"policy={settings.choices['policy']}",
            hint="choose policy=diffusion or policy=flow, or algorithm=residual",
        )


def improves_clone(algorithm: Mapping[str, Any]) -> bool:
    """Whether the algorithm of a configuration improves the cloned policy itself."""
    return issubclass(registry.find_class(algorithm["_target_"], Algorithm), Generative)


def make_algorithm(config: Mapping[str, Any], cloned: Behaviour, seed: int) -> Algorithm:
    """Make the algorithm that the configuration's `algorithm` describes.

    Every algorithm takes `base`, the cloned policy, and the `seed` of weights and draws. One that
    treats an action column by its name takes `action_names` too.

    Raises:
        AlgorithmError: The algorithm does not fit the policy, or the task's action.
    """
    arguments: dict[str, Any] = {"base": cloned.policy, "seed": seed}
    if registry.takes(config, Algorithm, "action_names"):
        arguments["action_names"] = cloned.interface.action_names
    return registry.make(config, Algorithm, **arguments)
