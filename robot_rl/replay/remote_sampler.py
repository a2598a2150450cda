"""The sampler of a learner that does not share the store's file system."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np

from robot_rl.data.schema import DTYPES, Array
from robot_rl.replay.batches import Batch, Layout, allocate, checked
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import ReplayError, ServerBusy
from robot_rl.replay.messages import CountWindows, Sample, Sampled, WindowsCounted
from robot_rl.replay.sampling import SamplerOptions
from robot_rl.wire.errors import WireError
from robot_rl.wire.messages import Numbered, Payload

PATIENCE_SECONDS = 60.0
# The server may be indexing a large store after its restart.
_HELD_BACK_SECONDS = 30.0
# A learner that waits for data looks again and again; each look is a message.
_LOOK_SECONDS = 0.02
_Answer = TypeVar("_Answer", bound=Numbered)


class RemoteSampler:
    """Draws what `ReplaySampler` draws, bit for bit, by asking the server of the store.

    The random stream and what is visible are kept here and travel with each request, so a server
    that is killed and started again takes nothing along. Not safe for use from several threads
    at a time.

    Args:
        client: A client of its own; it is closed with the sampler.
        options: What to draw.
        rng: Where all randomness comes from; its bit generator must be PCG64, as that of
            `numpy.random.default_rng` is.

    Raises:
        StoreError: No such table.
        ReplayError: Unknown field, a number out of range, or another bit generator.
        ServerUnreachable: No answer.
    """

    def __init__(
        self, client: ReplayClient, options: SamplerOptions, rng: np.random.Generator
    ) -> None:
        """Ask the server what there is; see the class."""
        if not isinstance(rng.bit_generator, np.random.PCG64):
            raise ReplayError(
                "the random stream cannot travel",
                got=type(rng.bit_generator).__name__,
                expected="PCG64, as numpy.random.default_rng makes",
            )
        self.rng, self.batch_size = rng, options.batch_size
        self._client, self._options = client, options
        self._visible: int | None = None
        self._next_look = 0.0
        self.refresh(None)

    @property
    def demonstration_transitions(self) -> int:
        """Windows of demonstrations that `sample` draws from."""
        return self._demonstrations

    @property
    def online_transitions(self) -> int:
        """Online windows that `sample` draws from, those of interventions included."""
        return self._online

    @property
    def intervention_transitions(self) -> int:
        """Windows of interventions that `sample` draws from."""
        return self._interventions

    def transitions_available(self) -> int:
        """Look at the store and return its number of online environment steps.

        Raises:
            ServerUnreachable: No answer.
        """
        time.sleep(max(0.0, self._next_look - time.monotonic()))
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return self._count(0).available

    def refresh(self, environment_steps: int | None = None) -> None:
        """Make exactly the first `environment_steps` online steps visible; None means all.

        Raises:
            NotEnoughData: The store holds fewer; wait for `transitions_available` first.
            ServerUnreachable: No answer.
        """
        answer = self._count(environment_steps)
        self._visible = environment_steps
        # What arrives later stays invisible until the next refresh.
        self._limit = answer.available if environment_steps is None else environment_steps
        self._demonstrations = answer.demonstrations
        self._online = answer.online
        self._interventions = answer.interventions
        self._layout = _layout(answer)

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch.

        Args:
            out: Arrays to fill, from `allocate`; new ones by default.

        Raises:
            NotEnoughData: Nothing to draw from is visible.
            ServerUnreachable: No answer.
        """
        lead = (self.batch_size,)
        batch = self.allocate() if out is None else checked(out, self._layout, lead)
        self._draw(1, batch)
        return batch

    def sample_many(self, count: int, out: Batch | None = None) -> Batch:
        """Draw `count` batches at once, shapes (count, B, ...).

        The same random stream as `count` calls of `sample`.

        Raises:
            NotEnoughData: Nothing to draw from is visible.
            ServerUnreachable: No answer.
        """
        lead = (count, self.batch_size)
        batch = self.allocate(count) if out is None else checked(out, self._layout, lead)
        self._draw(count, batch)
        return batch

    def allocate(self, count: int | None = None) -> Batch:
        """Return arrays for a batch, or for `count` batches with a leading axis."""
        lead = (self.batch_size,) if count is None else (count, self.batch_size)
        return allocate(self._layout, lead)

    def state_dict(self) -> dict[str, object]:
        """Return the state of the random stream and what is visible, JSON-able."""
        return {
            "rng": cast("dict[str, object]", self.rng.bit_generator.state),
            "environment_steps": self._visible,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken, of this or of a `ReplaySampler`.

        Raises:
            ReplayError: The state is not one of this kind of generator.
            NotEnoughData: The store has lost the steps that were visible then.
            ServerUnreachable: No answer.
        """
        try:
            self.rng.bit_generator.state = cast("dict[str, Any]", state["rng"])
            steps = cast("int | None", state["environment_steps"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ReplayError("this is not the state of a sampler", got=repr(error)) from error
        self.refresh(steps)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _count(self, environment_steps: int | None) -> WindowsCounted:
        question = CountWindows(options=self._options, environment_steps=environment_steps)
        return self._ask(question, WindowsCounted)[0]

    def _ask(self, question: Numbered, expected: type[_Answer]) -> tuple[_Answer, Payload]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._client.ask(
                    question, expected, held_back=_HELD_BACK_SECONDS, timeout=PATIENCE_SECONDS
                )
            except ServerBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)

    def _draw(self, count: int, batch: Batch) -> None:
        question = Sample(
            options=self._options,
            draws=count,
            rng=cast("dict[str, Any]", self.rng.bit_generator.state),
            environment_steps=self._limit,
        )
        answer, payload = self._ask(question, Sampled)
        _fill([batch[name] for name in self._layout], payload)
        self.rng.bit_generator.state = answer.rng


def _layout(answer: WindowsCounted) -> Layout:
    """Read what the arrays of a batch look like.

    Raises:
        WireError: The answer does not say it.
    """
    layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for name, (dtype, shape) in answer.layout.items():
        if dtype not in DTYPES:
            raise WireError("the layout of a batch has an unknown dtype", got=f"{name}: {dtype}")
        layout[name] = np.dtype(dtype), shape
    return layout


def _fill(arrays: list[Array], payload: Payload) -> None:
    """Copy the payload into arrays that follow one another; an array may span several frames.

    Raises:
        WireError: The payload has another size.
    """
    frames = iter(payload)
    for array in arrays:
        target = array.reshape(-1).view(np.uint8).data
        at = 0
        while at < len(target):
            frame = next(frames, memoryview(b""))
            if not 0 < len(frame) <= len(target) - at:
                raise WireError(
                    "a batch has another size than was asked for",
                    got=f"{len(frame)} bytes",
                    expected=f"{len(target) - at} bytes",
                )
            target[at : at + len(frame)] = frame
            at += len(frame)
