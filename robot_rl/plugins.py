"""What a plug-in adds to robot_rl: commands, formats, and what looks at a run.

A plug-in is a package of `robot_rl.extras`, a package that an entry point `robot_rl.plugins` names,
or a folder of `ROBOT_RL_PATH`. What it adds by name alone, such as a task or an algorithm, is a
class and a file in its `configs/`. All else is in its module `plugin`, as one `PLUGIN`:

    from robot_rl.plugins import Command, Plugin

    PLUGIN = Plugin(commands={"wipe": Command("my_lab.wipe:run", "Wipe the table.", "")})

Functions are named, as `module:function`, and imported when they are needed.
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
    """One `key=value` of a command that has no configuration."""

    name: str  # the key, and the name of the function's argument
    summary: str  # what it decides
    # A number or a bool here means that the option takes only numbers, or only true and false.
    default: str | float | bool | None = None
    # The valid words, or a function that lists them; empty where any text is valid.
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The valid words; empty where any text is valid."""
        return self.choices() if callable(self.choices) else self.choices


@dataclass(frozen=True)
class Command:
    """One word of the command line."""

    target: str  # `module:function` that does the work; it gets the configuration
    summary: str  # one line for the list of commands
    details: str  # what the command reads and writes
    # The configuration key that names the run to work on; its path alone does too. The command then
    # has the configuration of that run, and refuses overrides that would make it another run.
    run_key: str | None = "run"
    # The run when that key is not given; None when the command makes its own.
    default_run: str | None = "latest"
    # Whether it measures a run's policy. Then `latest` is the newest run with a policy, the robot
    # and the parameters of the task may be others than those of the run, and the function gets the
    # overrides too, for its records.
    measures: bool = False
    # `module:function` that checks and prints what the target would do, and does nothing; or empty.
    dry_run: str = ""
    # The settings that matter most, for its help page: keys and groups of the configuration, with
    # spaces between them. A command without any has no configuration.
    keys: str = ""
    # Short names of longer keys of the configuration.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # Names of the positional arguments, [OPTIONAL] and ... for more. Of a command with a
    # configuration they are runs or checkpoints: the first one's run has the configuration, and the
    # function gets all of them as its last argument.
    arguments: tuple[str, ...] = ()
    # The `key=value` of a command without a configuration.
    options: tuple[Option, ...] = ()
    example: str = ""  # shown to a user who gave the wrong arguments

    @property
    def takes_overrides(self) -> bool:
        """Whether the command has a configuration."""
        return bool(self.keys)

    def expand(self, overrides: Iterable[str]) -> list[str]:
        """Replace the aliases at the beginning of overrides by the keys that they stand for.

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
        """What may be given without a key: the arguments, or the run."""
        return self.arguments or (("[RUN]",) if self.run_key and self.takes_overrides else ())


@dataclass(frozen=True)
class DatasetFormat:
    """A format of episode datasets beside our own. Functions are named as `module:function`."""

    title: str  # as a person calls it
    marker: str  # the file in its folder by which it is known
    open: str  # gives the `SummarizedEpisodes` of a folder
    create: str  # what `robot-rl export format=NAME` writes into a new folder: an `OpenSink`


@dataclass(frozen=True)
class Plugin:
    """What one plug-in adds. All functions are named as `module:function`."""

    commands: Mapping[str, Command] = field(default_factory=dict)
    # What `inspect`, `import` and `read_episodes` read, and `export format=NAME` writes, by name.
    dataset_formats: Mapping[str, DatasetFormat] = field(default_factory=dict)
    # Policies other than checkpoints: the file that marks one, and what loads its folder as a
    # `Behaviour`. Its `policy.json` says the `environment_steps` behind it, and the
    # `policy_checksum` of the checkpoint that it was made from.
    policy_formats: Mapping[str, str] = field(default_factory=dict)
    # Processes beside a robot's ROS 2 nodes, by name. The function is called with the
    # configuration, also before anything starts. It gives the module to run and its arguments, or
    # None for no process; the folder RUN/NAME becomes its first argument.
    companions: Mapping[str, str] = field(default_factory=dict)
    # Called with a run and its configuration before a policy learns on a robot; each gives
    # sentences that are printed.
    checks: tuple[str, ...] = ()
    # Called with the workbench, the algorithm and the run's rows as online learning begins; each
    # gives a `robot_rl.learner.BatchMap`, or None where it does not apply.
    batch_maps: Mapping[str, str] = field(default_factory=dict)
    # Called with a run and its configuration once it has decided which policy is deployed; each
    # writes a file and gives its path, which is printed under the name.
    after_run: Mapping[str, str] = field(default_factory=dict)


def plugins() -> tuple[Plugin, ...]:
    """Read the plug-ins: extras first, then those of entry points, then the user's own folders.

    Raises:
        RobotRLError: One of them cannot be imported, or its `PLUGIN` is something else.
    """
    names = [f"{name}.plugin" for name in plugin_packages()]
    found = [name for name in names if importlib.util.find_spec(name) is not None]
    files = [str(folder / "plugin.py") for folder in folders()]
    return (
        *(_read(name, importlib.import_module) for name in found),
        *(_read(file, _import_file) for file in files if os.path.isfile(file)),
    )


def added(kind: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Merge what plug-ins add under one field of `Plugin`, such as `commands`, with our own.

    Raises:
        RobotRLError: A plug-in cannot be read, or adds what is there.
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
    """The name and the format of a dataset that a plug-in reads; None of any other folder."""
    formats: dict[str, DatasetFormat] = added("dataset_formats")
    return next((f for f in formats.items() if (folder / f[1].marker).is_file()), None)


def resolve(function: str) -> Any:
    """Import the function of a name `module:function`, also from a folder of the user's own."""
    make_importable(function.partition(":")[0])
    return pkgutil.resolve_name(function)


def _read(place: str, import_it: Callable[[str], ModuleType]) -> Plugin:
    try:
        plugin = getattr(import_it(place), "PLUGIN", None)
    except RobotRLError:
        raise
    except Exception as error:  # whatever the code of a plug-in does
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
    """Import a file under a name of its own: two folders may both have a `plugin.py`."""
    if file not in sys.modules:
        module = ModuleType(file)
        SourceFileLoader(file, file).exec_module(module)
        sys.modules[file] = module
    return sys.modules[file]
