"""What an open operator's console costs the control loop, and how soon its stop halts the robot."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, open_dict

from robot_rl.bench.loop import configured, figures, measure
from robot_rl.extras.console.scene import free_port
from robot_rl.processes.group import ProcessGroup, start_process
from robot_rl.run import RunDirectory

RATE_HZ = 15.0
CAMERAS = ("front", "wrist", "overview")
STOPS = 20
_STOP_STEPS = 1500
_CAMERA = "robot_rl.env.sim.cameras.CameraOptions"


def run(config: DictConfig) -> dict[str, object]:
    """Run the loop at 15 Hz with three cameras, once without a console and once with one open.

    Then a console stops the robot in motion, 20 times.

    Returns:
        `p99_tick_lateness_ms_…` and `p99_lateness_ms_…`, as `bench loop` has them, and `median_`,
        `p99_` and `max_decision_ms_…`, each `without_console` and `with_console`; `pictures_hz`,
        of each camera in the page;
        `stop_ms`, from saying stop to an observation at the end of a period in which the robot was
        held, the largest and the median of `stops`; `stops_within_250_ms`;
        `largest_speed_after_stop_mm_per_s`, of that observation.
    """
    budget = float(config.inference_budget_seconds)
    results: dict[str, object] = {"rate_hz": RATE_HZ, "cameras": len(CAMERAS)}
    pages: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        results |= figures(measure(_seeing(config, folder)), "without_console", budget)
    with tempfile.TemporaryDirectory() as folder:
        opened = measure(_seeing(config, folder), beside=lambda run: _opened(run, 0, pages))
        results |= figures(opened, "with_console", budget)
    with tempfile.TemporaryDirectory() as folder:
        settings = _seeing(config, folder)
        settings.environment_steps = _STOP_STEPS
        measure(settings, beside=lambda run: _opened(run, STOPS, pages))
    stops = pages[1]["stops"]
    milliseconds = [stop["ms"] for stop in stops]
    return {
        **results,
        "pictures_hz": pages[0]["pictures_hz"],
        "stops": len(stops),
        "stops_within_250_ms": sum(value <= 250.0 for value in milliseconds),
        "median_stop_ms": float(np.median(milliseconds)),
        "max_stop_ms": max(milliseconds),
        "median_speed_before_stop_mm_per_s": float(
            np.median([stop["mm_per_s_before"] for stop in stops])
        ),
        "largest_speed_after_stop_mm_per_s": max(stop["mm_per_s"] for stop in stops),
    }


def _seeing(config: DictConfig, folder: str) -> DictConfig:
    settings = configured(config, RATE_HZ, folder)
    cameras = [{"_target_": _CAMERA, "name": name} for name in CAMERAS]
    with open_dict(settings):
        settings.observation.cameras = settings.robot.cameras = cameras
    return settings


@contextmanager
def _opened(run: RunDirectory, stops: int, pages: list[dict[str, Any]]) -> Iterator[None]:
    """Open a console and a page of it; what the page saw is added to `pages`."""
    port = free_port()
    with ProcessGroup(run.path / "logs") as group:
        group.start("console", ["console", f"run={run.path}", f"console.port={port}"])
        words = [f"http://127.0.0.1:{port}", str(stops)]
        with start_process(
            words, "console_page", stdout=subprocess.PIPE, cwd=Path(__file__).parent
        ) as page:
            try:
                yield
            finally:
                told, _ = page.communicate()
    pages.append(json.loads(told))
