"""Compose and check configurations: Hydra, with messages that name the way out.

Hydra composes `configs/config.yaml` and its groups, to which folders of the user's own and plug-ins
add. Then come the values of a cell, the user's robot in one file, and the overrides of the command
line. An unknown choice or key is answered with the valid names, and a value keeps its type.
`robot_rl.commands.runs` adds the configuration of a run.
"""

from __future__ import annotations

import copy
import functools
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from policies import registry
from robot_rl.errors import RobotRLError, did_you_mean, in_shell, shown
from robot_rl.processes.resources import choice_file, config_places, find_resource
from robot_rl.ros.nodes import joined
from robot_rl.run import CELL_FILE, POLICIES

# Strings of which only some are valid.
VALUES = {
    "clock": ("stepped", "realtime"),
    "device": ("auto", "cpu", "cuda"),
    "evaluation.policy": POLICIES,
    "proof.score": ("success", "return"),
}
_SEEDS = ("seed", "evaluation.seed", "evaluation.final_seed", "proof.seed")
_SEEDS_END = 1 << 31  # where the seeds of training's episodes begin
# Keys whose value is a path: it is taken as it stands, whatever signs it has; `null` is none.
PATHS = frozenset(
    (
        "artifacts",
        "cell",
        "classifier.test",
        "console.certificate",
        "console.model",
        "console.token_file",
        "dataset",
        "policy.path",
        "policy.tokenizer",
        "replay.keys",
        "resume",
        "reward.source.path",
        "robot.model",
        "run",
        "runs_directory",
        "teleop.device.path",
        "teleop.device.port",
    )
)
# How a value that must be given is written, by the last word of its key.
_WRITTEN = {"pose": "[x,y,z,qx,qy,qz,qw]", "names": "[NAME,NAME,...]"}
NOT_GIVEN = "not given"
_TWICE = "found duplicate key "  # in what YAML says
# What each of `arms` may have of its own.
_OF_ARM = ("robot", "nodes", "simulation", "task", "observation")
# What an entry of `observation.cameras` is that does not say so.
_CAMERA = "robot_rl.env.sim.cameras.CameraOptions"


class ConfigError(RobotRLError):
    """An override, a configuration file or a run's configuration that cannot be used."""


class Cell(NamedTuple):
    """A robot in a file of its owner's."""

    path: Path  # absolute
    choices: Mapping[str, str]  # the choice of each group that it names
    values: Mapping[str, Any]  # of the configuration, nested


def own_file(named: str | Path) -> Path:
    """A file of the user's own, `cell.yaml` of a folder; `ConfigError` where it is in robot_rl."""
    path = Path(os.path.expanduser(named)).resolve()
    path = path / CELL_FILE if path.is_dir() else path
    own, code = find_resource("configs"), Path(__file__).resolve().parent
    if path.parent == own.parent or path.is_relative_to(own) or path.is_relative_to(code):
        raise ConfigError(
            f"{path} is inside robot_rl", hint="put it into a folder of its own, such as lab"
        )
    return path


def read_cell(named: str) -> Cell:
    """Read a cell, and nothing beside it; `ConfigError` where it is not there or none."""
    path = Path(os.path.expanduser(named)).resolve()
    path = own_file(path) if path.exists() else path
    if not path.is_file():
        hint = f"write one: {in_shell('robot-rl', 'cell', named, 'arm=ur')}"
        raise ConfigError("there is no such cell", got=path, expected="a YAML file", hint=hint)
    try:
        found = OmegaConf.load(path)
        plain = flatten(found) if isinstance(found, DictConfig) else {}
    except Exception as error:  # OSError, or whatever YAML and OmegaConf raise
        if isinstance(error, MarkedYAMLError) and _TWICE in str(error.problem):
            raise _stands_twice(path, error) from error
        problem = " ".join(str(error).split())
        raise ConfigError(f"the cell {path} is no YAML", got=problem) from error
    nested = OmegaConf.create()
    for key, value in plain.items():  # also of a key such as nodes.arm.parameters
        OmegaConf.update(nested, key, value)
    values: dict[str, Any] = OmegaConf.to_container(nested)  # type: ignore[assignment]
    choices = values.pop("choices", {})
    if not plain or not isinstance(choices, dict):
        expected = "a mapping, with `choices: {robot: ur}` and values such as `robot: ...`"
        raise ConfigError(f"{path} is no cell", got=found, expected=expected)
    return Cell(path, {group: str(choice) for group, choice in choices.items()}, values)


def _stands_twice(path: Path, error: MarkedYAMLError) -> ConfigError:
    """Which key of a cell YAML has found twice in one mapping, and where."""
    key, mark = str(error.problem).removeprefix(_TWICE), error.problem_mark
    assert mark is not None
    begin, lines = f"{' ' * mark.column}{key}:", path.read_text(encoding="utf-8").splitlines()
    above = [n for n, line in enumerate(lines[: mark.line], 1) if line.startswith(begin)]
    where = f"lines {above[-1]} and {mark.line + 1}" if above else f"line {mark.line + 1}"
    return ConfigError(f"{key} stands twice in {path}: {where}", hint="delete the first")


def group_choices() -> dict[str, tuple[str, ...]]:
    """Return the valid choices of each configuration group, for example of `task`.

    `ConfigError` where a folder of the user's own has a choice that there is already.
    """
    files: dict[tuple[str, str], Path] = {}
    for path in (path for place in config_places() for path in sorted(place.glob("*/*.yaml"))):
        group, name = path.parent.name, path.stem
        if (group, name) in files:
            problem, both = f"two files describe {group}={name}", f"{files[group, name]} and {path}"
            raise ConfigError(problem, got=both, hint="rename yours")
        files[group, name] = path
    # A leading underscore marks what several choices share; it is no choice itself.
    named = sorted((group, name) for group, name in files if not name.startswith("_"))
    return {g: tuple(name for of, name in named if of == g) for g in dict(named)}


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the default configuration with overrides such as `task=reach` or `seed=3`.

    They are in Hydra's grammar, but for the values of `PATHS`; later ones win. Interpolations are
    resolved. `choices` holds the name chosen in each group. Reading a key that does not exist
    raises, as does adding one.

    `ConfigError` for an override that does not parse, an unknown choice or key, a value of another
    type than its default, or one that must be given and is not.
    """
    check_missing(result := composed(overrides, named_cell(overrides)))
    return result


def composed(overrides: Sequence[str | Override], cell: Cell | None = None) -> DictConfig:
    """As `compose`, with a cell that was read; values may be missing: see `check_missing`."""
    parsed = [parse(each) if isinstance(each, str) else each for each in overrides]
    groups = group_choices()
    typed = [override for override in parsed if override.key_or_group in groups]
    places = (folder / "configs" for folder in registry.folders())
    own = ", ".join(str(place) for place in places if place.is_dir())
    for group, choice in ((o.key_or_group, o.value()) for o in typed if not o.is_delete()):
        further = "a task of your own needs cell=PATH" if group == "task" and cell is None else ""
        if group == "policy" and choice in POLICIES:  # of a run, whose kind is meant otherwise
            further = f"to choose among those of a run: evaluation.policy={choice}"
        check_value(group, choice, groups[group], own and f"searched {own} too", further)
    words = [str(override.input_line) for override in typed]
    config = _compose(words) if cell is None else _with_cell(cell, groups, words)
    defaults = _defaults_once(config_places(), tuple(words)) if cell is None else _defaults(config)
    given = [override for override in parsed if override.key_or_group not in groups]
    for override in given:
        if override.key_or_group == "robot.id":
            _name_environment(override.value())
    for override in given:
        _apply(override, config, defaults)
    if cell is not None:
        config.cell = str(cell.path)  # absolute: a run is gone on with from other folders too
    _complete_cameras(config)
    _complete_arms(config)
    result = OmegaConf.create(resolved := _resolved(config), flags={"struct": True})
    if references := [o.key_or_group for o in given if "${" in str(o.value())]:
        before, now = flatten(defaults), flatten(resolved)
        for key in references:
            if key in before and key in now:  # what a reference has come to
                OmegaConf.update(result, key, _checked(key, now[key], defaults))
    check_values(result)
    return result


def check_values(config: DictConfig) -> None:
    """Raise `ConfigError` for a value that its key does not take, whatever the choices are."""
    flat = flatten(config)
    for key, value in flat.items():
        if shown(text := f"{key}: {value}") != text:
            raise ConfigError("a value has control characters", got=shown(text))
    for key in VALUES.keys() & flat.keys():  # a run of another version may lack some
        check_value(key, flat[key], VALUES[key])
    for key in _SEEDS:
        seed, expected = OmegaConf.select(config, key), f"0 to {_SEEDS_END - 1}"
        if seed is not None and (type(seed) is not int or not 0 <= seed < _SEEDS_END):
            raise ConfigError(f"{key} is out of range", got=seed, expected=expected)
    for key in PATHS:
        if not isinstance(path := OmegaConf.select(config, key), str | None):
            raise ConfigError(f"{key} is no path", got=path, expected="a path, or null")


def check_types(config: DictConfig, made: DictConfig) -> None:
    """Raise `ConfigError` where a value of a run is of another type than one that was `made`.

    That is what its choices make without the values that were given.
    """
    defaults, values = (OmegaConf.to_container(each) for each in (made, config))
    assert isinstance(defaults, dict)
    assert isinstance(values, dict)
    for key, value in values.items():
        _of_same_type(str(key), defaults.get(key), value)
    for arm, own in values.get("arms", {}).items():
        whole = defaults["arms"].get(arm) or defaults
        try:
            for key, value in _of_same_type(arm, {}, own).items():
                _of_same_type(key, whole.get(key), value)
        except ConfigError as error:
            raise ConfigError(f"arms.{arm}: {error}") from error


def file_defaults() -> DictConfig:
    """The values of `config.yaml` itself, which are there whatever is chosen."""
    config = OmegaConf.load(find_resource("configs") / "config.yaml")
    assert isinstance(config, DictConfig)
    del config["defaults"]
    return config


def _with_cell(cell: Cell, groups: Mapping[str, Sequence[str]], typed: Sequence[str]) -> DictConfig:
    """Compose what a cell chooses, but for the groups that are typed, and add its values."""
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
    """The values of a cell, with `arms` taken apart: a key is `robot` or `arms.left.robot`."""
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
    """A value whose key and type are those of a default; a cell may have further arms and nodes."""
    first, arm, of_arm = (*key.split(".", 2), "", "")[:3]
    if first == "arms" and of_arm and (in_cell or arm in defaults["arms"]):
        shared = {name: defaults[name] for name in _OF_ARM if name in defaults}
        own = OmegaConf.merge(shared, defaults["arms"].get(arm) or {})
        try:
            return _checked(of_arm, value, OmegaConf.to_container(own), in_cell=in_cell)  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(f"arms.{arm}: {error}") from error
    if in_cell and (key == "nodes" or first == "arms"):
        return _of_same_type(key, defaults.get(key), value)
    return _of_same_type(key, check_key(key, value, defaults), value)


def _chosen_by_task(task: str) -> set[str]:
    """The groups that a task's file, or one that it builds on, chooses: `override /reward: …`."""
    file, found = choice_file("task", task), OmegaConf.create()
    with suppress(YAMLError):  # which the composition tells
        found = OmegaConf.load(file) if file else found  # type: ignore[assignment]
    entries = found.get("defaults") or [] if isinstance(found, DictConfig) else []
    own = {str(key) for entry in entries if isinstance(entry, DictConfig) for key in entry}
    further = (_chosen_by_task(entry) for entry in entries if isinstance(entry, str))
    return {key.removeprefix("override /") for key in own}.union(*further)


def _apply(override: Override, config: DictConfig, defaults: Mapping[str, Any]) -> None:
    """Set, add or delete a value, as Hydra does it where there is no cell."""
    key, value = override.key_or_group, override.value()
    if override.is_delete():
        check_key(key, value, defaults)
        above, _, name = key.rpartition(".")
        del (OmegaConf.select(config, above) if above else config)[name]
        return
    is_there = key in flatten(defaults)
    if override.is_add() and is_there and not isinstance(value, dict | list):
        raise ConfigError(f"{key} is there already", got=f"+{key}", hint=f"write {key}={value}")
    if is_there or not (override.is_add() or override.is_force_add()):
        value = _checked(key, value, defaults)
    OmegaConf.update(config, key, value)


def _complete_cameras(config: DictConfig) -> None:
    """Let the entries of `observation.cameras` say what they are: {name: front} is enough."""
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
    """Let each of `arms` say all of itself: its own values, and those that it shares."""
    if not config.arms:
        return
    shared = OmegaConf.merge(config, {"choices": config.choices})
    shared.arms = {}
    for arm, own in config.arms.items():
        whole: DictConfig = OmegaConf.merge(shared, own)  # type: ignore[assignment]
        _complete_cameras(whole)
        if "namespace" in whole.robot:
            whole.robot.namespace = joined(str(whole.robot.namespace), str(arm))
        resolved = _resolved(whole)
        config.arms[arm] = {key: resolved[key] for key in _OF_ARM if key in resolved}


def missing_keys(config: DictConfig) -> list[str]:
    """The keys that must be given and are not; what arms share is asked for at each of them."""
    shared = tuple(f"{key}." for key in _OF_ARM) if config.arms else ()
    return sorted(key for key in OmegaConf.missing_keys(config) if not key.startswith(shared))


def named_cell(overrides: Sequence[str]) -> Cell | None:
    """Read the cell that overrides name last, if any; its folder joins the registry.

    No other cell brings code: a run keeps a copy of its own, and may be from another machine.
    """
    named = [o.value() for o in map(parse, overrides) if o.key_or_group == "cell"][-1:]
    if not named or named[0] is None:
        return None
    cell = read_cell(str(named[0]))
    folder = cell.path.parent
    if (folder / "configs").is_dir() or any(folder.glob("*.py")):
        registry.add_folder(str(folder))
    robot = cell.values.get("robot")
    _name_environment(robot.get("id") if isinstance(robot, dict) else None)
    return cell


def _name_environment(id: object) -> None:
    """Let the package of a Gymnasium environment be imported, whose id the user has given."""
    if isinstance(id, str) and (package := re.match(r"[\w.]+(?=[:/])", id)):
        registry.add_package(package[0])


def is_task_named(overrides: Sequence[str], cell: Cell | None) -> bool:
    """Whether somebody has named the task: typed it, or in the cell."""
    typed = any(parse(text).key_or_group == "task" for text in overrides)
    return typed or (cell is not None and "task" in cell.choices)


def on_stepped_clock(config: DictConfig) -> DictConfig:
    """The same configuration in simulated time; a robot that has only the wall clock keeps it."""
    if config.robot.get("clock") is not None:
        return config
    return OmegaConf.merge(config, {"clock": "stepped"})  # type: ignore[return-value]


def changed_settings(config: DictConfig) -> list[tuple[str, Any, Any]]:
    """Each dotted key whose value is not that of its choices' files, with both; None: absent."""
    choices = [f"{group}={name}" for group, name in config.choices.items() if name is not None]
    defaults = flatten(composed(choices))
    return [
        (key, value, defaults.get(key))
        for key, value in flatten(config).items()
        if defaults.get(key) != value
    ]


def flatten(config: DictConfig | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a configuration by dotted key; a list is one value."""
    plain = OmegaConf.to_container(config) if isinstance(config, DictConfig) else config
    flat: dict[str, Any] = {}
    for key, value in dict(plain).items():  # type: ignore[arg-type]
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _compose(overrides: Sequence[str]) -> DictConfig:
    config = copy.deepcopy(_composed_once(config_places(), tuple(overrides)))
    _name_environment(config.robot.get("id"))  # of a file of robot_rl or of the user's own
    return config


@functools.cache  # Hydra takes half a second, and a command asks for the same ones again and again
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
    # A part within another group, as reset.backward is, follows from that group.
    config.choices = {g: c for g, c in chosen.items() if not re.match("hydra/|.*@", g)}
    return config


def _quoted(text: str) -> str:
    """Write a text in Hydra's grammar, which drops a backslash only where a quote follows it."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + "\\'" * bool(m[2]), text) + "'"


@functools.cache
def _defaults_once(places: tuple[Path, ...], overrides: tuple[str, ...]) -> Mapping[str, Any]:
    return _defaults(_composed_once(places, overrides))


def _defaults(config: DictConfig) -> Mapping[str, Any]:
    """The values before any is given; choices are none."""
    return {key: value for key, value in _resolved(config).items() if key != "choices"}


def _resolved(config: DictConfig) -> dict[str, Any]:
    """The values; one that refers to a missing value is `NOT_GIVEN`. Of `arms` as they are."""
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
    """Raise `ConfigError` where something is missing that must be given."""
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


@functools.cache  # each is read several times: for the cell, the task and the value
def parse(text: str) -> Override:
    """Read an override in Hydra's grammar, but a path as it stands: see `PATHS`.

    `ConfigError` where it gives no value, or several.
    """
    key, equals, value = text.partition("=")
    if equals and key in PATHS:
        return given(key, None if value == "null" else check_path(value))
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, equals, value = text.partition("=") if "=" in text else ("key", "=", "value")
        raise ConfigError(
            f"the override {text!r} cannot be read",
            got=" ".join(str(error).split()),
            expected="key=value",
            hint="put a value that holds spaces, = or , in two pairs of quotes:"
            f" \"{key}{equals}'{value}'\"",
        ) from error
    if override.is_sweep_override():
        raise ConfigError(
            f"the override {text!r} gives several values",
            expected="one value: a command makes one run",
            hint="give the command once for each value",
        )
    return override


def given(key: str, value: Any) -> Override:
    """An override that gives a key this very value, whatever signs a text has."""
    line = f"{key}={value}"
    return Override(OverrideType.CHANGE, key, ValueType.ELEMENT, value, input_line=line)


def check_path(path: str | Path) -> str:
    """Return a path as text; `ConfigError` where the configuration could not keep it."""
    if "${" in (text := str(path)) or text == "???":
        problem = "a path must not hold ${ or be ???, which configuration files read otherwise"
        raise ConfigError(problem, got=text, hint="rename that folder or file")
    return text


def check_value(
    key: str, value: object, valid: Sequence[str], searched: str = "", further: str = ""
) -> None:
    """Raise `ConfigError`, which suggests a near one, where a value is not among the valid ones.

    `searched` says where else it might have been, `further` what else may be missing.
    """
    if value not in valid:
        raise ConfigError(
            f"unknown {key} {value!r}",
            got=f"{key}={value}{searched and f' ({searched})'}",
            expected=f"one of {', '.join(valid)}",
            hint="; ".join(filter(None, (did_you_mean(str(value), valid, f"{key}="), further)))
            or None,
        )


def check_least(config: DictConfig, least: Mapping[str, int]) -> None:
    """Raise `ConfigError` for the first dotted key whose number is below the least it may be."""
    for key, bound in least.items():
        if (value := OmegaConf.select(config, key)) is None:
            hint = "write it into the configuration of your own part, as the others have it"
            raise ConfigError(f"{key} is missing", expected=f">= {bound}", hint=hint)
        if value < bound:
            raise ConfigError(f"{key} is out of range", got=value, expected=f">= {bound}")


def check_key(key: str, value: object, defaults: Mapping[str, Any]) -> Any:
    """Return the default of a dotted key; `ConfigError`, with the valid names, for one too many."""
    level: Any = defaults
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(level, Mapping) or part not in level:
            above = ".".join(parts[:depth])
            names = sorted(level) if isinstance(level, Mapping) else []
            below = f"below {above}, " if above else ""
            raise ConfigError(
                f"unknown key {key!r}",
                got=part if names else f"{above} is one value and has no parts",
                expected=f"{below}one of {', '.join(names)}" if names else None,
                hint=did_you_mean(part, names, above and f"{above}."),
            )
        level = level[part]
    if isinstance(value, Mapping) and isinstance(level, Mapping):
        for name, item in value.items():
            check_key(f"{key}.{name}", item, defaults)
    return level


def _of_same_type(key: str, default: Any, value: Any) -> Any:
    if default in (None, "???", NOT_GIVEN) or (value is None and key.startswith("nodes.")):
        return value
    if isinstance(value, str) and ("${" in value or value == "???"):
        return value  # in a cell, whose references are resolved later
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        return {k: _of_same_type(f"{key}.{k}", default.get(k), v) for k, v in value.items()}
    if isinstance(default, list) and isinstance(value, list):
        if value == default:
            return default  # its items may differ from the first one
        first = default[0] if len({type(item) for item in default}) == 1 else None
        return [_of_same_type(f"{key}[{i}]", first, item) for i, item in enumerate(value)]
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is type(default):
        return value
    composite = isinstance(default, Mapping | list)
    hint = "robot-rl train --help all says what each setting means"
    if type(default) is int and isinstance(value, float) and value.is_integer():
        hint = f"write {key}={int(value)}"
    elif isinstance(default, str) and value is not None:
        hint = f"put it in two pairs of quotes: \"{key}='{value}'\""
    raise ConfigError(
        f"{key} has another type than its default",
        got=f"{'null' if value is None else value} ({_type_name(value)})",
        expected=_type_name(default) + ("" if composite else f", as in {key}={default}"),
        hint=hint,
    )


def _type_name(value: object) -> str:
    return {dict: "mapping", type(None): "null"}.get(type(value), type(value).__name__)
