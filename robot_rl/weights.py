"""Weights on their way from the learner to the actors, through the replay server's mailbox."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from policies import checkpoint
from policies.behaviour import Behaviour
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import KeysRefused, ServerUnreachable, WeightsRefused
from robot_rl.replay.records import WeightsRecord

BEHAVIOUR = "behaviour"
_UNTIL = "acts_until"
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Published:
    """A behaviour and how long it may act.

    Attributes:
        behaviour: What the actor runs.
        acts_until: Environment step before which it may act on the stepped clock.
    """

    behaviour: Behaviour
    acts_until: int


def publish(client: ReplayClient, behaviour: Behaviour, acts_until: int) -> None:
    """Put a behaviour into the mailbox; one that is as new already is left there.

    After a restart the learner repeats the updates since its checkpoint, and with them versions
    that were published before.
    """
    try:
        client.put_weights(
            BEHAVIOUR, behaviour.version, checkpoint.to_bytes(behaviour), {_UNTIL: acts_until}
        )
    except WeightsRefused:
        latest = client.get_weights(BEHAVIOUR)
        if latest is None or latest.version < behaviour.version:
            raise


def fetch(client: ReplayClient, newer_than: int | None, wait_seconds: float) -> Published | None:
    """Take a behaviour that is newer than a version, waiting for it if need be."""
    record = client.get_weights(BEHAVIOUR, newer_than, wait_seconds)
    return None if record is None else _open(record)


def _open(record: WeightsRecord) -> Published:
    behaviour = checkpoint.from_bytes(record.tensors)
    until = record.metadata.get(_UNTIL)
    if not isinstance(until, int):
        raise WeightsRefused(
            f"the weights {record.name!r} lack {_UNTIL!r}",
            got=sorted(record.metadata),
            hint="they were published by something else than a robot_rl learner",
        )
    return Published(behaviour, until)


class WeightsPoller:
    """Fetches new behaviours in a thread, so that the control loop never waits for them.

    While the server is away, or does not let this client in, the actor goes on with what it has.

    Args:
        client: A client of its own; it is closed with the poller.
        version: The version that the actor has.
    """

    def __init__(self, client: ReplayClient, version: int) -> None:
        """Start polling; see the class for the arguments."""
        self._client = client
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
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    found = fetch(self._client, self._version, POLL_SECONDS)
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
