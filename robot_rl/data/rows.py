"""Builds the rows of an episode. This is the only place where a step becomes a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import (
    ACTION_FIELDS,
    LAST_COMMAND,
    SCALAR_FIELDS,
    SOURCE_INTERVENTION,
    SOURCE_POLICY,
    Observation,
    Row,
    RowSchema,
)

if TYPE_CHECKING:
    from policies.runner import Conclusion, Decision

# For parallel episodes (slots): selected slots (None: all), their instructions, observations
# name → (slots, ...), which slots are active, and actions (slots given, d).
Slots = Sequence[int] | None
Instructions = Sequence[str] | None
Seen = Mapping[str, npt.NDArray[Any]]
Active = npt.NDArray[np.bool_] | None
_FIXED = {field.name for field in SCALAR_FIELDS} | {*ACTION_FIELDS} - {LAST_COMMAND}


class RowBuilder:
    """Makes the rows of one data source, a `SOURCE_…` code.

    A policy's steps with an operator's intervention are `SOURCE_INTERVENTION`.
    """

    def __init__(self, schema: RowSchema, source: int) -> None:
        self._schema = schema
        self._source = np.uint8(source)
        self._zeros: Row = {
            f.name: np.zeros(f.shape, f.dtype)[()] for f in schema.fields if f.name in _FIXED
        }

    def step(
        self,
        observation: Observation,
        stamp_observation: int,
        episode_step: int,
        decision: Decision,
        slot: int,
        outcome: tuple[float, bool, bool],
        info: Mapping[str, Any],
    ) -> Row:
        """Return the row of one action.

        Args:
            observation: Observation before the action.
            stamp_observation: Its time [ns].
            episode_step: Steps since the reset.
            decision: Decision for all slots.
            slot: Slot of this row.
            outcome: Reward, terminated, truncated.
            info: The environment's after the action; `intervened` if an operator acted instead.
        """
        reward, terminated, truncated = outcome
        # A demonstration's operator does not override a policy: that action is the intended one.
        by_hand = bool(info.get("intervened", False))
        intervened = by_hand and self._source == SOURCE_POLICY
        intended = decision.action[slot] if intervened or not by_hand else info["executed_action"]
        source = np.uint8(SOURCE_INTERVENTION) if intervened else self._source
        return {
            **observation,
            **{name: values[slot] for name, values in decision.features.items()},
            **self._fixed(episode_step, stamp_observation),
            "action": info["executed_action"],
            "policy_action": intended,
            "base_action": decision.base_action[slot],
            "chunk_index": decision.chunk_index[slot],
            "policy_version": decision.version[slot],
            "base_alone": decision.base_alone[slot],
            "noiseless": decision.noiseless[slot],
            "reward": np.float32(reward),
            "terminated": np.bool_(terminated),
            "truncated": np.bool_(truncated),
            "success": np.bool_(info["success"]),
            "clamped": np.bool_(info["clamped"]),
            "intervened": np.bool_(intervened),
            "source": source,
            "reward_version": np.int32(info.get("reward_version", 0)),
            "stamp_action": np.int64(info["stamp_action"]),
        }

    def last(
        self,
        observation: Observation,
        stamp_observation: int,
        episode_step: int,
        conclusion: Conclusion,
        slot: int,
    ) -> Row:
        """Return the row of an episode's final observation, with the conclusion for `slot`."""
        return {
            **observation,
            **{name: values[slot] for name, values in conclusion.features.items()},
            **self._fixed(episode_step, stamp_observation),
            "is_last": np.True_,
            "base_action": conclusion.base_action[slot],
        }

    def _fixed(self, episode_step: int, stamp_observation: int) -> Row:
        """Columns that every schema has: zero, except those known before the action."""
        return {
            **self._zeros,
            "source": self._source,
            "episode_step": np.int32(episode_step),
            "stamp_observation": np.int64(stamp_observation),
        }
