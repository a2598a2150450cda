"""Open or create a command's run, and compose its configuration."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from policies import places, registry
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

# A run may be continued or evaluated with other values of these keys and all keys below them.
MAY_DIFFER = (
    *("choices.classifier", "choices.recipe", "choices.replay", "choices.teleop"),
    *("actor", "artifacts", "bench", "cell", "classifier", "console", "deployment", "device"),
    *("distil", "environment_steps", "evaluation", "proof", "recipe", "recorder", "replay"),
    *("resume", "run", "runs_directory", "stage", "teleop", "start_nodes"),
)
# A policy may also be measured with other values of these: on another robot with the same
# observations and actions, in another domain, with other task parameters. How much a robot explores
# (vision_training) does not matter then.
ELSEWHERE = (
    *("choices.domain", "choices.robot", "arms", "clock", "domain", "nodes", "robot"),
    *("observation.vision_training", "simulation"),
    *("task.environment", "task.expert", "task.tracked"),
)
_NO_VALUE = object()
SAME_COMMAND = "the same command with"


def compose_new_run(overrides: Sequence[str]) -> DictConfig:
    """As `compose`; `ConfigError` for a real robot without a named task."""
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
    """Apply overrides to the configuration of an existing run, which was made with `cell`.

    `ConfigError` as in `compose`, and for an override that would make it another run. With
    `elsewhere` the run may also differ in `ELSEWHERE`.
    """
    typed = {override.key_or_group: override.value() for override in map(parse, overrides)}
    new_cell = named_cell(overrides)
    if new_cell is not None:
        # Treat its choices that differ from the previous cell's as typed.
        old = cell.choices if cell is not None else {}
        chosen = {g: c for g, c in new_cell.choices.items() if old.get(g) != c}
        typed = {**chosen, **typed}
        overrides = [*(f"{g}={c}" for g, c in chosen.items()), *overrides]
    known = group_choices()
    for group, choice in run_config.choices.items():  # some may be in a user's own folder
        valid = known.get(str(group), ())
        if choice is not None and choice not in valid:
            raise ConfigError(
                f"the run was made with {group}={choice}, which is not here",
                expected=f"one of {', '.join(valid)}",
                hint=_naming(run_config, f"configs/{group}/{choice}.yaml"),
            )
    choices = {g: f"{g}={c}" for g, c in run_config.choices.items() if c is not None}
    same_robot = typed.get("robot") in (None, run_config.choices.get("robot"))
    # Values without a default were set when the run was made; do not require them again.
    after = composed(
        [*(text for group, text in choices.items() if group not in typed), *overrides],
        new_cell or (cell if same_robot else None),
    )
    # The same composition with the run's own values of the typed keys.
    values = {key: OmegaConf.select(run_config, key) for key in typed if key not in after.choices}
    texts = (
        given(key, value)
        for key, value in values.items()
        if key != "cell" and isinstance(value, int | float | str)
    )
    before = composed([*choices.values(), *texts], cell)
    groups = set(before.choices) - set(run_config.choices)
    lacking = {*(set(before) - set(run_config)), *(f"choices.{group}" for group in groups)}
    if lacking:
        raise ConfigError(
            "another version of robot_rl made this run: it has no setting"
            f" {', '.join(sorted(lacking))}",
            hint="use the version that made it, or train a new run",
        )
    _check_unchanged(run_config, before, "the configuration of the run")
    result = copy.deepcopy(run_config)
    OmegaConf.set_struct(result, False)
    # Changes by the overrides, including other keys that refer to the changed ones.
    flat = flatten(before)
    for key, value in flatten(after).items():
        if flat.get(key, _NO_VALUE) != value:
            OmegaConf.update(result, key, value, force_add=True)
    for key in typed:
        if key in values:
            OmegaConf.update(result, key, OmegaConf.select(after, key), merge=False)
        elif after.choices[key] != run_config.choices.get(key):
            result[key], result.choices[key] = after[key], after.choices[key]
    if not same_robot:
        result.nodes, result.arms, result.cell = after.nodes, after.arms, after.cell
    compare_run(result, run_config, may_differ=MAY_DIFFER + ELSEWHERE * elsewhere)
    for where, name in _targets(OmegaConf.to_container(result)):
        if not places.is_registered(name):
            raise ConfigError(
                "the run needs code that is neither robot_rl's nor named in this command",
                got=f"{where}: {name}",
                hint=_naming(result, f"{name.partition('.')[0]}.py"),
            )
    OmegaConf.set_struct(result, True)
    check_missing(result)
    return result


def _check_unchanged(run_config: DictConfig, made: DictConfig, place: object) -> None:
    """Raise `ConfigError` for a value in a run that no command could have written."""
    try:
        check_types(run_config, made)
        check_values(run_config)
    except ConfigError as error:
        raise ConfigError(f"{place} was changed: {error}") from error


def _naming(run_config: DictConfig, file: str) -> str:
    """Return a hint: how to name the user's folder that has a file the run needs."""
    cell = run_config.get("cell")
    made_with = f"; it was made with {in_shell(f'cell={cell}')}" if cell else ""
    options = f"cell=FOLDER, --config-dir FOLDER or {places.PATH_VARIABLE}=FOLDER"
    return f"if you trust its code, name the folder with {file}: {options}{made_with}"


def _targets(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key at which a configuration names a class, and the class name."""
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
    """Raise `ConfigError`, with the first differing keys, unless a configuration matches a run's.

    The keys of `may_differ`, and all keys below them, may differ.
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
    # A choice explains all differences below it: report only the choice.
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


def kept_cell(run: Path, run_config: DictConfig, *, quiet: bool = False) -> Cell | None:
    """Return the run's copy of its cell, without loading code from its folder.

    Unless `quiet`, prints whether the cell itself has changed since.
    """
    if not (run / CELL_FILE).is_file():
        return None
    kept = read_cell(str(run / CELL_FILE))
    try:
        problem = "" if read_cell(run_config.cell)[1:] == kept[1:] else "has changed"
    except ConfigError:
        problem = "is gone, or cannot be read any more"
    if problem and not quiet:
        goes_on = "the run goes on with the cell that it was made with"
        print(f"the cell {run_config.cell} {problem}: {goes_on}", flush=True)
    return kept


def save_resolved(config: DictConfig, run: Path) -> None:
    """Write a run's configuration and, into a new run, a copy of its cell.

    Keys that name runs or a single stage apply to one command and are not stored. `ConfigError` if
    the configuration cannot be written.
    """
    kept = OmegaConf.merge(config, dict.fromkeys(("artifacts", "resume", "run", "stage")))
    try:
        if config.cell is not None and not (run / CELL_FILE).exists():
            replace_text(run / CELL_FILE, Path(config.cell).read_text(encoding="utf-8"))
        replace_text(run / CONFIG_FILE, OmegaConf.to_yaml(kept, resolve=True))
    except OSError as error:
        raise ConfigError(f"{run / CONFIG_FILE} cannot be written", got=error) from error


def load_resolved(run: Path) -> DictConfig:
    """Read the output of `save_resolved`; `ConfigError` if it cannot be that.

    Choices and classes are not looked up: they may be in a folder that is not here.
    """
    path = run / CONFIG_FILE
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # OSError, or a YAML or OmegaConf error for a truncated file
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
        # `save_resolved` writes no interpolations: this machine would resolve them.
        raise ConfigError(
            f"{path} was changed: it refers to other values", got=references, expected="values"
        )
    defaults = file_defaults()
    if config.get("control_rate_hz") is None:  # open until a Gymnasium environment reports it
        del defaults["control_rate_hz"]
    _check_unchanged(config, defaults, path)
    OmegaConf.set_struct(config, True)
    return config


@contextmanager
def working_run(
    config: DictConfig, key: str = "run", how: str = SAME_COMMAND
) -> Iterator[RunDirectory]:
    """Open the run that the configuration's `key` names, or create one with this configuration.

    Prints its path and, if the work is interrupted, the command to continue: `how`.
    """
    name = config[key]
    opened = nullcontext(RunDirectory.open(name, config.runs_directory)) if name else None
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
    """Create a run, and remove it if the work fails before anything is recorded.

    `latest` then points to the previous run, also if a person stops the work that early. The logs
    of a process that died are kept.
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
            # A process that died has logs; its death may be the error or one of the error's notes.
            died = isinstance(error, ProcessDied) or hasattr(error, "__notes__")
            if not died or not any(log.stat().st_size for log in run.path.glob("logs/*.log")):
                shutil.rmtree(run.path)
            with suppress(OSError):  # other runs are in the folders
                run.path.parent.rmdir()
                latest.parent.rmdir()
        raise
