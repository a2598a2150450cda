"""`--dry-run`: print a command's checks, full configuration and work; write no files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from robot_rl.commands.preparation import companions
from robot_rl.commands.train import check_alone, check_run, prepare, processes
from robot_rl.config import Settings, on_stepped_clock
from robot_rl.evaluation.ledger import steps_behind
from robot_rl.learning.recipe import Recipe
from robot_rl.learning.stages.collect import Collect
from robot_rl.ros.nodes import node_table
from robot_rl.run import DEMONSTRATIONS, SUMMARY, RunDirectory, RunError


def train(config: DictConfig) -> None:
    """Print what `train` would do; raise the errors it would raise before writing any file."""
    ready = prepare(config)
    if ready.finished:
        print(f"{config.resume} is finished: nothing would run", flush=True)
        return
    if (inputs := check_run(ready.settings, ready.known, ready.recipe)) is not None:
        print(inputs)
    _print_plan(config, ready.recipe, ready.left, ready.known)


def collect(config: DictConfig) -> None:
    """Print what `collect` would do; raise the errors it would raise before writing any file."""
    recipe, names = check_alone(config, Collect, on_robot=True)
    known = RunDirectory.open(config.run, config.runs_directory) if config.run else None
    _print_plan(config, recipe, names, known)


def _print_plan(
    config: DictConfig, recipe: Recipe, left: Sequence[str], known: RunDirectory | None
) -> None:
    print(OmegaConf.to_yaml(config, resolve=True).rstrip())
    print("\n".join(["", *recipe.table(known)]))
    print(f"would run: {', '.join(left)}")
    online = any(map(recipe.beside_actors, left))
    names = ["this one"]
    if online:
        names += [*processes(Settings.of(config)), *["console"] * bool(config.console.open)]
    nodes = node_table(config) if config.start_nodes else ()
    names += [*(node.process for node in nodes), *companions(config)]
    print(f"processes: {', '.join(names)}")
    if known is None:
        place = _writable(Path(config.runs_directory).absolute()) / str(config.task.name) / "TIME"
    else:
        place = known.path
    print(f"data: {place}")
    for line in _robot_time(config, recipe, left, known):
        print(f"robot time: {line}")
    if online:
        print(_former_run(config.runs_directory, config.task.name, config.choices.algorithm))
    print("nothing was started or written", flush=True)


def _writable(place: Path) -> Path:
    """Return the folder of all runs; `RunError` if a run could not be created in it."""
    there = next(folder for folder in (place, *place.parents) if os.path.exists(folder))
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        problem = f"the run directory below {place} cannot be made"
        hint = "choose another place: runs_directory=PATH"
        raise RunError(problem, got=f"{there} cannot be written to", hint=hint)
    return place


def _robot_time(
    config: DictConfig, recipe: Recipe, left: Sequence[str], known: RunDirectory | None
) -> Iterator[str]:
    """Return a line for each part of the work that moves the robot."""
    rate, keys = float(config.control_rate_hz), ("task.environment", "task")
    limits = (OmegaConf.select(config, f"{key}.time_limit_steps") for key in keys)
    limit = next((int(each) for each in limits if each is not None), None)
    of_up_to = f" of up to {_time(limit / rate)}" if limit else ""
    if any(DEMONSTRATIONS in recipe.stages[name].makes for name in left):
        yield f"{config.demonstrations} demonstrations{of_up_to} each, and the attempts that fail"
    if any(map(recipe.beside_actors, left)):
        total = int(config.environment_steps)
        steps = total - (0 if known is None else min(steps_behind(known), total))
        yield f"{steps:,} steps of online learning at {rate:g} Hz: {_time(steps / rate)}"
        count = config.evaluation.final_episodes
        yield f"the final evaluation: {count} episodes{of_up_to} each, per policy"
    if on_stepped_clock(config).clock == "stepped":
        yield "all of it is simulated, and takes as long as it computes"


def _former_run(runs_directory: str, task: str, algorithm: str) -> str:
    """Return how long the latest finished run of this task and algorithm took here."""
    found = Path(runs_directory).glob(f"*/*/{SUMMARY}")
    for file in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            run = json.loads(file.read_bytes())
            same = (run["task"], run["algorithm"]) == (task, algorithm)
            seconds, steps = float(run["wall_seconds"]), int(run["environment_steps"])
        except (ValueError, KeyError, TypeError):  # another version, or damaged
            continue
        if same:
            return f"{file.parent} took {_time(seconds)} here for {steps:,} steps, all in all"
    return "how long it takes is not known: no such run has finished here"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
