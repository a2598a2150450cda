"""The peak memory of a run: this process and all that it starts."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_INTERVAL_SECONDS = 1.0


class MemorySampler:
    """Samples, at 1 Hz in a thread, the anonymous and shared memory of this process's tree.

    Pages of mapped files (the replay store) are not counted: the system takes them back at will.

    Attributes:
        peak_bytes: The largest sum of one sample so far.
    """

    def __init__(self) -> None:
        """Prepare the thread; entering the context starts it."""
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def __enter__(self) -> Self:
        """Start to sample."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        own = psutil.Process()
        while True:
            tree = [own, *own.children(recursive=True)]
            self.peak_bytes = max(self.peak_bytes, sum(resident_bytes(p) for p in tree))
            if self._stop.wait(_INTERVAL_SECONDS):
                return


def resident_bytes(process: psutil.Process) -> int:
    """Anonymous and shared memory of a process; 0 of one that has ended."""
    status = Path(f"/proc/{process.pid}/status")
    try:
        if not psutil.LINUX:
            return int(process.memory_info().rss)
        lines = status.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, psutil.Error):
        return 0  # it has ended since
    values = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(value.split()[0]) * 1024 for value in values.values())
