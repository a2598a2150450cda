"""The learner process: runs the stages of the recipe that learn while actors act."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from policies.behaviour import Behaviour
from policies.compute import compute_device, explained_memory
from robot_rl.data.policy_columns import check_features, check_fit
from robot_rl.errors import in_shell
from robot_rl.learning.algorithms import check_algorithm, make_algorithm
from robot_rl.learning.algorithms.base import Correction, check_finite
from robot_rl.learning.algorithms.encoding import trains_on
from robot_rl.learning.algorithms.training import finite_means
from robot_rl.learning.blocks import Blocks, offline_updates, unevaluated
from robot_rl.learning.demonstrations import (
    demonstrated,
    first_episodes,
    with_what_episodes_tell,
)
from robot_rl.learning.hindsight import Hindsight
from robot_rl.learning.recipe import Recipe, Stage
from robot_rl.learning.symmetry import turning_of
from robot_rl.learning.trial import Trial
from robot_rl.learning.weights import BEHAVIOUR
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.machine import yield_to_control_loop
from robot_rl.processes.progress import WorkProgress
from robot_rl.processes.signals import Stopped, stop_event
from robot_rl.processes.waiting import QuietWait
from robot_rl.replay import ReplayError
from robot_rl.replay.windows import LABELS
from robot_rl.run import (
    CLONED,
    DEMONSTRATIONS,
    EXPLORATION,
    LAST,
    OFFLINE,
    UNTRAINED,
    RunDirectory,
    learned_steps,
)
from robot_rl.wire import ServerUnreachable, WireError


def run(config: DictConfig) -> None:
    """Learn in the run directory `config.run`; `KeyboardInterrupt` after a stop, with all saved."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    yield_to_control_loop(config.clock)
    torch.set_num_threads(1)
    recipe = Recipe(config)
    with stop_event() as stop, directory.claim("learner", 1.0):
        for name in recipe.left_with_actors(directory):
            with suppress(Stopped):
                recipe.perform(name, directory, stop)
            if stop.is_set():
                raise KeyboardInterrupt
    print(f"learner: learned from {learned_steps(directory)} environment steps", flush=True)


_POLL_SECONDS = 0.002
_RETRY_SECONDS = 0.5
# A checkpoint is saved at the latest so long after the last one, at the end of a block.
_SAVE_SECONDS = 60.0
# A shorter block is finished before the learner stops; of a longer one nothing is kept.
_BLOCK_SECONDS = 20.0


class Online(Stage):
    """Improves the cloned policy by the configured algorithm, while actors act with it."""

    needs = (DEMONSTRATIONS, CLONED)
    makes = (LAST,)
    with_actors = True
    records = "learner"

    def needed(self, config: DictConfig) -> tuple[str, ...]:
        """Without demonstrations the exploration instead; and what was learned offline."""
        needs = self.needs if demonstrated(config) else (EXPLORATION, UNTRAINED)
        return (*needs, OFFLINE) if offline_updates(config) else needs

    def check(self, config: DictConfig) -> None:
        """Check steps, updates, the device and the algorithm's settings."""
        Blocks.of(config).check_learning()
        compute_device(config)
        trains_on(config.observation)
        check_algorithm(config)

    def done(self, config: DictConfig, run: RunDirectory, *, recorded: bool) -> bool:
        """As soon as all steps are learned from and evaluated; a run may be asked for more."""
        return learned_steps(run) >= int(config.environment_steps) and not unevaluated(config, run)

    @explained_memory("lower algorithm.schedule.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn until the configured number of environment steps, or until the bench's `stop`."""
        with WorkProgress(int(bench.config.environment_steps)) as progress:
            progress.phase("learning")
            Learner(bench).learn(progress)


class Learner:
    """Trains in blocks of environment steps, each with its exact number of updates.

    On the stepped clock, block j's weights are published when block j + 1 is complete, and act in
    block j + 2; see `robot_rl.learning.blocks`. The run's replay server must be running.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench, config = bench, bench.config
        self._blocks = Blocks.of(config)
        # Only one actor can be made to act on the weights of a certain block.
        self._stepped = config.clock == "stepped" and self._blocks.actors == 1
        self._cloned = bench.cloned
        first = first_episodes(config, bench.run)
        check_fit(self._cloned, first.schema)
        algorithm = with_what_episodes_tell(config, first)
        self._seed = int(config.seed)
        self._algorithm = make_algorithm(algorithm, self._cloned, self._seed, config.observation)
        self._algorithm.to(bench.device, compiled=bool(config.get("compile", False)))
        self.environment_steps = self.updates = 0
        bench.store_first_episodes(self._first())
        self._rows = bench.sampler(self._algorithm.required)
        self._trial = Trial(self._rows) if isinstance(self._algorithm, Correction) else None
        share = self._algorithm.schedule.hindsight_share
        self._hindsight = Hindsight.of(bench, self._algorithm.required, share, self._rows)
        self._turning = turning_of(config, self._algorithm.required.fields, first.schema)
        settings = algorithm.get("settings", {})
        bounds = settings.get("value_range")
        self._taken = {
            "discount": self._algorithm.schedule.gamma,
            "value_range": None if bounds is None else list(bounds),
            "hindsight_share": share if self._hindsight is not None else 0.0,
            "imitation_updates": settings.get("imitation_updates", 0),
            "symmetric_views": 1 if self._turning is None else self._turning.views,
        }
        told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self._taken.items())
        print(f"learner: {told}", flush=True)
        # A learner that was killed learns from some blocks again, but has noted them already.
        self._noted_steps = max((note["environment_steps"] for note in bench.notes()), default=0)
        self._saved_steps = 0
        # The first block of each start is saved at once: a learner that is killed again and again
        # gets on nevertheless.
        self._saved_at = -math.inf
        self._wait = QuietWait(lambda text: bench.say(f"learner: {text}"))
        self._taught = offline_updates(config) > 0
        if bench.run.has_folder(LAST):
            self._load()
        elif self._taught:
            self._algorithm.load_state_dict(bench.training_state(OFFLINE)[0])

    def learn(self, progress: WorkProgress) -> None:
        """Learn until the configured number of environment steps, or until `stop` is set.

        While the replay server is away the learner waits for it. Before a `Stopped`, and before an
        error of that server, a checkpoint is saved: but not amid the updates of a block, of which
        nothing is kept. `LearningDiverged` where a loss is not finite.
        """
        total = self._blocks.total
        if waits_for := _waits_for_annotation(self._bench.config, self._bench.run):
            self._bench.say(f"learner: {waits_for}")
        # A resumed run on the stepped clock goes on with the weights whose turn it is.
        if not self._stepped or self._bench.client.get_weights(BEHAVIOUR) is None:
            self._publish(self.environment_steps)
        while self.environment_steps < total:
            target = self._blocks.end_after(self.environment_steps)
            with self._saving():
                there = self._wait_for(target)
            if not there:
                break
            if self._stepped:
                self._publish(self.environment_steps)
            progress.update(target, self._train_block(target))
            if not self._stepped:
                self._publish(self.environment_steps)
            if target % self._blocks.every_steps == 0 or target == total:
                self._check_weights()
                snapshot = self._bench.run.snapshot_name(self.environment_steps)
                self._bench.checkpoint(snapshot, self._deployed())
                self._save()
            elif time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self._save_what_is_new()
        self._save_what_is_new()

    def _wait_for(self, steps: int) -> bool:
        while (stored := self._rows.steps()) < steps:
            self._wait.goes_on(
                f"the steps of an actor, {stored} of {steps}: if they stand still, look at its"
                " process (robot-rl actor), and whether its robot waits for a person"
            )
            if self._bench.stop.wait(_POLL_SECONDS):
                return False
        self._wait.ends()
        return not self._bench.stop.is_set()

    def _wait_for_rewards(self, target: int) -> None:
        """Wait until somebody has said of some rows what `reward.annotation` asks for."""
        while not self._rows.transitions:
            if self._bench.stop.wait(_RETRY_SECONDS):
                raise Stopped
            self._rows.show(target)

    def _train_block(self, target: int) -> dict[str, Any]:
        started = time.monotonic()
        count = self._blocks.updates_at(target) - self.updates
        with self._saving():
            self._rows.show(target)
            if count:
                self._wait_for_rewards(target)
        if count and not self._blocks.updates_at(self.environment_steps):
            self._bench.say(f"learner: the warm-up is over; {count:,} updates come at once now")
        batches = self._rows.batches(count)
        if self._hindsight is not None:
            self._hindsight.count()
            batches = map(self._hindsight.mixed, batches)
        metrics: list[dict[str, Tensor]] = []
        for number, batch in enumerate(batches, self.updates):
            if self._bench.stop.is_set() and time.monotonic() - started > _BLOCK_SECONDS:
                raise Stopped
            check_features(batch, self._cloned)
            if self._turning is not None:
                # Of its own for each update, so that a resumed run draws the same.
                rng = np.random.default_rng((self._seed, number))
                batch = self._turning.turned(batch, rng)
            metrics.append(self._algorithm.update(batch))
        self.updates += count
        self.environment_steps = target
        if self._trial is not None:
            self._judge(self._trial)
        record = self._record(count, time.monotonic() - started, metrics)
        if target > self._noted_steps:
            self._bench.note(record)
        return record

    def _judge(self, trial: Trial) -> None:
        """Say whether what was learned is deployed, where that has changed; undo a loss."""
        before, learned = trial.proved, f"after {self.environment_steps} steps what was learned"
        trial.count()
        if trial.proved != before:
            held = "is held back: the policy it began with acts"
            now = "is deployed now" if trial.proved else held
            self._bench.say(f"learner: {learned} {now} ({trial})")
        if trial.lost and isinstance(self._algorithm, Correction):
            self._bench.say(
                f"learner: {learned} does worse than the policy it began with ({trial}); its"
                " corrections begin again at 0"
            )
            self._algorithm.begin_again()
            trial.begin_again(self.updates)

    def _record(
        self, count: int, seconds: float, metrics: list[dict[str, Tensor]]
    ) -> dict[str, Any]:
        online = self.environment_steps - self._blocks.warmup_steps
        paid = self.updates - self._blocks.critic_only_updates
        return {
            "environment_steps": self.environment_steps,
            "gradient_updates": self.updates,
            "updates_per_second": count / max(seconds, 1e-9),
            "update_to_data": paid / online if online > 0 else None,  # it warms up
            "replay_transitions": self._rows.transitions,
            **(self._trial.metrics if self._trial is not None else {}),
            **finite_means(metrics, f"step {self.environment_steps}"),
        }

    def _check_weights(self) -> None:
        """Refuse to save what the last update has broken, and no loss has shown yet."""
        for name, tensor in self._algorithm.state_dict().items():
            check_finite(name, tensor, f"step {self.environment_steps}")

    def _publish(self, steps: int) -> None:
        """Publish the weights after `steps` environment steps, and say how long they may act."""
        behaviour, until = self._behaviour(), self._blocks.acts_until(steps, self.updates)
        with self._saving():
            self._bench.publish(behaviour, until)

    def _behaviour(self) -> Behaviour:
        """Who acts now, and how it explores."""
        share = self._trial.share if self._trial is not None else 0.0
        noiseless = self._trial.noiseless_share if self._trial is not None else 0.0
        if not self.updates and not self._taught:
            noise = self._algorithm.schedule.warmup_noise
            if not demonstrated(self._bench.config):
                return self._cloned  # it acts at random
            if noise is not None:
                return self._first().exploring("base", "normal", noise, share)
        return self._acting().exploring("sample", base_share=share, mean_share=noiseless)

    def _acting(self) -> Behaviour:
        return self._cloned.learned(self._algorithm.acting_policy(), self.updates)

    def _first(self) -> Behaviour:
        """The clone; as a part of what learns, where it is one: rows then have all columns."""
        acting = self._acting()
        based = demonstrated(self._bench.config) and acting.policy.base is not None
        return acting if based else self._cloned

    def _deployed(self) -> Behaviour:
        """What was learned; its corrections act only if they are held for better than the clone."""
        learned = self._cloned.learned(self._algorithm.policy(), self.updates)
        if self._trial is not None:
            learned.policy.corrects = self._trial.proved
        return learned

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Save what is new before a stop, or an error of the replay server, ends the learner."""
        try:
            yield
        except (ReplayError, ServerUnreachable, WireError, Stopped):
            self._save_what_is_new()
            raise

    def _save_what_is_new(self) -> None:
        if self._saved_steps != self.environment_steps:
            self._check_weights()
            self._save()

    def _save(self) -> None:
        state = {
            "environment_steps": self.environment_steps,
            "gradient_updates": self.updates,
            "taken": self._taken,
            "sampler": self._rows.state_dict(),
            "trial": None if self._trial is None else self._trial.state_dict(),
            "hindsight": None if self._hindsight is None else self._hindsight.state_dict(),
        }
        self._bench.checkpoint(LAST, self._deployed(), self._algorithm.state_dict(), state)
        self._saved_steps, self._saved_at = self.environment_steps, time.monotonic()

    def _load(self) -> None:
        tensors, state = self._bench.training_state(LAST)
        self._algorithm.load_state_dict(tensors)
        self._rows.load_state_dict(state["sampler"])
        if self._trial is not None:
            self._trial.load_state_dict(state["trial"])
        self.environment_steps = int(state["environment_steps"])
        if self._hindsight is not None:
            self._hindsight.load_state_dict(state["hindsight"])
        self.updates = int(state["gradient_updates"])
        self._saved_steps = self.environment_steps


def _waits_for_annotation(config: DictConfig, run: RunDirectory) -> str | None:
    """Say what learning waits for where annotations are its only reward, None where not."""
    name = config.reward.annotation
    if name in (None, LABELS):
        return None
    return (
        f"learns only from steps with the annotation {name!r}, and waits until there are some:"
        f" {in_shell('robot-rl', 'annotate', run.path, 'ADDRESS')}"
    )
