"""Mini-batches for learners on other machines: the server's sampling thread.

A request carries everything that its answer depends on: what to draw from, how many steps are
visible, and the state of the learner's random generator. So the learner gets, bit for bit, what
it would draw from the memory map, and nothing is lost with the server.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import cast

import numpy as np
import zmq

from robot_rl.errors import RobotRLError
from robot_rl.replay.batches import Batch
from robot_rl.replay.errors import ClientFailed, ReplayError
from robot_rl.replay.messages import (
    CountWindows,
    Sample,
    Sampled,
    WindowsCounted,
)
from robot_rl.replay.sampler import ReplaySampler
from robot_rl.replay.sampling import SamplerOptions
from robot_rl.replay.sampling_queue import SamplingQueue, SamplingRequest
from robot_rl.wire.limits import LogLimit
from robot_rl.wire.messages import Frame, encode, refusal, split

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())

MAXIMUM_SAMPLERS = 4
_ANSWERS = "inproc://sampled"


class SamplingService:
    """Answers requests to sample, one at a time, in a thread of its own.

    Args:
        store: Folder of the store.
        message_bytes: Most bytes of one answer.

    Attributes:
        socket: Readable when `answer` has something.
        failures: Requests that failed of something else than themselves.
    """

    def __init__(self, store: Path, message_bytes: int) -> None:
        """Start the thread."""
        self._store, self._message_bytes = store, message_bytes
        self.failures = 0
        self._context = zmq.Context(0)  # no connections, so no thread for them
        self.socket = self._context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.bind(_ANSWERS)
        self._queue = SamplingQueue()
        self._samplers: OrderedDict[SamplerOptions, ReplaySampler] = OrderedDict()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-sampling", daemon=True)
        self._thread.start()

    def submit(self, client: bytes, message: Sample | CountWindows) -> None:
        """Queue a request.

        Raises:
            ServerBusy: Too many clients wait.
        """
        self._queue.put(SamplingRequest(client, message))

    def answer(self) -> tuple[bytes, list[Frame]] | None:
        """Return a client and the answer to it, or None where there is none yet.

        Raises:
            ClientFailed: The thread has died.
        """
        if self._failure is not None:
            raise ClientFailed(
                "the server's sampling thread has died", got=repr(self._failure)
            ) from self._failure
        try:
            client, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return client.bytes, [frame.buffer for frame in frames]

    def close(self) -> None:
        """End the thread; what it has not answered is dropped."""
        self._queue.stop()
        self._thread.join()
        self.socket.close(linger=0)
        self._context.term()

    def _run(self) -> None:
        socket = self._context.socket(zmq.PAIR)
        try:
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(_ANSWERS)
            while (request := self._queue.take(self._is_open)) is not None:
                socket.send_multipart([request.client, *self._answered(request)], copy=False)
        except BaseException as failure:
            self._failure = failure
            socket.send(b"")
        finally:
            socket.close()
            for sampler in self._samplers.values():
                sampler.close()

    def _answered(self, request: SamplingRequest) -> list[Frame]:
        message = request.message
        try:
            sampler = self._sampler(message.options)
            if isinstance(message, Sample):
                return self._sample(sampler, message)
            return self._count(sampler, message)
        except RobotRLError as error:
            failure = error
        except Exception as error:
            # One request must never end sampling for everybody else.
            self.failures += 1
            logger.exception("a request to sample could not be answered")
            failure = ReplayError("the server failed on this request", got=repr(error))
        return encode(refusal(failure, message))

    def _sample(self, sampler: ReplaySampler, request: Sample) -> list[Frame]:
        size = request.draws * sum(array.nbytes for array in sampler.allocate().values())
        if size > self._message_bytes:
            raise ReplayError(
                "so many batches are too large for one message",
                got=f"{size} bytes",
                expected=f"<= {self._message_bytes} bytes",
                hint="draw fewer at once, or raise the server's replay.message_bytes",
            )
        sampler.load_state_dict(
            {"rng": request.rng, "environment_steps": request.environment_steps}
        )
        batch = sampler.sample_many(request.draws)
        state = cast("dict[str, object]", sampler.state_dict()["rng"])
        return encode(Sampled(request=request.request, rng=state), _frames(batch))

    def _count(self, sampler: ReplaySampler, request: CountWindows) -> list[Frame]:
        available = sampler.transitions_available()
        sampler.refresh(request.environment_steps)
        batch = sampler.allocate()
        answer = WindowsCounted(
            request=request.request,
            available=available,
            demonstrations=sampler.demonstration_transitions,
            online=sampler.online_transitions,
            interventions=sampler.intervention_transitions,
            layout={name: (a.dtype.name, a.shape[1:]) for name, a in batch.items()},
        )
        return encode(answer)

    def _is_open(self, request: SamplingRequest) -> bool:
        return request.message.options in self._samplers

    def _sampler(self, options: SamplerOptions) -> ReplaySampler:
        """Return the sampler for a kind of request; the one unused for longest makes room."""
        sampler = self._samplers.pop(options, None)
        if sampler is None:
            if len(self._samplers) >= MAXIMUM_SAMPLERS:
                self._samplers.popitem(last=False)[1].close()
            sampler = options.open(self._store, np.random.default_rng(0))
        self._samplers[options] = sampler
        return sampler


def _frames(batch: Batch) -> list[Frame]:
    """Return the bytes of a batch's arrays, one after the other."""
    frames: list[Frame] = []
    for array in batch.values():
        frames += split(array.reshape(-1).view(np.uint8).data)
    return frames
