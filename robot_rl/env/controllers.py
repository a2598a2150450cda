"""Controllers without a policy: a scripted expert, or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from policies.runner import Conclusion, Decision
from robot_rl.data.rows import Active, Instructions, Seen, Slots
from robot_rl.data.schema import LAST_COMMAND
from robot_rl.env.intervention import action_of_motion
from robot_rl.env.robot import gripper_columns
from robot_rl.env.task import Expert


def decided(action: npt.NDArray[np.float32]) -> Decision:
    """Wrap an action (1, d) as a decision without a policy."""
    zero = np.zeros(1, np.int64)
    return Decision(
        base_action=np.zeros_like(action),
        features={},
        action=action,
        chunk_index=zero.astype(np.int16),
        version=zero,
        base_alone=zero.astype(bool),
        noiseless=zero.astype(bool),
    )


class _WithoutPolicy:
    """Decides one step at a time in one environment, without a base policy."""

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        pass

    def conclude(self, observation: Seen, active: Active = None) -> Conclusion:
        return Conclusion(np.zeros_like(observation[LAST_COMMAND]), {})

    def observe_override(self, slots: Slots = None) -> None:
        pass


class ExpertController(_WithoutPolicy):
    """Runs a scripted expert in the one environment whose true state it reads."""

    def __init__(self, expert: Expert) -> None:
        self._expert = expert
        self._rng = np.random.default_rng(0)

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Start an episode."""
        self._rng = np.random.default_rng(seeds[0])
        self._expert.reset(self._rng)

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide from the true state; the observation is not needed."""
        return decided(self._expert.act(self._rng)[None])


class IdleController(_WithoutPolicy):
    """Holds arms in place and grippers at their last command; a person does the rest."""

    def __init__(self, action_names: Sequence[str]) -> None:
        self._names = tuple(action_names)

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Hold still."""
        grippers = observation[LAST_COMMAND][0, gripper_columns(self._names)]
        return decided(action_of_motion(self._names, None, grippers)[None])
