"""`robot-rl train`: the stages of a recipe, through the processes; then evaluation and report."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import groupby
from typing import Any

from omegaconf import DictConfig

from robot_rl.actor import NOTE
from robot_rl.commands.evaluate import FinalEvaluation, evaluate_final, film_final
from robot_rl.commands.gym_check import try_environment
from robot_rl.commands.nodes import check_robot, robot_nodes
from robot_rl.commands.runs import lasting, save_resolved, working_run
from robot_rl.commands.stage import check_sources
from robot_rl.config import ConfigError
from robot_rl.evaluation.evaluate import check_counts
from robot_rl.evaluation.records import intervention_rates, read_run
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import (
    EvaluationResult,
    first_confirmed,
    worse_than_cloned,
)
from robot_rl.learner import waits_for_annotation
from robot_rl.learning.blocks import evaluates_periodically
from robot_rl.learning.demonstrations import (
    check_demonstrations,
    demonstrated,
    open_demonstrations,
)
from robot_rl.learning.recipe import Recipe
from robot_rl.learning.stages.clone import check_networks
from robot_rl.learning.stages.explore import exploration_steps
from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.machine import MemorySampler, describe_machine
from robot_rl.processes.progress import RECENT_EPISODES, WorkProgress
from robot_rl.replay.catalogue import is_store
from robot_rl.run import (
    CLONED,
    CLONED_POLICY,
    DEMONSTRATIONS,
    LAST,
    LEARNED_POLICY,
    SUMMARY,
    UNTRAINED,
    RunDirectory,
    RunError,
    learned_steps,
    load_policy,
    proved_checkpoint,
)

_POLL_SECONDS = 0.25
_TIMES = "times"


class Feed:
    """Hands new lines of the run's files to the display; evaluations that it has are not new."""

    def __init__(self, run: RunDirectory, progress: WorkProgress) -> None:
        self._run, self._progress = run, progress
        self._episodes, self._evaluations = 0, len(run.read_jsonl("evaluations"))

    def show(self) -> None:
        """Look for what is new; the first line of a log comes before the first block is learned."""
        episodes = self._run.read_jsonl("episodes")
        for episode in episodes[self._episodes :]:
            self._progress.episode(
                bool(episode["success"]),
                intervened=int(episode["intervened_steps"]) / max(1, int(episode["length"])),
            )
        self._episodes = len(episodes)
        evaluations = self._run.read_jsonl("evaluations")
        for record in evaluations[self._evaluations :]:
            result = EvaluationResult.from_json(record)
            self._progress.note(f"after {result.environment_steps:>6,} steps: {result}")
            if result.against_cloned is not None and result.against_cloned.worse:
                self._progress.note(f"    WORSE than the cloned policy: {result.against_cloned}")
        self._evaluations = len(evaluations)
        blocks = self._run.read_jsonl("learner")
        if not blocks:
            self._progress.update(0)
        else:
            last = blocks[-1]
            self._progress.update(
                int(last["environment_steps"]),
                updates_per_second=last["updates_per_second"],
                update_to_data=last["update_to_data"],
                replay_transitions=int(last["replay_transitions"]),
            )


class _Costs:
    """Time and memory of a run, over all of its starts."""

    def __init__(self, run: RunDirectory, memory: MemorySampler) -> None:
        self._run, self._memory, self._started = run, memory, time.monotonic()

    def totals(self) -> dict[str, Any]:
        """Wall time [s] and peak memory [bytes], those of earlier starts included."""
        records = [*self._run.read_jsonl(_TIMES), self._present()]
        return {
            "wall_seconds": sum(float(record["wall_seconds"]) for record in records),
            "peak_memory_bytes": max(int(record["peak_memory_bytes"]) for record in records),
        }

    def save(self) -> None:
        """Note those of this start."""
        self._run.append_jsonl(_TIMES, self._present())

    def _present(self) -> dict[str, float]:
        seconds = time.monotonic() - self._started
        return {"wall_seconds": seconds, "peak_memory_bytes": self._memory.peak_bytes}


def run(config: DictConfig) -> None:
    """Run the stages of the recipe, or those that are left in the run `config.resume`."""
    # What cannot work is said before anything is made.
    recipe = Recipe(config)
    check_counts(config)
    check_robot(config)
    try_environment(config)
    known = RunDirectory.open(config.resume, config.runs_directory) if config.resume else None
    left = recipe.left(known)
    anyway = [n for n, s in recipe.stages.items() if s.with_actors and config.stage is None]
    recipe.check(known, [name for name in recipe.stages if name in (*left, *anyway)])
    if config.replay.connect:
        raise ConfigError(
            "train starts a replay server of its own",
            got=f"replay.connect={config.replay.connect}",
            hint="start robot-rl actor or robot-rl learner alone on this machine",
        )
    if not config.resume:
        check_sources(config)
    with (
        working_run(config, "resume", "robot-rl train resume=") as directory,
        directory.claim("train") as lock,
        MemorySampler() as memory,
        robot_nodes(config, directory.path / "logs"),
    ):
        costs = _Costs(directory, memory)
        recipe.borrow(directory, left)
        _check(config, directory, recipe)
        try:
            if config.resume:
                save_resolved(lasting(config), directory.path)
            _go_through(config, directory, recipe, lock)
            if config.stage is None and directory.has_policy():
                _finish(config, directory, costs)
        except BaseException:
            with suppress(
                RunError
            ):  # the disk is full, and the error that the run ends with says so
                costs.save()
            raise
        costs.save()


def _check(config: DictConfig, run: RunDirectory, recipe: Recipe) -> None:
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
    made = {made for name in recipe.left(run) for made in recipe.stages[name].makes}
    if DEMONSTRATIONS not in made and (config.dataset or run.demonstrations.exists()):
        check_demonstrations(config, run)
    if made & {CLONED, UNTRAINED}:
        check_networks(config)


def _go_through(config: DictConfig, run: RunDirectory, recipe: Recipe, lock: int) -> None:
    """Run the stages that are left: those that learn beside actors in processes of their own."""
    print("\n".join(recipe.table(run)), flush=True)
    for beside, names in groupby(recipe.left(run), lambda name: recipe.stages[name].with_actors):
        if beside:
            _learn_online(config, run, lock)
        else:
            for name in names:
                recipe.perform(name, run)
    print("\n".join(recipe.table(run)), flush=True)


def _processes(actors: int, periodic: bool) -> dict[str, list[str]]:
    """Names and arguments in the order of their start; they are ended in the reverse one."""
    acting = {
        f"actor-{n}" if actors > 1 else "actor": ["actor", f"actor={n}"]
        for n in range(1, actors + 1)
    }
    evaluator = {"evaluator": ["evaluate", "evaluation.follow=true"]} if periodic else {}
    return {"replay": ["replay"], "learner": ["learner"], **acting, **evaluator}


def _learn_online(config: DictConfig, run: RunDirectory, lock: int) -> None:
    """Start the processes and wait until all steps are learned from and evaluated."""
    total = int(config.environment_steps)
    place = [f"run={run.path}", f"runs_directory={config.runs_directory}"]
    if config.stage is not None:
        place.append(f"stage={config.stage}")
    with (
        WorkProgress(total, "environment steps") as progress,
        ProcessGroup(run.path / "logs", [lock], progress.note) as group,
    ):
        progress.phase("online learning")
        processes = _processes(int(config.actors), evaluates_periodically(config))
        for name, arguments in processes.items():
            group.start(name, [*arguments, *place])
        # Learning does not need it, and goes on where it fails.
        beside = ["console"] if config.console.open else []
        for name in beside:
            group.start(name, [name, *place], needed=False)
            progress.note(f"{name}: its address is in {run.path}/logs/{name}.log")
        waits_for = waits_for_annotation(config, run)
        if waits_for is not None:
            progress.note(f"learner: {waits_for}")
        feed = Feed(run, progress)
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
    """Evaluate what was cloned and learned, decide for one, write summary and report."""
    final = evaluate_final(config, run)
    print(final, flush=True)  # whatever becomes of the files
    run.save_json(SUMMARY, {**summarize(config, run, final), **costs.totals()})
    film_final(config, run, load_policy(run)[0], final.deployed)
    report = write_report(run.path)
    print(f"summary: {run.path / SUMMARY}\nreport:  {report}", flush=True)


def summarize(config: DictConfig, run: RunDirectory, final: FinalEvaluation) -> dict[str, Any]:
    """The figures of a finished run: the content of `summary.json`, but for time and memory."""
    records = read_run(run.path)
    curve = records.periodic()
    learned = [record for record in curve if not record.cloned]
    blocks = run.read_jsonl("learner")
    intervened = intervention_rates(records.episodes, RECENT_EPISODES)
    return {
        "task": config.task.name,
        "algorithm": config.choices.algorithm,
        "seed": int(config.seed),
        "deployed": CLONED_POLICY if final.deployed.cloned else LEARNED_POLICY,
        "decision": str(final),
        "acts_as_cloned": final.deployed.held_back,
        "checkpoint": CLONED if final.deployed.cloned else proved_checkpoint(run),
        **_rate("bc", final.cloned or records.final(cloned=True)),
        **_rate("rl", final.learned),
        "worse_than_cloned": worse_than_cloned(learned),
        "evaluation_episodes": final.deployed.episodes,
        "mean_seconds_to_success": final.deployed.mean_seconds_to_success,
        "longest_success_run": final.deployed.longest_success_run,
        "demonstrations": len(open_demonstrations(config, run)) if demonstrated(config) else 0,
        "environment_steps": learned_steps(run),
        "exploration_steps": exploration_steps(run),
        "intervention_rate": intervened[-1][1] if intervened else 0.0,
        "steps_to_97": first_confirmed(
            [record.environment_steps for record in learned],
            [record.success_rate for record in learned],
        ),
        "gradient_updates": blocks[-1]["gradient_updates"] if blocks else 0,
        "machine": describe_machine(),
    }


def _rate(method: str, result: EvaluationResult | None) -> dict[str, Any]:
    return {
        f"{method}_success_rate": result.success_rate if result else None,
        f"{method}_confidence": [result.confidence_low, result.confidence_high] if result else None,
    }
