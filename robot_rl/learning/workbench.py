"""Tools for a recipe's stages: the run, its policies, its rows and the robot."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.checkpoint import StoredBase
from policies.columns import ENCODER_ID, FEATURES
from policies.compute import compute_device
from policies.runner import PolicyRunner
from robot_rl.config import Settings
from robot_rl.console.feed import ConsoleFeed
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.factory import make_session, observed_widths
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.rollout import Seeds, rollout, training_seed
from robot_rl.env.session import EpisodeResult, Session
from robot_rl.evaluation.evaluator import Evaluator
from robot_rl.evaluation.ledger import load_policy
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.learning.algorithms.base import Batch
from robot_rl.learning.demonstrations import open_demonstrations
from robot_rl.learning.weights import base_apart, publish
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay.address import ReplayAddress
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.replica import Replica
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.sampler import Prefetcher, Sampler
from robot_rl.replay.windows import SampleSpec
from robot_rl.run import ACCEPTED, CLONED, STATE_FILE, UNTRAINED, RunDirectory, RunError
from robot_rl.wire import KeysRefused, ServerUnreachable

_Answer = TypeVar("_Answer")
_RETRY_SECONDS = 0.5
_ROWS = "for rows"  # completes "waiting …"
_TENSORS = "algorithm.safetensors"
_STATE_FORMAT = 2  # format of a checkpoint's training state
# Path from a checkpoint's policy to the run's cloned policy.
_BASE_FOLDER = f"../../{Path(CLONED).name}/policy"


class Workbench:
    """Context manager that provides a stage's tools and closes whatever it opened.

    When `stop` is set, the stage must save its work and return.
    """

    def __init__(
        self, settings: Settings, run: RunDirectory, stop: StopEvent | None = None
    ) -> None:
        self.settings, self.run = settings, run
        self.stop = StopEvent() if stop is None else stop
        replay = settings.replay
        self._place = ReplayAddress.of(run, replay.connect, replay.keys)
        self._opened = ExitStack()
        self._base: StoredBase | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @cached_property
    def device(self) -> torch.device:
        """Device on which networks run."""
        return compute_device(self.settings.device)

    @cached_property
    def client(self) -> ReplayClient:
        """Client of the run's replay server, which must answer in time unless `stop` is set."""
        self._place.wait(self.stop)
        return self._opened.enter_context(self._place.client())

    @cached_property
    def cloned(self) -> Behaviour:
        """The cloned policy, or the policy a gate has accepted since.

        Checkpoints of policies based on a large clone do not repeat its weights. Without
        demonstrations this is an untrained policy with the observation ranges from exploration.
        Raises the same errors as `policy`.
        """
        if not self.settings.demonstrated:
            return self.policy(UNTRAINED)
        if self.run.has_folder(ACCEPTED):
            return self.policy(ACCEPTED)
        behaviour = self.policy(CLONED)
        self._base = base_apart(self.run, behaviour)
        return behaviour

    def policy(self, name: str) -> Behaviour:
        """Return the policy of a checkpoint of the run. Raise `CheckpointError` if incomplete."""
        return checkpoint.load(self.run.complete_folder(name) / "policy").to(self.device)

    def demonstrations(self) -> EpisodeDataset:
        """Return the run's demonstrations, some of them successful. See `open_demonstrations`."""
        return open_demonstrations(self.settings.dataset, self.run)

    def sampler(self, spec: SampleSpec) -> Rows:
        """Sample from the rows of the run's first episodes, once stored, and of the actors.

        The run's capacity and rewards are added to the spec.

        Raises:
            ReplayError: The replay server cannot provide these rows.
            ServerUnreachable: It does not answer now. Later, the rows wait for it.
        """
        marked = (ENCODER_ID,) if FEATURES in spec.fields else ()
        spec = replace(
            spec,
            fields=(*spec.fields, *marked),
            capacity_rows=self.settings.replay.capacity_rows,
            rewards=self.settings.reward["annotation"],
        )
        rng, replica = np.random.default_rng(self.settings.seed), self.replica
        here = (self.run.store,) if replica is None else (replica.folder, replica.pull)
        rows = Rows(Sampler(StoreRows(*here), spec, rng), self._until_answered)
        return self._opened.enter_context(closing(rows))

    @cached_property
    def replica(self) -> Replica | None:
        """Return a copy of the store in RUN/replica if the replay server is on another machine.

        Raises:
            ReplayError: The rows cannot be copied.
            ServerUnreachable: The server does not answer now.
        """
        if self._place.address is None:
            return None
        replica = Replica(self.run.path / "replica", self.client)
        return self._opened.enter_context(closing(replica))

    def gather(
        self,
        behaviour: Behaviour | Callable[[int], Behaviour],
        episodes: int,
        stream: int,
        words: str,
        *,
        first: int = 0,
        done: int = 0,
        tries: int = 1,
    ) -> Generator[EpisodeResult, None, None]:
        """Run a behaviour and yield each episode with its rows as it ends.

        An operator may intervene and stop the robot. Episodes that the operator discards, or that
        the robot cuts before the first step, are run again.

        Args:
            behaviour: The behaviour that acts, or a function that returns it at the start of an
                episode, given the episode's number counted from `first`.
            episodes: Number of episodes, including those already done.
            stream: Source of the seeds: a `SeedStream`, or any number specific to the stage.
            words: Name of this work, for display.
            first: Number of the first episode in that stream.
            done: Episodes gathered by an earlier start.
            tries: Consecutive episodes that share a seed, and so a scene in simulation.
        """
        who = behaviour if callable(behaviour) else lambda number: behaviour
        acting = who(first + done).to(self.device)
        session = make_watched_session(self.settings.environment, self.run, resets=True)
        runner = PolicyRunner(acting)
        recorder = RowBuilder(session.schema, SOURCE_POLICY)
        names = [field.name for field in session.schema.fields]
        numbers = range(first + done, first + episodes)
        run_seed, scenes = self.settings.seed, (first + (n - first) // tries for n in numbers)
        seeds = Seeds(training_seed(run_seed, stream, scene) for scene in scenes)

        with closing(session), WorkProgress(episodes, "episodes") as progress:
            progress.phase(words)
            progress.note(_announcement(session, episodes - done, acting, words))
            progress.update(done)
            free, note = session.when_free(seeds, progress.note), progress.note
            for result in rollout([session], runner, free, recorder=recorder, note=note):
                if not result.steps or result.ended_by is OperatorEvent.DISCARD:
                    seeds.again(result.seed)
                    continue
                result.rows = [{name: row[name] for name in names} for row in result.rows]
                done += 1
                progress.episode(result.success, result.intervened_steps / result.steps)
                progress.update(done)
                yield result
                if done < episodes:
                    runner.set_behaviour(who(first + done).to(self.device))

    def publish(self, behaviour: Behaviour, until: int) -> None:
        """Let the actors run a behaviour until an environment step.

        Wait while the replay server is down. Raise `Stopped` if `stop` is set during the wait.
        """
        weights = partial(publish, self.client, behaviour, until, self._base)
        self._until_answered(weights, "with new weights")

    def _until_answered(self, ask: Callable[[], _Answer], what: str) -> _Answer:
        """Call the replay server, retrying while it is down. Display that `what` is waiting.

        Raises:
            Stopped: `stop` was set during the wait.
            KeysRefused: The server rejects the keys. Its other errors are raised too.
        """
        while True:
            try:
                return ask()
            except KeysRefused:
                raise
            except ServerUnreachable as problem:
                self.say(f"learner: waiting {what}, trying again: {problem}")
            if self.stop.wait(_RETRY_SECONDS):
                raise Stopped

    def evaluate(self, behaviour: Behaviour, episodes: int) -> EvaluationResult:
        """Run a behaviour without exploration on the first of the periodic evaluation scenes.

        Raises:
            Stopped: `stop` was set.
            EvaluationError: The robot keeps cutting an episode.
        """
        config = self.settings.environment.copy()
        config.evaluation.episodes = episodes
        with closing(Evaluator(config, self.run, self.say)) as evaluator:
            return evaluator.evaluate(behaviour, 0, "periodic", self.stop)

    def checkpoint(
        self,
        name: str,
        behaviour: Behaviour,
        tensors: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint, such as checkpoints/last, atomically.

        Besides the policy it may hold the training state: tensors, and a JSON state.

        Raises:
            RunError: The disk is full or the folder cannot be written.
        """
        with self.run.atomic_folder(name) as folder:
            if tensors is not None:
                save_file(dict(tensors), folder / _TENSORS)
            if state is not None:
                text = json.dumps({"format": _STATE_FORMAT, **state})
                (folder / STATE_FILE).write_text(text, encoding="utf-8")
            checkpoint.save(folder / "policy", behaviour, self._base, _BASE_FOLDER)

    def training_state(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and state of a checkpoint written by `checkpoint`.

        Raises:
            RunError: The checkpoint was written by another version of robot_rl.
        """
        folder = self.run.complete_folder(name)
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if state.get("format") != _STATE_FORMAT:
            raise RunError(
                f"the training state in {folder} is of another version of robot_rl",
                got=state.get("format"),
                expected=_STATE_FORMAT,
                hint="resume the run with the version that wrote it, or begin a new run",
            )
        return load_file(folder / _TENSORS), state

    def say(self, text: str) -> None:
        """Print a line for the people watching the run."""
        print(text, flush=True)

    def generator(self, name: str = "") -> torch.Generator:
        """Create a random generator seeded by the run's seed and a name."""
        return torch.Generator().manual_seed(self.settings.seed + zlib.crc32(name.encode()))


class Rows:
    """Mini-batches from a run's store, prefetched in a thread.

    Args:
        sampler: Watches the store. Closed with this object.
        until_answered: Calls a remote replay server, and displays what is waiting while it is down.
    """

    def __init__(
        self,
        sampler: Sampler,
        until_answered: Callable[[Callable[[], Any], str], Any] = lambda ask, what: ask(),
    ) -> None:
        self._sampler, self._until_answered = sampler, until_answered
        self._prefetcher = Prefetcher(sampler)

    @property
    def transitions(self) -> int:
        """Number of windows to draw batches from."""
        visible = self._sampler.visible
        return visible.demonstrations + visible.online

    def steps(self) -> int:
        """Return the number of actor environment steps currently in the store."""
        return int(self._until_answered(self._sampler.transitions_available, _ROWS))

    def show(self, steps: int) -> None:
        """From now on, sample from exactly the first `steps` environment steps."""
        self._until_answered(partial(self._sampler.refresh, steps), _ROWS)

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield `count` batches. The arrays of each are valid until the next."""
        return self._prefetcher.batches(count)

    def episodes(
        self, fields: Sequence[str], after: int = -1, *, demonstrations: bool = False
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the visible, finished episodes, with T + 1 rows. See `Sampler.episodes`."""
        return self._sampler.episodes(fields, after, demonstrations=demonstrations)

    def state_dict(self) -> dict[str, object]:
        """Return the state of the random stream and of the visible rows, as JSON."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore a `state_dict`."""
        self._sampler.load_state_dict(state)

    def close(self) -> None:
        """Stop the thread and close the store."""
        self._prefetcher.close()
        self._sampler.close()


def _announcement(session: Session, episodes: int, behaviour: Behaviour, words: str) -> str:
    """Describe what the robot is about to do, for people near it."""
    seconds = session.task.time_limit_steps * session.clock.period
    mode, noise = behaviour.exploration.mode, behaviour.exploration.noise_scale
    driver = "chance" if mode == "noise" else f"the {behaviour.policy.kind} policy"
    count = f"{episodes} episodes" if episodes > 1 else "one episode"
    text = f"{words}: in {count} of up to {seconds:g} s {driver} drives the robot"
    if noise:
        text += f", with noise of up to {noise:g} on each action in [-1, 1]; it will miss, and"
        text += " touch what is in its way"
    return text


def make_watched_session(config: DictConfig, run: RunDirectory, *, resets: bool) -> Session:
    """Create the configured session and show it on the run's console. See `make_session`."""
    session = make_session(config, run, resets=resets, load_policy=load_policy)
    observed_widths(config, session.schema)  # raises before anyone starts
    ConsoleFeed(session, run)
    return session
