"""Whether memory stays flat while a run over ROS 2 topics goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from omegaconf import DictConfig
from topics import own_domain, shared_memory
from training_runs import processes, training_run

from robot_rl.processes.machine import resident_bytes

_SETTLING_SECONDS = 60.0
_EVERY_SECONDS = 10.0


def run(config: DictConfig) -> dict[str, object]:
    """Let `robot-rl train robot=ros_sim` run for a minute, and then for `bench.minutes` more.

    Returns:
        `memory_mib`: for each process `start`, `middle` and `end`, its anonymous and shared memory
        [MiB], mapped files such as the replay store apart; `restarted`: processes that are not
        those of the start; `shared_memory`: number and size of Fast DDS's files at start and end.
    """
    seconds = 60.0 * float(config.bench.minutes)
    with own_domain(), training_run(config) as watch:
        _wait(_SETTLING_SECONDS, watch.check)
        first, sizes, files = processes(), [_sizes()], [shared_memory()]
        for _ in range(2):
            _wait(seconds / 2, watch.check)
            sizes.append(_sizes())
            files.append(shared_memory())
        last = processes()
    places = ("start", "middle", "end")
    return {
        "minutes": float(config.bench.minutes),
        "memory_mib": {
            name: {place: size.get(name) for place, size in zip(places, sizes, strict=True)}
            for name in sorted(sizes[0])
        },
        "restarted": sorted(name for name in first if last.get(name) != first[name]),
        "shared_memory": dict(zip(places, files, strict=True)),
    }


def _sizes() -> dict[str, float]:
    return {name: resident_bytes(process) / 2**20 for name, process in processes().items()}


def _wait(seconds: float, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0.0:
        check()
        time.sleep(min(left, _EVERY_SECONDS))
