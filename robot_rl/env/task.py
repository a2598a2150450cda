"""What a task owns: where an episode starts, what it adds to the observation, and its end."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Field, Observation


class Task(Protocol):
    """The part of an environment that knows what is to be achieved.

    Attributes:
        name: Recorded with every episode.
        instruction: What the robot is to do in the present episode, in words.
        time_limit_steps: Control steps after which an episode is truncated.
        observation_fields: What `observe` gives.
    """

    name: str
    instruction: str
    time_limit_steps: int
    observation_fields: tuple[Field, ...]

    def reset(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Randomise the scene; returns the TCP pose (7,) to start from, in the base frame."""

    def observe(self) -> Observation:
        """The task's own part of the observation, keyed by `observation_fields`."""

    def succeeded(self) -> bool:
        """Whether the goal is reached now."""
