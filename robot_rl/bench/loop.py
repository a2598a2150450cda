"""Control loop timing while the learner and the replay server are busy.

A further case at 50 Hz kills the server every five seconds: data that the actor cannot send waits
in its spool, and the loop timing must not change.
"""

from __future__ import annotations

import copy
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig

from robot_rl.actor import act
from robot_rl.commands.runs import save_resolved
from robot_rl.config import Settings
from robot_rl.learning.stages.clone import Clone
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.group import ProcessGroup, start_process
from robot_rl.processes.signals import StopEvent
from robot_rl.run import RunDirectory

RATES_HZ = (10.0, 50.0)
KILLS_EVERY_SECONDS = 5.0
TICKS = 2000
_SETTLING_TICKS = 100
# Short blocks and many updates, so that the learner computes all the time at every rate.
_BLOCK_STEPS = 10
_BUSY_RATIO = 30


class Measured(NamedTuple):
    """Result of `measure`."""

    decisions: npt.NDArray[np.float64]  # time from tick to sending for each step [s]
    lateness: npt.NDArray[np.float64]  # lateness of the tick after each step [s]
    updates: int  # learner updates during the run
    kills: int  # kills of the replay server during the run


def run(config: DictConfig) -> dict[str, object]:
    """Run 2,000 ticks at 10 and at 50 Hz with the configured policy acting.

    For each rate, `p99_lateness_ms_…` is the 99th percentile of send time minus due time of the
    tick minus the declared inference budget, clipped at 0. `median_`, `p99_` and
    `max_decision_ms_…` do not subtract the budget. `p99_tick_lateness_ms_…` is the lateness of the
    tick itself, before any computation.
    """
    budget = float(config.inference_budget_seconds)
    results: dict[str, object] = {"inference_budget_ms": 1e3 * budget, "ticks": TICKS}
    cases = [(f"{rate:.0f}hz", rate, None) for rate in RATES_HZ]
    for name, rate, kill_every in (*cases, ("50hz_server_killed", 50.0, KILLS_EVERY_SECONDS)):
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(configured(config, rate, folder), kill_every)
        results |= figures(measured, name, budget)
        results[f"learner_updates_{name}"] = measured.updates
        if kill_every is not None:
            results["server_kills"] = measured.kills
    return results


def figures(measured: Measured, name: str, budget: float) -> dict[str, float]:
    """Return the figures of one case [ms]; the inference budget is in seconds."""
    decisions, late = measured.decisions, np.maximum(measured.decisions - budget, 0.0)
    seconds = {
        "p99_lateness": np.percentile(late, 99),
        "median_decision": np.median(decisions),
        "p99_decision": np.percentile(decisions, 99),
        "max_decision": decisions.max(),
        "p99_tick_lateness": np.percentile(measured.lateness, 99),
    }
    return {f"{what}_ms_{name}": 1e3 * float(value) for what, value in seconds.items()}


def configured(config: DictConfig, rate: float, folder: str) -> DictConfig:
    """Return the configuration of a run at `rate` with a busy learner; speeds stay the same."""
    settings = copy.deepcopy(config)
    factor = rate / float(config.control_rate_hz)
    settings.control_rate_hz = rate
    settings.task.environment.time_limit_steps = round(
        factor * config.task.environment.time_limit_steps
    )
    for limit in ("translation_step", "rotation_step"):
        settings.robot.limits[limit] = config.robot.limits[limit] / factor
        settings.task.expert[limit] = config.task.expert[limit] / factor
    settings.demonstrations = 2
    settings.cloning.updates = 100
    settings.block_steps = _BLOCK_STEPS
    settings.environment_steps = TICKS + _SETTLING_TICKS
    settings.algorithm.schedule.warmup_steps = _BLOCK_STEPS
    settings.algorithm.schedule.critic_only_updates = 0
    settings.algorithm.schedule.updates_per_step = _BUSY_RATIO
    settings.runs_directory = folder
    return settings


def measure(
    config: DictConfig,
    kill_every: float | None = None,
    beside: Callable[[RunDirectory], AbstractContextManager[None]] = lambda run: nullcontext(),
) -> Measured:
    """Run the control loop of `configured` in this process, with a server and a learner.

    The server is killed every `kill_every` seconds; `beside` adds other activity to the run.
    """
    run = RunDirectory.create(config.task.name, config.runs_directory)
    settings = Settings.of(config)
    for stage in (Collect(settings), Clone(settings)):
        stage.run(Workbench(settings, run))
    config.clock = "realtime"
    save_resolved(config, run.path)
    place = [f"run={run.path}", f"runs_directory={config.runs_directory}"]
    kills: list[int] = []
    decisions: list[float] = []
    lateness: list[float] = []
    with ExitStack() as stack:
        if kill_every is not None:
            stack.enter_context(_killed_server(["replay", *place], kill_every, kills))
        group = stack.enter_context(ProcessGroup(run.path / "logs"))
        if kill_every is None:
            group.start("replay", ["replay", *place])
        group.start("learner", ["learner", *place])
        stack.enter_context(beside(run))
        for _, result in act(config, run, StopEvent()):
            decisions += result.decision_seconds
            lateness += result.lateness_seconds
            group.running("learner")
        killed = len(kills)
    blocks = run.read_jsonl("learner")
    updates = int(blocks[-1]["gradient_updates"]) if blocks else 0
    settled = slice(_SETTLING_TICKS, None)
    return Measured(np.array(decisions[settled]), np.array(lateness[settled]), updates, killed)


@contextmanager
def _killed_server(arguments: Sequence[str], every: float, kills: list[int]) -> Iterator[None]:
    """Run a replay server, kill it every `every` seconds and restart it immediately.

    The process id of each killed server is appended to `kills`.
    """
    ends = threading.Event()

    def run_and_kill() -> None:
        while not ends.is_set():
            with start_process(arguments, stdout=subprocess.DEVNULL) as process:
                if ends.wait(every):
                    process.terminate()
                else:
                    process.kill()
                    kills.append(process.pid)

    with ThreadPoolExecutor(1) as executor:
        killing = executor.submit(run_and_kill)
        try:
            yield
        finally:
            ends.set()
    killing.result()
