"""What a plug-in adds to robot_rl: commands, formats, and what looks at a run.

A plug-in is a package of `robot_rl.extras`, a package that an entry point `robot_rl.plugins` names,
or a folder of `ROBOT_RL_PATH`. What it adds by name alone, such as a task or an algorithm, is a
class and a file in its `configs/`. All else stands in its module `plugin`, as one `PLUGIN`:

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


class PluginError(RobotRLError):
    """A plug-in that cannot be read, or adds what another one has."""


@dataclass(frozen=True)
class Option:
    """One `key=value` of a command that has no configuration."""

    name: str  # the key, which is also the name of the function's argument
    summary: str  # what it decides
    # The value if it is not given; a number or a truth value takes only such.
    default: str | float | bool | None = None
    # Which words it may be, or what says them; empty where any text may follow.
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Which words it may be; empty where any text may follow."""
        return self.choices() if callable(self.choices) else self.choices


@dataclass(frozen=True)
class Command:
    """One word of the command line."""

    target: str  # `module:function` that does the work; it is called with the configuration
    summary: str  # one line for the list of commands
    details: str  # what the command reads and writes
    # The configuration key that names the run directory to work on; its path alone does too. The
    # configuration of that run is used, and overrides that would make it another run are refused.
    run_key: str | None = "run"
    # The run when that key is not given; None when the command makes its own.
    default_run: str | None = "latest"
    # Whether it measures a run's policy: `latest` is then the newest run that has one, and the
    # robot and the parameters of the task may be others than the run was made with. It is told the
    # overrides too, for its records.
    measures: bool = False
    # `module:function` that says what the target would do, after the same checks, and does nothing;
    # empty where there is none.
    dry_run: str = ""
    # The settings that matter most, for its help page: keys and groups of the configuration, with
    # spaces between them. A command without any has no configuration.
    keys: str = ""
    # Words that stand for a longer key of the configuration.
    short: Mapping[str, str] = field(default_factory=dict)
    # Names of the positional arguments, [OPTIONAL] and ... for more. Where the command has a
    # configuration they are runs or checkpoints, and it is that of the first's run; the command is
    # told all of them, last.
    arguments: tuple[str, ...] = ()
    # What `key=value` may follow, of a command that has no configuration.
    options: tuple[Option, ...] = ()
    example: str = ""  # a command to show to somebody who gave the wrong arguments

    @property
    def takes_overrides(self) -> bool:
        """Whether the command has a configuration."""
        return bool(self.keys)

    def written_out(self, overrides: Iterable[str]) -> list[str]:
        """Put the longer keys in the place of the words that stand for them.

        `RobotRLError` for a word that is one of them but for a letter or two.
        """
        typed = [override.partition("=") for override in overrides]
        for key, *_ in typed:
            hint = None if key in self.short or "." in key else did_you_mean(key, self.short, "")
            if hint is not None:
                expected = ", ".join(self.short)
                raise RobotRLError(f"unknown key {key!r}", expected=expected, hint=hint)
        return ["".join((self.short.get(key, key), *rest)) for key, *rest in typed]

    @property
    def positionals(self) -> tuple[str, ...]:
        """What may come without a key: its arguments, or the run."""
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
    # None where none is wanted; the folder RUN/NAME is put before the arguments.
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
        PluginError: One of them cannot be imported, or its `PLUGIN` is something else.
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
        PluginError: A plug-in cannot be read, or adds what is there.
    """
    found = dict(own or {})
    for plugin in plugins():
        for name, each in getattr(plugin, kind).items():
            if name in found:
                both = (getattr(one, "target", str(one)) for one in (found[name], each))
                raise PluginError(
                    f"two of robot_rl and its plug-ins have {name!r} among their {kind}",
                    got=" and ".join(both),
                    hint="rename one of them",
                )
            found[name] = each
    return found


def format_of(folder: Path) -> tuple[str, DatasetFormat] | None:
    """Find the format that a plug-in adds, and its name, of the dataset in a folder."""
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
        raise PluginError(
            f"the plug-in {place} cannot be imported",
            got=repr(error),
            hint="correct it, or install what it imports",
        ) from error
    if not isinstance(plugin, Plugin):
        raise PluginError(
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
