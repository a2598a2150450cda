"""How a console finds the control loop of a run, and proves that it may speak to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import RobotRLError
from robot_rl.processes.files import replace_text
from robot_rl.run import RunDirectory

_FOLDER = "console"


class ConsoleError(RobotRLError):
    """The console cannot be opened, or the control loop cannot be reached from it."""


@dataclass(frozen=True)
class LoopEndpoint:
    """Where the control loop of an actor listens for its operator.

    Attributes:
        address: ``tcp://127.0.0.1:PORT``.
        secret: What messages must carry. Every user of the machine can reach the port; only those
            who can read the file may move the robot.
        pid: Process id of the loop.
    """

    address: str
    secret: str
    pid: int


def endpoint_file(run: RunDirectory, actor: int) -> Path:
    """The file in which an actor, or `collect` in its place, says where it listens."""
    return run.path / _FOLDER / f"actor-{actor}.json"


def write_endpoint(path: Path, endpoint: LoopEndpoint) -> None:
    """Tell where the loop listens, to this user alone; readers see the old file or the new one.

    Raises:
        ConsoleError: The folder cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        replace_text(path, json.dumps(vars(endpoint)), mode=0o600)
    except OSError as error:
        raise ConsoleError(f"{path} cannot be written", got=error) from error


def read_endpoint(path: Path) -> LoopEndpoint | None:
    """Where the loop listens, or did before it was killed; None where none ever did.

    Raises:
        ConsoleError: The file cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="ascii"))
        return LoopEndpoint(str(content["address"]), str(content["secret"]), int(content["pid"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConsoleError(
            f"{path} does not say where the control loop listens",
            got=repr(error),
            hint="start the actor of the run again",
        ) from error
