"""Compose a configuration with Hydra; errors come with a hint.

Hydra composes `configs/config.yaml` and its groups, plus those of plug-ins and the user's folders.
Then the values of a cell (the user's robot in one file) are applied, then the command line's
overrides. An unknown choice or key is an error that lists the valid names, and a value must have
the type of its default. `robot_rl.commands.runs` adds the configuration of a run.
"""

from __future__ import annotations

import copy
import functools
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from policies import places
from robot_rl.config.cells import Cell, name_environment, named_cell
from robot_rl.config.values import (
    NOT_GIVEN,
    ConfigError,
    check_key,
    check_value,
    check_values,
    flatten,
    of_same_type,
    parse,
)
from robot_rl.processes.resources import choice_file, config_places, find_resource
from robot_rl.run import POLICIES

# Syntax of a required value, by the last part of its key.
_WRITTEN = {"pose": "[x,y,z,qx,qy,qz,qw]", "names": "[NAME,NAME,...]"}
# Sections that each of `arms` may override.
_OF_ARM = ("robot", "nodes", "simulation", "task", "observation")
# Default class for an entry of `observation.cameras`.
_CAMERA = "robot_rl.env.sim.cameras.CameraOptions"


def group_choices() -> dict[str, tuple[str, ...]]:
    """Return the valid choices of each configuration group, for example of `task`.

    `ConfigError` if a user's folder has a choice that already exists.
    """
    files: dict[tuple[str, str], Path] = {}
    for path in (path for place in config_places() for path in sorted(place.glob("*/*.yaml"))):
        group, name = path.parent.name, path.stem
        if (group, name) in files:
            problem, both = f"two files describe {group}={name}", f"{files[group, name]} and {path}"
            raise ConfigError(problem, got=both, hint="rename yours")
        files[group, name] = path
    # A leading underscore marks a file that choices share; it is not a choice.
    named = sorted((group, name) for group, name in files if not name.startswith("_"))
    return {g: tuple(name for of, name in named if of == g) for g in dict(named)}


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the default configuration with overrides such as `task=reach` or `seed=3`.

    Overrides use Hydra's grammar, except the values of `PATHS`; later ones win. Interpolations are
    resolved. `choices` holds the chosen name in each group. Reading or adding a key that does not
    exist raises.

    `ConfigError` for an override that does not parse, an unknown choice or key, a value of another
    type than its default, or a missing required value.
    """
    check_missing(result := composed(overrides, named_cell(overrides)))
    return result


def composed(overrides: Sequence[str | Override], cell: Cell | None = None) -> DictConfig:
    """As `compose`, with the given cell; values may be missing: see `check_missing`."""
    parsed = [parse(each) if isinstance(each, str) else each for each in overrides]
    groups = group_choices()
    typed = [override for override in parsed if override.key_or_group in groups]
    own = ", ".join(str(f / "configs") for f in places.folders() if (f / "configs").is_dir())
    for group, choice in ((o.key_or_group, o.value()) for o in typed if not o.is_delete()):
        further = "a task of your own needs cell=PATH" if group == "task" and cell is None else ""
        if group == "policy" and choice in POLICIES:  # a policy of a run, not a kind of policy
            further = f"to choose among those of a run: evaluation.policy={choice}"
        check_value(group, choice, groups[group], own and f"searched {own} too", further)
    words = [str(override.input_line) for override in typed]
    config = _compose(words) if cell is None else _with_cell(cell, groups, words)
    defaults = _defaults(config)
    given = [override for override in parsed if override.key_or_group not in groups]
    for override in given:
        if override.key_or_group == "robot.id":
            name_environment(override.value())
    for override in given:
        _apply(override, config, defaults)
    if cell is not None:
        config.cell = str(cell.path)  # absolute: a run may be continued from another folder
    _complete_cameras(config)
    _complete_arms(config)
    result = OmegaConf.create(resolved := _resolved(config), flags={"struct": True})
    if references := [o.key_or_group for o in given if "${" in str(o.value())]:
        before, now = flatten(defaults), flatten(resolved)
        for key in references:
            if key in before and key in now:  # the value behind an interpolation
                OmegaConf.update(result, key, _checked(key, now[key], defaults))
    check_values(result)
    return result


def file_defaults() -> DictConfig:
    """Return the values of `config.yaml` itself, which do not depend on choices."""
    config = OmegaConf.load(find_resource("configs") / "config.yaml")
    assert isinstance(config, DictConfig)
    del config["defaults"]
    return config


def _with_cell(cell: Cell, groups: Mapping[str, Sequence[str]], typed: Sequence[str]) -> DictConfig:
    """Compose a cell's choices, except in groups that are typed, and apply its values."""
    try:
        for group, choice in cell.choices.items():
            check_value("group", group, list(groups))
            check_value(group, choice, groups[group])
        tasks = [word.removeprefix("task=") for word in typed if word.startswith("task=")]
        settled = _chosen_by_task((tasks or [cell.choices.get("task", "")])[-1])
        words = (f"{g}={c}" for g, c in cell.choices.items() if g not in settled)
        config = _compose([*words, *typed])
        robot, asked = cell.choices.get("robot"), config.choices.robot
        if robot not in (None, asked):
            hint = "leave out one of cell= and robot="
            raise ConfigError(f"the cell is one of robot={robot}", got=f"robot={asked}", hint=hint)
        defaults = _defaults(config)
        for key, value in _by_arm(cell.values):
            OmegaConf.update(config, key, _checked(key, value, defaults, in_cell=True))
    except ConfigError as error:
        raise ConfigError(f"{cell.path}: {error}") from error
    return config


def _by_arm(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each section of a cell: `robot`, or per arm `arms.left.robot`."""
    for key, value in values.items():
        if key != "arms" or not isinstance(value, Mapping):
            yield key, value
            continue
        for arm, own in value.items():
            if not arm.isidentifier() or not isinstance(own or {}, Mapping):
                problem = "an arm of `arms` cannot be read"
                raise ConfigError(problem, got={arm: own}, expected="left: {}")
            yield f"arms.{arm}", {}
            yield from ((f"arms.{arm}.{name}", part) for name, part in (own or {}).items())


def _checked(key: str, value: Any, defaults: Mapping[str, Any], *, in_cell: bool = False) -> Any:
    """Check a value's key and type against its default; a cell may add arms and nodes."""
    first, arm, of_arm = (*key.split(".", 2), "", "")[:3]
    if first == "arms" and of_arm and (in_cell or arm in defaults["arms"]):
        shared = {name: defaults[name] for name in _OF_ARM if name in defaults}
        own = OmegaConf.merge(shared, defaults["arms"].get(arm) or {})
        try:
            return _checked(of_arm, value, OmegaConf.to_container(own), in_cell=in_cell)  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(f"arms.{arm}: {error}") from error
    if in_cell and (key == "nodes" or first == "arms"):
        return of_same_type(key, defaults.get(key), value)
    return of_same_type(key, check_key(key, value, defaults), value)


def _chosen_by_task(task: str) -> set[str]:
    """Groups that a task's file or its base chooses: `override /reward: …`."""
    file, found = choice_file("task", task), OmegaConf.create()
    with suppress(YAMLError):  # the composition reports it
        found = OmegaConf.load(file) if file else found  # type: ignore[assignment]
    entries = found.get("defaults") or [] if isinstance(found, DictConfig) else []
    own = {str(key) for entry in entries if isinstance(entry, DictConfig) for key in entry}
    further = (_chosen_by_task(entry) for entry in entries if isinstance(entry, str))
    return {key.removeprefix("override /") for key in own}.union(*further)


def _apply(override: Override, config: DictConfig, defaults: Mapping[str, Any]) -> None:
    """Set, add or delete a value, as Hydra would without a cell."""
    key, value = override.key_or_group, override.value()
    if override.is_delete():
        check_key(key, value, defaults)
        above, _, name = key.rpartition(".")
        del (OmegaConf.select(config, above) if above else config)[name]
        return
    is_there = key in flatten(defaults)
    if override.is_add() and is_there and not isinstance(value, dict | list):
        raise ConfigError(f"{key} exists already", got=f"+{key}", hint=f"write {key}={value}")
    if is_there or not (override.is_add() or override.is_force_add()):
        value = _checked(key, value, defaults)
    OmegaConf.update(config, key, value)


def _complete_cameras(config: DictConfig) -> None:
    """Add the default class to entries of `observation.cameras`, so that {name: front} works."""
    cameras = config.observation.cameras
    for number, camera in enumerate(cameras if isinstance(cameras, ListConfig) else ()):
        if not isinstance(camera, DictConfig) or not isinstance(camera.get("name"), str):
            expected = "observation.cameras=[{name:front,width:128,height:128}], for example"
            problem = f"observation.cameras[{number}] has no name"
            raise ConfigError(problem, got=camera, expected=expected)
        camera.setdefault("_target_", _CAMERA)
        if camera.name in [other.name for other in cameras[:number]]:
            raise ConfigError("two of observation.cameras have one name", got=camera.name)


def _complete_arms(config: DictConfig) -> None:
    """Complete each of `arms`: shared values, overridden by its own."""
    if not config.arms:
        return
    shared = OmegaConf.merge(config, {"choices": config.choices})
    shared.arms = {}
    for arm, own in config.arms.items():
        whole: DictConfig = OmegaConf.merge(shared, own)  # type: ignore[assignment]
        _complete_cameras(whole)
        if "namespace" in whole.robot:
            below = str(whole.robot.namespace).strip("/")
            whole.robot.namespace = "/" + f"{below}/{arm}".lstrip("/")
        resolved = _resolved(whole)
        config.arms[arm] = {key: resolved[key] for key in _OF_ARM if key in resolved}


def joined(namespace: str, relative: str) -> str:
    """Join two ROS namespaces; both may be empty or `/`."""
    parts = [part for part in f"{namespace}/{relative}".split("/") if part]
    return "/" + "/".join(parts)


def missing_keys(config: DictConfig) -> list[str]:
    """Keys of missing required values; keys that arms share appear once per arm."""
    shared = tuple(f"{key}." for key in _OF_ARM) if config.arms else ()
    return sorted(key for key in OmegaConf.missing_keys(config) if not key.startswith(shared))


def on_stepped_clock(config: DictConfig) -> DictConfig:
    """Return the configuration in simulated time, unless the robot has only the wall clock."""
    if config.robot.get("clock") is not None:
        return config
    return OmegaConf.merge(config, {"clock": "stepped"})  # type: ignore[return-value]


def changed_settings(config: DictConfig) -> list[tuple[str, Any, Any]]:
    """Key, value and default of each value that differs from its file's; None if absent there."""
    choices = [f"{group}={name}" for group, name in config.choices.items() if name is not None]
    defaults = flatten(composed(choices))
    return [
        (key, value, defaults.get(key))
        for key, value in flatten(config).items()
        if defaults.get(key) != value
    ]


def _compose(overrides: Sequence[str]) -> DictConfig:
    config = copy.deepcopy(_composed_once(config_places(), tuple(overrides)))
    name_environment(config.robot.get("id"))  # a choice's file may name it
    return config


@functools.cache  # Hydra takes half a second, and a command composes several times
def _composed_once(places: tuple[Path, ...], overrides: tuple[str, ...]) -> DictConfig:
    further = ",".join(_quoted(f"file://{place}") for place in places[1:])
    words = [f"hydra.searchpath=[{further}]"] if places[1:] else []
    try:
        with initialize_config_dir(str(places[0]), job_name="robot_rl", version_base="1.3"):
            config = hydra_compose("config.yaml", [*words, *overrides], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(
            "the configuration cannot be composed",
            got=" ".join(str(error).split()),
            hint="robot-rl train --help all lists the settings and their choices",
        ) from error
    OmegaConf.set_struct(config, False)
    chosen = {str(group): choice for group, choice in config.pop("hydra").runtime.choices.items()}
    # A nested group, such as reset.backward, follows from its parent group.
    config.choices = {g: c for g, c in chosen.items() if not re.match("hydra/|.*@", g)}
    return config


def _quoted(text: str) -> str:
    """Quote text in Hydra's grammar, which drops a backslash only before a quote."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + "\\'" * bool(m[2]), text) + "'"


def _defaults(config: DictConfig) -> Mapping[str, Any]:
    """Values before any override, without `choices`."""
    return {key: value for key, value in _resolved(config).items() if key != "choices"}


def _resolved(config: DictConfig) -> dict[str, Any]:
    """Resolve all values but `arms`; references to missing values become `NOT_GIVEN`."""
    values: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    arms = values.pop("arms")
    missing = [key for key, value in flatten(values).items() if value == "???"]
    config = copy.deepcopy(config) if missing else config
    for key in missing:
        OmegaConf.update(config, key, NOT_GIVEN)
    plain: dict[str, Any] = {}
    try:
        for key in values:
            value = config[key]
            whole = OmegaConf.is_config(value)
            plain[key] = OmegaConf.to_container(value, resolve=True) if whole else value
    except OmegaConfBaseException as error:
        task, robot = config.choices.task, config.choices.robot
        if "'task.environment'" in str(error):
            raise ConfigError(
                f"the task {task} has no simulation, and robot={robot} needs one",
                hint="take a simulated task, such as task=peg_insert, to rehearse; or your robot",
            ) from error
        pair = f"task={task} is for another robot than robot={robot}"
        raise ConfigError(
            "a value of the configuration refers to another that does not exist",
            got=" ".join(str(error).split()),
            hint=f"{pair}: choose one of them alone" if "'robot." in str(error) else None,
        ) from error
    for *path, last in (key.split(".") for key in missing):
        functools.reduce(operator.getitem, path, plain)[last] = "???"
    return {**plain, "arms": arms}


def check_missing(config: DictConfig) -> None:
    """Raise `ConfigError` if a required value is missing."""
    if missing := missing_keys(config):
        ends = (re.split("[._]", key)[-1] for key in missing)
        given = (f"{k}={_WRITTEN.get(e, 'VALUE')}" for k, e in zip(missing, ends, strict=True))
        task = choice_file("task", config.choices.task)
        files = {task if key.startswith("task.") else config.cell for key in missing} - {None}
        into = f"write them into {' and '.join(sorted(map(str, files)))}, or " if files else ""
        if config.cell is None and any(key.startswith(("nodes.", "robot.")) for key in missing):
            into = "name the file of your robot with cell=PATH, or "
        problem = f"these values have no default and must be given: {', '.join(missing)}"
        raise ConfigError(problem, hint=f"{into}add {' '.join(given)}")
