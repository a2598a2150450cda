"""Machine description for benchmarks, process priority, source version and memory use."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import psutil

_NICENESS = 10
_INTERVAL_SECONDS = 1.0


def describe_machine() -> dict[str, Any]:
    """Return the machine data needed to interpret a benchmark; does not import torch.

    Returns:
        `cpu` (model), `cores` (usable by this process), `memory_bytes`, `python`, `torch`,
        `platform`, and `load_average` (runnable processes over the last minute; near 0 is idle).
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "platform": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def yield_to_control_loop(clock: str) -> None:
    """Lower this process's priority if an actor on this machine runs on the wall clock.

    If Linux groups processes by session (sched_autogroup, sched(7)), it compares niceness only
    within a session. A process that leads its session therefore lowers that group's priority too.
    """
    if clock != "realtime":  # the stepped clock has no deadlines
        return
    os.nice(_NICENESS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # the kernel does not have or allow it
            Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")


def source_commit() -> str:
    """Return the commit of the checkout, with -dirty if files have changed.

    Return the package version if robot_rl does not run from a checkout.
    """
    checkout = Path(__file__).parents[2]
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if (checkout / ".git").exists():
        # If git is missing or fails.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            answer = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=True)
            return answer.stdout.strip()
    return f"version {package_version('robot_rl')}"


class MemorySampler:
    """Samples the anonymous and shared memory of this process tree, at 1 Hz in a thread.

    Pages of mapped files (the replay store) are not counted: the system can reclaim them any time.
    """

    def __init__(self) -> None:
        self._started, self._peak_bytes = time.monotonic(), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def costs(self) -> dict[str, float]:
        """Return the time since creation [s], and the largest total of one sample [bytes]."""
        seconds = time.monotonic() - self._started
        return {"wall_seconds": seconds, "peak_memory_bytes": self._peak_bytes}

    def _run(self) -> None:
        own = psutil.Process()
        while True:
            tree = [own, *own.children(recursive=True)]
            self._peak_bytes = max(self._peak_bytes, sum(resident_bytes(p) for p in tree))
            if self._stop.wait(_INTERVAL_SECONDS):
                return


def resident_bytes(process: psutil.Process) -> int:
    """Return the anonymous and shared memory of a process [bytes]; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    values = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(value.split()[0]) * 1024 for value in values.values())


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def package_version(package: str) -> str:
    """Return a package's version; robot_rl also runs from a checkout that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
