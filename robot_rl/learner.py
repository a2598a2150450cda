"""The learner process. It runs the recipe's online learning stages while actors collect data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from omegaconf import DictConfig
from torch import Tensor

from policies.behaviour import Behaviour
from policies.compute import compute_device, explained_memory
from robot_rl.config import Settings
from robot_rl.data.policy_columns import check_features, check_fit
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY
from robot_rl.errors import in_shell
from robot_rl.learning.algorithms import check_algorithm, make_algorithm
from robot_rl.learning.algorithms.base import Batch, Correction, check_finite
from robot_rl.learning.algorithms.training import finite_means
from robot_rl.learning.blocks import Blocks, unevaluated
from robot_rl.learning.demonstrations import (
    fill_from_demonstrations,
    first_episodes,
    insert_episodes,
)
from robot_rl.learning.online_comparison import OnlineComparison
from robot_rl.learning.recipe import Recipe, Stage
from robot_rl.learning.symmetry import turning_of
from robot_rl.learning.weights import BEHAVIOUR
from robot_rl.learning.workbench import Workbench
from robot_rl.plugins import plugins, resolve
from robot_rl.processes.machine import yield_to_control_loop
from robot_rl.processes.progress_display import WorkProgress
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

RECORDS = "learner"  # the run's learner log, one record per block


def run(config: DictConfig) -> None:
    """Learn in the run directory `config.run`. On a stop, save and raise `KeyboardInterrupt`."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    yield_to_control_loop(config.clock)
    torch.set_num_threads(1)
    recipe = Recipe(Settings.of(config))
    with stop_event() as stop, directory.claim("learner", 1.0):
        for name in recipe.online(directory):
            with suppress(Stopped):
                recipe.perform(name, directory, stop)
            if stop.is_set():
                raise KeyboardInterrupt
    print(f"learner: learned from {learned_steps(directory)} environment steps", flush=True)


_POLL_SECONDS = 0.002
_RETRY_SECONDS = 0.5
# Save a checkpoint at the end of a block if the last one is older than this.
_SAVE_SECONDS = 60.0
# On a stop, finish the current block if it has run for less than this; otherwise discard it.
_BLOCK_SECONDS = 20.0


class Online(Stage):
    """Improve the cloned policy with the configured algorithm while actors run it."""

    makes = (LAST,)

    @property
    def needs(self) -> Sequence[str]:
        """Return the episodes and the policy. Raise if steps, device or algorithm do not fit.

        Without demonstrations the episodes are the exploration episodes. With offline updates their
        checkpoint is needed too.
        """
        settings = self.settings
        Blocks.of(settings).check_learning()
        compute_device(settings.device)
        check_algorithm(settings)
        first = (DEMONSTRATIONS, CLONED) if settings.demonstrated else (EXPLORATION, UNTRAINED)
        return (*first, OFFLINE) if settings.schedule.offline_updates else first

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether all steps are learned from and all evaluations exist."""
        settings = self.settings
        return learned_steps(run) >= settings.environment_steps and not unevaluated(settings, run)

    @explained_memory("lower algorithm.schedule.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn until the configured number of environment steps or until the bench's `stop`."""
        with WorkProgress(self.settings.environment_steps) as progress:
            progress.phase("learning")
            Learner(bench).learn(progress)


class BatchMap(Protocol):
    """Modifies each batch before the algorithm sees it. Plug-ins provide these.

    Attributes:
        facts: Settings to log in the run's records.
    """

    facts: Mapping[str, float]

    def count(self) -> None:
        """Process the episodes that are currently visible in the rows."""

    def mixed(self, batch: Batch) -> Batch:
        """Return the batch to learn from. The input batch is not modified."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`. The same rows must be visible as when it was made."""


class Learner:
    """Trains in blocks of environment steps with an exact number of updates per block.

    On the stepped clock, the weights of block j are published when block j + 1 is complete and act
    in block j + 2 (see `robot_rl.learning.blocks`). The run's replay server must be running.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench, settings = bench, bench.settings
        self._blocks = Blocks.of(settings)
        # With several actors, the weights cannot be tied to a particular block.
        self._stepped = settings.clock == "stepped" and self._blocks.actors == 1
        self._cloned, self._demonstrated = bench.cloned, settings.demonstrated
        first = first_episodes(settings, bench.run)
        check_fit(self._cloned, first.schema)
        self._annotation = settings.reward["annotation"]
        algorithm = fill_from_demonstrations(settings.algorithm, self._annotation, first)
        self._seed = settings.seed
        self._algorithm = make_algorithm(algorithm, self._cloned, self._seed)
        self._algorithm.to(bench.device, compiled=settings.compile)
        self.environment_steps = self.updates = 0
        source = SOURCE_DEMONSTRATION if self._demonstrated else SOURCE_POLICY
        insert_episodes(bench.client, first, self._first(), bench.stop, source)
        self._rows = bench.sampler(self._algorithm.required)
        corrects = isinstance(self._algorithm, Correction)
        self._comparison = OnlineComparison(self._rows) if corrects else None
        made = {
            name: resolve(function)(bench, self._algorithm, self._rows)
            for plugin in plugins()
            for name, function in plugin.batch_maps.items()
        }
        self._maps: dict[str, BatchMap] = {n: each for n, each in made.items() if each is not None}
        self._turning = turning_of(
            settings.environment, self._algorithm.required.fields, first.schema
        )
        options = algorithm.get("settings", {})
        self._resolved = {
            "discount": self._algorithm.schedule.gamma,
            "value_range": options.get("value_range"),
            "imitation_updates": options.get("imitation_updates", 0),
            "symmetric_views": 1 if self._turning is None else self._turning.views,
        }
        for each in self._maps.values():
            self._resolved |= each.facts
        words = (f"{name.replace('_', ' ')} {value}" for name, value in self._resolved.items())
        bench.say(f"learner: {', '.join(words)}")
        # After a crash the learner repeats some blocks that are already in the log.
        noted = (record["environment_steps"] for record in bench.run.read_jsonl(RECORDS))
        self._noted_steps = max(noted, default=0)
        self._saved_steps = 0
        # Save the first block after each start right away, so a learner that crashes repeatedly
        # still makes progress.
        self._saved_at = -math.inf
        self._wait = QuietWait(lambda text: bench.say(f"learner: {text}"))
        self._taught = settings.schedule.offline_updates > 0
        if bench.run.has_folder(LAST):
            self._load()
        elif self._taught:
            self._algorithm.load_state_dict(bench.training_state(OFFLINE)[0])

    def learn(self, progress: WorkProgress) -> None:
        """Learn until the configured number of environment steps, or until `stop` is set.

        Wait while the replay server is down. Save a checkpoint before raising `Stopped` or a replay
        server error. A block interrupted during its updates is discarded. Raise `LearningDiverged`
        if a loss is not finite.
        """
        total = self._blocks.total
        if self._annotation not in (None, LABELS):
            annotate = in_shell("robot-rl", "annotate", self._bench.run.path, "ADDRESS")
            self._bench.say(
                f"learner: learns only from steps with the annotation {self._annotation!r}, and"
                f" waits until there are some: {annotate}"
            )
        # A resumed run on the stepped clock keeps the weights that are due now.
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

    def _train_block(self, target: int) -> dict[str, Any]:
        started = time.monotonic()
        count = self._blocks.updates_at(target) - self.updates
        with self._saving():
            self._rows.show(target)
            while count and not self._rows.transitions:
                # No row has the annotation named by `reward.annotation` yet.
                if self._bench.stop.wait(_RETRY_SECONDS):
                    raise Stopped
                self._rows.show(target)
        if count and not self._blocks.updates_at(self.environment_steps):
            self._bench.say(f"learner: the warm-up is over; {count:,} updates come at once now")
        batches = self._rows.batches(count)
        for each in self._maps.values():
            each.count()
            batches = map(each.mixed, batches)
        if self._turning is not None:
            batches = self._turning.each_turned(batches, self._seed, self.updates)
        metrics: list[dict[str, Tensor]] = []
        for batch in batches:
            if self._bench.stop.is_set() and time.monotonic() - started > _BLOCK_SECONDS:
                raise Stopped
            check_features(batch, self._cloned)
            metrics.append(self._algorithm.update(batch))
        self.updates += count
        self.environment_steps = target
        if self._comparison is not None:
            self._judge(self._comparison)
        record = self._record(count, time.monotonic() - started, metrics)
        if target > self._noted_steps:
            self._bench.run.append_jsonl(RECORDS, record)
        return record

    def _judge(self, comparison: OnlineComparison) -> None:
        """Compare with the clone, log changes, and reset the corrections if the policy is worse."""
        learned = f"after {self.environment_steps} steps what was learned"
        before = comparison.proved
        comparison.count()
        if comparison.proved != before:
            held = "is held back: the policy it began with acts"
            now = "is deployed now" if comparison.proved else held
            self._bench.say(f"learner: {learned} {now} ({comparison})")
        if comparison.lost and isinstance(self._algorithm, Correction):
            self._bench.say(
                f"learner: {learned} does worse than the policy it began with ({comparison}); its"
                " corrections start again at 0"
            )
            self._algorithm.reset_actor()
            comparison.restart(self.updates)

    def _record(
        self, count: int, seconds: float, metrics: list[dict[str, Tensor]]
    ) -> dict[str, Any]:
        online = self.environment_steps - self._blocks.warmup_steps
        paid = self.updates - self._blocks.critic_only_updates
        return {
            "environment_steps": self.environment_steps,
            "gradient_updates": self.updates,
            "updates_per_second": count / max(seconds, 1e-9),
            "update_to_data": paid / online if online > 0 else None,  # None during warm-up
            "replay_transitions": self._rows.transitions,
            **(self._comparison.metrics if self._comparison is not None else {}),
            **finite_means(metrics, f"step {self.environment_steps}"),
        }

    def _check_weights(self) -> None:
        """Check the weights before saving, since the last update may have broken them."""
        for name, tensor in self._algorithm.state_dict().items():
            check_finite(name, tensor, f"step {self.environment_steps}")

    def _publish(self, steps: int) -> None:
        """Publish the weights after `steps` environment steps and the step until which they act."""
        behaviour, until = self._behaviour(), self._blocks.acts_until(steps, self.updates)
        with self._saving():
            self._bench.publish(behaviour, until)

    def _behaviour(self) -> Behaviour:
        """Return the policy that acts now, with its exploration."""
        share = noiseless = 0.0
        if self._comparison is not None:
            share, noiseless = self._comparison.share, self._comparison.noiseless_share
        if not self.updates and not self._taught:
            noise = self._algorithm.schedule.warmup_noise
            if not self._demonstrated:
                return self._cloned  # acts at random
            if noise is not None:
                return self._first().exploring("base", "normal", noise, share)
        return self._acting().exploring("sample", base_share=share, mean_share=noiseless)

    def _acting(self) -> Behaviour:
        return self._cloned.learned(self._algorithm.acting_policy(), self.updates)

    def _first(self) -> Behaviour:
        """Return the clone, or the learning policy if it contains the clone (for all columns)."""
        acting = self._acting()
        based = self._demonstrated and acting.policy.base is not None
        return acting if based else self._cloned

    def _deployed(self) -> Behaviour:
        """Return the learned policy, disabled unless its episodes were better than the clone's."""
        learned = self._cloned.learned(self._algorithm.policy(), self.updates)
        if self._comparison is not None:
            learned.hold_back(not self._comparison.proved)
        return learned

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Save unsaved progress when a stop or a replay server error ends the learner."""
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
            "taken": self._resolved,
            "sampler": self._rows.state_dict(),
            "comparison": None if self._comparison is None else self._comparison.state_dict(),
            "batch_maps": {name: each.state_dict() for name, each in self._maps.items()},
        }
        self._bench.checkpoint(LAST, self._deployed(), self._algorithm.state_dict(), state)
        self._saved_steps, self._saved_at = self.environment_steps, time.monotonic()

    def _load(self) -> None:
        tensors, state = self._bench.training_state(LAST)
        self._algorithm.load_state_dict(tensors)
        self._rows.load_state_dict(state["sampler"])
        if self._comparison is not None:
            self._comparison.load_state_dict(state["comparison"])
        self.environment_steps = int(state["environment_steps"])
        for name, each in self._maps.items():
            each.load_state_dict(state["batch_maps"][name])
        self.updates = int(state["gradient_updates"])
        self._saved_steps = self.environment_steps
