"""The command `robot-rl`: one word per stage, configuration overrides after it.

Stages are imported when they are asked for, so that help and errors do not wait for torch.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Any

from policies.errors import PolicyError
from robot_rl.errors import RobotRLError
from robot_rl.signals import ENDS_WITH_INPUT, end_with_input, ending_signals

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
_NO_SPACE_OR_ACCESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class UsageError(RobotRLError):
    """A command line that names no stage, or gives it the wrong arguments."""


@dataclass(frozen=True)
class Option:
    """One `key=value` of a stage that has no configuration.

    Attributes:
        name: The key, which is also the name of the function's argument.
        default: The value if it is not given.
        choices: What it may be; empty where any text may follow.
        summary: What it decides.
    """

    name: str
    default: str | None
    choices: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class Stage:
    """One word of the command line.

    Attributes:
        target: `module:function` that does the work; it is called with the configuration.
        summary: One line for the list of stages.
        details: What the stage reads and writes.
        run_key: The configuration key that names the run directory to work on. The configuration
            of that run is used, and overrides that would make it another run are refused.
        default_run: The run when that key is not given; None when the stage makes its own.
        new_run_key: A key with which the stage makes its own run in place of the default one.
        any_robot: Whether it may work with another robot than the run was made with.
        arguments: Names of the positional arguments, which come before the overrides.
        options: What `key=value` may follow, of a stage that has no configuration.
        takes_overrides: Whether the stage has a configuration.
        example: A command to show to somebody who gave the wrong arguments.
    """

    target: str
    summary: str
    details: str
    run_key: str | None = None
    default_run: str | None = None
    new_run_key: str | None = None
    any_robot: bool = False
    arguments: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    takes_overrides: bool = True
    example: str = ""


STAGES: dict[str, Stage] = {
    "collect": Stage(
        "robot_rl.stages.collect:run",
        "Record demonstrations with the task's scripted expert.",
        "Runs the expert until `demonstrations` episodes have succeeded and writes them to"
        " demonstrations.zarr in a new run directory. An interrupted recording keeps all"
        " finished episodes; run=RUN goes on with it.",
        run_key="run",
    ),
    "collect-reward": Stage(
        "robot_rl.stages.collect_reward:run",
        "Record frames of success and of failure for a success classifier.",
        "The task's scripted expert succeeds, and fails in several ways on purpose; the policy of"
        " `run=RUN`, where it has one, fails as it does. The task's own detector gives the labels."
        " Writes reward.zarr in a new run directory; run=RUN adds to that of RUN.",
        run_key="run",
    ),
    "train-reward": Stage(
        "robot_rl.stages.train_reward:run",
        "Train a success classifier on recorded frames and say how far to trust it.",
        "Holds episodes out, chooses calibration and threshold on them, and writes"
        " checkpoints/reward, reward.json and reward.html in the run with the examples;"
        " classifier.test=PATH names another recording to judge it on. Then robot-rl train"
        " reward=classifier reward.source.path=RUN/checkpoints/reward.",
        run_key="run",
        default_run="latest",
    ),
    "pretrain": Stage(
        "robot_rl.stages.pretrain:run",
        "Clone the demonstrations into a policy.",
        "Trains the policy on the demonstrations of `run=RUN`, by default of the latest run, or of"
        " `dataset=PATH` in a new run directory, and writes checkpoints/bc. Then robot-rl train"
        " resume=RUN learns online.",
        run_key="run",
        default_run="latest",
        new_run_key="dataset",
    ),
    "train": Stage(
        "robot_rl.stages.train:run",
        "The whole pipeline: collect, pretrain, online learning, evaluation, report.",
        "Starts the replay server, the actor and the learner as processes of their own. Ends with"
        " summary.json and report.html in runs/<task>/<time>, which runs/latest points to. Ctrl-C"
        " stops everything with data and checkpoint saved; resume=RUN goes on.",
        run_key="resume",
    ),
    "replay": Stage(
        "robot_rl.replay.main:run",
        "The replay server of a run, alone.",
        "The only writer of the run's store, and the mailbox of weights.",
        run_key="run",
        default_run="latest",
    ),
    "actor": Stage(
        "robot_rl.actor:run",
        "The actor of a run, alone: steps the robot with the newest policy.",
        "Sends every transition to the replay server and takes new weights from it.",
        run_key="run",
        default_run="latest",
    ),
    "learner": Stage(
        "robot_rl.learner:run",
        "The learner of a run, alone: updates the policy from the store.",
        "Reads the store through its memory map and publishes weights to the replay server.",
        run_key="run",
        default_run="latest",
    ),
    "console": Stage(
        "robot_rl.stages.console:run",
        "The operator's console of a run, in a browser.",
        "Shows the cameras, the robot in 3-D, curves and episodes, and has the buttons to label,"
        " pause, take over and stop. It may be opened and closed at any time, and finds the actor"
        " by itself, whichever process that is. Ctrl-C closes it; the run goes on.",
        run_key="run",
        default_run="latest",
    ),
    "evaluate": Stage(
        "robot_rl.stages.evaluate:run",
        "Measure the success rate of a run's last checkpoint.",
        "Runs seeded episodes that training never used; prints the success rate with its exact"
        " 95 % interval, the mean time to success and the longest run of successes, and writes"
        " JSON. With robot=NAME on another robot than it was trained on.",
        run_key="run",
        default_run="latest",
        any_robot=True,
    ),
    "inspect": Stage(
        "robot_rl.inspection:run",
        "Say what a dataset, store, checkpoint or run directory holds.",
        "PATH is a demonstrations.zarr, a store, a checkpoint or a run directory. Nothing is"
        " changed.",
        arguments=("PATH",),
        takes_overrides=False,
        example="robot-rl inspect runs/latest",
    ),
    "export": Stage(
        "robot_rl.stages.interchange:export",
        "Write the episodes of a store to a dataset, also while training runs.",
        "STORE is a store, a run directory or an episode dataset; OUT is made and never"
        " overwritten. Open episodes are left out. LeRobot datasets have no final observation and"
        " their pictures are compressed with losses; zarr keeps everything.",
        arguments=("STORE", "OUT"),
        options=(
            Option("format", "zarr", ("zarr", "lerobot"), "the dataset's format"),
            Option("table", None, (), "the store's table, if it has several"),
            Option(
                "source",
                "all",
                ("demo", "policy", "intervention", "all"),
                "who acted; intervention takes episodes in which somebody intervened",
            ),
            Option("success", "all", ("true", "false", "all"), "by outcome"),
        ),
        takes_overrides=False,
        example="robot-rl export runs/latest OUT format=lerobot",
    ),
    "annotate": Stage(
        "robot_rl.stages.annotate:run",
        "Have a progress model judge the episodes of a store.",
        "STORE is a store or a run directory whose replay server runs; the model listens at"
        " ADDRESS, tcp://127.0.0.1:PORT, in a process of its own. Its scores become the annotations"
        " progress, progress_confidence and done; reward.annotation=progress learns from them.",
        arguments=("STORE", "ADDRESS"),
        options=(Option("table", None, (), "the store's table, if it has several"),),
        takes_overrides=False,
        example="robot-rl annotate runs/latest tcp://127.0.0.1:5600",
    ),
    "import": Stage(
        "robot_rl.stages.interchange:import_dataset",
        "Make an episode dataset of one that robot-rl export wrote.",
        "PATH is a LeRobot or a zarr dataset; OUT is made, never overwritten, and serves as"
        " dataset=OUT of pretrain and train. What LeRobot cannot keep is missing: an episode that"
        " did not terminate loses its last step.",
        arguments=("PATH", "OUT"),
        takes_overrides=False,
        example="robot-rl import PATH demonstrations.zarr",
    ),
    "keys": Stage(
        "robot_rl.stages.keys:run",
        "Make the keys with which other machines may use the replay server.",
        "Writes a key pair of the server, and one for the processes beside it, into FOLDER; with"
        " client=NAME a further one into FOLDER/NAME, to be copied to that machine. Nothing is ever"
        " overwritten. Use them with replay=network replay.keys=FOLDER.",
        arguments=("FOLDER",),
        options=(Option("client", None, (), "name of one more client to let in"),),
        takes_overrides=False,
        example="robot-rl keys keys client=robot2",
    ),
    "doctor": Stage(
        "robot_rl.stages.doctor:run",
        "Say what of this machine works here, and how to mend what does not.",
        "Tries Python, physics, networks, rendering, GPU, cameras, ROS, input devices, disk and"
        " memory, each in a process of its own. Fails only without Python, MuJoCo or torch.",
        options=(Option("json", "false", ("true", "false"), "one JSON object as the last line"),),
        takes_overrides=False,
        example="robot-rl doctor json=true",
    ),
    "bench": Stage(
        "robot_rl.bench",
        "Measure one part on this machine.",
        "Prints one JSON object as its last line: medians, and the machine they were measured on.",
        arguments=("NAME",),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage.

    Args:
        argv: The words after `robot-rl`; None takes those of the process.

    Returns:
        The exit code: 0, 2 after an error that the user can mend, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    previous = {number: signal.signal(number, _interrupt) for number in ending_signals()}
    if os.environ.pop(ENDS_WITH_INPUT, None):
        end_with_input()
    try:
        return _dispatch(words)
    except (RobotRLError, PolicyError) as error:
        return _fail(str(error))
    except BrokenPipeError:  # `robot-rl inspect RUN | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except OSError as error:
        if error.errno not in _NO_SPACE_OR_ACCESS:
            raise
        return _fail(f"the system refused to read or write; got: {error}")
    except KeyboardInterrupt:
        print("robot-rl: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def bench_names() -> tuple[str, ...]:
    """Return the names that `robot-rl bench` knows, without importing them."""
    package = importlib.util.find_spec("robot_rl.bench")
    folders = package.submodule_search_locations if package else None
    modules = pkgutil.iter_modules(folders or [])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        from robot_rl._cli_help import print_overview

        print_overview(STAGES)
        return 0
    if words[0] == "--version":
        print(f"robot-rl {version('robot_rl')}")
        return 0
    name, rest = words[0], words[1:]
    if name not in STAGES:
        raise UsageError(
            f"unknown stage {name!r}",
            expected=f"one of {', '.join(STAGES)}",
            hint=f"did you mean robot-rl {_nearest(name, STAGES)}? See robot-rl --help",
        )
    stage = STAGES[name]
    if any(word in ("-h", "--help") for word in rest):
        from robot_rl._cli_help import print_stage

        overrides = [word for word in rest if "=" in word]
        print_stage(name, stage, overrides, bench_names() if name == "bench" else ())
        return 0
    options = [word for word in rest if word.startswith("--")]
    if options:
        raise UsageError(
            f"{name} has no option {options[0]!r}",
            expected="--help, or overrides of the form key=value",
        )
    return _run_stage(name, stage, rest)


def _run_stage(name: str, stage: Stage, words: list[str]) -> int:
    if name == "bench":
        return _run_bench(words)
    if not stage.takes_overrides:
        positionals, options = _split(name, stage, words)
        _load(stage.target)(*positionals, **options)
        return 0
    config = _stage_config(stage, words)  # before the import: a mistyped word is answered at once
    _load(stage.target)(config)
    return 0


def _split(name: str, stage: Stage, words: list[str]) -> tuple[list[str], dict[str, str | None]]:
    """Tell positional arguments from options, and check both."""
    options = {option.name: option.default for option in stage.options}
    choices = {option.name: option.choices for option in stage.options}
    positionals = []
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.isidentifier()):  # a path may hold "=" too, as in ./a=b
            positionals.append(word)
        elif key not in options:
            raise UsageError(
                f"{name} has no option {key!r}",
                expected=f"one of {', '.join(options)}" if options else "no options",
                hint=f"did you mean {_nearest(key, options)}?" if options else None,
            )
        elif choices[key] and value not in choices[key]:
            raise UsageError(
                f"{key}={value} is not possible",
                expected=f"one of {', '.join(choices[key])}",
                hint=f"did you mean {key}={_nearest(value, choices[key])}?",
            )
        else:
            options[key] = value
    if len(positionals) != len(stage.arguments):
        one = "one " if len(stage.arguments) == 1 else ""
        raise UsageError(
            f"{name} takes {one}{' and '.join(stage.arguments) or 'key=value only'}",
            got=" ".join(positionals) or "nothing",
            hint=stage.example,
        )
    return positionals, options


def _run_bench(words: list[str]) -> int:
    names = bench_names()
    if not words or words[0] not in names:
        got = words[0] if words else ""
        raise UsageError(
            f"unknown bench {got!r}" if words else "bench needs a NAME",
            expected=f"one of {', '.join(names)}",
            hint=f"did you mean robot-rl bench {_nearest(got, names)}?",
        )
    from robot_rl.config import compose
    from robot_rl.machine import describe_machine

    config = compose(words[1:])
    machine = describe_machine()  # before the measurement, as it notes the load
    result: dict[str, Any] = _load(f"robot_rl.bench.{words[0]}:run")(config)
    print(json.dumps({"bench": words[0], **result, "machine": machine}), flush=True)
    return 0


def _stage_config(stage: Stage, overrides: list[str]) -> DictConfig:
    """Compose the configuration, or take that of the run directory that the overrides name."""
    from robot_rl.config import compose, compose_for_run, load_resolved
    from robot_rl.run import RunDirectory

    if stage.run_key is None:
        return compose(overrides)
    places = (f"{stage.run_key}=", "runs_directory=")
    where = compose([override for override in overrides if override.startswith(places)])
    default = stage.default_run
    if stage.new_run_key and any(o.startswith(f"{stage.new_run_key}=") for o in overrides):
        default = None
    named = where[stage.run_key] or default
    if named is None:
        return compose(overrides)
    run = RunDirectory.open(named, where.runs_directory)
    config = compose_for_run(overrides, load_resolved(run.path), any_robot=stage.any_robot)
    config[stage.run_key] = str(run.path)
    return config


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _nearest(name: str, choices: Iterable[str]) -> str | None:
    from robot_rl.config import nearest

    return nearest(name, choices)


def _fail(message: str) -> int:
    print(f"robot-rl: {message}", file=sys.stderr)
    return EXIT_ERROR


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let every request to end take the same clean way out as Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
