"""The command `robot-rl`: one word, configuration overrides after it.

The words are in `robot_rl.commands.table`. A command is imported when it is asked for. On the help
pages, 80 columns wide, what a key means is its comment in the YAML.
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

from policies.registry import add_folder
from robot_rl.commands.table import commands
from robot_rl.errors import RobotRLError, described, did_you_mean, in_shell, shown
from robot_rl.plugins import Command, Option, resolve
from robot_rl.processes.signals import (
    ENDS_WITH_INPUT,
    EXIT_INTERRUPTED,
    Interruption,
    end_at_once,
    end_with_input,
    ending_signals,
    handled,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXIT_ERROR = 2
DRY_RUN = "--dry-run"
_WIDTH, _COLUMN = 80, 32  # of the help pages, and of the keys in them
_NO_SPACE_OR_ACCESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class UsageError(RobotRLError):
    """A command line that names no command, or gives it the wrong arguments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, of the words after `robot-rl` that are given or of those of the process.

    Returns the exit code: 0, 2 after an error that the user can mend, 130 after Ctrl-C.
    """
    end_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold bytes that are no text
            stream.reconfigure(errors="surrogateescape")
    words = list(sys.argv[1:] if argv is None else argv)
    interrupted = Interruption()
    with handled(ending_signals(), interrupted):
        try:
            if os.environ.pop(ENDS_WITH_INPUT, None):
                end_with_input()
            _dispatch(_taken_folders(words))
        except RobotRLError as error:
            _say(str(error))
        except KeyboardInterrupt:
            _say("stopped")
            return EXIT_INTERRUPTED
        except Exception as error:
            if interrupted.heard:
                # What a library makes of it, as in an import; or there is no terminal any more.
                _say(f"what was going on ended with {described(error)}")
                _say("stopped")
                return EXIT_INTERRUPTED
            if isinstance(error, BrokenPipeError):  # `robot-rl inspect RUN | head`: nobody reads on
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            elif isinstance(error, OSError) and (
                error.filename is not None or error.errno in _NO_SPACE_OR_ACCESS
            ):  # also of a path that cannot be: too long, below a file, in /proc
                _say(f"the system refused to read or write; got: {error}")
            else:
                raise
        else:
            return 0
    return EXIT_ERROR


def _taken_folders(words: list[str]) -> list[str]:
    """Add the folders of `--config-dir FOLDER` to the registry; returns the other words."""
    others, rest = [], iter(words)
    for word in rest:
        option, equals, folder = word.partition("=")
        if option != "--config-dir":
            others.append(word)
        elif folder := folder if equals else next(rest, ""):
            add_folder(folder)
        else:
            raise UsageError("--config-dir needs a folder", expected="--config-dir FOLDER")
    return others


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return
    if words[0] == "--version":
        from robot_rl.processes.machine import package_version  # late: it needs psutil

        print(f"robot-rl {package_version('robot_rl')}")
        return
    name, rest = words[0], words[1:]
    known = commands()
    if name not in known:
        raise UsageError(
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
    allowed = [DRY_RUN] if command.dry_run else []
    if unknown := [word for word in options if word not in allowed]:
        raise _unknown_option(name, unknown[0], allowed)
    _run_command(name, command, others, command.dry_run if options else command.target)


def _unknown_option(name: str, word: str, known: Sequence[str]) -> UsageError:
    expected = ", ".join(["--help", *known, "overrides of the form key=value"])
    if word in ("-m", "--multirun"):
        again = "give the command once for each value"
        return UsageError("a command makes one run", got=word, expected=expected, hint=again)
    hint = None if word.startswith("--") else f"of a path write {in_shell(f'./{word}')}"
    return UsageError(f"{name} has no option {word!r}", expected=expected, hint=hint)


def _run_command(name: str, command: Command, words: list[str], target: str) -> None:
    if not command.takes_overrides:
        positionals, options = _split(name, command, words)
        resolve(target)(*positionals, **options)
        return
    paths = [word for word in words if not _is_setting(word)]
    _check_count(name, command, paths)
    words = [word for word in words if word not in paths]
    from omegaconf.errors import OmegaConfBaseException  # late: Hydra takes a moment

    try:
        _configured(name, command, words, paths, target)
    except OmegaConfBaseException as error:
        raise UsageError(
            "the configuration lacks a setting, or has another kind of value for it",
            got=" ".join(str(error).split()),
            hint="if it is that of a run, another version of robot_rl or somebody has changed it",
        ) from error


def _configured(
    name: str, command: Command, words: list[str], paths: list[str], target: str
) -> None:
    # Before the import: a mistyped word is answered at once.
    config = command_config(command, words, *paths[:1])
    run = f" {in_shell(f'run={config.run}')}" if command.measures else ""
    groups = ("task", "robot", "policy", "algorithm") if command.run_key else command.keys.split()
    names = {**config.choices, "task": config.task.name}  # of other people's environments their id
    chosen = (f"{g}={names[g]}" for g in groups if g in names)
    # For whoever waits while torch is loaded.
    print(f"{name}: {' '.join(chosen)} seed={config.seed}{run}", flush=True)
    told = [words] if command.measures else []
    resolve(target)(config, *told, *([paths] if command.arguments else []))


def _is_setting(word: str) -> bool:
    """Whether a word is key=value, and no path; one that holds = may be a path too: ./a=b."""
    return bool(re.match(r"[+~]*[A-Za-z_][\w.@-]*=", word)) and not os.path.isdir(word)


def _overview() -> str:
    lines = ["robot-rl COMMAND [key=value ...]", ""]
    for name, command in commands().items():
        lines += _entry(" ".join((name, *command.positionals)), command.summary)
    return "\n".join([*lines, "", "robot-rl COMMAND --help says more. Start with: robot-rl train"])


def _page(name: str, command: Command, words: Sequence[str]) -> str:
    """Say what a command does, and what may follow it.

    The values are those with the overrides among the words that were typed, of which `all` shows
    every key.
    """
    settings = " [key=value ...]" if command.takes_overrides or command.options else ""
    lines = [" ".join(("robot-rl", name, *command.positionals)) + settings, ""]
    lines += textwrap.wrap(f"{command.summary} {command.details}", _WIDTH)
    if command.dry_run:
        lines += [f"{DRY_RUN} checks and shows all of that, but starts and writes nothing."]
    lines += [""] if settings else []
    for option in command.options:
        choices = f"{' or '.join(option.words)}: " if option.words else ""
        shown = "" if option.default is None else json.dumps(option.default).strip('"')
        lines += _entry(f"{option.name}={shown}", choices + option.summary)
    if command.takes_overrides:
        for key, value, meaning in _settings(command, words):
            lines += _entry(f"{key}={value}", meaning)
        if "all" not in words:
            lines += ["", f"robot-rl {name} --help all shows every key."]
    return "\n".join(lines)


def _settings(command: Command, words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Keys of the configuration with their values and meanings."""
    # Late: Hydra takes a moment.
    from robot_rl.config import compose, flatten, group_choices
    from robot_rl.processes.resources import choice_file, find_resource

    config, groups = compose([word for word in words if "=" in word]), group_choices()
    values = {k: v for k, v in flatten(config).items() if not k.startswith("choices.")}
    meanings = _meanings(find_resource("configs") / "config.yaml", "")
    for group in groups:
        file = choice_file(group, str(config.choices[group]))
        meanings |= _meanings(file, group) if file is not None else {}
    for key in [*groups, *values] if "all" in words else command.keys.split():
        place = command.short.get(key, key)
        value, meaning = config.choices.get(key), meanings.get(place, "")
        if key in groups:
            others = ", ".join(choice for choice in groups[key] if choice != value)
            meaning = f"{meaning.partition('. ')[0].rstrip('.')}. Or: {others or 'nothing else'}."
        else:
            # As it is typed: null, true, [a,b].
            value = json.dumps(values[place], separators=(",", ":")).replace('"', "")
        yield key, value, meaning


def _meanings(file: Path, group: str) -> dict[str, str]:
    """What a file's comments, and those it builds on, say of its group and its keys.

    Those of the group are at its top, those of a key above or beside it.
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
    """A key in the left column, and what it means beside it or, where it is long, below it."""
    begin, below = f"  {left}".ljust(_COLUMN), " " * _COLUMN
    key = textwrap.wrap(left, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(left) > _COLUMN - 4:
        return [*key, *textwrap.wrap(right, _WIDTH, initial_indent=below, subsequent_indent=below)]
    return textwrap.wrap(right, _WIDTH, initial_indent=begin, subsequent_indent=below) or key


def _split(
    name: str, command: Command, words: list[str]
) -> tuple[list[str], dict[str, str | float | bool | None]]:
    options = {option.name: option for option in command.options}
    given = {option.name: option.default for option in command.options}
    positionals = []
    for word in words:
        key, _, value = word.partition("=")
        if "cell" in options and re.fullmatch(r"[+~]*\w+\.[\w.]+", key) and _is_setting(word):
            cell = next((w[5:] for w in words if w.startswith("cell=")), "PATH")
            file = cell if cell.endswith((".yaml", ".yml")) else f"{cell}/cell.yaml"
            raise UsageError(
                f"{name} takes no settings of a cell", got=word, hint=f"write it into {file}"
            )
        if not _is_setting(word) or (key not in options and os.path.exists(word)):
            positionals.append(word)
        elif key not in options:
            raise UsageError(
                f"{name} has no option {key!r}",
                expected=f"one of {', '.join(options)}" if options else "no options",
                hint=did_you_mean(key, options, "") or f"of a path write {in_shell(f'./{word}')}",
            )
        else:
            given[key] = _value(options[key], value)
    _check_count(name, command, positionals)
    return positionals, given


def _value(option: Option, text: str) -> str | float | bool:
    """What is given to an option, of the kind of its default."""
    is_flag = isinstance(option.default, bool)
    choices = ("true", "false") if is_flag else option.words
    if choices and text not in choices:
        raise UsageError(
            f"{option.name}= takes another word",
            got=text,
            expected=f"one of {', '.join(choices)}",
            hint=did_you_mean(text, choices, f"{option.name}="),
        )
    if is_flag or not isinstance(option.default, int | float):
        return text == "true" if is_flag else text
    try:
        number = type(option.default)(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        whole = "whole " * isinstance(option.default, int)
        expected = f"{option.name}={option.default}, for example"
        raise UsageError(f"{option.name} is no {whole}number", got=text, expected=expected)
    return number


def _check_count(name: str, command: Command, positionals: list[str]) -> None:
    known = command.positionals
    named = [argument.strip("[]") for argument in known if argument != "..."]
    least, more = sum(argument in known for argument in named), "..." in known
    if len(positionals) < least or (len(positionals) > len(named) and not more):
        one = "at least " if more else "one " if len(named) == 1 else ""
        one = "at most one " if named and not least else one
        raise UsageError(
            f"{name} takes {one}{' and '.join(named) or 'key=value only'}",
            got=" ".join(positionals) or "nothing",
            hint=command.example or "write a setting as key=value, such as task=reach",
        )


def command_config(command: Command, overrides: list[str], path: str | None = None) -> DictConfig:
    """Compose the configuration, or take that of the run that the overrides, or `path`, name."""
    from robot_rl.commands.runs import (
        compose_for_run,
        compose_new_run,
        kept_cell,
        load_resolved,
    )
    from robot_rl.config import compose
    from robot_rl.run import RunDirectory

    overrides = command.written_out(overrides)
    if command.run_key is None:
        return compose(overrides)
    places = (f"{command.run_key}=", "runs_directory=")
    where = compose([override for override in overrides if override.startswith(places)])
    # What takes a dataset makes a run of its own for it, in place of the default one.
    anew = "dataset" in command.keys.split() and any(o.startswith("dataset=") for o in overrides)
    if path and where[command.run_key]:
        given = f"{path} and {command.run_key}={where[command.run_key]}"
        raise UsageError("the run is named twice", got=given, expected="one of them")
    named = path or where[command.run_key] or (None if anew else command.default_run)
    if named is None:
        return compose_new_run(overrides)
    # Only what is told the path looks at a checkpoint; others would take the run in its place.
    opened = RunDirectory.around if path and command.arguments else RunDirectory.open
    run = opened(named, where.runs_directory, with_policy=command.measures)
    saved = load_resolved(run.path)
    cell = kept_cell(run.path, saved, told=not any(o.startswith("cell=") for o in overrides))
    config = compose_for_run(overrides, saved, elsewhere=command.measures, cell=cell)
    config[command.run_key] = str(run.path)
    return config


def _say(message: str) -> None:
    with suppress(OSError):  # the terminal is closed
        print(f"robot-rl: {shown(message)}", file=sys.stderr, flush=True)


def command() -> NoReturn:
    """Run one stage as a program, which a further Ctrl-C at its very end ends without a word."""
    code = main()
    for number in ending_signals():
        signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    command()
