"""The twin's cell as somebody beside it sees it: what breaks and moves, and what they do."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from arm_watch import ArmWatch
from omegaconf import DictConfig
from sensor_msgs.msg import JointState
from topics import BenchFailed

from policies import registry
from robot_rl.env.robot import RobotInterrupted
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import qos
from robot_rl.ros.episode_start import SceneMirror
from robot_rl.ros.faults import ServiceFailed
from robot_rl.safety import rotations

_POSES = 20_000  # some minutes
_POLL_SECONDS = 0.005
_CALL_SECONDS = 10.0
# A person who sees no stop for so long has nothing to clear [s]: a node connects again meanwhile.
_FREE_SECONDS = 1.5
_TELLS_SECONDS = 0.2  # within which an active gripper has told its position
_JAMMED_SECONDS = 5.0  # after which one that tells nothing is cleared too
_REPAIR_SECONDS, _AGAIN_SECONDS = 90.0, 0.5
_STANDS = 2e-5  # m, within which it stands
# An arm whose spring was told to hold has come to rest so long afterwards [s].
_SETTLED_SECONDS = 1.5


@dataclass(frozen=True)
class Fault:
    """Something that breaks: a service of `sim/`, and what a person does about it there."""

    service: str
    # When the vendor's controller has stopped the arm by itself at the latest [s]: of a lost
    # connection its watchdog does, which waits for 1 s in the twin. 0: the robot has to hold.
    within: float = 0.0
    repairs: tuple[str, ...] = ()  # services


_ARM_FAULTS = (
    Fault("protective_stop", 0.5),
    Fault("emergency_stop", 0.5, ("sim/switch_on",)),
    Fault("cut_connection", 2.0, ("sim/restore_connection",)),
    Fault("delay_packets", 2.0),
)
_GRIPPER_CLEARED = "gripper/clear_errors"
_GRIPPER_FAULTS = (
    Fault("silence_gripper", repairs=("sim/restore_gripper",)),
    Fault("jam_gripper", repairs=("sim/restore_gripper", _GRIPPER_CLEARED)),
)
_CAMERA_FAULTS = (
    Fault("silence_cameras", repairs=("sim/restore_cameras",)),
    Fault("freeze_cameras", repairs=("sim/restore_cameras",)),
)


def faults_of(config: DictConfig) -> list[Fault]:
    """What can break in the configured cell."""
    found = [*_ARM_FAULTS]
    found += _GRIPPER_FAULTS if config.robot.gripper else ()
    return [*found, *(_CAMERA_FAULTS if config.observation.cameras else ())]


@dataclass
class Stop:
    """What one fault came to. Distances are of the tool, in the twin's own world [mm, deg]."""

    fault: str
    noticed: float | None = None  # from the fault until its line was in the run's log [s]
    dated: float | None = None  # from the fault until the time that this line gives [s]
    stopping: tuple[float, float] = (0.0, 0.0)  # way until it stood
    unasked: tuple[float, float] = (0.0, 0.0)  # motion from then on until a command began
    stood: float = 0.0  # from the fault until nothing moved any more [s]
    commands: int = 0  # that began before a person's start
    problem: str = ""
    resumed: float | None = None  # from the start until the next action [s]


class TwinCell:
    """Watches a twin's arm, and is the person beside it, for as long as `rng` draws.

    `check` raises where waiting has no sense any more.
    """

    def __init__(
        self, config: DictConfig, rng: np.random.Generator, check: Callable[[], None]
    ) -> None:
        self._rng = rng
        self.watch = ArmWatch(str(config.robot.namespace))
        self._check = check
        self.client = self.watch.client
        self._mirror = registry.make(config.robot.mirror, SceneMirror)
        self._mirror.listen(self.client, 1.0)
        self._poses: deque[tuple[float, npt.NDArray[np.float64]]] = deque(maxlen=_POSES)
        self.actions: list[tuple[int, npt.NDArray[np.float32]]] = []  # system clock [ns]
        listen = self.client.node.create_subscription
        listen(JointState, "action", self._take_action, 100)
        self._gripper_told = math.inf  # when, by the steady clock [s]; without one it is never late
        if config.robot.gripper:
            listen(JointState, "gripper/state", self._take_gripper, qos.sensor_subscription(1))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def strike(self, fault: Fault) -> float:
        """Let it happen; returns the moment before (steady clock [s])."""
        struck = time.monotonic()
        self.client.trigger(f"sim/{fault.service}", _CALL_SECONDS)
        return struck

    def look_at(self, stop: Stop, fault: Fault, struck: float, seconds: float) -> float:
        """Wait until the arm must stand, and a while longer; returns since when it must."""

        def holds() -> bool:
            self.check()
            return self.watch.mode.startswith(("hold", "stopped"))

        if not wait_until(holds, _REPAIR_SECONDS, every_s=_POLL_SECONDS):
            raise BenchFailed(f"the arm does not hold after {fault.service}", got=self.watch.mode)
        held = [at for at, mode in self.watch.modes_since(struck) if not _moves(mode)]
        stands = max(held, default=struck) + _SETTLED_SECONDS
        if fault.within:
            stands = struck + fault.within
        self._pause(stands - time.monotonic() + seconds)
        stop.stopping = self.moved(struck, stands)
        return stands

    def repair(self, fault: Fault) -> None:
        """Do what a person does, and clear the arm if it is stopped."""
        for service in fault.repairs:
            self.client.trigger(service, _CALL_SECONDS)
            self._pause(self._rng.uniform(0.5, 1.5))
        self.clear()

    def clear(self) -> None:
        """Clear an arm and a gripper that are stopped, as soon as they can be, and wait for both.

        Fingers that are activated again take some seconds.
        """
        free = jammed = time.monotonic()

        def cleared() -> bool:
            nonlocal free, jammed
            self.check()
            if self.watch.mode.startswith("stopped"):
                self._say("clear_errors")
                free = time.monotonic()
            now = time.monotonic()
            tells = now - self._gripper_told < _TELLS_SECONDS
            if not tells and now - max(jammed, self._gripper_told) > _JAMMED_SECONDS:
                self._say(_GRIPPER_CLEARED)
                jammed = time.monotonic()
            return tells and now - free > _FREE_SECONDS

        if not wait_until(cleared, _REPAIR_SECONDS, every_s=_AGAIN_SECONDS):
            raise BenchFailed("arm or gripper stays stopped", got=self.watch.mode)
        self._pause(self._rng.uniform(0.5, 1.0))

    def start(self, going: Callable[[], bool], timeout_s: float) -> float | None:
        """Say `start` until it goes on; returns when it was said last, None where it does not."""
        said, deadline = time.monotonic(), time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            said = time.monotonic()
            self._say("start")
            if wait_until(lambda: self.check() or going(), 5.0):
                return said
            self.clear()
        return None

    def commanded_since(self, moment: float) -> float | None:
        """When a command began after a moment."""
        return next((at for at, mode in self.watch.modes_since(moment) if _moves(mode)), None)

    def moved(self, since: float, until: float) -> tuple[float, float]:
        """Farthest distance of the tool in a time from where it was at its beginning [mm, deg]."""
        poses = [pose for at, pose in tuple(self._poses) if since <= at <= until]
        ways = [rotations.apart(poses[0], pose) for pose in poses[1:]]
        return (
            1e3 * max((way[0] for way in ways), default=0.0),
            float(np.rad2deg(max((way[1] for way in ways), default=0.0))),
        )

    def stood(self, since: float, until: float) -> float:
        """How long after `since` the tool came to where it is at the end, to stay [s]."""
        known = [(at, pose[:3]) for at, pose in tuple(self._poses) if since <= at <= until]
        away = [at for at, place in known if np.linalg.norm(place - known[-1][1]) > _STANDS]
        return max(away, default=since) - since

    def acts_since(self, moment_ns: int, steps: int = 3) -> bool:
        """Whether some actions were sent after a moment (system clock [ns])."""
        newest = self.actions[-steps:]
        return len(newest) == steps and newest[0][0] > moment_ns

    def close(self) -> None:
        """Look no longer."""
        self._ending.set()
        self._thread.join()
        self.watch.close()

    def check(self) -> None:
        """Raise where waiting has no sense any more."""
        self.client.check()
        self._check()

    def _pause(self, seconds: float) -> None:
        wait_until(self.check, max(0.0, seconds), every_s=0.05)

    def _say(self, word: str) -> None:
        try:
            self.client.trigger(word, _CALL_SECONDS)
        except ServiceFailed:  # it is not there yet, or cannot be yet
            time.sleep(_AGAIN_SECONDS)

    def _take_action(self, message: JointState) -> None:
        self.actions.append((time.time_ns(), np.array(message.position, np.float32)))

    def _take_gripper(self, message: JointState) -> None:
        self._gripper_told = time.monotonic()

    def _look(self) -> None:
        seen = 0
        while not self._ending.wait(_POLL_SECONDS):
            if self._mirror.sensor.count == seen:
                continue
            seen = self._mirror.sensor.count
            try:
                self._mirror.update()
            except RobotInterrupted:  # it is too old
                continue
            self._poses.append((time.monotonic(), self._mirror.task.world.tcp_pose()))


@dataclass
class FaultLog:
    """Follows a run's `faults.jsonl`; call `read` often: a line's time is when it was seen."""

    path: Path
    lines: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # steady clock [s]
    _size: int = 0

    def read(self) -> None:
        """Take what is new."""
        if not self.path.exists() or self.path.stat().st_size == self._size:
            return
        now, text = time.monotonic(), self.path.read_bytes()
        end = text.rfind(b"\n") + 1
        new = text[self._size : end].splitlines()
        self.lines += [(now, json.loads(line)) for line in new]
        self._size = end

    def after(self, moment: float) -> tuple[float, dict[str, Any]] | None:
        """The first line that came after a moment."""
        self.read()
        return next((line for line in self.lines if line[0] > moment), None)


def steady(record: dict[str, Any]) -> float:
    """The time of a record on the steady clock [s]."""
    return time.monotonic() - time.time() + datetime.fromisoformat(record["time"]).timestamp()


def _moves(mode: str) -> bool:
    return mode.startswith(("follow", "reset"))
