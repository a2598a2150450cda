"""`robot-rl train`: all stages of a recipe, then the report.

Also `collect`, `pretrain`, `distil`, `collect-reward` and `train-reward`: individual stages.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from robot_rl.commands.preparation import check_robot, robot_nodes, try_environment
from robot_rl.commands.runs import SAME_COMMAND, save_resolved, working_run
from robot_rl.config import ConfigError, Settings
from robot_rl.env.factory import make_source
from robot_rl.errors import in_shell
from robot_rl.evaluation.ledger import read_ledger, steps_behind
from robot_rl.evaluation.records import PolicyInputs, inputs_of
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.learning.demonstrations import check_demonstrations, open_demonstrations
from robot_rl.learning.recipe import Recipe, Stage
from robot_rl.learning.stages.clone import check_networks, check_policy, check_unused
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.stages.collect_reward import CollectReward
from robot_rl.learning.stages.distil import Distil
from robot_rl.learning.stages.reward import Reward
from robot_rl.plugins import added, plugins, resolve
from robot_rl.processes.group import ProcessGroup
from robot_rl.processes.machine import MemorySampler
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.replay.catalogue import is_store
from robot_rl.run import (
    ACCEPTED,
    CANDIDATE,
    CLONED,
    DEMONSTRATIONS,
    LAST,
    SUMMARY,
    UNTRAINED,
    RunDirectory,
    RunError,
    policy_folder,
)

_POLL_SECONDS = 0.25
_TIMES = "times"


class Feed:
    """Passes new lines of the run's files to the display; earlier evaluations are not new."""

    def __init__(self, run: RunDirectory, progress: WorkProgress) -> None:
        self._run, self._progress = run, progress
        self._episodes, self._evaluations = 0, len(run.read_jsonl("evaluations"))

    def show(self) -> None:
        """Read and show new lines."""
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
        # Stages without actors write other records, which the display ignores.
        blocks = [b for b in self._run.read_jsonl("learner") if "update_to_data" in b]
        steps = int(blocks[-1]["environment_steps"]) if blocks else 0
        self._progress.update(steps, blocks[-1] if blocks else None)


class Prepared(NamedTuple):
    """A run that passed all checks and may start or continue."""

    settings: Settings
    recipe: Recipe
    known: RunDirectory | None  # the run that `config.resume` names
    left: list[str]  # names of its unfinished stages

    @property
    def finished(self) -> bool:
        """Whether all stages are done and the summary has all their costs."""
        if self.known is None or self.left:
            return False
        return "wall_seconds" in self.known.read_summary()


def prepare(config: DictConfig) -> Prepared:
    """Run all checks that are possible before any file is written."""
    known = RunDirectory.open(config.resume, config.runs_directory) if config.resume else None
    if known is not None and policy_folder(known.path) is not None:
        raise RunError(f"{known.path} is a policy, not a run", hint="name the run with resume=RUN")
    if config.replay.connect:
        raise ConfigError(
            "train starts a replay server of its own",
            got=f"replay.connect={config.replay.connect}",
            hint="start robot-rl actor or robot-rl learner alone on this machine",
        )
    check_robot(config)
    try_environment(config)
    settings = _with_sources(config) if known is None else Settings.of(config)
    recipe = Recipe(settings)
    ready = Prepared(settings, recipe, known, recipe.left(known))
    if not ready.finished:
        online = [n for n in recipe.stages if recipe.beside_actors(n) and settings.stage is None]
        recipe.check(known, [n for n in recipe.stages if n in (*ready.left, *online)])
        if known is None:
            _check_sources(settings)
    return ready


def run(config: DictConfig) -> None:
    """Run the stages of the recipe, or the remaining stages of the run `config.resume`."""
    ready = prepare(config)
    settings, recipe, known = ready.settings, ready.recipe, ready.known
    if known is not None and ready.finished:
        print(f"{known.path} is finished: {read_ledger(known)}", flush=True)
        again = f"to measure its policy again: {in_shell('robot-rl', 'evaluate', known.path)}"
        print(f"{again}; {_further(settings, recipe, known)}", flush=True)
        return
    with (
        working_run(config, "resume", "robot-rl train") as directory,
        directory.claim("train") as lock,
        robot_nodes(config, directory.path / "logs"),
        MemorySampler() as memory,
    ):
        recipe.borrow(directory, ready.left)
        inputs = check_run(settings, directory, recipe)
        try:
            if config.resume:
                save_resolved(config, directory.path)
            print("\n".join(recipe.table(directory)), flush=True)
            if inputs is not None:
                print(inputs, flush=True)
            for name in recipe.in_turn(directory):
                if recipe.beside_actors(name):
                    if not directory.has_folder(LAST):
                        # Plug-in warnings, before training wears the robot in vain.
                        for check in (name for plugin in plugins() for name in plugin.checks):
                            for warning in resolve(check)(directory, config):
                                print(warning, flush=True)
                    _learn_online(settings, directory, lock, console=config.console.open)
                else:
                    recipe.perform(name, directory)
            print("\n".join(recipe.table(directory)), flush=True)
        except BaseException:
            with suppress(RunError):  # a full disk: the run's final error reports it
                directory.append_jsonl(_TIMES, memory.costs())
            raise
        directory.append_jsonl(_TIMES, memory.costs())
        if settings.stage is None and (summary := directory.read_summary()):
            starts = directory.read_jsonl(_TIMES)
            seconds = sum(float(start["wall_seconds"]) for start in starts)
            most = max(int(start["peak_memory_bytes"]) for start in starts)
            directory.save_summary({**summary, "wall_seconds": seconds, "peak_memory_bytes": most})
            written = {"summary": directory.path / SUMMARY}
            for name, write in added("after_run").items():
                written[name] = resolve(write)(directory, config)
            written["report"] = write_report(directory)
            for name, path in written.items():
                print(f"{name + ':':<8} {path}", flush=True)


def _further(settings: Settings, recipe: Recipe, run: RunDirectory) -> str:
    """Return how to continue learning after a run has finished."""
    if any(map(recipe.beside_actors, recipe.stages)):
        steps = 2 * max(settings.environment_steps, steps_behind(run))
        words = (f"resume={run.path}", f"environment_steps={steps}")
        return f"to learn on: {in_shell('robot-rl', 'train', *words)}"
    longer = [
        f"recipe.stages.{name}.repeat={2 * stage['repeat']}"
        for name, stage in settings.recipe["stages"].items()
        if "repeat" in stage
    ]
    return f"to learn more takes a new run{', with ' * bool(longer)}{' '.join(longer)}"


def check_run(settings: Settings, run: RunDirectory | None, recipe: Recipe) -> PolicyInputs | None:
    """Check for damage and for networks that cannot be built, before collecting anything.

    Returns the inputs of the policy, if already known.
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
    if DEMONSTRATIONS not in made and (settings.dataset or recorded):
        check_demonstrations(settings.environment, open_demonstrations(settings.dataset, run))
    if made & {CLONED, UNTRAINED}:
        return check_networks(settings)
    return None if run is None else inputs_of(run, settings.dataset)


def processes(settings: Settings) -> dict[str, list[str]]:
    """Return process name → arguments, in start order; the last one ends first."""
    actors = settings.actors
    acting = {
        f"actor-{n}" if actors > 1 else "actor": ["actor", f"actor={n}"]
        for n in range(1, actors + 1)
    }
    periodic = settings.evaluation.periodic
    evaluator = {"evaluator": ["evaluate", "evaluation.follow=true"]} if periodic else {}
    return {"replay": ["replay"], "learner": ["learner"], **acting, **evaluator}


def _learn_online(settings: Settings, run: RunDirectory, lock: int, *, console: bool) -> None:
    """Start the processes; wait until all steps are learned from and evaluated."""
    place = [f"run={run.path}", f"runs_directory={settings.runs_directory}"]
    if settings.stage is not None:
        place.append(f"stage={settings.stage}")
    with (
        WorkProgress(settings.environment_steps, "environment steps") as progress,
        ProcessGroup(run.path / "logs", [lock], progress.note) as group,
    ):
        progress.phase("online learning")
        started = processes(settings)
        for name, arguments in started.items():
            group.start(name, [*arguments, *place])
        if console:  # learning continues if the console fails
            group.start("console", ["console", *place], needed=False)
            progress.note(f"console: its address is in {run.path}/logs/console.log")
        feed = Feed(run, progress)
        waiting = [name for name in started if name != "replay"]
        while waiting:
            group.require("replay")
            waiting = [name for name in waiting if group.running(name)]
            if console:
                group.running("console")
            feed.show()
            time.sleep(_POLL_SECONDS)


def collect(config: DictConfig) -> None:
    """Record demonstrations into a new run, or continue in `run`."""
    run = _alone(config, Collect, on_robot=True)
    following = in_shell("robot-rl", "pretrain", run.path)
    print(f"written to {run.demonstrations}\nnext: {following}", flush=True)


def pretrain(config: DictConfig) -> None:
    """Clone the demonstrations of `run`, or of `dataset` into a new run directory.

    Runs the stages of the recipe up to the last cloning stage, without the recording.
    """
    try_environment(config)
    settings = Settings.of(config) if config.run else _with_sources(config)
    recipe = Recipe(settings)
    names = [n for n in recipe.up_to(CLONED) if DEMONSTRATIONS not in recipe.stages[n].makes]
    if not names:
        got = f"demonstrations={settings.demonstrations}, dataset={settings.dataset}"
        raise ConfigError("there is nothing to do", got=got, hint="leave these out")
    known = RunDirectory.open(config.run, config.runs_directory) if config.run else None
    for name in names:
        recipe.stages[name].needs  # noqa: B018  # raises if the stage cannot run
    check_demonstrations(settings.environment, open_demonstrations(settings.dataset, known))
    if known is None:
        _check_sources(settings)
    with working_run(config) as directory, directory.claim("train"):
        check_unused(directory, settings.dataset)
        print(check_policy(settings), flush=True)
        for name in names:
            recipe.perform(name, directory)
        written = f"written to {directory.path / CLONED}"
        following = in_shell("robot-rl", "train", f"resume={directory.path}")
        print(f"{written}\nnext: {following}", flush=True)


def distil(config: DictConfig) -> None:
    """Distil the deployed policy of `run` into a student that needs one network call."""
    _alone(config, Distil, how="from the beginning, by the same command with")


def collect_reward(config: DictConfig) -> None:
    """Record success and failure frames into a new run, or continue in `run`."""
    _alone(config, CollectReward, on_robot=True)


def train_reward(config: DictConfig) -> None:
    """Train a success classifier on the examples of `run`."""
    _alone(config, Reward)


def _alone(
    config: DictConfig, kind: type[Stage], *, on_robot: bool = False, how: str = SAME_COMMAND
) -> RunDirectory:
    """Run the stages of a kind in the run `config.run`, or in a new one; return that run."""
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
    """Check and return the recipe and its stages of a kind; also check the robot they move."""
    if on_robot:
        check_robot(config)
        try_environment(config)
    recipe = Recipe(Settings.of(config))
    names = recipe.of_kind(kind)
    for name in names:
        recipe.stages[name].needs  # noqa: B018  # raises if the stage cannot run
    return recipe, names


def _with_sources(config: DictConfig) -> Settings:
    """Return the settings of a new run, with absolute paths for external sources.

    The run may be continued from another folder, and `latest` will name this run.
    """
    if config.dataset:
        config.dataset = str(Path(config.dataset).resolve())
    if "path" in config.reward.source:
        path = Path(config.reward.source.path)
        # The last path component stays a link to the latest generation.
        config.reward.source.path = str(path.parent.resolve() / path.name)
    return Settings.of(config)


def _check_sources(settings: Settings) -> None:
    """Check the external sources of a new run."""
    if settings.dataset:
        demonstrations = open_demonstrations(settings.dataset, None)
        check_demonstrations(settings.environment, demonstrations)
    make_source(settings.environment)
