"""The machine that a measurement was made on, and a process's place on it."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_NICENESS = 10


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to judge a figure; imports no torch.

    Returns:
        `cpu` (model), `cores` (usable by this process), `memory_bytes`, `python`, `torch`,
        `platform`, and `load_average` (runnable processes over the last minute; near 0 is idle).
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "platform": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def yield_to_control_loop(clock: str) -> None:
    """Lower this process's priority where an actor beside it keeps time with the wall clock.

    Linux compares niceness only within a session of processes, where it groups them by session
    (sched_autogroup, sched(7)); a process that leads a session of its own lowers that group too.

    Args:
        clock: The configured clock; on the stepped one nobody is late.
    """
    if clock != "realtime" or not hasattr(os, "nice"):
        return
    os.nice(_NICENESS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without it, or one that forbids it
            Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
