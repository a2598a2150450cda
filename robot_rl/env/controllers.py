"""Who decides in the one loop where no policy does, and what stands around another who does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from robot_rl.data.rows import Active, Conclusion, Decision, Executed, Instructions, Seen, Slots
from robot_rl.data.schema import LAST_COMMAND
from robot_rl.env.intervention import action_of_motion
from robot_rl.env.robot import gripper_columns
from robot_rl.env.rollout import Controller
from robot_rl.env.task import Expert

_Wrapped = TypeVar("_Wrapped", bound=Controller)


class ExpertDecision(NamedTuple):
    """What the expert decided for the one slot; see `robot_rl.data.rows.Decision`."""

    action: npt.NDArray[np.float32]
    base_action: npt.NDArray[np.float32]
    chunk_index: npt.NDArray[np.int16]
    version: npt.NDArray[np.int64]
    base_alone: npt.NDArray[np.bool_]
    features: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, action: npt.NDArray[np.float32]) -> ExpertDecision:
        """An action (1, d) without any policy behind it."""
        one = np.zeros(1, np.int64)
        index, base_alone = one.astype(np.int16), one.astype(bool)
        return cls(action, np.zeros_like(action), index, one, base_alone, features={})


class ExpertController:
    """Lets a scripted expert decide in the one environment whose true state it sees.

    Args:
        expert: The expert; it knows the goal without an instruction.
    """

    def __init__(self, expert: Expert) -> None:
        self._expert = expert
        self._rng = np.random.default_rng(0)

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Begin an episode."""
        self._rng = np.random.default_rng(seeds[0])
        self._expert.reset(self._rng)

    def act(self, observation: Seen, active: Active = None) -> ExpertDecision:
        """Decide from the true state; the observation is not needed."""
        return ExpertDecision.of(self._expert.act(self._rng)[None])

    def conclude(self, observation: Seen, active: Active = None) -> ExpertDecision:
        """Nothing: an expert has no base."""
        return ExpertDecision.of(np.zeros_like(observation[LAST_COMMAND]))

    def observe_override(self, executed: Executed, slots: Slots = None) -> None:
        """Nothing: an expert looks at the true state anew at every step."""


class IdleController:
    """Keeps arms where they are and grippers as told last: all that happens a person does.

    Args:
        action_names: Columns of the action.
    """

    def __init__(self, action_names: Sequence[str]) -> None:
        self._names = tuple(action_names)

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Nothing: what was told last is in the observation."""

    def act(self, observation: Seen, active: Active = None) -> ExpertDecision:
        """Hold still."""
        return self.conclude(observation, active)

    def conclude(self, observation: Seen, active: Active = None) -> ExpertDecision:
        """There is no base."""
        grippers = observation[LAST_COMMAND][0, gripper_columns(self._names)]
        return ExpertDecision.of(action_of_motion(self._names, np.zeros(6), grippers)[None])

    def observe_override(self, executed: Executed, slots: Slots = None) -> None:
        """Nothing: what was told last is in the observation."""


class ControllerWrapper(Generic[_Wrapped]):
    """Lets another controller decide; what is different, a subclass says.

    Args:
        controller: The other; see `robot_rl.env.rollout.Controller`.
    """

    def __init__(self, controller: _Wrapped) -> None:
        self._controller = controller

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Begin the other's episodes."""
        self._controller.reset(slots, seeds=seeds, instructions=instructions)

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide as the other does."""
        return self._controller.act(observation, active)

    def conclude(self, observation: Seen, active: Active = None) -> Conclusion:
        """What the other concludes."""
        return self._controller.conclude(observation, active)

    def observe_override(self, executed: Executed, slots: Slots = None) -> None:
        """Let the other hear of it."""
        self._controller.observe_override(executed, slots)
