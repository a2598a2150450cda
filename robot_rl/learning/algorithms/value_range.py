"""The range that returns can have, which back-up values are limited to.

With a reward of 1 at success and 0 before it no return leaves [0, 1], whatever a critic says. What
the rewards are is the task's: `task.value_range` in the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from robot_rl.learning.algorithms.base import AlgorithmError

Range = Sequence[float]


def check_value_range(value_range: Range | None) -> None:
    """Check that a range of returns is one.

    Args:
        value_range: The smallest and the largest; None where nothing is known of them.

    Raises:
        AlgorithmError: It is not two numbers of which the first is smaller.
    """
    if value_range is None:
        return
    given = list(value_range) if isinstance(value_range, Sequence) else [value_range]
    numbers = [value for value in given if type(value) in (int, float)]
    if len(given) == len(numbers) == 2 and numbers[0] < numbers[1]:
        return
    raise AlgorithmError(
        "the range of values is impossible",
        got=given,
        expected="[low, high] with low < high, or null where the returns are not known",
        hint="task.value_range=[0.0,1.0] fits a reward of 1 at success and 0 before it",
    )


def limited(values: Tensor, value_range: Range | None) -> Tensor:
    """Values within the range that returns can have; as they are where it is not known."""
    return values if value_range is None else values.clamp(*value_range)
