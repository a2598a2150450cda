"""Weights on their way from the learner to the actors, through the replay server's mailbox."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.checkpoint import StoredBase
from robot_rl.processes.files import replace_bytes
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.processes.waiting import QuietWait
from robot_rl.replay import WeightsRefused
from robot_rl.replay.client import ReplayClient
from robot_rl.run import CLONED, RunDirectory
from robot_rl.wire import KeysRefused, ServerUnreachable

BEHAVIOUR = "behaviour"
_UNTIL = "acts_until"
POLL_SECONDS = 1.0
_WAIT_SECONDS = 0.5
_SUFFIX = ".safetensors"
# A base of more bytes is read from checkpoints/bc wherever it acts, and not sent or saved again.
LARGEST_SENT_BASE = 64 * 2**20


@dataclass(frozen=True)
class Published:
    """A behaviour and how long it may act."""

    behaviour: Behaviour  # that the actor runs
    acts_until: int  # environment step before which it may act on the stepped clock
    data: bytes  # the behaviour as it was sent


def base_apart(run: RunDirectory, cloned: Behaviour) -> StoredBase | None:
    """Give the clone of a run as a base that policies refer to, or None if they carry it."""
    base = cloned.policy.base
    if base is None or sum(t.nbytes for t in base.state_dict().values()) <= LARGEST_SENT_BASE:
        return None
    return StoredBase(base, checkpoint.checksum(run.complete_folder(CLONED) / "policy"))


def publish(
    client: ReplayClient, behaviour: Behaviour, acts_until: int, base: StoredBase | None = None
) -> None:
    """Put a behaviour into the mailbox, unless one of the same version is there.

    After a restart the learner repeats the updates since its checkpoint, and publishes their
    versions again. The actors have the weights of `base`, if it is given.
    """
    data = checkpoint.to_bytes(behaviour, base)
    try:
        client.put_weights(BEHAVIOUR, behaviour.version, data, {_UNTIL: acts_until})
    except WeightsRefused:
        latest = client.get_weights(BEHAVIOUR)
        if latest is None or latest.version < behaviour.version:
            raise


class WeightsReceiver:
    """Takes behaviours out of the mailbox; a large base is read from the run's clone, once."""

    def __init__(self, run: RunDirectory) -> None:
        self._cloned = cache(lambda: StoredBase.load(run.complete_folder(CLONED) / "policy"))

    def fetch(
        self, client: ReplayClient, newer_than: int | None, wait_seconds: float
    ) -> Published | None:
        """Take a behaviour that is newer than a version, waiting for it if need be."""
        record = client.get_weights(BEHAVIOUR, newer_than, wait_seconds)
        if record is None:
            return None
        until = record.metadata.get(_UNTIL)
        if not isinstance(until, int):
            raise WeightsRefused(
                f"the weights {record.name!r} lack {_UNTIL!r}",
                got=sorted(record.metadata),
                hint="they were published by something else than a robot_rl learner",
            )
        return self.open(record.tensors, until)

    def open(self, data: bytes, acts_until: int) -> Published:
        """Read a behaviour that was fetched before."""
        return Published(checkpoint.from_bytes(data, base=self._cloned), acts_until, data)


@dataclass(eq=False)
class KeptWeights:
    """Files of the weights that may have started an actor's present episode.

    An actor that is killed plays that episode again, with the same weights in the same blocks.
    """

    folder: Path  # of the files
    receiver: WeightsReceiver  # opens them
    longest: int  # steps of the longest episode: how far back they are kept

    def at_step(self, step: int) -> Published | None:
        """The weights that have acted at a step, None where they are not here."""
        for until, path in self._files():
            if until > step:
                return self.receiver.open(path.read_bytes(), until)
        return None

    def keep(self, published: Published, step: int) -> None:
        """Keep weights that act from a step on, and drop those that are too old."""
        with suppress(OSError):  # on a full disk; a killed actor then begins another episode
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_bytes(self.folder / f"{published.acts_until}{_SUFFIX}", published.data)
            for until, path in self._files():
                if until <= step - self.longest:
                    path.unlink()

    def _files(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in self.folder.glob(f"[0-9]*{_SUFFIX}"))


class WeightSource(ABC):
    """Decides which behaviour acts at an environment step."""

    @abstractmethod
    def at_step(self, step: int) -> Published | None:
        """The behaviour to switch to at this step, or None to keep the present one."""

    def run_steps(self, step: int) -> int:
        """Environment steps of the whole run, as far as known, at this actor's `step`."""
        return step

    def close(self) -> None:  # noqa: B027  # most have nothing of their own
        """Release its connection, if it has one."""


@dataclass(eq=False)
class SteppedWeights(WeightSource):
    """The stepped clock: at a block's begin, waits for the weights that are meant for it."""

    client: ReplayClient  # of the mailbox
    receiver: WeightsReceiver  # takes them out of it
    present: Published  # that the actor has now
    stop: StopEvent  # when it is set waiting ends; with `kept` the actor ends at once
    # Weights that acted before; None if no episode is played again.
    kept: KeptWeights | None = None
    # Called with what it waits for, if that takes unusually long.
    note: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self._wait, self._begun = QuietWait(self.note), False

    def at_step(self, step: int) -> Published | None:
        """Wait where a block begins; within a block nothing changes.

        Raises:
            Stopped: The actor was asked to stop.
            StoreFull: The rows so far cannot be stored.
            ServerUnreachable: The server does not answer.
        """
        if self.kept is not None and self.stop.is_set():
            raise Stopped
        if self._begun and step < self.present.acts_until:
            return None
        self._begun = True
        if self.kept is not None and (before := self.kept.at_step(step)) is not None:
            self.present = before
            return before
        self.client.flush(stop=self.stop)  # the learner needs these rows to make the next weights
        self._wait_while(lambda: step >= self.present.acts_until)
        if self.kept is not None:
            self.kept.keep(self.present, step)
        return self.present

    def _wait_while(self, ahead: Callable[[], bool]) -> None:
        while ahead():
            self._look(_WAIT_SECONDS)
            self._wait.goes_on(
                f"the learner's weights after step {self.present.acts_until}: if its progress"
                " stands still, look at its process (robot-rl learner)"
            )
        self._wait.ends()

    def _look(self, wait_seconds: float) -> None:
        """Take newer weights, if there are some within the time."""
        if self.stop.is_set():
            raise Stopped
        version = self.present.behaviour.version
        found = self.receiver.fetch(self.client, version, wait_seconds)
        self.present = found or self.present


@dataclass(eq=False, kw_only=True)
class SharedWeights(SteppedWeights):
    """Several simulated actors: the newest weights, and no further ahead than the learner allows.

    Every so many steps an actor asks how many steps all of them have made, and waits where that
    is more than the learner's updates pay for. The learner says with its weights how many that is
    (`Blocks.acts_until`).
    """

    every_steps: int  # its own steps between two questions

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked_at: int | None = None
        self._known = 0

    def at_step(self, step: int) -> Published | None:
        """Look for newer weights at every question, and wait where the actors are ahead.

        Raises what `SteppedWeights.at_step` does.
        """
        if self._asked_at is not None and step < self._asked_at + self.every_steps:
            return None
        before = self.present
        self.client.flush(stop=self.stop)  # so that the count holds this actor's rows
        self._known, self._asked_at = online_steps(self.client), step
        self._look(0.0)
        self._wait_while(lambda: self._known >= self.present.acts_until)
        return self.present if self.present is not before else None

    def run_steps(self, step: int) -> int:
        """The steps known at the last question, and this actor's steps since."""
        return self._known + step - (self._asked_at or 0)


@dataclass(eq=False)
class RealtimeWeights(WeightSource):
    """The wall clock: whatever is newest, without waiting.

    A thread asks the server, so that the control loop never waits for it. While the server is
    away, or does not let this client in, the actor goes on with its present behaviour.
    """

    client: ReplayClient  # its own, which is closed with it
    receiver: WeightsReceiver  # takes the weights out of the mailbox
    version: int  # of the behaviour that the actor has
    note: Callable[[str], None]  # called if there are no new weights for long

    def __post_init__(self) -> None:
        self._wait = QuietWait(self.note)
        self._stored = 0
        self._found: deque[Published] = deque(maxlen=1)
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weights-poller", daemon=True)
        self._thread.start()

    def at_step(self, step: int) -> Published | None:
        """The newest behaviour, if it is new; never waits. Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure
        return self._found.pop() if self._found else None

    def run_steps(self, step: int) -> int:
        """The steps of all actors at the last question, or this one's steps if they are more."""
        return max(step, self._stored)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        try:
            self.client.close()  # so that nothing is waited for any more
        finally:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._stored = online_steps(self.client)
                    found = self.receiver.fetch(self.client, self.version, POLL_SECONDS)
                except KeysRefused as problem:  # raised at once
                    self._goes_on_without(problem)
                    self._stop.wait(POLL_SECONDS)
                except ServerUnreachable as problem:
                    self._goes_on_without(problem)
                else:
                    self._wait.ends()
                    if found is not None:
                        self.version = found.behaviour.version
                        self._found.append(found)
        except Exception as error:
            self._failure = error

    def _goes_on_without(self, problem: Exception) -> None:
        self._wait.goes_on(f"new weights; version {self.version} acts meanwhile: {problem}")


def online_steps(client: ReplayClient) -> int:
    """Environment steps of actors, interventions included, in the store."""
    counts = client.statistics()["environment_steps"]
    assert isinstance(counts, dict)
    return int(counts["policy"]) + int(counts["intervention"])
