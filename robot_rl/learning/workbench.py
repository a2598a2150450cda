"""The tools of a recipe's stage: the run, its policies, its rows, and the robot."""

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
_ROWS = "for rows"  # the end of "waiting …"
_TENSORS = "algorithm.safetensors"
_STATE_FORMAT = 2  # of a checkpoint's training state
# From the policy of a checkpoint to the cloned one of the same run.
_BASE_FOLDER = f"../../{Path(CLONED).name}/policy"


class Workbench:
    """Gives a stage its tools; a context manager that closes whatever it opened.

    `stop` is set when the stage must save its work and end.
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
        """Where networks compute."""
        return compute_device(self.settings.device)

    @cached_property
    def client(self) -> ReplayClient:
        """A client of the run's replay server, which must answer in time unless `stop` is set."""
        self._place.wait(self.stop)
        return self._opened.enter_context(self._place.client())

    @cached_property
    def cloned(self) -> Behaviour:
        """The cloned policy, or the one that a gate has accepted since.

        Checkpoints of policies on top of a large clone do not repeat its weights. Without
        demonstrations it is an untrained policy, with the observations' ranges in the exploration.
        Raises as `policy`.
        """
        if not self.settings.demonstrated:
            return self.policy(UNTRAINED)
        if self.run.has_folder(ACCEPTED):
            return self.policy(ACCEPTED)
        behaviour = self.policy(CLONED)
        self._base = base_apart(self.run, behaviour)
        return behaviour

    def policy(self, name: str) -> Behaviour:
        """The policy of a checkpoint of the run; `CheckpointError` where that is not whole."""
        return checkpoint.load(self.run.complete_folder(name) / "policy").to(self.device)

    def demonstrations(self) -> EpisodeDataset:
        """The demonstrations of the run, some of them successful; see `open_demonstrations`."""
        return open_demonstrations(self.settings.dataset, self.run)

    def sampler(self, spec: SampleSpec) -> Rows:
        """Draw from the rows of the run's first episodes, once they are stored, and of the actors.

        The run's capacity and rewards are added to the spec.

        Raises:
            ReplayError: The replay server cannot give these rows.
            ServerUnreachable: It does not answer now; later the rows wait for it.
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
        """The store's rows in RUN/replica, where the replay server is on another machine.

        Raises:
            ReplayError: They cannot be copied.
            ServerUnreachable: It does not answer now.
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
        """Let a behaviour act, and give each episode with its rows as it ends.

        An operator may drive and halt the robot. An episode that they discard is run again, as is
        one that the robot cut before its first step.

        Args:
            behaviour: The behaviour that acts; or a function that gives it when an episode begins,
                by the episode's number, counted from `first`.
            episodes: How many, those that are done already included.
            stream: Where the seeds come from: a `SeedStream`, or any number of the stage's own.
            words: A name of this work, for the people who watch.
            first: Number of the first of them in that stream.
            done: Episodes that an earlier start has gathered.
            tries: Episodes in a row that have one seed, and so one scene in simulation.
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
        """Let the actors act with a behaviour until an environment step.

        Waits while the replay server is away. Raises `Stopped` where `stop` is set meanwhile.
        """
        weights = partial(publish, self.client, behaviour, until, self._base)
        self._until_answered(weights, "with new weights")

    def _until_answered(self, ask: Callable[[], _Answer], what: str) -> _Answer:
        """Ask the replay server, again and again while it is away; says `what` waits.

        Raises:
            Stopped: `stop` was set meanwhile.
            KeysRefused: The server refuses the keys. Its other errors are raised as well.
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
        """Run a behaviour's best guess on the first of the scenes that training is judged on.

        Raises:
            Stopped: `stop` was set.
            EvaluationError: The robot cuts an episode again and again.
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
        """Write a checkpoint, such as checkpoints/last, whole or not at all.

        Beside the policy it may have what training goes on with: tensors, and a state as JSON.

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
        """Tensors and state of a checkpoint that `checkpoint` has written.

        Raises:
            RunError: Another version of robot_rl has written it.
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
        """Print a line for the people who watch the run."""
        print(text, flush=True)

    def generator(self, name: str = "") -> torch.Generator:
        """A source of random numbers that follows from the run's seed and a name alone."""
        return torch.Generator().manual_seed(self.settings.seed + zlib.crc32(name.encode()))


class Rows:
    """Mini-batches out of a run's store, drawn ahead in a thread.

    Args:
        sampler: Watches the store, and is closed with this.
        until_answered: Asks a replay server elsewhere, and says what waits while it is away.
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
        """Windows that batches are drawn from."""
        visible = self._sampler.visible
        return visible.demonstrations + visible.online

    def steps(self) -> int:
        """Environment steps of actors in the store now."""
        return int(self._until_answered(self._sampler.transitions_available, _ROWS))

    def show(self, steps: int) -> None:
        """Draw from exactly the first `steps` environment steps from now on."""
        self._until_answered(partial(self._sampler.refresh, steps), _ROWS)

    def batches(self, count: int) -> Iterator[Batch]:
        """Give so many batches; the arrays of each are valid until the next."""
        return self._prefetcher.batches(count)

    def episodes(
        self, fields: Sequence[str], after: int = -1, *, demonstrations: bool = False
    ) -> Iterator[tuple[int, Batch]]:
        """Give the visible episodes that have ended, with T + 1 rows; see `Sampler.episodes`."""
        return self._sampler.episodes(fields, after, demonstrations=demonstrations)

    def state_dict(self) -> dict[str, object]:
        """The state of the random stream and of the visible rows, as JSON."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""
        self._sampler.load_state_dict(state)

    def close(self) -> None:
        """End the thread and release the store."""
        self._prefetcher.close()
        self._sampler.close()


def _announcement(session: Session, episodes: int, behaviour: Behaviour, words: str) -> str:
    """Say what the robot is about to do, for people beside it."""
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
    """Make the configured session, shown on the console of the run; see `make_session`."""
    session = make_session(config, run, resets=resets, load_policy=load_policy)
    observed_widths(config, session.schema)  # raises before anybody starts
    ConsoleFeed(session, run)
    return session
