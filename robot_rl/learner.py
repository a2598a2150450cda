"""The learner process: updates the policy from the store and publishes its weights."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.compute import compute_device, explained_memory
from policies.policy import Policy
from policies.runner import PolicyRunner
from policies.vision import ENCODER_ID, FEATURES
from robot_rl.algorithms.factory import make_algorithm
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.policy_columns import check_features, check_fit, feature_columns, stored_schema
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.errors import RobotRLError
from robot_rl.learning.blocks import Blocks
from robot_rl.learning.weights import BEHAVIOUR, base_apart, publish
from robot_rl.processes.machine import yield_to_control_loop
from robot_rl.processes.progress import WorkProgress
from robot_rl.processes.signals import StopEvent, Stopped, stop_event
from robot_rl.replay.batch_layout import WINDOW_FIELDS
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.importing import append_rest
from robot_rl.replay.prefetch import Prefetcher
from robot_rl.replay.sampling import SamplerOptions
from robot_rl.replay.server_place import ServerPlace
from robot_rl.run import CLONED, LAST, STATE_FILE, RunDirectory, load_cloned
from robot_rl.stages.annotate import waits_for_annotation
from robot_rl.stages.demonstrations import open_demonstrations
from robot_rl.wire.errors import KeysRefused, ServerUnreachable

DEMONSTRATOR = 0
_POLL_SECONDS = 0.002
_RETRY_SECONDS = 0.5
# A checkpoint is saved at the latest so long after the last one, at the end of a block.
_SAVE_SECONDS = 60.0
# A shorter block is finished before the learner stops; of a longer one nothing is kept.
_BLOCK_SECONDS = 20.0
_OWNER = "demonstrations"
_TENSORS = "algorithm.safetensors"
# From the policy of a checkpoint to the cloned one of the same run.
_BASE_FOLDER = f"../../{Path(CLONED).name}/policy"


class LearningDiverged(RobotRLError):
    """A loss or a weight is no longer a number; the last checkpoint is from before."""


class Learner:
    """Trains in blocks of environment steps, each with its exact number of updates.

    On the stepped clock, block j's weights are published when block j + 1 is complete, and act
    in block j + 2; see `robot_rl.learning.blocks`.

    Args:
        config: The configuration.
        run: The run directory; its replay server must be running.
        client: A client of that server.
        stop: Ends the insertion of the demonstrations.

    Raises:
        Stopped: `stop` was set meanwhile.
    """

    def __init__(
        self, config: DictConfig, run: RunDirectory, client: ReplayClient, stop: StopEvent
    ) -> None:
        """Load the cloned policy, put the demonstrations into the store, and resume if possible."""
        self._config = config
        self._run = run
        self._client = client
        self._blocks = Blocks.of(config)
        # Only one actor can be made to act on the weights of a certain block.
        self._stepped = config.clock == "stepped" and self._blocks.actors == 1
        device = compute_device(config)
        self._cloned = load_cloned(run).to(device)
        self._base_apart = base_apart(run, self._cloned)
        dataset = open_demonstrations(config, run)
        check_fit(self._cloned, dataset.schema)
        insert_demonstrations(client, dataset, self._cloned, stop)
        seed = int(config.seed)
        self._algorithm = make_algorithm(config.algorithm, self._cloned, seed, config.observation)
        self._algorithm.to(device, compiled=bool(config.get("compile", False)))
        schedule = self._algorithm.schedule
        wanted = [n for n in self._algorithm.required_fields if n not in WINDOW_FIELDS]
        if FEATURES in wanted:
            wanted.append(ENCODER_ID)
        options = SamplerOptions(
            dataset.schema.task,
            tuple(wanted),
            batch_size=schedule.batch_size,
            n_step=schedule.n_step,
            discount=schedule.discount,
            demonstration_share=schedule.demonstration_share,
            capacity_rows=config.replay.get("capacity_rows"),
            rewards=config.reward.annotation,
        )
        place = ServerPlace.of(config, run)
        self._sampler = place.sampler(options, np.random.default_rng(seed))
        self.environment_steps = 0
        self.updates = 0
        self._saved_steps = 0
        self._saved_at = time.monotonic()
        if run.has_folder(LAST):
            self._load()
        self._prefetcher = Prefetcher(self._sampler)

    def learn(self, stop: StopEvent, progress: WorkProgress) -> None:
        """Learn until the configured number of environment steps, or until `stop` is set.

        While the replay server is away the learner waits for it.

        Raises:
            Stopped: `stop` was set while the server was away, and a checkpoint was saved; or in a
                long block, of which nothing is kept.
            RobotRLError: The server has refused the weights or the keys; a checkpoint was saved.
            LearningDiverged: A loss or a weight is not finite.
        """
        total = self._blocks.total
        # A resumed run on the stepped clock goes on with the weights whose turn it is.
        if not self._stepped or self._client.get_weights(BEHAVIOUR) is None:
            self._publish(self.environment_steps, stop)
        while self.environment_steps < total:
            target = self._blocks.end_after(self.environment_steps)
            if not self._wait_for(target, stop):
                break
            if self._stepped:
                self._publish(self.environment_steps, stop)
            record = self._train_block(target, stop)
            progress.update(
                target,
                updates_per_second=record["updates_per_second"],
                update_to_data=record["update_to_data"],
                replay_transitions=int(record["replay_transitions"]),
            )
            if not self._stepped:
                self._publish(self.environment_steps, stop)
            if target % self._blocks.every_steps == 0 or target == total:
                self._check_weights()
                self._save_snapshot()
                self._save()
            elif time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self._save_what_is_new()
        self._save_what_is_new()

    def close(self) -> None:
        """End the prefetching thread and release the store."""
        self._prefetcher.close()
        self._sampler.close()

    def _wait_for(self, steps: int, stop: StopEvent) -> bool:
        while self._sampler.transitions_available() < steps:
            if stop.wait(_POLL_SECONDS):
                return False
        return not stop.is_set()

    def _wait_for_rewards(self, target: int, stop: StopEvent) -> None:
        """Wait until somebody has said of some rows what `reward.annotation` asks for."""
        if not self._sampler.demonstration_transitions + self._sampler.online_transitions:
            print(f"learner: {waits_for_annotation(self._config, self._run)}", flush=True)
        while not self._sampler.demonstration_transitions + self._sampler.online_transitions:
            if stop.wait(_RETRY_SECONDS):
                self._save_what_is_new()
                raise Stopped
            self._sampler.refresh(target)

    def _train_block(self, target: int, stop: StopEvent) -> dict[str, float]:
        started = time.monotonic()
        count = self._blocks.updates_at(target) - self.updates
        self._sampler.refresh(target)
        if count:
            self._wait_for_rewards(target, stop)
        metrics: dict[str, list[Tensor]] = {}
        self._prefetcher.start(count)
        for _ in range(count):
            if stop.is_set() and time.monotonic() - started > _BLOCK_SECONDS:
                raise Stopped
            batch = self._prefetcher.next()
            check_features(batch, self._cloned)
            for name, value in self._algorithm.update(batch).items():
                metrics.setdefault(name, []).append(value)
        self.updates += count
        self.environment_steps = target
        record = self._record(count, time.monotonic() - started, metrics)
        self._run.append_jsonl("learner", record)
        return record

    def _record(
        self, count: int, seconds: float, metrics: Mapping[str, list[Tensor]]
    ) -> dict[str, float]:
        schedule = self._algorithm.schedule
        online = self.environment_steps - schedule.warmup_steps
        paid = self.updates - schedule.critic_only_updates
        means = {name: float(torch.stack(values).mean()) for name, values in metrics.items()}
        for name, value in means.items():
            self._check_finite(name, value)
        transitions = self._sampler.online_transitions + self._sampler.demonstration_transitions
        return {
            "environment_steps": self.environment_steps,
            "gradient_updates": self.updates,
            "updates_per_second": count / max(seconds, 1e-9),
            "update_to_data": paid / online if online > 0 else 0.0,
            "replay_transitions": transitions,
            **means,
        }

    def _check_weights(self) -> None:
        """Refuse to save what the last update has broken, and no loss has shown yet."""
        for name, tensor in self._algorithm.state_dict().items():
            if tensor.is_floating_point():
                self._check_finite(name, float(tensor.sum(dtype=torch.float64)))

    def _check_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            raise LearningDiverged(
                f"{name} is no longer a finite number at step {self.environment_steps}",
                got=value,
                hint="a run keeps its algorithm: begin another one with lower"
                " algorithm.settings.critic_rate and actor_rate, and with dataset=PATH for the"
                " same demonstrations",
            )

    def _publish(self, steps: int, stop: StopEvent) -> None:
        """Publish the weights after `steps` environment steps, and say how long they may act."""
        if self.updates == 0:
            noise = self._algorithm.schedule.warmup_noise
            behaviour = self._cloned.exploring("base", "normal", noise)
        else:
            behaviour = self._behaviour(self._algorithm.acting_policy()).exploring("sample")
        until = self._blocks.acts_until(steps, self.updates)
        try:
            while not self._published(behaviour, until):
                if stop.wait(_RETRY_SECONDS):
                    raise Stopped
        except (RobotRLError, Stopped):
            self._save_what_is_new()
            raise

    def _published(self, behaviour: Behaviour, until: int) -> bool:
        """Try to publish; return False where the server is away."""
        try:
            publish(self._client, behaviour, until, self._base_apart)
        except KeysRefused:
            raise
        except ServerUnreachable as problem:
            print(f"learner: waiting with new weights, trying again: {problem}", flush=True)
            return False
        return True

    def _behaviour(self, policy: Policy) -> Behaviour:
        steps = self._cloned.execute_steps if policy.base is not None else 1
        return dataclasses.replace(
            self._cloned, policy=policy, execute_steps=steps, version=self.updates
        )

    def _save_snapshot(self) -> None:
        behaviour = self._behaviour(self._algorithm.deployed_policy())
        with self._run.atomic_folder(self._run.snapshot_name(self.environment_steps)) as folder:
            self._save_policy(folder / "policy", behaviour)

    def _save_policy(self, folder: Path, behaviour: Behaviour) -> None:
        checkpoint.save(folder, behaviour, self._base_apart, _BASE_FOLDER)

    def _save_what_is_new(self) -> None:
        if self._saved_steps != self.environment_steps:
            self._check_weights()
            self._save()

    def _save(self) -> None:
        state = {
            "environment_steps": self.environment_steps,
            "gradient_updates": self.updates,
            "sampler": self._sampler.state_dict(),
        }
        behaviour = self._behaviour(self._algorithm.deployed_policy())
        with self._run.atomic_folder(LAST) as folder:
            save_file(self._algorithm.state_dict(), folder / _TENSORS)
            (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
            self._save_policy(folder / "policy", behaviour)
        self._saved_steps, self._saved_at = self.environment_steps, time.monotonic()

    def _load(self) -> None:
        folder = self._run.complete_folder(LAST)
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        self._algorithm.load_state_dict(load_file(folder / _TENSORS))
        self._sampler.load_state_dict(state["sampler"])
        self.environment_steps = int(state["environment_steps"])
        self.updates = int(state["gradient_updates"])
        self._saved_steps = self.environment_steps


def insert_demonstrations(
    client: ReplayClient, dataset: EpisodeDataset, cloned: Behaviour, stop: StopEvent
) -> None:
    """Put the demonstrations into the store, with the base's proposals along them.

    Only the successful ones, as for cloning: an actor that imitates learns from these rows what to
    do. Rows that an earlier, interrupted insertion has put there are not sent again.

    Args:
        client: A client of the store's server.
        dataset: The demonstrations.
        cloned: The cloned policy: the base whose proposals are wanted.
        stop: Ends it after an episode.

    Raises:
        Stopped: `stop` was set.
    """
    schema = stored_schema(dataset.schema, cloned)
    opened = client.open_session(schema.task, schema, DEMONSTRATOR, 0, owner=_OWNER)
    present = opened.next_sequence
    runner = PolicyRunner(cloned)
    lengths = np.diff(dataset.episode_ends, prepend=0)
    start = 0
    for index in np.flatnonzero(dataset.successes).tolist():
        if stop.is_set():
            raise Stopped
        length = int(lengths[index])
        if start + length > present:
            columns = dataset.episode(index)
            columns |= feature_columns(columns, cloned, dataset.instructions[index])
            columns["base_action"] = runner.label(
                columns, int(dataset.seeds[index]), dataset.instructions[index]
            )
            # Whatever recorded it: what is given as a demonstration counts as one.
            columns["source"] = np.full(length, SOURCE_DEMONSTRATION, np.uint8)
            facts = {
                "task": schema.task,
                "seed": int(dataset.seeds[index]),
                "instruction": dataset.instructions[index],
            }
            rows = [
                {name: column[row] for name, column in columns.items()} for row in range(length)
            ]
            append_rest(client, rows, max(0, present - start), facts)
        start += length
    client.flush()


def learn(config: DictConfig, run: RunDirectory, stop: StopEvent) -> int:
    """Learn in a run directory; returns the environment steps that were learned from."""
    torch.set_num_threads(1)
    place = ServerPlace.of(config, run)
    place.wait(stop)
    total = int(config.environment_steps)
    with place.client() as client, WorkProgress(total) as progress:
        progress.phase("learning")
        learner = Learner(config, run, client, stop)
        try:
            with explained_memory("lower algorithm.schedule.batch_size, or add device=cpu"):
                learner.learn(stop, progress)
        finally:
            learner.close()
        return learner.environment_steps


def run(config: DictConfig) -> None:
    """Learn in the run directory `config.run`.

    Raises:
        KeyboardInterrupt: The learner was asked to stop, and has saved its checkpoint.
    """
    directory = RunDirectory.open(config.run, config.runs_directory)
    yield_to_control_loop(config.clock)
    steps = 0
    with stop_event() as stop, directory.claim("learner"):
        with suppress(Stopped):
            steps = learn(config, directory, stop)
        if stop.is_set():
            raise KeyboardInterrupt
    print(f"learner: learned from {steps} environment steps", flush=True)
