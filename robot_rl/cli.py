"""The command `robot-rl`: one word, configuration overrides after it.

The words are in `robot_rl.commands.table`. A command is imported when it is asked for.
"""

from __future__ import annotations

import errno
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from policies.registry import add_folder
from robot_rl.commands.help import overview, page
from robot_rl.commands.table import COMMANDS, Command
from robot_rl.errors import RobotRLError, described, nearest
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
_NO_SPACE_OR_ACCESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class UsageError(RobotRLError):
    """A command line that names no command, or gives it the wrong arguments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, of the words after `robot-rl` that are given or of those of the process.

    Returns the exit code: 0, 2 after an error that the user can mend, 130 after Ctrl-C.
    """
    end_at_once()
    words = list(sys.argv[1:] if argv is None else argv)
    interrupted = Interruption()
    with handled(ending_signals(), interrupted):
        try:
            if os.environ.pop(ENDS_WITH_INPUT, None):
                end_with_input()
            return _dispatch(_taken_folders(words))
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
            elif isinstance(error, OSError) and error.errno in _NO_SPACE_OR_ACCESS:
                _say(f"the system refused to read or write; got: {error}")
            else:
                raise
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


def bench_names() -> tuple[str, ...]:
    """Return the names that `robot-rl bench` knows, without importing them."""
    modules = (Path(__file__).parent / "bench").glob("[!_]*.py")
    return tuple(sorted(module.stem for module in modules))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(COMMANDS))
        return 0
    if words[0] == "--version":
        print(f"robot-rl {version('robot_rl')}")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise UsageError(
            f"unknown command {name!r}",
            expected=f"one of {', '.join(COMMANDS)}",
            hint=f"did you mean robot-rl {nearest(name, COMMANDS)}? See robot-rl --help",
        )
    command = COMMANDS[name]
    if any(word in ("-h", "--help") for word in rest):
        words = [word for word in rest if word not in ("-h", "--help")]
        print(page(name, command, words, bench_names() if name == "bench" else ()))
        return 0
    for word in rest:
        if word.startswith("--"):
            raise UsageError(
                f"{name} has no option {word!r}",
                expected="--help, or overrides of the form key=value",
            )
    return _run_command(name, command, rest)


def _run_command(name: str, command: Command, words: list[str]) -> int:
    if name == "bench":
        return _run_bench(words)
    if not command.takes_overrides:
        positionals, options = _split(name, command, words)
        pkgutil.resolve_name(command.target)(*positionals, **options)
        return 0
    paths = [word for word in words if "=" not in word or Path(word).is_dir()]
    _check_count(name, command, paths)
    words = [word for word in words if word not in paths]
    # Before the import: a mistyped word is answered at once.
    config = command_config(command, words, *paths[:1])
    run = f" run={config.run}" if command.measures else ""
    chosen = (f"{g}={config.choices[g]}" for g in ("task", "robot", "policy", "algorithm"))
    # For whoever waits while torch is loaded.
    print(f"{name}: {' '.join(chosen)} seed={config.seed}{run}", flush=True)
    told = [words] if command.measures else []
    pkgutil.resolve_name(command.target)(config, *told, *([paths] if command.arguments else []))
    return 0


def _split(
    name: str, command: Command, words: list[str]
) -> tuple[list[str], dict[str, str | None]]:
    """Tell positional arguments from options, and check both."""
    options = {option.name: option.default for option in command.options}
    choices = {option.name: option.choices for option in command.options}
    positionals = []
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.isidentifier()):  # a path may hold "=" too, as in ./a=b
            positionals.append(word)
        elif key not in options:
            raise UsageError(
                f"{name} has no option {key!r}",
                expected=f"one of {', '.join(options)}" if options else "no options",
                hint=f"did you mean {nearest(key, options)}?" if options else None,
            )
        elif choices[key] and value not in choices[key]:
            raise UsageError(
                f"{key}={value} is not possible",
                expected=f"one of {', '.join(choices[key])}",
                hint=f"did you mean {key}={nearest(value, choices[key])}?",
            )
        else:
            options[key] = value
    _check_count(name, command, positionals)
    return positionals, options


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
            hint=command.example,
        )


def _run_bench(words: list[str]) -> int:
    names = bench_names()
    if not words or words[0] not in names:
        got = words[0] if words else ""
        raise UsageError(
            f"unknown bench {got!r}" if words else "bench needs a NAME",
            expected=f"one of {', '.join(names)}",
            hint=f"did you mean robot-rl bench {nearest(got, names)}?",
        )
    from robot_rl.config import compose
    from robot_rl.processes.machine import describe_machine

    config = compose(words[1:])
    machine = describe_machine()  # before the measurement, as it notes the load
    result: dict[str, Any] = pkgutil.resolve_name(f"robot_rl.bench.{words[0]}:run")(config)
    print(json.dumps({"bench": words[0], **result, "machine": machine}), flush=True)
    return 0


def command_config(command: Command, overrides: list[str], path: str | None = None) -> DictConfig:
    """Compose the configuration, or take that of the run that the overrides, or `path`, name."""
    from robot_rl.commands.runs import compose_for_run, load_resolved
    from robot_rl.config import compose
    from robot_rl.run import RunDirectory

    typed = (override.partition("=") for override in overrides)
    overrides = ["".join((command.short.get(key, key), *rest)) for key, *rest in typed]
    if command.run_key is None:
        return compose(overrides)
    places = (f"{command.run_key}=", "runs_directory=")
    where = compose([override for override in overrides if override.startswith(places)])
    default = command.default_run
    if command.new_run_key and any(o.startswith(f"{command.new_run_key}=") for o in overrides):
        default = None
    if path and where[command.run_key]:
        given = f"{path} and {command.run_key}={where[command.run_key]}"
        raise UsageError("the run is named twice", got=given, expected="one of them")
    named = path or where[command.run_key] or default
    if named is None:
        return compose(overrides)
    run = RunDirectory.around(named, where.runs_directory, with_policy=command.measures)
    config = compose_for_run(overrides, load_resolved(run.path), elsewhere=command.measures)
    config[command.run_key] = str(run.path)
    return config


def _say(message: str) -> None:
    with suppress(OSError):  # the terminal is closed
        print(f"robot-rl: {message}", file=sys.stderr, flush=True)


def command() -> NoReturn:
    """Run one stage as a program, which a further Ctrl-C at its very end ends without a word."""
    code = main()
    for number in ending_signals():
        signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    command()
