"""`robot-rl train`: demonstrations, cloning, online learning through the processes, report."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from robot_rl.config import save_resolved
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import EvaluationResult, first_confirmed
from robot_rl.learner import LAST
from robot_rl.progress import WorkProgress
from robot_rl.run import RunDirectory
from robot_rl.stages.collect import collect
from robot_rl.stages.evaluate import evaluate_final
from robot_rl.stages.pretrain import CLONED, open_demonstrations, pretrain
from robot_rl.stages.processes import MemorySampler, ProcessGroup

_POLL_SECONDS = 0.25
# In this order they are started; they are ended in the reverse one.
_PROCESSES = {
    "replay": ("replay",),
    "learner": ("learner",),
    "actor": ("actor",),
    "evaluator": ("evaluate", "evaluation.follow=true"),
}
_TIMES = "times"


@dataclass
class _Feed:
    """Hands new lines of the run's files to the display."""

    run: RunDirectory
    progress: WorkProgress
    episodes: int = 0
    evaluations: int = 0

    def show(self) -> None:
        episodes = self.run.read_jsonl("episodes")
        for episode in episodes[self.episodes :]:
            self.progress.episode(bool(episode["success"]))
        self.episodes = len(episodes)
        evaluations = self.run.read_jsonl("evaluations")
        for record in evaluations[self.evaluations :]:
            steps = record["environment_steps"]
            self.progress.note(f"after {steps:>6,} steps: {EvaluationResult.from_json(record)}")
        self.evaluations = len(evaluations)
        blocks = self.run.read_jsonl("learner")
        if blocks:
            last = blocks[-1]
            self.progress.update(
                int(last["environment_steps"]),
                updates_per_second=last["updates_per_second"],
                update_to_data=last["update_to_data"],
                replay_transitions=int(last["replay_transitions"]),
            )


def run(config: DictConfig) -> None:
    """Run the whole pipeline, or go on with the run `config.resume`."""
    started = time.monotonic()
    if config.resume:
        directory = RunDirectory.open(config.resume, config.runs_directory)
    else:
        directory = RunDirectory.create(config.task.name, config.runs_directory)
        save_resolved(config, directory.path)
    print(f"run directory: {directory.path}", flush=True)
    memory = MemorySampler()
    try:
        _prepare(config, directory, memory)
        _learn_online(config, directory, memory)
    finally:
        directory.append_jsonl(
            _TIMES,
            {"wall_seconds": time.monotonic() - started, "peak_memory_bytes": memory.peak_bytes},
        )
    before = time.monotonic()
    final = evaluate_final(config, directory)
    memory.sample([os.getpid()])
    directory.append_jsonl(_TIMES, {"wall_seconds": time.monotonic() - before})
    summary = summarize(config, directory, final)
    directory.save_summary(summary)
    report = write_report(directory.path)
    print(f"final evaluation of the last checkpoint: {final}")
    print(f"summary: {directory.summary}\nreport:  {report}", flush=True)


def _prepare(config: DictConfig, run: RunDirectory, memory: MemorySampler) -> None:
    """Collect and clone, unless the run has done so before."""
    if config.dataset is None:
        with WorkProgress(int(config.demonstrations), "demonstrations") as progress:
            progress.phase("collecting")
            collect(config, run, progress)
    open_demonstrations(config, run)
    memory.sample([os.getpid()])
    if not run.has_folder(CLONED):
        with WorkProgress(int(config.cloning.updates), "cloning updates") as progress:
            progress.phase("cloning")
            pretrain(config, run, progress)
    memory.sample([os.getpid()])


def _learn_online(config: DictConfig, run: RunDirectory, memory: MemorySampler) -> None:
    """Start the processes and wait until all steps are learned from and evaluated."""
    overrides = [
        f"run={run.path}",
        f"environment_steps={config.environment_steps}",
        f"runs_directory={config.runs_directory}",
    ]
    total = int(config.environment_steps)
    with (
        ProcessGroup(run.path / "logs") as group,
        WorkProgress(total, "environment steps") as progress,
    ):
        progress.phase("online learning")
        for name, arguments in _PROCESSES.items():
            group.start(name, [*arguments, *overrides])
        feed = _Feed(run, progress)
        waiting = ["actor", "learner", "evaluator"]
        while waiting:
            waiting = [name for name in waiting if group.running(name)]
            group.running("replay")
            memory.sample([os.getpid(), *group.process_ids])
            feed.show()
            time.sleep(_POLL_SECONDS)


def summarize(config: DictConfig, run: RunDirectory, final: EvaluationResult) -> dict[str, Any]:
    """The figures of a finished run: the content of `summary.json`."""
    records = [EvaluationResult.from_json(r) for r in run.read_jsonl("evaluations")]
    cloned = [record for record in records if record.environment_steps == 0]
    learned = [
        record
        for record in records
        if record.environment_steps > 0 and record.seed_set == "periodic"
    ]
    times = run.read_jsonl(_TIMES)
    return {
        "task": config.task.name,
        "algorithm": config.choices.algorithm,
        "seed": int(config.seed),
        "bc_success_rate": cloned[0].success_rate if cloned else None,
        "bc_confidence": [cloned[0].confidence_low, cloned[0].confidence_high] if cloned else None,
        "rl_success_rate": final.success_rate,
        "rl_confidence": [final.confidence_low, final.confidence_high],
        "evaluation_episodes": final.episodes,
        "mean_seconds_to_success": final.mean_seconds_to_success,
        "longest_success_run": final.longest_success_run,
        "demonstrations": len(open_demonstrations(config, run)),
        "environment_steps": final.environment_steps,
        "steps_to_97": first_confirmed(
            [record.environment_steps for record in learned],
            [record.success_rate for record in learned],
        ),
        "gradient_updates": final.gradient_updates,
        "wall_seconds": sum(float(record["wall_seconds"]) for record in times),
        "peak_memory_bytes": max(int(record.get("peak_memory_bytes", 0)) for record in times),
        "checkpoint": LAST,
    }
