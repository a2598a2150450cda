"""`StopLatch`: a stop outlives the process that kept it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from robot_rl.errors import RobotRLError


class StopNotKept(RobotRLError):
    """The file that keeps a stop cannot be read, written or removed."""


class StopLatch:
    """A file in `folder` that is there while the arm of a node is stopped, and says why.

    It is read when the arm's node, of the full name `node`, begins: one that was killed and started
    again stays stopped until a person clears it. A simulated arm must not clear a real one, so the
    file is that of the arm: of the class and address of its `driver`. Raises `StopNotKept` where
    the folder cannot be made or written.
    """

    def __init__(self, folder: Path, node: str, driver: Mapping[str, Any]) -> None:
        self._path = _file(folder, node, driver)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_kept("made", error) from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise self._not_kept("written", f"no permission for {folder}")

    def reason(self) -> str | None:
        """Why the arm is stopped; None if it is not; `StopNotKept` if the file cannot be read."""
        try:
            # Empty if the process was killed between making and writing it.
            return self._path.read_text() or "a stop"
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._not_kept("read", error) from error

    def set(self, reason: str) -> None:
        """Keep a stop, or raise `StopNotKept`; the reason of one that is kept already stays."""
        try:
            with suppress(FileExistsError), self._path.open("x") as file:
                file.write(reason)
        except OSError as error:
            raise self._not_kept("written", error) from error

    def release(self) -> None:
        """Forget the stop, as a person asked, or raise `StopNotKept`."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._not_kept("removed", error) from error

    def _not_kept(self, verb: str, problem: object) -> StopNotKept:
        return StopNotKept(
            f"the file that keeps a stop of the arm cannot be {verb}",
            got=problem,
            expected=f"{self._path}, in a folder that this user may write",
            hint="give the arm's node another folder in the parameter stop_folder",
        )


def kept_stop(folder: Path, node: str, driver: Mapping[str, Any]) -> str | None:
    """Why this arm is stopped, as its file says; None where there is none."""
    there = _file(folder, node, driver).exists()
    return StopLatch(folder, node, driver).reason() if there else None


def _file(folder: Path, node: str, driver: Mapping[str, Any]) -> Path:
    domain, kind = os.environ.get("ROS_DOMAIN_ID", "0"), str(driver.get("_target_", ""))
    port = driver.get("settings", {}).get("port")  # of an arm of LeRobot
    address = driver.get("host") or port or driver.get("namespace") or ""
    words = (domain + node.replace("/", "."), kind.rpartition(".")[2], str(address))
    return folder / re.sub(r"[^\w.-]", "_", ".".join(filter(None, ("stop", *words))))


def default_stop_folder() -> Path:
    """Of this user, and kept when the machine is switched off."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "robot_rl"
