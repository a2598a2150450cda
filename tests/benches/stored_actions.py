"""When a run that goes on sent its actions, and who decided them, as its replay store has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from topics import BenchFailed
from training_runs import START_SECONDS

from robot_rl.console.link import loop_folder
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.env.robot import ARM_ACTIONS
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import LATEST, RunDirectory
from robot_rl.wire.endpoint import ENDPOINT_FILE

Rows = npt.NDArray[Any]

_POLL_SECONDS = 0.1
_SETTLED_ACTIONS = 4
# What happened between two looks at the store began no longer ago.
_NEWEST_EPISODES = 6


@dataclass(frozen=True)
class Halt:
    """How an episode ended in which the robot was told to hold."""

    sent_ns: int  # when it was told, system clock [ns]
    seen_ns: int  # when it was seen a control period later
    speed: float  # of the TCP then [m/s]
    speed_before: float  # of the TCP when it was told [m/s]


class StoredActions:
    """Looks at the store of the newest run in a folder, while the run writes it.

    `check` raises where waiting has no sense any more.
    """

    def __init__(self, folder: str, check: Callable[[], None]) -> None:
        self._folder = Path(folder)
        self._check = check

    def newest(self) -> list[Rows]:
        """Rows (T + 1,), or (T,) of an episode that goes on, of the newest online episodes."""
        run = RunDirectory(self._folder / LATEST)
        # It is made after the actor's table.
        if not (loop_folder(run, actor=1) / ENDPOINT_FILE).exists():
            return []
        with StoreReader(run.store) as reader:
            episodes = [
                reader.read_episode(record) for record in reader.episodes()[-_NEWEST_EPISODES:]
            ]
        return [
            rows for rows in episodes if len(rows) and rows["source"][0] != SOURCE_DEMONSTRATION
        ]

    def wait_for_policy(self) -> None:
        """Wait until the policy has acted for some steps on end from now on, or `BenchFailed`."""
        began = time.time_ns()

        def acts() -> bool:
            self._check()
            return any(_policy_acts(rows, began) for rows in self.newest())

        if not wait_until(acts, START_SECONDS, every_s=_POLL_SECONDS):
            raise BenchFailed("the policy does not act", got=f"nothing for {START_SECONDS} s")


def first_of_operator(episodes: Sequence[Rows], told_ns: int) -> int | None:
    """When an operator's action was sent first after a moment at which the policy acted [ns].

    None where the policy did not act then, or the episode ended before.
    """
    found = _answer(episodes, told_ns)
    return None if found is None else int(found[0]["stamp_action"][found[1]])


def halt_of_operator(episodes: Sequence[Rows], told_ns: int) -> Halt | None:
    """How an operator halted the robot after a moment at which the policy acted.

    None where the policy did not act then, or the episode ended for another reason.
    """
    found = _answer(episodes, told_ns)
    if found is None:
        return None
    rows, at = found
    if not rows["truncated"][at] or at != len(rows) - 2:
        return None
    speeds = np.linalg.norm(rows["state/tcp_velocity"][at:, :3], axis=1)
    stamps = int(rows["stamp_action"][at]), int(rows["stamp_observation"][-1])
    return Halt(*stamps, speed=float(speeds[-1]), speed_before=float(speeds[0]))


def was_ignored(episodes: Sequence[Rows], told_ns: int) -> bool:
    """Whether the policy acted at a moment, and went on as if an operator had done nothing."""
    for rows in episodes:
        after = np.flatnonzero(rows["stamp_action"] > told_ns)
        if after.size >= _SETTLED_ACTIONS and after[0] > 0:
            return not _of_operator(rows)[after[0] - 1 :].any()
    return False


def _answer(episodes: Sequence[Rows], told_ns: int) -> tuple[Rows, int] | None:
    """The episode in which the policy acted at a moment, and the operator's first row after it."""
    for rows in episodes:
        after = np.flatnonzero(rows["stamp_action"] > told_ns)  # a final row has no stamp
        if not after.size or after[0] == 0:
            continue
        if rows["intervened"][after[0] - 1]:
            return None
        of_operator = after[_of_operator(rows)[after]]
        return (rows, int(of_operator[0])) if of_operator.size else None
    return None


def _of_operator(rows: Rows) -> npt.NDArray[np.bool_]:
    """Where an operator drove the robot, or had it hold in place of what the policy wanted."""
    held = ~rows["action"][:, : len(ARM_ACTIONS)].any(1) & rows["policy_action"].any(1)
    decided: npt.NDArray[np.bool_] = rows["intervened"] | (rows["truncated"] & held)
    return decided


def _policy_acts(rows: Rows, since_ns: int) -> bool:
    newest = rows[-_SETTLED_ACTIONS:]
    return (
        len(newest) == _SETTLED_ACTIONS
        and bool((newest["stamp_action"] > since_ns).all())
        and not newest["intervened"].any()
    )
