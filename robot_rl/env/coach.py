"""Coach for the operator: warns when the policy is unlikely to succeed without help."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# The policy changes while it learns, so only this many recent episodes count, including helped
# ones: if all were helped, nothing is known about the policy and it gets another try.
_MEMORY = 40
# Least number of comparable episodes, and least failure rate among them, to advise help.
_LEAST, _FAILS = 6, 0.7


class Coach:
    """Compares the running episode with recent ones; it has no influence on the robot.

    It advises "help now" if most earlier episodes that outlasted the policy's current unaided
    stretch failed. The stretch starts with the episode or when the operator hands back. Episodes
    with help, or cut short, do not count. `note` is called with new advice.

    `episodes` are records of earlier episodes, with ``success`` and `facts`.
    """

    def __init__(
        self,
        episodes: Iterable[Mapping[str, Any]] = (),
        note: Callable[[str], None] = lambda advice: None,
    ) -> None:
        past = ((int(e.get("alone_steps", 0)), bool(e["success"])) for e in episodes)
        self._past = deque(past, maxlen=_MEMORY)  # steps without help, success
        self._note = note
        self._steps = self._alone_steps = 0
        self._success = False
        self.begin()

    @property
    def facts(self) -> dict[str, object]:
        """Facts to record of an episode.

        ``advices``: how often the coach started to give advice. ``alone_steps``: the length of an
        episode that was neither helped nor cut short; otherwise 0.
        """
        return {"advices": self._advices, "alone_steps": self._alone_steps}

    def begin(self) -> None:
        """Start an episode without advice."""
        if self._steps:
            self._past.append((self._alone_steps, self._success))
        self._steps = self._since = self._advices = self._alone_steps = 0
        self._helped = self._success = False
        self._advice = ""

    def step(self, *, intervened: bool, over: bool, success: bool) -> str:
        """Return advice to the operator after a step; empty for none.

        `over`: the episode has ended on its own.
        """
        self._steps += 1
        self._since = 0 if intervened else self._since + 1
        self._helped = self._helped or intervened
        self._success = success
        self._alone_steps = self._steps if over and not self._helped else 0
        before, self._advice = self._advice, ""
        alike = [success for steps, success in self._past if steps > self._since]
        failed = alike.count(False)
        enough = len(alike) >= _LEAST and failed >= _FAILS * len(alike)
        if self._since and enough and not over:
            self._advice = f"help now: {failed} of {len(alike)} episodes that ran so long failed"
            if not before:
                self._advices += 1
                self._note(self._advice)
        return self._advice
