"""How the episodes of the learned policy do beside those of the cloned one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from robot_rl.data.schema import SOURCE_INTERVENTION
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.sampler import SampleSpec

_LATEST = 20  # learned episodes that count
_LEAST = 5  # before they say anything
_BATCH = 1024
_FIELDS = ("success", "policy_version", "episode_step")
Score = tuple[float, float]


class Standing:
    """Counts each online episode of a run once, from its store.

    Episodes in which an operator acted say nothing of a policy and are left out. An episode's
    score is whether it succeeded, then its return: where no task tells success, the return decides.

    Args:
        bench: The workbench of the stage that learns.
    """

    def __init__(self, bench: Workbench) -> None:
        spec = SampleSpec(
            _FIELDS, _BATCH, demonstration_share=0.0, next_fields=(), order="episodes"
        )
        self._rows = bench.sampler(spec)
        self._cloned: list[Score] = []
        self._learned: deque[Score] = deque(maxlen=_LATEST)

    @property
    def proved(self) -> bool:
        """Whether the latest learned episodes were at least as good as the cloned policy's."""
        enough = len(self._learned) >= _LEAST and len(self._cloned) > 0
        return enough and _mean(self._learned) >= _mean(self._cloned)

    @property
    def metrics(self) -> dict[str, float]:
        """Share of the counted episodes that succeeded, for each of the two that has any."""
        both = {"cloned_success": self._cloned, "learned_success": self._learned}
        return {name: _mean(scores)[0] for name, scores in both.items() if scores}

    def count(self, steps: int) -> None:
        """Take in the episodes that ended within the first `steps` environment steps."""
        self._rows.show(steps)
        parts = []
        for batch in self._rows.batches(math.ceil(self._rows.left / _BATCH)):
            names = (*_FIELDS, "reward", "source")
            parts.append({name: batch[name][batch["drawn"]] for name in names})
        if not parts:
            return
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        begins = np.flatnonzero(np.diff(columns["episode_step"]) <= 0) + 1
        for rows in np.split(np.arange(len(columns["reward"])), begins):
            if (columns["source"][rows] == SOURCE_INTERVENTION).any():
                continue
            of_clone = columns["policy_version"][rows[0]] == 0
            score = float(columns["success"][rows].any()), float(columns["reward"][rows].sum())
            (self._cloned if of_clone else self._learned).append(score)

    def state_dict(self) -> dict[str, Any]:
        """What was counted, as JSON."""
        counted = {"cloned": list(self._cloned), "learned": list(self._learned)}
        return {**counted, "sampler": self._rows.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._cloned = [cast("Score", tuple(score)) for score in state["cloned"]]
        self._learned.clear()
        self._learned.extend(cast("Score", tuple(score)) for score in state["learned"])
        self._rows.load_state_dict(state["sampler"])


def _mean(scores: Iterable[Score]) -> Score:
    successes, returns = zip(*scores, strict=True)
    return float(np.mean(successes)), float(np.mean(returns))
