"""`robot-rl train`: demonstrations, cloning, online learning through the processes, report."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from robot_rl.actor import NOTE
from robot_rl.algorithms.encoding import trains_on
from robot_rl.algorithms.factory import check_algorithm
from robot_rl.config import save_resolved
from robot_rl.config_overrides import ConfigError, check_least
from robot_rl.evaluation.evaluate import check_counts
from robot_rl.evaluation.records import intervention_rates, read_run
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import (
    EvaluationResult,
    first_confirmed,
    worse_than_cloned,
)
from robot_rl.learning.blocks import Blocks
from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.machine import MemorySampler, describe_machine
from robot_rl.processes.progress import RECENT_EPISODES, WorkProgress
from robot_rl.replay.catalogue import is_store
from robot_rl.run import (
    CLONED,
    CLONED_POLICY,
    LAST,
    LEARNED_POLICY,
    RunDirectory,
    RunError,
    learned_steps,
    load_policy,
)
from robot_rl.stages.annotate import waits_for_annotation
from robot_rl.stages.collect import check_expert_is_judged, collect
from robot_rl.stages.demonstrations import check_demonstrations, open_demonstrations
from robot_rl.stages.evaluate import (
    FinalEvaluation,
    evaluate_final,
    evaluates_periodically,
    film_final,
    unevaluated,
)
from robot_rl.stages.nodes import check_nodes, robot_nodes
from robot_rl.stages.pretrain import check_cloning, check_networks, check_sources, pretrain
from robot_rl.stages.resumable import working_run
from robot_rl.stages.vision import exploration_steps

_POLL_SECONDS = 0.25
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
            self.progress.episode(
                bool(episode["success"]),
                intervened=int(episode["intervened_steps"]) / max(1, int(episode["length"])),
            )
        self.episodes = len(episodes)
        evaluations = self.run.read_jsonl("evaluations")
        for record in evaluations[self.evaluations :]:
            result = EvaluationResult.from_json(record)
            self.progress.note(f"after {result.environment_steps:>6,} steps: {result}")
            if result.against_cloned is not None and result.against_cloned.worse:
                self.progress.note(f"    WORSE than the cloned policy: {result.against_cloned}")
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


class _Costs:
    """Time and memory of a run, over all of its starts."""

    def __init__(self, run: RunDirectory, memory: MemorySampler) -> None:
        self._run = run
        self._memory = memory
        self._started = time.monotonic()

    def totals(self) -> tuple[float, int]:
        """Wall time [s] and peak memory [bytes], those of earlier starts included."""
        records = [*self._run.read_jsonl(_TIMES), self._present()]
        seconds = sum(float(record["wall_seconds"]) for record in records)
        return seconds, max(int(record["peak_memory_bytes"]) for record in records)

    def save(self) -> None:
        """Note those of this start."""
        self._run.append_jsonl(_TIMES, self._present())

    def _present(self) -> dict[str, float]:
        seconds = time.monotonic() - self._started
        return {"wall_seconds": seconds, "peak_memory_bytes": self._memory.peak_bytes}


def run(config: DictConfig) -> None:
    """Run the whole pipeline, or go on with the run `config.resume`."""
    Blocks.of(config).check_learning()  # what cannot work is said before anything is made
    check_counts(config)
    check_least(config, {"demonstrations": 1})
    check_cloning(config)
    trains_on(config.observation)
    check_algorithm(config.algorithm)
    check_nodes(config)
    if config.replay.connect:
        raise ConfigError(
            "train starts a replay server of its own",
            got=f"replay.connect={config.replay.connect}",
            hint="start robot-rl actor or robot-rl learner alone on this machine",
        )
    if not config.resume:
        if config.dataset is None:
            check_expert_is_judged(config)
        check_sources(config)
    with (
        working_run(config, "resume", "robot-rl train resume=") as directory,
        directory.claim("train") as lock,
        MemorySampler() as memory,
        robot_nodes(config, directory.path / "logs"),
    ):
        costs = _Costs(directory, memory)
        _check(config, directory)
        try:
            if config.resume:
                save_resolved(_lasting(config), directory.path)
            _prepare(config, directory)
            _learn_online(config, directory, lock)
            _finish(config, directory, costs)
        except BaseException:
            _note_costs(costs)
            raise
        costs.save()


def _lasting(config: DictConfig) -> DictConfig:
    """What the run keeps of a configuration: all but what names the run itself."""
    kept = copy.deepcopy(config)
    return OmegaConf.merge(kept, {"resume": None, "run": None})  # type: ignore[return-value]


def _note_costs(costs: _Costs) -> None:
    with suppress(RunError):  # the disk is full, and the error that the run ends with says so
        costs.save()


def _check(config: DictConfig, run: RunDirectory) -> None:
    """Look for damage, and for what cannot be made, before anything is collected."""
    for name in (CLONED, LAST):
        if run.has_folder(name):
            run.complete_folder(name)
    if run.has_folder(LAST) and not is_store(run.store):
        raise RunError(
            f"{run.path / LAST} has learned from a store that is gone",
            got=f"nothing at {run.store}",
            hint="put it back from a copy; without one begin another run, with"
            f" dataset={run.demonstrations} for the same demonstrations",
        )
    if config.dataset or run.has_folder(CLONED):
        check_demonstrations(config, run)
    if not run.has_folder(CLONED):
        check_networks(config)


def _prepare(config: DictConfig, run: RunDirectory) -> None:
    """Collect and clone, unless the run has done so before."""
    if config.dataset is None:
        with WorkProgress(int(config.demonstrations), "demonstrations") as progress:
            progress.phase("collecting")
            collect(config, run, progress)
    if not run.has_folder(CLONED):
        pretrain(config, run)


def _processes(actors: int, periodic: bool) -> dict[str, list[str]]:
    """Names and arguments in the order of their start; they are ended in the reverse one."""
    acting = {
        f"actor-{n}" if actors > 1 else "actor": ["actor", f"actor={n}"]
        for n in range(1, actors + 1)
    }
    evaluator = {"evaluator": ["evaluate", "evaluation.follow=true"]} if periodic else {}
    return {"replay": ["replay"], "learner": ["learner"], **acting, **evaluator}


def _beside(config: DictConfig) -> list[str]:
    """Processes that learning does not need, and that do not end it when they fail."""
    return ["console"] if config.console.open else []


def _learn_online(config: DictConfig, run: RunDirectory, lock: int) -> None:
    """Start the processes and wait until all steps are learned from and evaluated."""
    total = int(config.environment_steps)
    if learned_steps(run) >= total and not unevaluated(config, run):
        return
    place = [f"run={run.path}", f"runs_directory={config.runs_directory}"]
    with (
        WorkProgress(total, "environment steps") as progress,
        ProcessGroup(run.path / "logs", [lock], progress.note) as group,
    ):
        progress.phase("online learning")
        processes = _processes(int(config.actors), evaluates_periodically(config))
        for name, arguments in processes.items():
            group.start(name, [*arguments, *place])
        beside = _beside(config)
        for name in beside:
            group.start(name, [name, *place], needed=False)
            progress.note(f"{name}: its address is in {run.path}/logs/{name}.log")
        waits_for = waits_for_annotation(config, run)
        if waits_for is not None:
            progress.note(f"learner: {waits_for}")
        feed = _Feed(run, progress, evaluations=len(run.read_jsonl("evaluations")))
        waiting = [name for name in processes if name != "replay"]
        actors = [name for name in processes if name.startswith("actor")]
        while waiting:
            group.require("replay")
            waiting = [name for name in waiting if group.running(name)]
            for name in beside:
                group.running(name)
            for name in actors:
                for line in group.printed(name):
                    if line.startswith(NOTE):
                        progress.note(line)
            feed.show()
            time.sleep(_POLL_SECONDS)


def _finish(config: DictConfig, run: RunDirectory, costs: _Costs) -> None:
    """Evaluate the cloned and the learned policy, decide for one, write summary and report."""
    final = evaluate_final(config, run)
    print(final, flush=True)  # whatever becomes of the files
    summary = summarize(config, run, final)
    summary["wall_seconds"], summary["peak_memory_bytes"] = costs.totals()
    run.save_summary(summary)
    film_final(config, run, load_policy(run)[0], final.deployed)
    report = write_report(run.path)
    print(f"summary: {run.summary}\nreport:  {report}", flush=True)


def summarize(config: DictConfig, run: RunDirectory, final: FinalEvaluation) -> dict[str, Any]:
    """The figures of a finished run: the content of `summary.json`, but for time and memory."""
    records = read_run(run.path)
    curve = records.periodic()
    learned = [record for record in curve if not record.cloned]
    newest = final.learned or final.deployed
    intervened = intervention_rates(records.episodes, RECENT_EPISODES)
    return {
        "task": config.task.name,
        "algorithm": config.choices.algorithm,
        "seed": int(config.seed),
        "deployed": CLONED_POLICY if final.deployed.cloned else LEARNED_POLICY,
        "decision": str(final),
        "checkpoint": CLONED if final.deployed.cloned else LAST,
        **_rate("bc", final.cloned or records.final(cloned=True)),
        **_rate("rl", final.learned),
        "worse_than_cloned": worse_than_cloned(learned),
        "evaluation_episodes": final.deployed.episodes,
        "mean_seconds_to_success": final.deployed.mean_seconds_to_success,
        "longest_success_run": final.deployed.longest_success_run,
        "demonstrations": len(open_demonstrations(config, run)),
        "environment_steps": newest.environment_steps,
        "exploration_steps": exploration_steps(run),
        "intervention_rate": intervened[-1][1] if intervened else 0.0,
        "steps_to_97": first_confirmed(
            [record.environment_steps for record in learned],
            [record.success_rate for record in learned],
        ),
        "gradient_updates": newest.gradient_updates,
        "machine": describe_machine(),
    }


def _rate(method: str, result: EvaluationResult | None) -> dict[str, Any]:
    return {
        f"{method}_success_rate": result.success_rate if result else None,
        f"{method}_confidence": [result.confidence_low, result.confidence_high] if result else None,
    }
