"""The program `robot-rl`: a command name, then configuration overrides.

The commands are listed in `robot_rl.commands.table` and imported when run. Help pages are 80
columns wide and show the comments of the YAML files.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from policies.places import add_folder
from robot_rl.commands.table import commands
from robot_rl.errors import RobotRLError, described, did_you_mean, in_shell, printable
from robot_rl.plugins import Command, Option, resolve
from robot_rl.processes import signals

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXIT_ERROR, EXIT_INTERRUPTED = 2, signals.EXIT_INTERRUPTED
DRY_RUN = "--dry-run"
_WIDTH, _COLUMN = 80, 32  # of the help pages, and of their key column
_NO_SPACE_OR_ACCESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` excludes the program name and defaults to the process's arguments.

    Returns the exit code: 0, 2 after an error that the user can fix, 130 after Ctrl-C.
    """
    signals.end_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold bytes that are not text
            stream.reconfigure(errors="surrogateescape")
    words = list(sys.argv[1:] if argv is None else argv)
    interrupted = signals.Interruption()
    with signals.handled(signals.ending_signals(), interrupted):
        try:
            if os.environ.pop(signals.ENDS_WITH_INPUT, None):
                signals.end_with_input()
            _dispatch(_add_folders(words))
        except RobotRLError as error:
            _say(str(error))
        except KeyboardInterrupt:
            _say("stopped")
            return EXIT_INTERRUPTED
        except Exception as error:
            if interrupted.heard:
                # A library may raise its own error for the interruption; the terminal may be
                # closed.
                _say(f"the interrupted work ended with {described(error)}")
                _say("stopped")
                return EXIT_INTERRUPTED
            if isinstance(error, BrokenPipeError):  # `robot-rl inspect RUN | head` closed the pipe
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            elif isinstance(error, OSError) and (
                error.filename is not None or error.errno in _NO_SPACE_OR_ACCESS
            ):  # also an impossible path: too long, below a file, in /proc
                _say(f"the system refused to read or write; got: {error}")
            else:
                raise
        else:
            return 0
    return EXIT_ERROR


def _add_folders(words: list[str]) -> list[str]:
    """Add the folders of `--config-dir FOLDER` to the registry; return the other arguments."""
    others, rest = [], iter(words)
    for word in rest:
        option, equals, folder = word.partition("=")
        if option != "--config-dir":
            others.append(word)
        elif folder := folder if equals else next(rest, ""):
            add_folder(folder)
        else:
            raise RobotRLError("--config-dir needs a folder", expected="--config-dir FOLDER")
    return others


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return
    if words[0] == "--version":
        from robot_rl.processes.machine import package_version  # late import: needs psutil

        print(f"robot-rl {package_version('robot_rl')}")
        return
    name, rest = words[0], words[1:]
    known = commands()
    if name not in known:
        raise RobotRLError(
            f"unknown command {name!r}",
            expected=f"one of {', '.join(known)}",
            hint=did_you_mean(name, known, "robot-rl ") or "robot-rl --help",
        )
    command = known[name]
    options = [word for word in rest if word.startswith("-") and not os.path.exists(word)]
    others = [word for word in rest if word not in options]
    if {"-h", "--help"}.intersection(options):
        print(_page(name, command, others))
        return
    allowed = [DRY_RUN] * bool(command.dry_run)
    for word in options:
        expected = ", ".join(["--help", *allowed, "overrides of the form key=value"])
        if word in ("-m", "--multirun"):
            hint = "give the command once for each value"
            raise RobotRLError("a command makes one run", got=word, expected=expected, hint=hint)
        if word not in allowed:
            path = None if word.startswith("--") else f"of a path write {in_shell(f'./{word}')}"
            raise RobotRLError(f"{name} has no option {word!r}", expected=expected, hint=path)
    function = command.dry_run if options else command.target
    if not command.takes_overrides:
        positionals, values = _split(name, command, others)
        resolve(function)(*positionals, **values)
        return
    paths = [word for word in others if not _is_setting(word)]
    _check_count(name, command, paths)
    from omegaconf.errors import OmegaConfBaseException  # late import: Hydra takes a moment

    try:
        overrides = [word for word in others if word not in paths]
        _run_configured(name, command, overrides, paths, function)
    except OmegaConfBaseException as error:
        raise RobotRLError(
            "the configuration lacks a setting, or has another kind of value for it",
            got=" ".join(str(error).split()),
            hint="if it is the configuration of a run, another version of robot_rl or a person"
            " has changed it",
        ) from error


def _run_configured(
    name: str, command: Command, overrides: list[str], paths: list[str], function: str
) -> None:
    # Compose before importing the function, so that typos are reported at once.
    config = command_config(command, overrides, *paths[:1])
    run = f" {in_shell(f'run={config.run}')}" if command.measures else ""
    groups = ("task", "robot", "policy", "algorithm") if command.run_key else command.keys.split()
    names = {**config.choices, "task": config.task.name}  # for a Gymnasium environment, its id
    chosen = (f"{g}={names[g]}" for g in groups if g in names)
    # Show something while torch loads.
    print(f"{name}: {' '.join(chosen)} seed={config.seed}{run}", flush=True)
    further = ([overrides] if command.measures else []) + ([paths] if command.arguments else [])
    resolve(function)(config, *further)


def _is_setting(word: str) -> bool:
    """Whether an argument is key=value and not a path; a path may contain = too, as ./a=b."""
    return bool(re.match(r"[+~]*[A-Za-z_][\w.@-]*=", word)) and not os.path.isdir(word)


def _overview() -> str:
    lines = ["robot-rl COMMAND [key=value ...]", ""]
    for name, command in commands().items():
        lines += _entry(" ".join((name, *command.positionals)), command.summary)
    return "\n".join([*lines, "", "robot-rl COMMAND --help says more. Start with: robot-rl train"])


def _page(name: str, command: Command, words: Sequence[str]) -> str:
    """Return a command's help page. `all` shows every key; overrides change the shown values."""
    settings = " [key=value ...]" if command.takes_overrides or command.options else ""
    lines = [" ".join(("robot-rl", name, *command.positionals)) + settings, ""]
    lines += textwrap.wrap(f"{command.summary} {command.details}", _WIDTH)
    if command.dry_run:
        lines += [f"{DRY_RUN} checks and shows all of that, but starts and writes nothing."]
    lines += [""] * bool(settings)
    for option in command.options:
        choices = f"{' or '.join(option.words)}: " * bool(option.words)
        default = "" if option.default is None else json.dumps(option.default).strip('"')
        lines += _entry(f"{option.name}={default}", choices + option.summary)
    if command.takes_overrides:
        for key, value, meaning in _settings(command, words):
            lines += _entry(f"{key}={value}", meaning)
        if "all" not in words:
            lines += ["", f"robot-rl {name} --help all shows every key."]
    return "\n".join(lines)


def _settings(command: Command, words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield configuration keys with their values and meanings."""
    # Late import: Hydra takes a moment.
    from robot_rl.config import compose, flatten, group_choices
    from robot_rl.processes.resources import choice_file, find_resource

    config, groups = compose([word for word in words if "=" in word]), group_choices()
    values = {k: v for k, v in flatten(config).items() if not k.startswith("choices.")}
    meanings = _meanings(find_resource("configs") / "config.yaml", "")
    for group in groups:
        file = choice_file(group, str(config.choices[group]))
        meanings |= _meanings(file, group) if file is not None else {}
    for key in [*groups, *values] if "all" in words else command.keys.split():
        place = command.aliases.get(key, key)
        value, meaning = config.choices.get(key), meanings.get(place, "")
        if key in groups:
            others = ", ".join(choice for choice in groups[key] if choice != value)
            meaning = f"{meaning.partition('. ')[0].rstrip('.')}. Or: {others or 'nothing else'}."
        else:
            # In the syntax to type: null, true, [a,b].
            value = json.dumps(values[place], separators=(",", ":")).replace('"', "")
        yield key, value, meaning


def _meanings(file: Path, group: str) -> dict[str, str]:
    """Return key → comment for a file and the files it builds on.

    A key's comment is above it or on its line; the group's comment is at the top of the file.
    """
    from robot_rl.processes.resources import choice_file

    lines = file.read_text(encoding="utf-8").splitlines()
    top = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    everywhere = "# @package _global_" in top
    found: dict[str, str] = {}
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in lines[len(top) :]:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if text.startswith("#"):
            above.append(text.strip("# "))
            continue
        if key := re.match(r"([\w.]+):(?:\s|$)", text):
            path = [*(part for part in path if part[0] < indent), (indent, key[1])]
            names = [name for _, name in path]
            beside = text.partition(" # ")[2].strip()
            place = ".".join(names if everywhere or not group else [group, *names])
            found[place] = beside or " ".join(above)
        elif path[-1:] == [(0, "defaults")] and (part := re.fullmatch(r"- ((?!_self_)\w+)", text)):
            built_on = choice_file(group, part[1])
            found |= _meanings(built_on, group) if built_on is not None else {}
        above = []
    return found | {group: " ".join(line.strip("# ") for line in top if "@package" not in line)}


def _entry(left: str, right: str) -> list[str]:
    """Format a key and its meaning in two columns; a long key's meaning goes below it."""
    begin, below = f"  {left}".ljust(_COLUMN), " " * _COLUMN
    key = textwrap.wrap(left, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(left) > _COLUMN - 4:
        return [*key, *textwrap.wrap(right, _WIDTH, initial_indent=below, subsequent_indent=below)]
    return textwrap.wrap(right, _WIDTH, initial_indent=begin, subsequent_indent=below) or key


def _split(
    name: str, command: Command, words: list[str]
) -> tuple[list[str], dict[str, str | float | bool | None]]:
    """Split arguments into the positional ones and the value of each option."""
    options = {option.name: option for option in command.options}
    values = {option.name: option.default for option in command.options}
    positionals = []
    for word in words:
        key, _, value = word.partition("=")
        is_setting = _is_setting(word)
        if "cell" in options and is_setting and re.fullmatch(r"[+~]*\w+\.[\w.]+", key):
            cell = next((w[5:] for w in words if w.startswith("cell=")), "PATH")
            file = cell if cell.endswith((".yaml", ".yml")) else f"{cell}/cell.yaml"
            raise RobotRLError(
                f"{name} takes no settings of a cell", got=word, hint=f"write it into {file}"
            )
        if is_setting and key in options:
            values[key] = _value(options[key], value)
        elif not is_setting or os.path.exists(word):
            positionals.append(word)
        else:
            raise RobotRLError(
                f"{name} has no option {key!r}",
                expected=f"one of {', '.join(options)}" if options else "no options",
                hint=did_you_mean(key, options, "") or f"of a path write {in_shell(f'./{word}')}",
            )
    _check_count(name, command, positionals)
    return positionals, values


def _value(option: Option, text: str) -> str | float | bool:
    """Parse an option's value as the type of its default."""
    kind = type(option.default)
    choices = ("true", "false") if kind is bool else option.words
    if choices and text not in choices:
        raise RobotRLError(
            f"{option.name}= takes another word",
            got=text,
            expected=f"one of {', '.join(choices)}",
            hint=did_you_mean(text, choices, f"{option.name}="),
        )
    if kind is bool:
        return text == "true"
    if kind not in (int, float):
        return text
    with suppress(ValueError, OverflowError):
        if math.isfinite(number := kind(text)):
            return number
    raise RobotRLError(
        f"{option.name} is no {'whole ' * (kind is int)}number",
        got=text,
        expected=f"{option.name}={option.default}, for example",
    )


def _check_count(name: str, command: Command, positionals: list[str]) -> None:
    known = command.positionals
    named = [argument.strip("[]") for argument in known if argument != "..."]
    least, more = sum(argument in known for argument in named), "..." in known
    if len(positionals) < least or (len(positionals) > len(named) and not more):
        one = "at least " if more else "one " if len(named) == 1 else ""
        one = "at most one " if named and not least else one
        raise RobotRLError(
            f"{name} takes {one}{' and '.join(named) or 'key=value only'}",
            got=" ".join(positionals) or "nothing",
            hint=command.example or "write a setting as key=value, such as task=reach",
        )


def command_config(command: Command, overrides: list[str], path: str | None = None) -> DictConfig:
    """Compose the configuration, or use that of the run named by the overrides or `path`."""
    from robot_rl.commands import runs
    from robot_rl.config import compose
    from robot_rl.run import RunDirectory

    overrides = command.expand(overrides)
    key = command.run_key
    if key is None:
        return compose(overrides)
    where = compose([o for o in overrides if o.startswith((f"{key}=", "runs_directory="))])
    if path and where[key]:
        got = f"{path} and {key}={where[key]}"
        raise RobotRLError("the run is named twice", got=got, expected="one of them")
    named = path or where[key]
    # A command that takes a dataset makes a new run for it.
    new = "dataset" in command.keys.split() and any(o.startswith("dataset=") for o in overrides)
    if not named and not new:
        named = command.default_run
    if not named:
        return runs.compose_new_run(overrides)
    # Commands that do not get the path would use the run instead of its checkpoint.
    opened = RunDirectory.around if path and command.arguments else RunDirectory.open
    run = opened(named, where.runs_directory, with_policy=command.measures)
    saved = runs.load_resolved(run.path)
    quiet = any(o.startswith("cell=") for o in overrides)
    cell = runs.kept_cell(run.path, saved, quiet=quiet)
    config = runs.compose_for_run(overrides, saved, elsewhere=command.measures, cell=cell)
    config[key] = str(run.path)
    return config


def _say(message: str) -> None:
    with suppress(OSError):  # the terminal is closed
        print(f"robot-rl: {printable(message)}", file=sys.stderr, flush=True)


def command() -> NoReturn:
    """Run one command as a program; another Ctrl-C at the very end exits silently."""
    code = main()
    for number in signals.ending_signals():
        signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    command()
