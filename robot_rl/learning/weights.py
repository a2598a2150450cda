"""Transfer of weights from the learner to the actors through the replay server's mailbox."""

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
# A base larger than this (bytes) is read from checkpoints/bc on each machine. It is not sent or
# saved again.
LARGEST_SENT_BASE = 64 * 2**20


@dataclass(frozen=True)
class Published:
    """A behaviour and the step until which it may act."""

    behaviour: Behaviour  # what the actor runs
    acts_until: int  # environment step before which it may act on the stepped clock
    data: bytes  # the serialized behaviour


def base_apart(run: RunDirectory, cloned: Behaviour) -> StoredBase | None:
    """Return a run's clone as a base that policies refer to. None if policies contain it."""
    base = cloned.policy.base
    if base is None or sum(t.nbytes for t in base.state_dict().values()) <= LARGEST_SENT_BASE:
        return None
    return StoredBase(base, checkpoint.checksum(run.complete_folder(CLONED) / "policy"))


def publish(
    client: ReplayClient, behaviour: Behaviour, acts_until: int, base: StoredBase | None = None
) -> None:
    """Put a behaviour into the mailbox unless the same version is already there.

    After a restart the learner repeats the updates since its checkpoint and publishes the same
    versions again. If `base` is given, the actors already have its weights.
    """
    data = checkpoint.to_bytes(behaviour, base)
    try:
        client.put_weights(BEHAVIOUR, behaviour.version, data, {_UNTIL: acts_until})
    except WeightsRefused:
        latest = client.get_weights(BEHAVIOUR)
        if latest is None or latest.version < behaviour.version:
            raise


class WeightsReceiver:
    """Fetches behaviours from the mailbox. Reads a large base from the run's clone, once."""

    def __init__(self, run: RunDirectory) -> None:
        self._cloned = cache(lambda: StoredBase.load(run.complete_folder(CLONED) / "policy"))

    def fetch(
        self, client: ReplayClient, newer_than: int | None, wait_seconds: float
    ) -> Published | None:
        """Fetch a behaviour newer than a version, waiting for one if necessary."""
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
        """Deserialize a previously fetched behaviour."""
        return Published(checkpoint.from_bytes(data, base=self._cloned), acts_until, data)


@dataclass(eq=False)
class KeptWeights:
    """Files with the weights that may have started an actor's current episode.

    After a crash, the actor replays that episode with the same weights in the same blocks.
    """

    folder: Path  # where the files are
    receiver: WeightsReceiver  # deserializes them
    longest: int  # steps of the longest episode; older files are deleted

    def at_step(self, step: int) -> Published | None:
        """Return the weights that acted at a step. None if they are not stored."""
        for until, path in self._files():
            if until > step:
                return self.receiver.open(path.read_bytes(), until)
        return None

    def keep(self, published: Published, step: int) -> None:
        """Store weights that act from a step on, and delete weights that are too old."""
        with suppress(OSError):  # full disk: an actor restarted after a crash starts a new episode
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
        """Return the behaviour to switch to at this step. None to keep the current one."""

    def run_steps(self, step: int) -> int:
        """Return the known environment steps of the whole run at this actor's `step`."""
        return step

    def close(self) -> None:  # noqa: B027  # most sources hold no resources
        """Close the connection, if there is one."""


@dataclass(eq=False)
class SteppedWeights(WeightSource):
    """Stepped clock: waits at the start of each block for the weights assigned to it."""

    client: ReplayClient  # accesses the mailbox
    receiver: WeightsReceiver  # fetches the weights
    present: Published  # the actor's current weights
    stop: StopEvent  # ends the wait; with `kept` the actor stops at once
    # Earlier weights. None if episodes are not replayed.
    kept: KeptWeights | None = None
    # Called with the reason for an unusually long wait.
    note: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self._wait, self._begun = QuietWait(self.note), False

    def at_step(self, step: int) -> Published | None:
        """Wait at the start of a block. Within a block the weights do not change.

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
        self.client.flush(stop=self.stop)  # the learner needs these rows for the next weights
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
        """Switch to newer weights if some arrive in time."""
        if self.stop.is_set():
            raise Stopped
        version = self.present.behaviour.version
        found = self.receiver.fetch(self.client, version, wait_seconds)
        self.present = found or self.present


@dataclass(eq=False, kw_only=True)
class SharedWeights(SteppedWeights):
    """Several simulated actors: the latest weights, within the lead that the learner allows.

    Every `every_steps` steps an actor queries the total step count of all actors. It waits if the
    total exceeds what the learner's updates cover. The learner sends that limit with its weights
    (`Blocks.acts_until`).
    """

    every_steps: int  # this actor's steps between two queries

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked_at: int | None = None
        self._known = 0

    def at_step(self, step: int) -> Published | None:
        """Look for newer weights at every query, and wait if the actors are ahead.

        Raises the same errors as `SteppedWeights.at_step`.
        """
        if self._asked_at is not None and step < self._asked_at + self.every_steps:
            return None
        before = self.present
        self.client.flush(stop=self.stop)  # so the count includes this actor's rows
        self._known, self._asked_at = online_steps(self.client), step
        self._look(0.0)
        self._wait_while(lambda: self._known >= self.present.acts_until)
        return self.present if self.present is not before else None

    def run_steps(self, step: int) -> int:
        """Return the total at the last query plus this actor's steps since."""
        return self._known + step - (self._asked_at or 0)


@dataclass(eq=False)
class RealtimeWeights(WeightSource):
    """Wall clock: always the latest weights, without waiting.

    A thread queries the server so that the control loop never blocks. While the server is down or
    rejects this client, the actor continues with its current behaviour.
    """

    client: ReplayClient  # used only here; closed with this object
    receiver: WeightsReceiver  # fetches the weights
    version: int  # version of the actor's behaviour
    note: Callable[[str], None]  # called if no new weights arrive for a long time

    def __post_init__(self) -> None:
        self._wait = QuietWait(self.note)
        self._stored = 0
        self._found: deque[Published] = deque(maxlen=1)
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weights-poller", daemon=True)
        self._thread.start()

    def at_step(self, step: int) -> Published | None:
        """Return the latest behaviour if it is new, without waiting. Raise the thread's error."""
        if self._failure is not None:
            raise self._failure
        return self._found.pop() if self._found else None

    def run_steps(self, step: int) -> int:
        """Return the steps of all actors at the last query, but at least this actor's own."""
        return max(step, self._stored)

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        try:
            self.client.close()  # aborts any pending wait
        finally:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._stored = online_steps(self.client)
                    found = self.receiver.fetch(self.client, self.version, POLL_SECONDS)
                except KeysRefused as problem:  # raised at once, so pause
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
    """Return the number of actor environment steps in the store, including interventions."""
    counts = client.statistics()["environment_steps"]
    assert isinstance(counts, dict)
    return int(counts["policy"]) + int(counts["intervention"])
