"""Which weights act at a step, and who waits for whom: actors and learner in step."""

from __future__ import annotations

from typing import Protocol

from robot_rl.learning.weights import Published, WeightsPoller, WeightsReceiver
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay.client import ReplayClient

_WAIT_SECONDS = 0.5


class WeightSource(Protocol):
    """Decides which behaviour acts at an environment step."""

    def at_step(self, step: int) -> Published | None:
        """The behaviour to switch to at this step, or None to keep the present one."""

    def run_steps(self, step: int) -> int:
        """Environment steps of the whole run, as far as known, at this actor's `step`."""

    def close(self) -> None:
        """Release what it holds."""


class SteppedWeights:
    """The stepped clock: at a block's begin, waits for the weights that are meant for it.

    Args:
        client: The actor's client.
        receiver: Takes what the client finds.
        first: The behaviour that the actor has.
        stop: When set, waiting ends.
    """

    def __init__(
        self,
        client: ReplayClient,
        receiver: WeightsReceiver,
        first: Published,
        stop: StopEvent,
    ) -> None:
        """See the class."""
        self._client, self._receiver = client, receiver
        self._present = first
        self._stop = stop

    def at_step(self, step: int) -> Published | None:
        """Wait where a block begins; within a block nothing changes.

        Raises:
            Stopped: The actor was asked to stop.
            StoreFull: The rows so far cannot be stored.
            ServerUnreachable: The server does not answer.
        """
        if step < self._present.acts_until:
            return None
        self._client.flush(stop=self._stop)  # the learner needs these rows for what is waited for
        while step >= self._present.acts_until:
            if self._stop.is_set():
                raise Stopped
            version = self._present.behaviour.version
            found = self._receiver.fetch(self._client, version, _WAIT_SECONDS)
            if found is not None:
                self._present = found
        return self._present

    def run_steps(self, step: int) -> int:
        """The only actor's steps are the run's."""
        return step

    def close(self) -> None:
        """Nothing of its own to release."""


class RealtimeWeights:
    """The wall clock: whatever is newest, without waiting.

    What the server knows comes in the background.

    Args:
        client: A client of its own, which is closed with it.
        receiver: Takes what the client finds.
        table: Name of the table that all actors write.
        version: Version of the behaviour that the actor has.
    """

    def __init__(
        self, client: ReplayClient, receiver: WeightsReceiver, table: str, version: int
    ) -> None:
        """See the class."""
        self._table = table
        self._stored = 0
        self._poller = WeightsPoller(client, receiver, version, self._count)

    def at_step(self, step: int) -> Published | None:
        """The newest behaviour, if there is a new one."""
        return self._poller.newest()

    def run_steps(self, step: int) -> int:
        """What all actors had stored when it was asked last, or this one's if they are more."""
        return max(step, self._stored)

    def close(self) -> None:
        """End the poller."""
        self._poller.close()

    def _count(self, client: ReplayClient) -> None:
        self._stored = online_steps(client, self._table)


class SharedWeights:
    """Several simulated actors: the newest weights, and no further ahead than the learner allows.

    Every so many steps an actor asks how many steps all of them have made, and waits where that
    is more than the learner's updates pay for. The learner says with its weights how many that is
    (`Blocks.acts_until`).

    Args:
        client: The actor's client, with an open session.
        receiver: Takes what the client finds.
        table: Name of the table that all actors write.
        first: The behaviour that the actor has.
        every_steps: Own steps between two questions.
        stop: When set, waiting ends.
    """

    def __init__(
        self,
        client: ReplayClient,
        receiver: WeightsReceiver,
        table: str,
        first: Published,
        every_steps: int,
        stop: StopEvent,
    ) -> None:
        """See the class."""
        self._client, self._receiver, self._table = client, receiver, table
        self._present = first
        self._every_steps, self._stop = every_steps, stop
        self._asked_at: int | None = None
        self._known = 0

    def at_step(self, step: int) -> Published | None:
        """Look for newer weights at every question, and wait where the actors are ahead.

        Raises:
            Stopped: The actor was asked to stop.
            StoreFull: The rows so far cannot be stored.
            ServerUnreachable: The server does not answer.
        """
        if self._asked_at is not None and step < self._asked_at + self._every_steps:
            return None
        before = self._present
        self._client.flush(stop=self._stop)  # so that the count holds this actor's rows
        self._known, self._asked_at = online_steps(self._client, self._table), step
        wait = 0.0
        while wait == 0.0 or self._known >= self._present.acts_until:
            if self._stop.is_set():
                raise Stopped
            version = self._present.behaviour.version
            found = self._receiver.fetch(self._client, version, wait)
            self._present = found or self._present
            wait = _WAIT_SECONDS
        return self._present if self._present is not before else None

    def run_steps(self, step: int) -> int:
        """What was known at the last question, and this actor's steps since."""
        return self._known + step - (self._asked_at or 0)

    def close(self) -> None:
        """Nothing of its own to release."""


def online_steps(client: ReplayClient, table: str) -> int:
    """Environment steps of actors, interventions included, in a table of the store."""
    tables = client.statistics()["tables"]
    assert isinstance(tables, dict)
    counts = tables[table]["environment_steps"]
    return int(counts["policy"]) + int(counts["intervention"])
