"""Tells by their sequence numbers whether commands come from one publisher, or several."""

from __future__ import annotations

import math

# With several publishers known, a sole one may lose this many messages in a row to a busy machine.
_LOST = 20
# What middleware says that does not number messages, such as Cyclone DDS
# (RMW_MESSAGE_INFO_SEQUENCE_NUMBER_UNSUPPORTED).
_UNNUMBERED = 2**64 - 1


class SoleSource:
    """Notices a second publisher on a command topic at its first message.

    Middleware gives each publisher a sequence of its own. A number that does not go on from the
    last one is of another publisher, which is accepted only after the other has been silent. The
    graph alone cannot tell: a publisher that was killed stays in it for up to 20 s. Where messages
    have no numbers the graph decides all the same, and whoever replaces a killed one has to wait.
    Of two who always send within the same moment a subscription that keeps the newest message
    hears only one: that one is followed alone.

    Args:
        silence: Time without a command after which another publisher may begin [s].
        settle: Time for which a sole publisher must be heard once there were two [s].
    """

    def __init__(self, silence: float, settle: float = 0.5) -> None:
        self._silence = silence
        self._settle = settle
        self._sequence: int | None = None
        self._heard = -math.inf
        self._settled_at = -math.inf

    def refusal(self, sequence: int, publishers: int, now: float) -> str | None:
        """Judge a command.

        Args:
            sequence: Its number within its publisher.
            publishers: How many the middleware knows of on the topic.
            now: Steady time of receipt [s].

        Returns:
            Why it must not be followed, or None.
        """
        last, silent = self._sequence, now - self._heard > self._silence
        self._sequence, self._heard = sequence, now
        if sequence == _UNNUMBERED:
            goes_on = publishers <= 1
        elif publishers > 1:
            goes_on = last is not None and last < sequence <= last + 1 + _LOST
        else:
            goes_on = last is None or silent or sequence > last
        if not goes_on:
            self._settled_at = now + self._settle
        if now >= self._settled_at:
            return None
        return f"commands come from several publishers ({publishers} known)"
