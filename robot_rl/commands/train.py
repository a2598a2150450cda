"""`robot-rl train`: the stages of a recipe, through the processes; then evaluation and report.

And `collect`, `pretrain`, `distil`, `collect-reward` and `train-reward`: some stages, alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from robot_rl.commands.evaluate import evaluate_final, film_final
from robot_rl.commands.explain import CHECKS
from robot_rl.commands.preparation import check_robot, robot_nodes, try_environment
from robot_rl.commands.runs import SAME_COMMAND, load_resolved, save_resolved, working_run
from robot_rl.config import ConfigError
from robot_rl.env.policy_inputs import PolicyInputs
from robot_rl.errors import in_shell
from robot_rl.evaluation.card import CARD, inputs_of, write_card
from robot_rl.evaluation.evaluate import check_counts
from robot_rl.evaluation.evidence import explain, gather
from robot_rl.evaluation.ledger import (
    decide,
    deployed_policy,
    enter,
    held_back,
    load_policy,
    read_ledger,
    steps_behind,
)
from robot_rl.evaluation.records import intervention_rates, read_run
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import EvaluationResult, first_confirmed, worse_than_start
from robot_rl.learning.blocks import evaluates_periodically
from robot_rl.learning.demonstrations import check_demonstrations, demonstrated, open_demonstrations
from robot_rl.learning.recipe import Recipe, Stage
from robot_rl.learning.stages.clone import Clone, check_networks, check_policy, check_unused
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.stages.collect_reward import CollectReward
from robot_rl.learning.stages.dagger import Dagger
from robot_rl.learning.stages.distil import Distil
from robot_rl.learning.stages.gather import recorded_steps
from robot_rl.learning.stages.reward import Reward
from robot_rl.learning.stages.vision import Vision
from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.machine import MemorySampler, describe_machine
from robot_rl.processes.progress import RECENT_EPISODES, WorkProgress
from robot_rl.replay.catalogue import is_store
from robot_rl.rewards.wrapper import make_source
from robot_rl.run import (
    ACCEPTED,
    ACCEPTED_POLICY,
    CANDIDATE,
    CLONED,
    CLONED_POLICY,
    DEMONSTRATIONS,
    LAST,
    LEARNED_POLICY,
    SUMMARY,
    UNTRAINED,
    RunDirectory,
    RunError,
    policy_folder,
    taken_by_learner,
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
            after = f"after {result.environment_steps:>6,} steps"
            self._progress.note(f"{result.which if result.cloned else after}: {result}")
            if result.against_cloned is not None and result.against_cloned.worse:
                self._progress.note(f"    WORSE than what it began with: {result.against_cloned}")
        self._evaluations = len(evaluations)
        # Of stages without actors there are other records, of which the display has no use.
        blocks = [b for b in self._run.read_jsonl("learner") if "update_to_data" in b]
        if blocks:
            self._progress.update(int(blocks[-1]["environment_steps"]), blocks[-1])
        else:
            self._progress.update(0)


class Prepared(NamedTuple):
    """A run that may begin, or go on: what could be checked before anything is made is in order."""

    recipe: Recipe
    known: RunDirectory | None  # that `config.resume` names
    left: list[str]  # names of its stages with something left to do
    finished: bool  # whether nothing at all is left


def prepare(config: DictConfig) -> Prepared:
    """Check all of a run that can be checked before anything is made."""
    recipe = Recipe(config)
    check_counts(config)
    check_robot(config)
    try_environment(config)
    known = RunDirectory.open(config.resume, config.runs_directory) if config.resume else None
    if known is not None and policy_folder(known.path) is not None:
        raise RunError(f"{known.path} is a policy, not a run", hint="name the run with resume=RUN")
    left = recipe.left(known)
    if known is not None and not left and _is_finished(config, known):
        return Prepared(recipe, known, left, finished=True)
    anyway = [n for n, s in recipe.stages.items() if s.with_actors and config.stage is None]
    recipe.check(known, [name for name in recipe.stages if name in (*left, *anyway)])
    if config.replay.connect:
        raise ConfigError(
            "train starts a replay server of its own",
            got=f"replay.connect={config.replay.connect}",
            hint="start robot-rl actor or robot-rl learner alone on this machine",
        )
    if not config.resume:
        _check_sources(config)
    return Prepared(recipe, known, left, finished=False)


def run(config: DictConfig) -> None:
    """Run the stages of the recipe, or those that are left in the run `config.resume`."""
    recipe, known, left, finished = prepare(config)
    if known is not None and finished:
        print(f"{known.path} is finished: {read_ledger(known)}", flush=True)
        again = f"to measure its policy again: {in_shell('robot-rl', 'evaluate', known.path)}"
        print(f"{again}; {_further(config, recipe, known)}", flush=True)
        return
    with (
        working_run(config, "resume", "robot-rl train") as directory,
        directory.claim("train") as lock,
        robot_nodes(config, directory.path / "logs"),
        MemorySampler() as memory,
    ):
        recipe.borrow(directory, left)
        inputs = check_run(config, directory, recipe)
        try:
            if config.resume:
                save_resolved(config, directory.path)
            print("\n".join(recipe.table(directory)), flush=True)
            if inputs is not None:
                print(inputs, flush=True)
            before, _ = recipe.left_around_decision(directory)
            _go_through(config, directory, recipe, lock, before)
            if config.stage is None and directory.has_policy():
                _decide(config, directory, memory)
                _, after = recipe.left_around_decision(directory)
                _go_through(config, directory, recipe, lock, after)
                write_card(directory, config, *load_policy(directory))
                report = write_report(directory)
                for name, path in (("summary", SUMMARY), ("card", CARD), ("report", report)):
                    print(f"{name + ':':<8} {directory.path / path}", flush=True)
        except BaseException:
            with suppress(RunError):  # a full disk: the error that the run ends with says so
                directory.append_jsonl(_TIMES, memory.costs())
            raise
        directory.append_jsonl(_TIMES, memory.costs())


def _further(config: DictConfig, recipe: Recipe, run: RunDirectory) -> str:
    """How to learn more than a finished run has, in words."""
    if any(stage.with_actors for stage in recipe.stages.values()):
        steps = 2 * max(int(config.environment_steps), steps_behind(run))
        words = (f"resume={config.resume}", f"environment_steps={steps}")
        return f"to learn on: {in_shell('robot-rl', 'train', *words)}"
    longer = [
        f"recipe.stages.{name}.repeat={2 * stage.repeat}"
        for name, stage in config.recipe.stages.items()
        if "repeat" in stage
    ]
    return f"to learn more takes a new run{', with ' * bool(longer)}{' '.join(longer)}"


def _is_finished(config: DictConfig, run: RunDirectory) -> bool:
    """Whether a run without stages left has its summary, and is asked for no other evaluation."""
    summary = read_run(run).summary
    judged = (summary.get("environment_steps"), summary.get("evaluation_episodes"))
    wanted = (steps_behind(run), int(config.evaluation.final_episodes))
    return judged == wanted and load_resolved(run.path).evaluation == config.evaluation


def check_run(config: DictConfig, run: RunDirectory | None, recipe: Recipe) -> PolicyInputs | None:
    """Look for damage, and for what cannot be made, before anything is collected.

    Returns what the policy will see, or sees; None where neither is known.
    """
    for name in (CLONED, ACCEPTED, CANDIDATE, LAST):
        if run is not None and run.has_folder(name):
            run.complete_folder(name)
    if run is not None and run.has_folder(LAST) and not is_store(run.store):
        raise RunError(
            f"{run.path / LAST} has learned from a store that is gone",
            got=f"nothing at {run.store}",
            hint="put it back from a copy; without one begin another run, with"
            f" {in_shell(f'dataset={run.demonstrations}')} for the same demonstrations",
        )
    made = {made for name in recipe.left(run) for made in recipe.stages[name].makes}
    recorded = run is not None and run.demonstrations.exists()
    if DEMONSTRATIONS not in made and (config.dataset or recorded):
        check_demonstrations(config, run)
    if made & {CLONED, UNTRAINED}:
        return check_networks(config)
    return None if run is None else inputs_of(run, config)


def _go_through(
    config: DictConfig, run: RunDirectory, recipe: Recipe, lock: int, names: Sequence[str]
) -> None:
    """Run stages: those that learn beside actors in processes of their own."""
    for beside, together in groupby(names, lambda name: recipe.stages[name].with_actors):
        if beside:
            if not run.has_folder(LAST):
                _warn(config, run)
            _learn_online(config, run, lock)
        else:
            for name in together:
                recipe.perform(name, run)
    if names:
        print("\n".join(recipe.table(run)), flush=True)


def _warn(config: DictConfig, run: RunDirectory) -> None:
    """Say what `robot-rl explain` finds wrong, before a robot is worn in vain."""
    causes, _ = explain(gather(run, config), CHECKS)
    for cause in causes:
        way = f"; next: {cause.mend}" if cause.mend else ""
        print(f"robot-rl explain: {cause.name}: {cause.figure}{way}", flush=True)


def processes(actors: int, periodic: bool) -> dict[str, list[str]]:
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
        started = processes(int(config.actors), evaluates_periodically(config))
        for name, arguments in started.items():
            group.start(name, [*arguments, *place])
        if config.console.open:  # learning does not need it, and goes on where it fails
            group.start("console", ["console", *place], needed=False)
            progress.note(f"console: its address is in {run.path}/logs/console.log")
        feed = Feed(run, progress)
        waiting = [name for name in started if name != "replay"]
        while waiting:
            group.require("replay")
            waiting = [name for name in waiting if group.running(name)]
            if config.console.open:
                group.running("console")
            feed.show()
            time.sleep(_POLL_SECONDS)


def _decide(config: DictConfig, run: RunDirectory, memory: MemorySampler) -> None:
    """Evaluate what was cloned and learned, decide for one, and write the summary."""
    results = evaluate_final(config, run)
    decided = decide(run, results, held_back=held_back(run))
    print(decided, flush=True)  # whatever becomes of the files
    enter(run, decided)
    starts = [*run.read_jsonl(_TIMES), memory.costs()]
    costs = {
        "wall_seconds": sum(float(start["wall_seconds"]) for start in starts),
        "peak_memory_bytes": max(int(start["peak_memory_bytes"]) for start in starts),
    }
    run.save_summary({**summarize(config, run, results), **costs})
    film_final(config, run, load_policy(run)[0], results[deployed_policy(run)])


def summarize(
    config: DictConfig, run: RunDirectory, results: Mapping[str, EvaluationResult]
) -> dict[str, Any]:
    """The figures of a run that has decided: `summary.json`, but for time and memory."""
    records = read_run(run)
    chosen = records.ledger.deployed
    assert chosen is not None
    deployed = results[chosen.policy]
    inputs = inputs_of(run, config)
    blocks = run.read_jsonl("learner")
    intervened = intervention_rates(records.episodes, RECENT_EPISODES)
    return {
        "task": config.task.name,
        "algorithm": config.choices.algorithm,
        "seed": int(config.seed),
        "deployed": chosen.policy,
        "decision": str(records.ledger),
        "held_back": held_back(run),
        "checkpoint": chosen.checkpoint,
        **_rate("bc", results.get(CLONED_POLICY) or records.final(CLONED_POLICY)),
        **_rate("accepted", results.get(ACCEPTED_POLICY)),
        **_rate("rl", results.get(LEARNED_POLICY)),
        "worse_than_start": worse_than_start(records.learned_curve()),
        "evaluation_episodes": deployed.episodes,
        "mean_seconds_to_success": deployed.mean_seconds_to_success,
        "longest_success_run": deployed.longest_success_run,
        "inputs": None if inputs is None else inputs._asdict(),
        "demonstrations": len(open_demonstrations(config, run)) if demonstrated(config) else 0,
        "environment_steps": steps_behind(run),
        "exploration_steps": recorded_steps(run.exploration),
        "gathered_steps": recorded_steps(run.gathered),
        "intervention_rate": intervened[-1][1] if intervened else 0.0,
        "steps_to_97": first_confirmed(records.deployed_curve()),
        "gradient_updates": blocks[-1]["gradient_updates"] if blocks else 0,
        "taken_by_learner": taken_by_learner(run),
        "machine": describe_machine(),
    }


def _rate(method: str, result: EvaluationResult | None) -> dict[str, Any]:
    return {
        f"{method}_success_rate": result.success_rate if result else None,
        f"{method}_confidence": [result.confidence_low, result.confidence_high] if result else None,
    }


def collect(config: DictConfig) -> None:
    """Record demonstrations into a new run directory, or go on in that of `run`."""
    run = _alone(config, Collect, on_robot=True)
    following = in_shell("robot-rl", "pretrain", run.path)
    print(f"written to {run.demonstrations}\nnext: {following}", flush=True)


def pretrain(config: DictConfig) -> None:
    """Clone the demonstrations of `run`, or of `dataset` into a new run directory."""
    try_environment(config)
    recipe, names = _checked(config, Vision, Clone, Dagger)
    if config.run:
        check_demonstrations(config, RunDirectory.open(config.run, config.runs_directory))
    else:
        _check_sources(config)
    with working_run(config) as directory, directory.claim("train"):
        check_unused(config, directory)
        print(check_policy(config), flush=True)
        for name in names:
            recipe.perform(name, directory)
        written = f"written to {directory.path / CLONED}"
        following = in_shell("robot-rl", "train", f"resume={directory.path}")
        print(f"{written}\nnext: {following}", flush=True)


def distil(config: DictConfig) -> None:
    """Distil the deployed policy of `run` into a student that needs one call of the network."""
    _alone(config, Distil, how="from the beginning, by the same command with")


def collect_reward(config: DictConfig) -> None:
    """Record frames of success and of failure into a new run, or go on in `run`."""
    _alone(config, CollectReward, on_robot=True)


def train_reward(config: DictConfig) -> None:
    """Train a success classifier on the examples of `run`."""
    _alone(config, Reward)


def _alone(
    config: DictConfig, kind: type[Stage], *, on_robot: bool = False, how: str = SAME_COMMAND
) -> RunDirectory:
    """Perform a kind of stage in the run `config.run`, or in a new one, which is returned."""
    recipe, names = check_alone(config, kind, on_robot=on_robot)
    with (
        working_run(config, how=how) as run,
        run.claim("train"),
        robot_nodes(config, run.path / "logs") if on_robot else nullcontext(),
    ):
        for name in names:
            recipe.perform(name, run)
    return run


def check_alone(
    config: DictConfig, kind: type[Stage], *, on_robot: bool
) -> tuple[Recipe, list[str]]:
    """As `_checked`, before anything is made; first the robot, where it moves."""
    if on_robot:
        check_robot(config)
        try_environment(config)
    return _checked(config, kind)


def _check_sources(config: DictConfig) -> None:
    """Check what a new run reads from elsewhere, and note where that is from any folder."""
    if config.dataset:
        # Resolved: the run is gone on with from other folders too, and will be the latest itself.
        config.dataset = str(Path(config.dataset).resolve())
        check_demonstrations(config, None)
    if "path" in config.reward.source:
        path = Path(config.reward.source.path)
        # But for its last part, which is a link to the newest generation.
        config.reward.source.path = str(path.parent.resolve() / path.name)
    make_source(config)


def _checked(config: DictConfig, *kinds: type[Stage]) -> tuple[Recipe, list[str]]:
    """The recipe, and the names in it of the wanted stages of these kinds, added or its own."""
    recipe, names = Recipe(config), []
    for kind in kinds:
        own = [name for name, stage in recipe.stages.items() if isinstance(stage, kind)]
        if not own and (stage := kind()).wanted(config):
            own = [re.sub(r"\B(?=[A-Z])", "_", kind.__name__).lower()]  # as a recipe would say
            recipe.stages[own[0]] = stage
        names += own
    if not names:
        got = f"demonstrations={config.demonstrations}, dataset={config.dataset}"
        raise ConfigError("there is nothing to do", got=got, hint="leave these out")
    for name in names:
        recipe.stages[name].check(config)
    return recipe, names
