"""A run as commands work in it: a new one or one that is gone on with, and its configuration."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from policies import registry
from robot_rl.config import (
    Cell,
    ConfigError,
    check_missing,
    check_types,
    check_values,
    composed,
    file_defaults,
    flatten,
    given,
    group_choices,
    is_task_named,
    named_cell,
    parse,
    read_cell,
)
from robot_rl.errors import in_shell
from robot_rl.processes.files import point, replace_text
from robot_rl.processes.group import ProcessDied
from robot_rl.run import CELL_FILE, CONFIG_FILE, LATEST, RunDirectory

# A run may be continued or evaluated with other values of these; all else made it what it is.
MAY_DIFFER = (
    "actor",
    "artifacts",
    "bench",
    "cell",
    "choices.classifier",
    "choices.recipe",
    "choices.replay",
    "choices.teleop",
    "classifier",
    "console",
    "deployment",
    "device",
    "distil",
    "environment_steps",
    "evaluation",
    "proof",
    "recipe",
    "recorder",
    "replay",
    "resume",
    "run",
    "runs_directory",
    "stage",
    "teleop",
    "start_nodes",
)
# What else may differ where a policy is measured: the robot, if its observations and actions fit,
# its domain, and the parameters of the task.
ELSEWHERE = (
    "arms",
    "choices.domain",
    "choices.robot",
    "clock",
    "domain",
    "nodes",
    "observation.vision_training",  # how much a robot explores
    "robot",
    "simulation",
    "task.environment",
    "task.expert",
    "task.tracked",
)
_NO_VALUE = object()
SAME_COMMAND = "the same command with"


def compose_new_run(overrides: Sequence[str]) -> DictConfig:
    """As `compose`; `ConfigError` where a real robot would do a task that nobody has named."""
    cell = named_cell(overrides)
    check_missing(config := composed(overrides, cell))
    simulated = "namespace" not in config.robot or config.robot.mirror is not None
    if not simulated and not is_task_named(overrides, cell):
        folder = "lab" if config.cell is None else Path(config.cell).parent
        raise ConfigError(
            "which task is this robot to do?",
            got="none",
            expected=f"task=NAME, one of {', '.join(group_choices()['task'])}",
            hint="add it; or write your own:"
            f" {in_shell('robot-rl', 'task', f'{folder}/NAME', 'instruction=TEXT')}",
        )
    return config


def compose_for_run(
    overrides: Sequence[str],
    run_config: DictConfig,
    *,
    elsewhere: bool = False,
    cell: Cell | None = None,
) -> DictConfig:
    """Apply what the user typed to the configuration of an existing run, made with a `cell`.

    `ConfigError` as of `compose`, and for an override that would make it another run; `elsewhere`
    the run may differ in `ELSEWHERE` too.
    """
    typed = {override.key_or_group: override.value() for override in map(parse, overrides)}
    if (new := named_cell(overrides)) is not None:
        # What it chooses otherwise than before is as if typed.
        known = cell.choices if cell is not None else {}
        chosen = new.choices.items()
        typed = {**{g: c for g, c in chosen if known.get(g) != c}, **typed}
        overrides = [*(f"{g}={c}" for g, c in chosen if known.get(g) != c), *overrides]
    asked = list(typed)
    _check_own_choices(run_config)
    choices = {g: f"{g}={c}" for g, c in run_config.choices.items() if c is not None}
    same_robot = typed.get("robot") in (None, run_config.choices.get("robot"))
    # What must be given was given when the run was made; it is not asked for again.
    found = composed(
        [*(text for g, text in choices.items() if g not in asked), *overrides],
        new or (cell if same_robot else None),
    )
    result = copy.deepcopy(run_config)
    OmegaConf.set_struct(result, False)
    kept = {key: OmegaConf.select(run_config, key) for key in asked if key not in found.choices}
    told = {key: value for key, value in kept.items() if key != "cell"}
    plain = [given(k, v) for k, v in told.items() if isinstance(v, int | float | str)]
    made = composed([*choices.values(), *plain], cell)
    groups = set(made.choices) - set(run_config.choices)
    lacking = {*(set(made) - set(run_config)), *(f"choices.{group}" for group in groups)}
    if lacking:
        named = ", ".join(sorted(lacking))
        raise ConfigError(
            f"another version of robot_rl made this run: it has no setting {named}",
            hint="use the version that made it, or train anew",
        )
    _check_unchanged(run_config, made, "the configuration of the run")
    # What overrides change, other keys that refer to them among it.
    before = flatten(made)
    for key, value in flatten(found).items():
        if before.get(key, _NO_VALUE) != value:
            OmegaConf.update(result, key, value, force_add=True)
    for key in asked:
        if key in kept:
            OmegaConf.update(result, key, OmegaConf.select(found, key), merge=False)
        elif found.choices[key] != run_config.choices.get(key):
            result[key], result.choices[key] = found[key], found.choices[key]
    if not same_robot:
        result.nodes, result.arms, result.cell = found.nodes, found.arms, found.cell
    may_differ = (*MAY_DIFFER, *(ELSEWHERE if elsewhere else ()))
    compare_run(result, run_config, may_differ=may_differ)
    check_code(result)
    OmegaConf.set_struct(result, True)
    check_missing(result)
    return result


def _check_own_choices(run_config: DictConfig) -> None:
    """Check that the choices of a run are here: some may be in a folder of the user's own."""
    known = group_choices()
    for group, choice in run_config.choices.items():
        here = known.get(str(group), ())
        if choice is not None and choice not in here:
            raise ConfigError(
                f"the run was made with {group}={choice}, which is not here",
                expected=f"one of {', '.join(here)}",
                hint=_naming(run_config, f"configs/{group}/{choice}.yaml"),
            )


def _check_unchanged(run_config: DictConfig, made: DictConfig, what: object) -> None:
    """Raise `ConfigError` for a value of a run that no command of ours would have written."""
    try:
        check_types(run_config, made)
        check_values(run_config)
    except ConfigError as error:
        raise ConfigError(f"{what} was changed: {error}") from error


def _naming(run_config: DictConfig, file: str) -> str:
    """How to name the folder of the user's own with a file that a run needs."""
    cell = run_config.get("cell")
    made_with = f"; it was made with {in_shell(f'cell={cell}')}" if cell else ""
    options = f"cell=FOLDER, --config-dir FOLDER or {registry.PATH_VARIABLE}=FOLDER"
    return f"if you trust its code, name the folder with {file}: {options}{made_with}"


def check_code(config: DictConfig) -> None:
    """Raise `ConfigError` where a run names a class of code that this command does not name."""
    found = OmegaConf.to_container(config)
    for where, name in _targets(found):
        if not registry.is_registered(name):
            file = f"{name.partition('.')[0]}.py"
            raise ConfigError(
                "the run needs code that is neither robot_rl's nor named in this command",
                got=f"{where}: {name}",
                hint=_naming(config, file),
            )


def _targets(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Where in a configuration a class is named, and its name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == registry.TARGET:
                yield f"{where}{key}", str(item)
            yield from _targets(item, f"{where}{key}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _targets(item, f"{where}{index}.")


def compare_run(
    config: DictConfig,
    run_config: DictConfig,
    *,
    may_differ: Iterable[str] = MAY_DIFFER,
    hint: str = "leave these overrides out to go on with the run, or start a new run with them",
) -> None:
    """Raise `ConfigError` where a run was made with another configuration than is asked for.

    It names the first keys that differ, but for the keys, or prefixes of keys, `may_differ`.
    """
    ours, theirs = flatten(config), flatten(run_config)
    allowed = tuple(f"{prefix}." for prefix in may_differ)
    keys = [
        key
        for key in {**ours, **theirs}
        if not f"{key}.".startswith(allowed)
        and ours.get(key, _NO_VALUE) != theirs.get(key, _NO_VALUE)
    ]
    if not keys:
        return
    # The choice explains all values below it: name it first, and not its hundred consequences.
    groups = [key for key in keys if key.startswith("choices.")]
    names = {key: key.removeprefix("choices.") for key in groups or keys[:5]}
    more = f" (and {len(keys) - 5} more)" if not groups and len(keys) > 5 else ""
    got, expected = (
        ", ".join(f"{name}={values.get(key, 'absent')}" for key, name in names.items())
        for values in (ours, theirs)
    )
    raise ConfigError(
        "the run was made with another configuration:"
        f" it differs in {', '.join(names.values())}{more}",
        got=got,
        expected=expected,
        hint=hint,
    )


def kept_cell(run: Path, run_config: DictConfig, *, told: bool = True) -> Cell | None:
    """A run's copy of the cell that it was made with; it brings no code.

    Where it is `told`, a sentence says that the file is no longer that.
    """
    if not (run / CELL_FILE).is_file():
        return None
    kept = read_cell(str(run / CELL_FILE))
    try:
        problem = "" if read_cell(run_config.cell)[1:] == kept[1:] else "has changed"
    except ConfigError:
        problem = "is gone, or cannot be read any more"
    if problem and told:
        goes_on = "the run goes on with the cell that it was made with"
        print(f"the cell {run_config.cell} {problem}: {goes_on}", flush=True)
    return kept


def save_resolved(config: DictConfig, run: Path) -> None:
    """Write what a run keeps of a configuration, in one step: all but what is asked for once.

    That names runs and one stage. A new run copies its cell. `ConfigError` where it cannot be
    written.
    """
    kept = OmegaConf.merge(config, dict.fromkeys(("artifacts", "resume", "run", "stage")))
    try:
        if config.cell is not None and not (run / CELL_FILE).exists():
            replace_text(run / CELL_FILE, Path(config.cell).read_text(encoding="utf-8"))
        replace_text(run / CONFIG_FILE, OmegaConf.to_yaml(kept, resolve=True))
    except OSError as error:
        raise ConfigError(f"{run / CONFIG_FILE} cannot be written", got=error) from error


def load_resolved(run: Path) -> DictConfig:
    """Read the configuration of a run; `ConfigError` where `save_resolved` has not written one.

    Its choices may be of a folder that is not here: see `compose_for_run` for the values of these.
    """
    path = run / CONFIG_FILE
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # OSError, or whatever YAML and OmegaConf raise on a cut file
        raise ConfigError(f"the configuration {path} cannot be read", got=error) from error
    kinds = {"choices": DictConfig, "task": DictConfig, "task.name": str}
    if not isinstance(config, DictConfig) or not all(
        isinstance(OmegaConf.select(config, key), kind) for key, kind in kinds.items()
    ):
        raise ConfigError(
            f"{path} is not the configuration of a run",
            got=type(config).__name__,
            expected="a mapping with `choices`, and with a text as `task.name`",
        )
    if references := [key for key, value in flatten(config).items() if "${" in str(value)]:
        # What `save_resolved` writes has none: it would be filled in from this machine.
        raise ConfigError(
            f"{path} was changed: it refers to other values", got=references, expected="values"
        )
    defaults = file_defaults()
    if config.get("control_rate_hz") is None:  # that of a Gymnasium environment, until it is known
        del defaults["control_rate_hz"]
    _check_unchanged(config, defaults, path)
    OmegaConf.set_struct(config, True)
    return config


@contextmanager
def working_run(
    config: DictConfig, key: str = "run", how: str = SAME_COMMAND
) -> Iterator[RunDirectory]:
    """Open the run that the configuration's `key` names, or make one that keeps the configuration.

    Says where it is, and at a stop how to go on: `how`, with the key and its path after it.
    """
    known = config[key]
    opened = nullcontext(RunDirectory.open(known, config.runs_directory)) if known else None
    with opened or _new_run(config) as run:
        print(f"run directory: {run.path}", flush=True)
        if "train" in run.claimed():
            print("another command works on it: waiting for that to end", flush=True)
        try:
            yield run
        except (KeyboardInterrupt, ProcessDied) as error:
            if isinstance(error, KeyboardInterrupt) or not run.is_empty():
                print(f"to go on: {how} {in_shell(f'{key}={run.path}')}", flush=True)
            raise


@contextmanager
def _new_run(config: DictConfig) -> Iterator[RunDirectory]:
    """Make a run; if work fails before anything is recorded, it is removed.

    But for the logs of a process that has died.

    `latest` then points to where it did before, also for a run that a person stops so early.
    """
    latest = Path(config.runs_directory).absolute() / LATEST
    before = latest.readlink() if latest.is_symlink() else None
    run = RunDirectory.create(config.task.name, config.runs_directory)
    try:
        save_resolved(config, run.path)
        yield run
    except (Exception, KeyboardInterrupt) as error:
        if run.is_empty() and before is not None and latest.resolve() == run.path:
            point(latest, before)
        if run.is_empty() and not isinstance(error, KeyboardInterrupt):
            print("nothing was recorded", flush=True)
            if latest.resolve() == run.path:
                latest.unlink()
            # What it said is there, be it that it ended the command or was noted beside its error.
            died = isinstance(error, ProcessDied) or hasattr(error, "__notes__")
            if not died or not any(log.stat().st_size for log in run.path.glob("logs/*.log")):
                shutil.rmtree(run.path)
            with suppress(OSError):  # other runs are in them
                run.path.parent.rmdir()
                latest.parent.rmdir()
        raise
