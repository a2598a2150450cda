"""Keeping a log readable, and its disk free, whatever clients do."""

from __future__ import annotations

import logging
import time

LINES = 20
SECONDS = 10.0


class LogLimit(logging.Filter):
    """Lets `LINES` records through in `SECONDS`; the next one tells how many were held back.

    Attach it to the logger of a module that logs what others send.
    """

    def __init__(self) -> None:
        """Start with nothing held back."""
        super().__init__()
        self._period_began = -SECONDS
        self._let_through = self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        now = time.monotonic()
        if now >= self._period_began + SECONDS:
            if self._held_back:
                record.msg = f"({self._held_back} messages were held back) {record.getMessage()}"
                record.args = None
            self._period_began, self._let_through, self._held_back = now, 0, 0
        if self._let_through >= LINES:
            self._held_back += 1
            return False
        self._let_through += 1
        return True
