"""Compose, check, save and compare configurations: Hydra, with messages that name the way out.

Hydra composes `configs/config.yaml`, its groups, which folders of the user's own and plug-ins add
to, and the overrides of the command line. Added here:
an unknown choice or key is answered with the valid names and the nearest one, a value keeps the
type of its default, and a run directory's configuration is compared with what the user asks for.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from policies import registry
from robot_rl.config_overrides import (
    ConfigError,
    check_choice,
    check_key,
    check_value,
    keep_type,
    parse,
    text_of,
)
from robot_rl.processes.files import replace_text
from robot_rl.processes.resources import find_resource

CONFIG_NAME = "config.yaml"
# A run may be continued or evaluated with other values of these; all else made it what it is.
MAY_DIFFER = (
    "actor",
    "bench",
    "choices.classifier",
    "choices.replay",
    "choices.teleop",
    "classifier",
    "console",
    "device",
    "environment_steps",
    "evaluation",
    "replay",
    "resume",
    "run",
    "runs_directory",
    "teleop",
    "start_nodes",
)
# Strings of which only some are valid.
VALUES = {"clock": ("stepped", "realtime"), "device": ("auto", "cpu", "cuda")}
# What else may differ where a policy is measured: the robot, if its observations and actions fit,
# and the parameters of the task.
ELSEWHERE = (
    "choices.robot",
    "clock",
    "nodes",
    "observation.vision_training",  # how much a robot explores
    "robot",
    "simulation",
    "task.environment",
    "task.expert",
    "task.tracked",
)
# How a value that must be given is written, by the last word of its key.
_WRITTEN = {"pose": "[x,y,z,qx,qy,qz,qw]", "joint_names": "[NAME,NAME,...]"}
# What an entry of `observation.cameras` is that does not say so.
_CAMERA = "robot_rl.env.sim.cameras.CameraOptions"
_NO_VALUE = object()


def choice_file(group: str, choice: str) -> Path | None:
    """The file of a choice, robot_rl's own or the user's; None where there is none."""
    files = (place / group / f"{choice}.yaml" for place in _places())
    return next((file for file in files if file.is_file()), None)


def group_choices() -> dict[str, tuple[str, ...]]:
    """Return the valid choices of each configuration group, for example of `task`.

    Raises:
        ConfigError: A folder of the user's own has a choice that there is already.
        RegistryError: A folder of `ROBOT_RL_PATH` is not there.
    """
    files: dict[tuple[str, str], Path] = {}
    for path in (path for place in _places() for path in sorted(place.glob("*/*.yaml"))):
        group, name = path.parent.name, path.stem
        if (group, name) in files:
            raise ConfigError(
                f"two files describe {group}={name}",
                got=f"{files[group, name]} and {path}",
                hint="rename yours",
            )
        files[group, name] = path
    # A leading underscore marks what several choices share; it is no choice itself.
    named = sorted((group, name) for group, name in files if not name.startswith("_"))
    return {g: tuple(name for of, name in named if of == g) for g in dict(named)}


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the default configuration with overrides such as `task=reach` or `seed=3`.

    Args:
        overrides: In Hydra's grammar. Later ones win.

    Returns:
        The configuration with all interpolations resolved. `choices` holds the name chosen in each
        group. Reading a key that does not exist raises, as does adding one.

    Raises:
        ConfigError: An override that does not parse, an unknown group choice or key, a value of
            another type than its default, or a value that must be given and is not.
    """
    result = _composed(overrides)
    _check_missing(result)
    return result


def _composed(overrides: Sequence[str]) -> DictConfig:
    """As `compose`, but values that must be given may be missing."""
    groups = group_choices()
    parsed = [parse(text) for text in overrides]
    for override in parsed:
        if override.key_or_group in groups:
            check_choice(override, groups[override.key_or_group])
    chosen = [o for o in parsed if o.key_or_group in groups]
    defaults = _resolved(_compose([text_of(o) for o in chosen]))
    del defaults["choices"]
    values = [o for o in parsed if o.key_or_group not in groups]
    for override in values:
        if not (override.is_add() or override.is_force_add() or override.is_delete()):
            check_key(override.key_or_group, override.value(), defaults)
    config = _compose(overrides) if values else _compose([text_of(o) for o in chosen])
    _complete_cameras(config)
    resolved = _resolved(config)
    for override in values:
        keep_type(override.key_or_group, defaults, resolved)
    for key, names in VALUES.items():
        check_value(key, resolved.get(key), names)
    result = OmegaConf.create(resolved)
    OmegaConf.set_struct(result, True)
    return result


def _complete_cameras(config: DictConfig) -> None:
    """Let the entries of `observation.cameras` say what they are: {name: front} is enough.

    Raises:
        ConfigError: An entry has no name.
    """
    cameras = config.observation.cameras
    for number, camera in enumerate(cameras if isinstance(cameras, ListConfig) else ()):
        if not isinstance(camera, DictConfig) or not isinstance(camera.get("name"), str):
            raise ConfigError(
                f"observation.cameras[{number}] has no name",
                got=camera,
                expected="a mapping with name, and if need be width, height and depth",
                hint="write observation.cameras=[{name:front,width:128,height:128}]",
            )
        camera.setdefault("_target_", _CAMERA)


def compose_for_run(
    overrides: Sequence[str], run_config: DictConfig, *, elsewhere: bool = False
) -> DictConfig:
    """Apply overrides to the configuration of an existing run.

    Args:
        overrides: What the user typed; keys that are not mentioned keep the run's value.
        run_config: The run's configuration, from `load_resolved`.
        elsewhere: Whether it may differ in `ELSEWHERE` too.

    Raises:
        ConfigError: As `compose`, and an override that would make it another run.
    """
    given = [parse(text).key_or_group for text in overrides]
    _check_own_choices(run_config)
    choices = {g: f"{g}={c}" for g, c in run_config.choices.items() if c is not None}
    # What must be given was given when the run was made; it is not asked for again.
    composed = _composed([*(text for g, text in choices.items() if g not in given), *overrides])
    result = copy.deepcopy(run_config)
    OmegaConf.set_struct(result, False)
    kept = {key: OmegaConf.select(run_config, key) for key in given if key not in composed.choices}
    plain = [f"{k}={json.dumps(v)}" for k, v in kept.items() if isinstance(v, int | float | str)]
    _follow(result, _composed([*choices.values(), *plain]), composed)
    for key in given:
        if key in kept:
            OmegaConf.update(result, key, OmegaConf.select(composed, key), merge=False)
        elif composed.choices[key] != run_config.choices.get(key):
            result[key], result.choices[key] = composed[key], composed.choices[key]
    may_differ = (*MAY_DIFFER, *(ELSEWHERE if elsewhere else ()))
    compare_run(result, run_config, may_differ=may_differ)
    OmegaConf.set_struct(result, True)
    _check_missing(result)
    return result


def _check_own_choices(run_config: DictConfig) -> None:
    """Check that the choices of a run are here: some may be in a folder of the user's own."""
    known = group_choices()
    for group, choice in run_config.choices.items():
        if choice is not None and choice not in known.get(str(group), ()):
            raise ConfigError(
                f"the run was made with {group}={choice}, which is not here",
                expected=f"one of {', '.join(known.get(str(group), ()))}",
                hint=f"name the folder with configs/{group}/{choice}.yaml:"
                f" --config-dir FOLDER, or {registry.PATH_VARIABLE}=FOLDER",
            )


def _follow(result: DictConfig, before: DictConfig, after: DictConfig) -> None:
    """Set what overrides change, other keys that refer to them among it."""
    old, new = flatten(before), flatten(after)
    for key, value in new.items():
        if old.get(key, _NO_VALUE) != value:
            OmegaConf.update(result, key, value, force_add=True)


def in_real_time(config: DictConfig) -> DictConfig:
    """The same configuration on the wall clock, for what a person does."""
    return _on_clock(config, "realtime")


def on_stepped_clock(config: DictConfig) -> DictConfig:
    """The same configuration in simulated time, for what keeps no pace with the wall clock.

    A robot that has only the wall clock keeps it.
    """
    if config.robot.get("clock") is not None:
        return config
    return _on_clock(config, "stepped")


def compare_run(
    config: DictConfig, run_config: DictConfig, *, may_differ: Iterable[str] = MAY_DIFFER
) -> None:
    """Check that a run directory was made with this configuration.

    Args:
        config: What is asked for.
        run_config: What the run directory holds.
        may_differ: Keys, or prefixes of keys, that do not make it another run.

    Raises:
        ConfigError: Names the first keys that differ, with both values.
    """
    ours, theirs = flatten(config), flatten(run_config)
    prefixes = tuple(may_differ)
    keys = [
        key
        for key in {**ours, **theirs}
        if not any(key == p or key.startswith(f"{p}.") for p in prefixes)
        and ours.get(key, _NO_VALUE) != theirs.get(key, _NO_VALUE)
    ]
    if not keys:
        return
    # The choice explains all values below it: name it first, and not its hundred consequences.
    groups = [key.removeprefix("choices.") for key in keys if key.startswith("choices.")]
    shown = groups or keys[:5]
    lookup = [f"choices.{key}" for key in groups] or shown
    raise ConfigError(
        f"the run was made with another configuration: {', '.join(shown)} differ"
        + (f" (and {len(keys) - 5} more)" if not groups and len(keys) > 5 else ""),
        got=", ".join(f"{s}={ours.get(k, 'absent')}" for s, k in zip(shown, lookup, strict=True)),
        expected=", ".join(
            f"{s}={theirs.get(k, 'absent')}" for s, k in zip(shown, lookup, strict=True)
        ),
        hint="leave these overrides out to go on with the run, or start a new run with them",
    )


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


def save_resolved(config: DictConfig, run: Path) -> None:
    """Write the configuration to `<run>/config.yaml`; an older one is replaced in one step.

    Raises:
        ConfigError: The disk is full or the folder cannot be written.
    """
    try:
        replace_text(run / CONFIG_NAME, OmegaConf.to_yaml(config, resolve=True))
    except OSError as error:
        raise ConfigError(f"{run / CONFIG_NAME} cannot be written", got=error) from error


def load_resolved(run: Path) -> DictConfig:
    """Read the configuration of a run directory.

    Raises:
        ConfigError: There is none, or it is not a configuration that `save_resolved` wrote.
    """
    path = run / CONFIG_NAME
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # OSError, or whatever YAML and OmegaConf raise on a cut file
        raise ConfigError(f"the configuration {path} cannot be read", got=error) from error
    if not isinstance(config, DictConfig) or "choices" not in config:
        raise ConfigError(
            f"{path} is not the configuration of a run",
            got=type(config).__name__,
            expected="a mapping with the key `choices`",
        )
    OmegaConf.set_struct(config, True)
    return config


def _on_clock(config: DictConfig, clock: str) -> DictConfig:
    changed = OmegaConf.merge(config, {"clock": clock})
    assert isinstance(changed, DictConfig)
    return changed


def _places() -> tuple[Path, ...]:
    """The folders that hold configuration: robot_rl's own, then the user's."""
    return (find_resource("configs"), *registry.config_folders())


def _compose(overrides: Sequence[str]) -> DictConfig:
    return copy.deepcopy(_composed_once(_places(), tuple(overrides)))


@functools.cache  # Hydra takes half a second, and a command asks for the same ones again and again
def _composed_once(places: tuple[Path, ...], overrides: tuple[str, ...]) -> DictConfig:
    further = json.dumps([f"file://{place}" for place in places[1:]])
    words = [f"hydra.searchpath={further}"] if places[1:] else []
    try:
        with initialize_config_dir(str(places[0]), job_name="robot_rl", version_base="1.3"):
            config = hydra_compose(CONFIG_NAME, [*words, *overrides], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(
            "the configuration cannot be composed", got=" ".join(str(error).split())
        ) from error
    choices = {
        str(group): choice
        for group, choice in config.hydra.runtime.choices.items()
        # A part within another group, as reset.backward is, follows from that group.
        if not str(group).startswith("hydra/") and "@" not in str(group)
    }
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    config.choices = choices
    return config


def _resolved(config: DictConfig) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        text = " ".join(str(error).split())
        pair = f"task={config.choices.task} is for another robot than robot={config.choices.robot}"
        raise ConfigError(
            "a value of the configuration refers to another that does not exist",
            got=text,
            hint=f"{pair}: choose one of them alone" if "'robot." in text else None,
        ) from error
    return {str(key): value for key, value in dict(plain).items()}  # type: ignore[arg-type]


def _check_missing(config: DictConfig) -> None:
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(
            f"these values have no default and must be given: {', '.join(missing)}",
            hint="add " + " ".join(f"{key}={_written(key)}" for key in missing),
        )


def _written(key: str) -> str:
    return _WRITTEN.get(key.rpartition(".")[2], "VALUE")
