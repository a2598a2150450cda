"""The machine that a measurement was made on, and a process's place on it."""

from __future__ import annotations

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

    Args:
        clock: The configured clock; on the stepped one nobody is late.
    """
    if clock == "realtime" and hasattr(os, "nice"):
        os.nice(_NICENESS)


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
