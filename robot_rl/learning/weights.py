"""Weights on their way from the learner to the actors, through the replay server's mailbox."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.checkpoint import StoredBase
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import WeightsRefused
from robot_rl.replay.records import WeightsRecord
from robot_rl.run import CLONED, RunDirectory
from robot_rl.wire import KeysRefused, ServerUnreachable

BEHAVIOUR = "behaviour"
_UNTIL = "acts_until"
POLL_SECONDS = 1.0
# A base of more bytes is read from checkpoints/bc wherever it acts, and not sent or saved again.
LARGEST_SENT_BASE = 64 * 2**20


@dataclass(frozen=True)
class Published:
    """A behaviour and how long it may act.

    Attributes:
        behaviour: What the actor runs.
        acts_until: Environment step before which it may act on the stepped clock.
    """

    behaviour: Behaviour
    acts_until: int


def base_apart(run: RunDirectory, cloned: Behaviour) -> StoredBase | None:
    """Give the cloned policy as a base that policies refer to, or None if they carry it.

    Args:
        run: The run directory.
        cloned: Its cloned policy.
    """
    base = cloned.policy.base
    if base is None:
        return None
    stored = StoredBase(base, checkpoint.checksum(run.complete_folder(CLONED) / "policy"))
    return stored if stored.size_bytes > LARGEST_SENT_BASE else None


def publish(
    client: ReplayClient, behaviour: Behaviour, acts_until: int, base: StoredBase | None = None
) -> None:
    """Put a behaviour into the mailbox; one that is as new already is left there.

    After a restart the learner repeats the updates since its checkpoint, and with them versions
    that were published before.

    Args:
        client: A client of the server.
        behaviour: What the actors shall run.
        acts_until: See `Published`.
        base: A base whose weights the actors have.
    """
    data = checkpoint.to_bytes(behaviour, base)
    try:
        client.put_weights(BEHAVIOUR, behaviour.version, data, {_UNTIL: acts_until})
    except WeightsRefused:
        latest = client.get_weights(BEHAVIOUR)
        if latest is None or latest.version < behaviour.version:
            raise


class WeightsReceiver:
    """Takes behaviours out of the mailbox.

    Args:
        run: The run directory; a large base is read from its cloned policy, once.
    """

    def __init__(self, run: RunDirectory) -> None:
        """See the class."""
        self._run = run
        self._base: StoredBase | None = None

    def fetch(
        self, client: ReplayClient, newer_than: int | None, wait_seconds: float
    ) -> Published | None:
        """Take a behaviour that is newer than a version, waiting for it if need be."""
        record = client.get_weights(BEHAVIOUR, newer_than, wait_seconds)
        return None if record is None else self._open(record)

    def _open(self, record: WeightsRecord) -> Published:
        behaviour = checkpoint.from_bytes(record.tensors, base=self._cloned)
        until = record.metadata.get(_UNTIL)
        if not isinstance(until, int):
            raise WeightsRefused(
                f"the weights {record.name!r} lack {_UNTIL!r}",
                got=sorted(record.metadata),
                hint="they were published by something else than a robot_rl learner",
            )
        return Published(behaviour, until)

    def _cloned(self) -> StoredBase:
        if self._base is None:
            self._base = StoredBase.load(self._run.complete_folder(CLONED) / "policy")
        return self._base


class WeightsPoller:
    """Fetches new behaviours in a thread, so that the control loop never waits for them.

    While the server is away, or does not let this client in, the actor goes on with what it has.

    Args:
        client: A client of its own; it is closed with the poller.
        receiver: Takes what the client finds.
        version: The version that the actor has.
        ask: Called with the client before each look for weights, in the thread: asks the server
            for something else.
    """

    def __init__(
        self,
        client: ReplayClient,
        receiver: WeightsReceiver,
        version: int,
        ask: Callable[[ReplayClient], None],
    ) -> None:
        """Start polling; see the class for the arguments."""
        self._ask = ask
        self._client = client
        self._receiver = receiver
        self._version = version
        self._found: deque[Published] = deque(maxlen=1)
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weights-poller", daemon=True)
        self._thread.start()

    def newest(self) -> Published | None:
        """The newest behaviour since the last call, or None; never waits.

        Raises:
            Exception: What ended the thread.
        """
        if self._failure is not None:
            raise self._failure
        return self._found.pop() if self._found else None

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        try:
            self._client.close()  # so that nothing is waited for any more
        finally:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._ask(self._client)
                    found = self._receiver.fetch(self._client, self._version, POLL_SECONDS)
                except KeysRefused:  # raised at once
                    self._stop.wait(POLL_SECONDS)
                except ServerUnreachable:
                    continue
                else:
                    if found is not None:
                        self._version = found.behaviour.version
                        self._found.append(found)
        except Exception as error:
            self._failure = error
