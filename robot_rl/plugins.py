"""Plug-ins: added commands, formats, processes and checks of a run.

A plug-in is a package in `robot_rl.extras`, a package that an entry point `robot_rl.plugins` names,
or a folder in `ROBOT_RL_PATH`. Additions that are selected by name, such as a task or an algorithm,
need only a class and a file in its `configs/`. Everything else is in its module `plugin`, as one
`PLUGIN`:

    from robot_rl.plugins import Command, Plugin

    PLUGIN = Plugin(commands={"wipe": Command("my_lab.wipe:run", "Wipe the table.", "")})

Functions are given as `module:function` and imported on use.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from policies.places import folders, make_importable, plugin_packages
from robot_rl.errors import RobotRLError, did_you_mean


@dataclass(frozen=True)
class Option:
    """One `key=value` option of a command without a configuration."""

    name: str  # the key, and the name of the function's argument
    summary: str  # one-line description
    # With a number or a bool as default, the option accepts only numbers, or only true and false.
    default: str | float | bool | None = None
    # The valid values, or a function that lists them; empty if any text is valid.
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The valid values; empty if any text is valid."""
        return self.choices() if callable(self.choices) else self.choices


@dataclass(frozen=True)
class Command:
    """One command of the command line."""

    target: str  # `module:function` to call with the configuration
    summary: str  # one line for the list of commands
    details: str  # what the command reads and writes
    # The configuration key that names the run to work on; the run's path without a key works too.
    # The command then uses that run's configuration, and rejects overrides that would make it
    # another run.
    run_key: str | None = "run"
    # Default for that key; None if the command creates its own run.
    default_run: str | None = "latest"
    # Whether it measures a run's policy. Then `latest` is the latest run with a policy, the robot
    # and the task's parameters may differ from the run's, and the function also gets the overrides,
    # for its records.
    measures: bool = False
    # `module:function` that checks and prints what the target would do, without doing it; or empty.
    dry_run: str = ""
    # The most important settings, for the help page: configuration keys and groups, separated by
    # spaces. A command without any has no configuration.
    keys: str = ""
    # Short names for longer configuration keys.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # Names of the positional arguments; [OPTIONAL], and ... for more. If the command has a
    # configuration, they are runs or checkpoints: the first one's run provides the configuration,
    # and the function gets all of them as its last argument.
    arguments: tuple[str, ...] = ()
    # The `key=value` options of a command without a configuration.
    options: tuple[Option, ...] = ()
    example: str = ""  # shown after wrong arguments

    @property
    def takes_overrides(self) -> bool:
        """Whether the command has a configuration."""
        return bool(self.keys)

    def expand(self, overrides: Iterable[str]) -> list[str]:
        """Replace aliases at the start of overrides by their configuration keys.

        `RobotRLError` for a misspelled alias.
        """
        expanded = []
        for override in overrides:
            key, equals, value = override.partition("=")
            hint = (
                None if key in self.aliases or "." in key else did_you_mean(key, self.aliases, "")
            )
            if hint is not None:
                expected = ", ".join(self.aliases)
                raise RobotRLError(f"unknown key {key!r}", expected=expected, hint=hint)
            expanded.append(f"{self.aliases.get(key, key)}{equals}{value}")
        return expanded

    @property
    def positionals(self) -> tuple[str, ...]:
        """Names of arguments accepted without a key: the positional arguments, or the run."""
        return self.arguments or (("[RUN]",) if self.run_key and self.takes_overrides else ())


@dataclass(frozen=True)
class DatasetFormat:
    """A dataset format other than our own. Functions are given as `module:function`."""

    title: str  # display name
    marker: str  # file in the dataset's folder that identifies the format
    open: str  # returns the `SummarizedEpisodes` of a folder
    create: str  # `OpenSink` for a new folder, for `robot-rl export format=NAME`


@dataclass(frozen=True)
class Plugin:
    """Everything that one plug-in adds. Functions are given as `module:function`."""

    commands: Mapping[str, Command] = field(default_factory=dict)
    # Formats by name, for `inspect`, `import` and `read_episodes`, and for `export format=NAME`.
    dataset_formats: Mapping[str, DatasetFormat] = field(default_factory=dict)
    # Policies other than checkpoints: the file that identifies one → the function that loads its
    # folder as a `Behaviour`. Its `policy.json` holds the `environment_steps` behind it, and the
    # `policy_checksum` of its source checkpoint.
    policy_formats: Mapping[str, str] = field(default_factory=dict)
    # Extra processes next to a robot's ROS 2 nodes, by name. The function is called with the
    # configuration, also before anything starts. It returns the module to run and its arguments, or
    # None for no process; the folder RUN/NAME becomes the first argument.
    companions: Mapping[str, str] = field(default_factory=dict)
    # Called with a run and its configuration before a policy learns on a robot; each returns
    # sentences to print.
    checks: tuple[str, ...] = ()
    # Called with the workbench, the algorithm and the run's rows at the start of online learning;
    # each returns a `robot_rl.learner.BatchMap`, or None if it does not apply.
    batch_maps: Mapping[str, str] = field(default_factory=dict)
    # Called with a run and its configuration after the run has decided which policy is deployed;
    # each writes a file and returns its path, which is printed under the name.
    after_run: Mapping[str, str] = field(default_factory=dict)


def plugins() -> tuple[Plugin, ...]:
    """Load the plug-ins: extras first, then entry points, then the user's own folders.

    Raises:
        RobotRLError: One cannot be imported, or its `PLUGIN` is not a `Plugin`.
    """
    names = [f"{name}.plugin" for name in plugin_packages()]
    found = [name for name in names if importlib.util.find_spec(name) is not None]
    files = [str(folder / "plugin.py") for folder in folders()]
    return (
        *(_read(name, importlib.import_module) for name in found),
        *(_read(file, _import_file) for file in files if os.path.isfile(file)),
    )


def added(kind: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Merge our own entries with the plug-ins' for one field of `Plugin`, such as `commands`.

    Raises:
        RobotRLError: A plug-in cannot be read, or adds a name that exists.
    """
    found = dict(own or {})
    for plugin in plugins():
        for name, each in getattr(plugin, kind).items():
            if name in found:
                both = (getattr(one, "target", str(one)) for one in (found[name], each))
                raise RobotRLError(
                    f"two of robot_rl and its plug-ins have {name!r} among their {kind}",
                    got=" and ".join(both),
                    hint="rename one of them",
                )
            found[name] = each
    return found


def format_of(folder: Path) -> tuple[str, DatasetFormat] | None:
    """Return name and format of a dataset that a plug-in reads; None for any other folder."""
    formats: dict[str, DatasetFormat] = added("dataset_formats")
    return next((f for f in formats.items() if (folder / f[1].marker).is_file()), None)


def resolve(function: str) -> Any:
    """Import the function `module:function`, also from a user's own folder."""
    make_importable(function.partition(":")[0])
    return pkgutil.resolve_name(function)


def _read(place: str, import_it: Callable[[str], ModuleType]) -> Plugin:
    try:
        plugin = getattr(import_it(place), "PLUGIN", None)
    except RobotRLError:
        raise
    except Exception as error:  # any error in a plug-in's code
        raise RobotRLError(
            f"the plug-in {place} cannot be imported",
            got=repr(error),
            hint="correct it, or install what it imports",
        ) from error
    if not isinstance(plugin, Plugin):
        raise RobotRLError(
            f"{place} holds no plug-in",
            got=f"PLUGIN = {plugin!r}",
            expected="PLUGIN = robot_rl.plugins.Plugin(...)",
        )
    return plugin


def _import_file(file: str) -> ModuleType:
    """Import a file under a unique name: two folders may both have a `plugin.py`."""
    if file not in sys.modules:
        module = ModuleType(file)
        SourceFileLoader(file, file).exec_module(module)
        sys.modules[file] = module
    return sys.modules[file]
