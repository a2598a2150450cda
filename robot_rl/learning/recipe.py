"""A recipe: the ordered stages of a run, and which of them are done.

A file in configs/recipe lists the stages. Each stage is a class in its own file, such as those in
`robot_rl.learning.stages`. A stage's artifacts are files or folders in the run directory. The run's
`stages.jsonl` logs which stages have finished and how long each start took. A list entry can also
repeat several stages: `{repeat: 3, of: {gather: …}}` becomes `gather_1`, `gather_2`, `gather_3`,
and so on.
"""

from __future__ import annotations

import itertools
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from policies import registry
from robot_rl.config import ConfigError, Settings
from robot_rl.errors import RobotRLError, did_you_mean
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.files import MANIFEST, new_folder, newest_folder, replace_text
from robot_rl.processes.signals import StopEvent
from robot_rl.run import DEMONSTRATIONS, LAST, RunDirectory, RunError

RECORDS = "stages"


class RecipeError(RobotRLError):
    """Stages that do not fit together or lack an artifact they need."""


class Stage(ABC):
    """One step of a recipe.

    A subclass constructor takes the options of its configuration. Parameters named `settings` and
    `round` receive the run's settings and the repetition number.

    Attributes:
        settings: Settings of the run.
        makes: Names of the artifacts it creates: files or folders of the run directory. A stage
            that makes no artifact is left out of the run. A stage that makes `checkpoints/last`
            runs in the learner's process, in parallel with the actors.
    """

    makes: Sequence[str] = ()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def needs(self) -> Sequence[str]:
        """Return the names of the artifacts the stage starts from.

        They are read before any stage of the run starts. A stage that lacks something else, such as
        an operator, raises its `RobotRLError` here.
        """
        return ()

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether no work is left. `recorded`: the stage has finished before."""
        return recorded and all((run.path / name).exists() for name in self.makes)

    @abstractmethod
    def run(self, bench: Workbench) -> None:
        """Do the work, or resume it after an interruption."""


class Recipe:
    """The stages of a run with these settings, by name and in order.

    Raises:
        RecipeError: There is no stage with the name given as `stage`.
        RunError: The run named by `artifacts` does not exist.
        RegistryError: A stage cannot be created.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._other = settings, None
        if settings.artifacts is not None:  # resolve now: `latest` will soon be another run
            self._other = RunDirectory.open(settings.artifacts, settings.runs_directory)
        self.stages = {name: stage for name, stage in _made(settings) if stage.makes}
        if settings.stage is not None and settings.stage not in self.stages:
            raise RecipeError(
                f"the recipe {settings.choices['recipe']!r} has no stage {settings.stage!r} here",
                expected=f"one of {', '.join(self.stages)}",
                hint=did_you_mean(settings.stage, list(self.stages)),
            )

    def of_kind(self, kind: type[Stage]) -> list[str]:
        """Return the names of the stages of a kind, adding one if the recipe lacks it.

        Raises:
            ConfigError: The run has no such stage.
        """
        names = [name for name, stage in self.stages.items() if isinstance(stage, kind)]
        if names:
            return names
        stage = _make({registry.TARGET: registry.name_of(kind)}, self._settings)
        if not stage.makes:
            count, dataset = self._settings.demonstrations, self._settings.dataset
            got = f"demonstrations={count}, dataset={dataset}"
            raise ConfigError("there is nothing to do", got=got, hint="leave these out")
        name = re.sub(r"\B(?=[A-Z])", "_", kind.__name__).lower()  # spelled as in a recipe
        self.stages[name] = stage
        return [name]

    def left(self, run: RunDirectory | None) -> list[str]:
        """Return the names of unfinished stages. All of them if there is no run yet.

        If the settings have `stage`, return only that stage, done or not.
        """
        return [self._settings.stage] if self._settings.stage else self._unfinished(run)

    def in_turn(self, run: RunDirectory) -> Iterator[str]:
        """Yield the names of `left`, re-checked at each turn, since stages depend on each other."""
        names = [self._settings.stage] if self._settings.stage else list(self.stages)
        yield from (name for name in names if name in self.left(run))

    def up_to(self, artifact: str) -> list[str]:
        """Return the stage names up to the last one that makes an artifact. Empty if none does."""
        names = list(self.stages)
        ends = [n for n, s in enumerate(self.stages.values(), 1) if artifact in s.makes]
        return names[: ends[-1]] if ends else []

    def beside_actors(self, name: str) -> bool:
        """Return whether a stage learns while actors act, in the learner's process."""
        return LAST in self.stages[name].makes

    def online(self, run: RunDirectory) -> list[str]:
        """Return the unfinished stages, in order, that can run alongside the current actors."""
        behind = itertools.dropwhile(lambda name: not self.beside_actors(name), self.left(run))
        return list(itertools.takewhile(self.beside_actors, behind))

    def check(self, run: RunDirectory | None, names: Sequence[str]) -> None:
        """Check that each of these stages will find what it needs, before any of them starts.

        `run` is None if there is no run yet.

        Raises:
            RecipeError: A stage needs an artifact that does not exist and that no earlier stage
                makes.
            RobotRLError: A stage could not do its work.
        """
        made = {DEMONSTRATIONS} if self._settings.dataset is not None else set()
        places = [place for place in (run, self._other) if place is not None]
        for name in names:
            stage = self.stages[name]
            for need in stage.needs:
                if need not in made and not any((p.path / need).exists() for p in places):
                    raise RecipeError(
                        f"the stage {name!r} needs {need}, which no stage before it makes",
                        got=f"the stages {', '.join(names)}",
                        hint="put the stage that makes it before it; or name a run that has it"
                        " with artifacts=RUN",
                    )
            made |= set(stage.makes)

    def borrow(self, run: RunDirectory, names: Sequence[str]) -> None:
        """Copy artifacts these stages need and the run lacks from the run named by `artifacts`."""
        if self._other is None:
            return
        for need in {need for name in names for need in self.stages[name].needs}:
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
                # Write the copy's manifest once the copy is complete.
                others = shutil.ignore_patterns(MANIFEST)
                shutil.copytree(source, folder, dirs_exist_ok=True, ignore=others)

    def perform(self, name: str, run: RunDirectory, stop: StopEvent | None = None) -> None:
        """Run a stage in a run directory. Log its duration and whether it finished.

        Raises:
            RobotRLError: The stage cannot do its work.
            Stopped: `stop` was set. Everything that can be saved is saved.
        """
        started, finished = time.monotonic(), False
        try:
            with Workbench(self._settings, run, stop) as bench:
                self.stages[name].run(bench)
                finished = not bench.stop.is_set()
        finally:
            record = {"stage": name, "seconds": time.monotonic() - started, "finished": finished}
            # If the disk is full, an unfinished stage has already reported it.
            with nullcontext() if finished else suppress(RunError):
                run.append_jsonl(RECORDS, record)

    def table(self, run: RunDirectory | None) -> list[str]:
        """Return a line per stage: its artifacts, whether they exist, and the time it took.

        `run` is None if there is no run yet.
        """
        left, width, records = self._unfinished(run), max(map(len, self.stages)), _records(run)
        lines = []
        for name, stage in self.stages.items():
            seconds = round(sum(r["seconds"] for r in records if r["stage"] == name))
            took = f" {seconds // 60}:{seconds % 60:02d}" if seconds else ""
            state = f"{('started' if took else 'to do') if name in left else 'done'}{took}"
            lines.append(f"stage {name:{width}}  {state:12}  {', '.join(stage.makes)}")
        return lines

    def _unfinished(self, run: RunDirectory | None) -> list[str]:
        ended = {record["stage"] for record in _records(run) if record["finished"]}
        return [
            name
            for name, stage in self.stages.items()
            if run is None or not stage.done(run, recorded=name in ended)
        ]


def _made(settings: Settings) -> Iterator[tuple[str, Stage]]:
    """Create the stages by name. Repeated stages are created for each round."""
    for name, section in settings.recipe["stages"].items():
        if "repeat" not in section:
            yield name, _make(section, settings)
            continue
        count, repeated = section["repeat"], section.get("of")
        if not (isinstance(count, int) and count >= 1 and isinstance(repeated, dict)):
            recipe = settings.choices["recipe"]
            raise RecipeError(
                f"the stages {name!r} of the recipe {recipe!r} cannot be repeated",
                got=f"repeat: {count}, of: {', '.join(map(str, repeated or ()))}",
                expected="repeat: 1 or more, and of: a mapping of stages",
            )
        for number in range(1, count + 1):
            for inner, options in repeated.items():
                yield f"{inner}_{number}", _make(options, settings, number)


def _make(section: Mapping[str, Any], settings: Settings, number: int = 0) -> Stage:
    given = {"settings": settings, "round": number}
    taken = {
        name: value
        for name, value in given.items()
        if name not in section and registry.takes(section, Stage, name)
    }
    return registry.make(section, Stage, **taken)


def _records(run: RunDirectory | None) -> list[dict[str, Any]]:
    return [] if run is None else run.read_jsonl(RECORDS)
