"""A recipe: the stages of a run in their order, and which of them are done.

A choice of configs/recipe names them; each is a class with a file of its own, such as those in
`robot_rl.learning.stages`. What a stage makes is a file or folder of the run directory. The run's
`stages.jsonl` says which stages have run to their end, and how long each start of one took.
In place of a stage there may be several that are repeated: `{repeat: 3, of: {gather: …}}` is
`gather_1`, `gather_2`, `gather_3`, and so on.
"""

from __future__ import annotations

import itertools
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

from omegaconf import DictConfig

from policies import registry
from robot_rl.errors import RobotRLError, did_you_mean
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.files import MANIFEST, new_folder, newest_folder, replace_text
from robot_rl.processes.signals import StopEvent
from robot_rl.run import DEMONSTRATIONS, RunDirectory, RunError

RECORDS = "stages"


class RecipeError(RobotRLError):
    """Stages that do not fit each other, or lack what they need."""


class Stage(ABC):
    """One step of a recipe; its constructor takes the options of its configuration.

    Attributes:
        needs: Names of what it starts from: files or folders of the run directory.
        makes: Names of what it leaves there.
        with_actors: Whether it learns while actors act: then it runs in the learner's process,
            beside the replay server.
        of_deployed: Whether it works on the policy that is deployed: it, and what follows it, runs
            once that was decided.
        records: Its notes go to RUN/<records>.jsonl.
        round: Which repetition of it this is, from 1; 0 where it is not repeated.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    makes: ClassVar[tuple[str, ...]] = ()
    with_actors: ClassVar[bool] = False
    of_deployed: ClassVar[bool] = False
    records: ClassVar[str] = "notes"
    round: int = 0

    def wanted(self, config: DictConfig) -> bool:
        """Whether a run of this configuration has this stage."""
        return True

    def needed(self, config: DictConfig) -> tuple[str, ...]:
        """What a run of this configuration must have before: `needs`, or more of it."""
        return self.needs

    def check(self, config: DictConfig) -> None:  # noqa: B027  # most have nothing to check
        """Check what can be checked before anything is made.

        Raises:
            RobotRLError: The stage could not do its work.
        """

    def done(self, config: DictConfig, run: RunDirectory, *, recorded: bool) -> bool:
        """Whether nothing is left to do; `recorded`: the stage has run to its end before."""
        return recorded and all((run.path / name).exists() for name in self.makes)

    @abstractmethod
    def run(self, bench: Workbench) -> None:
        """Do the work, or go on with it where an earlier start was interrupted."""


class Recipe:
    """The stages that a run of this configuration has, in order.

    Raises:
        RecipeError: It has no stage of the name that `stage` asks for.
        RunError: There is no run as `artifacts` names.
        RegistryError: A stage cannot be made.
    """

    def __init__(self, config: DictConfig) -> None:
        self._config, self._other = config, None
        if config.artifacts is not None:  # now: `latest` will soon be another run
            self._other = RunDirectory.open(config.artifacts, config.runs_directory)
        self.stages = {n: stage for n, stage in _made(config) if stage.wanted(config)}
        if config.stage is not None and config.stage not in self.stages:
            raise RecipeError(
                f"the recipe {config.choices.recipe!r} has no stage {config.stage!r} here",
                expected=f"one of {', '.join(self.stages)}",
                hint=did_you_mean(str(config.stage), list(self.stages)),
            )

    def left(self, run: RunDirectory | None) -> list[str]:
        """Names of the stages with something left to do; all of them where there is no run yet.

        With `stage` in the configuration it is that one, whether it is done or not.
        """
        return [str(self._config.stage)] if self._config.stage else self._unfinished(run)

    def left_around_decision(self, run: RunDirectory) -> tuple[list[str], list[str]]:
        """The names of `left` to run before it is decided which policy is deployed, and after."""
        left = self.left(run)
        if self._config.stage is not None:
            return left, []
        before = list(itertools.takewhile(lambda name: not self.stages[name].of_deployed, left))
        return before, left[len(before) :]

    def left_with_actors(self, run: RunDirectory) -> list[str]:
        """Names of the stages left that can learn side by side with actors now, in order."""
        left = self.left(run)
        online = itertools.dropwhile(lambda name: not self.stages[name].with_actors, left)
        return list(itertools.takewhile(lambda name: self.stages[name].with_actors, online))

    def check(self, run: RunDirectory | None, names: Sequence[str]) -> None:
        """Check that each of these stages finds what it needs, before any of them starts.

        `run` is None where there is none yet.

        Raises:
            RecipeError: One needs what no stage before it makes, and what is not there.
            RobotRLError: One could not do its work.
        """
        made = {DEMONSTRATIONS} if self._config.dataset is not None else set()
        places = [place for place in (run, self._other) if place is not None]
        for name in names:
            stage = self.stages[name]
            for need in stage.needed(self._config):
                if need not in made and not any((p.path / need).exists() for p in places):
                    raise RecipeError(
                        f"the stage {name!r} needs {need}, which no stage before it makes",
                        got=f"the stages {', '.join(names)}",
                        hint="put the stage that makes it before it; or name a run that has it"
                        " with artifacts=RUN",
                    )
            stage.check(self._config)
            made |= set(stage.makes)

    def borrow(self, run: RunDirectory, names: Sequence[str]) -> None:
        """Copy what these stages need, and the run lacks, from the run that `artifacts` names."""
        if self._other is None:
            return
        for need in {n for name in names for n in self.stages[name].needed(self._config)}:
            source, target = newest_folder(self._other.path / need), run.path / need
            if target.exists() or not source.exists():
                continue
            if source.is_file():
                replace_text(target, source.read_text(encoding="utf-8"))
                continue
            checkpoint = (source / MANIFEST).is_file()
            partial = target.with_name(f".{target.name}.partial")
            copy = run.atomic_folder(need) if checkpoint else new_folder(target, partial)
            with copy as folder:
                # The copy's manifest is written when it is whole.
                others = shutil.ignore_patterns(MANIFEST)
                shutil.copytree(source, folder, dirs_exist_ok=True, ignore=others)

    def perform(self, name: str, run: RunDirectory, stop: StopEvent | None = None) -> None:
        """Run a stage in a run directory; note how long it took, and whether that was to its end.

        Raises:
            RobotRLError: The stage cannot do its work.
            Stopped: `stop` was set, and what could be saved is.
        """
        stage, started, finished = self.stages[name], time.monotonic(), False
        try:
            with Workbench(self._config, run, stop, records=stage.records) as bench:
                stage.run(bench)
                finished = not bench.stop.is_set()
        finally:
            record = {"stage": name, "seconds": time.monotonic() - started, "finished": finished}
            # Where the disk is full an unfinished stage has said so.
            with nullcontext() if finished else suppress(RunError):
                run.append_jsonl(RECORDS, record)

    def table(self, run: RunDirectory | None) -> list[str]:
        """A line for each stage: what it makes, whether it has, and how long that took.

        `run` is None where there is none yet.
        """
        left, width, records = self._unfinished(run), max(map(len, self.stages)), _records(run)
        lines = []
        for name, stage in self.stages.items():
            seconds = round(sum(r["seconds"] for r in records if r["stage"] == name))
            took = f" {seconds // 60}:{seconds % 60:02d}" if seconds else ""
            state = f"{('begun' if took else 'to do') if name in left else 'done'}{took}"
            lines.append(f"stage {name:{width}}  {state:12}  {', '.join(stage.makes)}")
        return lines

    def _unfinished(self, run: RunDirectory | None) -> list[str]:
        ended = {record["stage"] for record in _records(run) if record["finished"]}
        return [
            name
            for name, stage in self.stages.items()
            if run is None or not stage.done(self._config, run, recorded=name in ended)
        ]


def _made(config: DictConfig) -> Iterator[tuple[str, Stage]]:
    """Make the stages by name, repeated ones for each round."""
    for name, section in config.recipe.stages.items():
        if "repeat" not in section:
            yield str(name), registry.make(section, Stage)
            continue
        count, repeated = section.repeat, section.get("of")
        if not (isinstance(count, int) and count >= 1 and isinstance(repeated, DictConfig)):
            raise RecipeError(
                f"the stages {name!r} of the recipe {config.choices.recipe!r} cannot be repeated",
                got=f"repeat: {count}, of: {', '.join(map(str, repeated or ()))}",
                expected="repeat: 1 or more, and of: a mapping of stages",
            )
        for number in range(1, count + 1):
            for inner, options in repeated.items():
                stage = registry.make(options, Stage)
                stage.round = number
                yield f"{inner!s}_{number}", stage


def _records(run: RunDirectory | None) -> list[dict[str, Any]]:
    return [] if run is None else run.read_jsonl(RECORDS)
