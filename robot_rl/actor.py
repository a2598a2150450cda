"""Actor process: runs the policy on the robot and streams every transition."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress

import numpy as np
import torch
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.compute import compute_device
from policies.runner import Decision, PolicyRunner
from robot_rl.console.feed import ConsoleFeed
from robot_rl.data.policy_columns import check_fit, stored_schema
from robot_rl.data.rows import Active, Instructions, RowBuilder, Seen, Slots
from robot_rl.data.schema import SOURCE_POLICY, Row, RowSchema
from robot_rl.env.coach import Coach
from robot_rl.env.factory import make_session
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.env.session import EpisodeResult, Session
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.evaluation.ledger import load_policy
from robot_rl.learning.blocks import ScheduleError
from robot_rl.learning.weights import (
    KeptWeights,
    Published,
    RealtimeWeights,
    SharedWeights,
    SteppedWeights,
    WeightSource,
    WeightsReceiver,
    online_steps,
)
from robot_rl.processes.progress_display import WorkProgress, plain_console
from robot_rl.processes.signals import StopEvent, Stopped, stop_event
from robot_rl.processes.waiting import QuietWait
from robot_rl.replay import StoreFull
from robot_rl.replay.address import ReplayAddress
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.spool import check_size
from robot_rl.replay.store_reader import PlayedDifferently, ReplayedEpisode
from robot_rl.rewards.labels import LateLabels
from robot_rl.run import RunDirectory
from robot_rl.wire import ServerUnreachable

_SESSIONS = 1 << 20  # seed streams per actor, one per session
_EPISODES = "episodes"
_OWNER = "the actor of the stepped clock"
_ROOM_SECONDS = 0.05
# Environment steps of the run so far, and the episode that just ended.
Acted = Iterator[tuple[int, EpisodeResult]]
# The learner first runs the base policy on all demonstrations; a large base is slow.
_FIRST_WEIGHTS_SECONDS = 900.0
_CLAIM_SECONDS = 1.0  # for a process that was just killed to exit


class ActingRunner(PolicyRunner):
    """Runs the policy on one robot, loads new weights, and counts steps from `step`."""

    def __init__(
        self, behaviour: Behaviour, weights: WeightSource, step: int, device: torch.device
    ) -> None:
        super().__init__(behaviour.to(device))
        self.step, self._weights, self._device = step, weights, device

    @property
    def run_steps(self) -> int:
        """Environment steps of the whole run so far, as known to this actor."""
        return self._weights.run_steps(self.step)

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Start an episode."""
        self._switch()
        super().reset(slots, seeds=seeds, instructions=instructions)

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide one environment step."""
        self._switch()
        self.step += 1
        return super().act(observation, active)

    def _switch(self) -> None:
        if (published := self._weights.at_step(self.step)) is not None:
            self.set_behaviour(published.behaviour.to(self._device))


def act(config: DictConfig, run: RunDirectory, stop: StopEvent) -> Acted:
    """Act until the store has the configured number of environment steps; its server must run.

    Setting `stop` truncates the running episode. On the stepped clock, or while the actor waits, it
    raises `Stopped` instead: the episode stays open in the store, and the next start replays it.
    Rows that the server does not accept stay in the run's spool.

    Yields each finished episode, with the environment steps of the run so far.
    """
    try:
        yield from _act(config, run, stop)
    except PlayedDifferently as problem:
        _note(f"the unfinished episode is cut, and another one begins: {problem}")
        yield from _act(config, run, stop, start_over=True)


def _act(
    config: DictConfig, run: RunDirectory, stop: StopEvent, *, start_over: bool = False
) -> Acted:
    torch.set_num_threads(1)
    total, number = int(config.environment_steps), _number(config)
    past = _episodes_before(run, number)
    coach = Coach(past, _note) if config.clock == "realtime" else Coach(past)
    session = make_session(
        config,
        run,
        coach=coach,
        episodes=len(past),
        stopped=stop.is_set,
        load_policy=load_policy,
    )
    place = ReplayAddress.of(run, config.replay.connect, config.replay["keys"])
    place.wait(stop)
    with closing(session), _spooling_client(config, run, place, session, stop) as client:
        receiver = WeightsReceiver(run)
        first = _first_behaviour(client, receiver, run, stop)
        check_fit(first.behaviour, session.schema)
        schema = stored_schema(session.schema, first.behaviour)
        _check_spool(config, session, schema)
        stepped = config.clock == "stepped"
        alone = stepped and config.actors == 1
        repeats = alone and place.address is None and not start_over
        opened = client.open_session(schema, number, owner=_OWNER if repeats else None)
        step, append, finished = online_steps(client), client.append, 0
        kept: KeptWeights | None = None
        if repeats:
            again = ReplayedEpisode(client, run.store, opened, schema, run.read_jsonl(_EPISODES))
            step, append, finished = step - again.steps, again.append, again.finished
            folder = run.spool(number).with_suffix(".weights")
            kept = KeptWeights(folder, receiver, session.task.time_limit_steps)
        source: WeightSource
        if not stepped:
            version = first.behaviour.version
            source = RealtimeWeights(place.client(), receiver, version, _note)
        elif alone:
            source = SteppedWeights(client, receiver, first, stop, kept, _note)
        else:
            every = max(1, int(config.block_steps) // int(config.actors))
            source = SharedWeights(client, receiver, first, stop, note=_note, every_steps=every)
        device = compute_device(config.device)
        runner = ActingRunner(first.behaviour, source, step, device)
        stream = SeedStream.ACTING + opened.session + (number - 1) * _SESSIONS
        console = ConsoleFeed(session, run, number)
        seeds = _seeds(int(config.seed), stream, client, session, stop, finished)
        free = session.when_free(seeds, _note, stop.is_set)
        labels = LateLabels(place, opened, _note)

        def send(row: Row, episode: EpisodeResult) -> None:
            begins = row["episode_step"] == 0 and not row["is_last"]
            facts = {"seed": episode.seed, "instruction": episode.instruction}
            about = {"task": schema.task, **facts} if begins else None
            labels.note_row(append(row, about), begins=begins)
            console.run_steps = runner.run_steps
            console.policy_version = int(row["policy_version"])

        def ends() -> bool:
            """Whether to truncate the episode; one that can be replayed is left open."""
            return runner.run_steps >= total or (stop.is_set() and not repeats)

        with ExitStack() as parts:  # closes all, even if one raises
            parts.callback(source.close)
            parts.callback(labels.close)
            parts.callback(session.close)  # the robot first
            while runner.run_steps < total and not stop.is_set():
                for result in rollout(
                    [session],
                    runner,
                    free,
                    recorder=RowBuilder(schema, SOURCE_POLICY),
                    on_row=send,
                    on_late_label=labels.tell,
                    stop=ends,
                    note=_note,
                ):
                    if result.interrupted is not None:
                        runner.step -= 1  # the last action has no row, so it does not count
                        _note(f"the episode is cut: {result.interrupted}")
                    result.facts |= {"session": opened.session, "ended_by": result.ended_by}
                    yield runner.run_steps, result
        client.flush(stop=stop)


def run(config: DictConfig) -> None:
    """Act in the run directory `config.run`; raise `KeyboardInterrupt` after a clean stop."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    actor = _number(config)
    number = len(_episodes_before(directory, actor))
    # Plain lines between episodes: a live display would disturb the control loop.
    progress = WorkProgress(int(config.environment_steps), console=plain_console())
    progress.phase("acting")
    claim = directory.claim(f"actor-{actor}", _CLAIM_SECONDS)
    with stop_event() as stop, claim, progress:
        with suppress(Stopped):
            for steps, result in act(config, directory, stop):
                record = _record(number, steps, result)
                directory.append_jsonl(_EPISODES, {"actor": actor, **record})
                number += 1
                if alarm := result.facts.get("reward_alarm"):
                    _note(f"reward alarm, {alarm}")
                progress.episode(result.success)
                progress.update(steps)
        if stop.is_set():
            raise KeyboardInterrupt
    print(f"actor: done, {number} episodes in all", flush=True)


def _episodes_before(run: RunDirectory, actor: int) -> Sequence[Mapping[str, object]]:
    """Records of episodes finished by earlier processes of an actor."""
    return [e for e in run.read_jsonl(_EPISODES) if e.get("actor", 1) == actor]


@contextmanager
def _spooling_client(
    config: DictConfig, run: RunDirectory, place: ReplayAddress, session: Session, stop: StopEvent
) -> Iterator[ReplayClient]:
    """Client that spools rows to disk; rows left by an earlier process are sent first."""
    # Early check: the policy's row columns are not known yet.
    _check_spool(config, session, session.schema)
    path = run.spool(_number(config))
    client = place.client(spool_path=path, spool_bytes=int(config.replay.spool_bytes))
    try:
        if client.unacknowledged:
            print(f"actor: first sending the {client.unacknowledged} rows in {path}", flush=True)
            client.flush(stop=stop)
        yield client
    finally:
        try:
            client.close()
        except (ServerUnreachable, StoreFull) as problem:
            _note(
                f"{client.unacknowledged} rows wait in {path} for the next start"
                f" ({in_shell('robot-rl', 'train', f'resume={run.path}')}): {problem}"
            )
            if not stop.is_set():
                raise


def _check_spool(config: DictConfig, session: Session, schema: RowSchema) -> None:
    """Check that the spool can hold one episode; otherwise the actor would pause forever."""
    rows, row_bytes = session.task.time_limit_steps + 1, schema.dtype.itemsize
    check_size(int(config.replay.spool_bytes), rows=rows, row_bytes=row_bytes)


def _number(config: DictConfig) -> int:
    number, actors = int(config.actor), int(config.actors)
    if not 1 <= number <= actors:
        raise ScheduleError("there is no such actor", got=number, expected=f"1 to actors={actors}")
    return number


def _first_behaviour(
    client: ReplayClient, receiver: WeightsReceiver, run: RunDirectory, stop: StopEvent
) -> Published:
    began, wait = time.monotonic(), QuietWait(_note)
    while time.monotonic() - began < _FIRST_WEIGHTS_SECONDS:
        wait.goes_on("the learner's first weights")
        if stop.is_set():
            raise Stopped
        if (found := receiver.fetch(client, None, 0.5)) is not None:
            return found
    raise RobotRLError(
        "there are no weights to act with",
        got=f"none within {_FIRST_WEIGHTS_SECONDS:g} s",
        hint=f"start the learner of this run: {in_shell('robot-rl', 'learner', run.path)}",
    )


def _seeds(
    run_seed: int,
    stream: int,
    client: ReplayClient,
    session: Session,
    stop: StopEvent,
    number: int,
) -> Iterator[int]:
    """Seeds of episodes from `number` on; yields each once the spool has room for the episode."""
    rows = session.task.time_limit_steps + 1
    while not stop.is_set():
        if not client.has_room(rows):
            reason = (
                f"pausing before the next episode, whose {rows} rows have no room in the spool:"
                f" {client.unacknowledged} rows are not in the store yet"
                f" ({client.problem or 'the replay server is slower than the actor'})"
            )
            session.say_waiting(reason, _note)
            while not client.has_room(rows):  # however long that takes
                if stop.wait(_ROOM_SECONDS):
                    raise Stopped
            session.say_waiting("there is room again, going on", _note)
        yield training_seed(run_seed, stream, number)
        number += 1


def _note(text: str) -> None:
    """Print a message for the user; `train` shows such lines too, see `ProcessGroup`."""
    print(f"actor: {text}", flush=True)


def _record(number: int, steps: int, result: EpisodeResult) -> dict[str, object]:
    decisions = 1e3 * np.array(result.decision_seconds)
    return {
        "episode": number,
        "environment_steps": steps,
        "success": result.success,
        "length": result.steps,
        "return": result.total_reward,
        "policy_version": result.policy_version,
        "intervened_steps": result.intervened_steps,
        "take_overs": result.take_overs,
        "seed": result.seed,
        "median_decision_ms": float(np.median(decisions)) if decisions.size else None,
        "max_decision_ms": float(decisions.max()) if decisions.size else None,
        "interrupted": None if result.interrupted is None else str(result.interrupted),
        **result.facts,
    }
