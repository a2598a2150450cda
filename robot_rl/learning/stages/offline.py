"""Stage `Offline`: learn only from recorded episodes, before the learned policy acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from policies.behaviour import Behaviour
from policies.compute import compute_device, explained_memory
from policies.runner import PolicyRunner
from robot_rl.config import Settings
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_INTERVENTION
from robot_rl.learning.algorithms import check_algorithm, make_algorithm
from robot_rl.learning.algorithms.base import Batch
from robot_rl.learning.algorithms.training import finite_means
from robot_rl.learning.demonstrations import fill_from_demonstrations, stored_columns
from robot_rl.learning.recipe import Stage
from robot_rl.learning.symmetry import turning_of
from robot_rl.learning.workbench import Rows, Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SCALARS, SampleSpec
from robot_rl.run import CLONED, DEMONSTRATIONS, OFFLINE

_BLOCK_UPDATES = 100  # updates between two checks for a stop
_SAVE_SECONDS = 60.0


class Offline(Stage):
    """Updates the configured algorithm `algorithm.schedule.offline_updates` times.

    It learns from the demonstrations and from the episodes of other datasets in the run directory.
    Online learning continues from its checkpoint.
    """

    datasets: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.makes = (OFFLINE,) if settings.schedule.offline_updates else ()

    @property
    def needs(self) -> Sequence[str]:
        """Return the episodes and the policy. Raise if the algorithm cannot be created."""
        compute_device(self.settings.device)
        check_algorithm(self.settings)
        return (DEMONSTRATIONS, CLONED, *self.datasets)

    @explained_memory("lower algorithm.schedule.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn, or resume from the last checkpoint. Save even if stopped."""
        with closing(OfflineTraining(bench, self.datasets)) as training:
            if bench.run.has_folder(OFFLINE):
                training.load()
            self.learn(bench, training, self.settings.schedule.offline_updates)

    def learn(
        self, bench: Workbench, training: OfflineTraining, total: int, first: int = 0
    ) -> None:
        """Update up to `total` updates or until the bench's `stop`, then save.

        The `first` updates were made in earlier rounds and are not shown in the progress.
        """
        saved = time.monotonic()
        with WorkProgress(total - first, "offline updates") as progress:
            progress.phase("learning offline")
            progress.update(training.updates - first)
            while training.updates < total and not bench.stop.is_set():
                metrics = training.train(min(_BLOCK_UPDATES, total - training.updates))
                bench.run.append_jsonl("offline", {"offline_updates": training.updates, **metrics})
                progress.update(training.updates - first)
                if time.monotonic() - saved > _SAVE_SECONDS:
                    training.save()
                    saved = time.monotonic()
            training.save()


class OfflineTraining:
    """An algorithm and the recorded rows it learns from. See `Offline`.

    It improves `base`, or by default the bench's cloned policy. `chosen` decides by an episode's
    number whether the episode is used.

    Attributes:
        algorithm: The configured algorithm.
        updates: Number of updates made.
    """

    def __init__(
        self,
        bench: Workbench,
        datasets: Sequence[str] = (),
        base: Behaviour | None = None,
        chosen: Callable[[int], bool] = lambda number: True,
    ) -> None:
        torch.set_num_threads(1)
        settings, shown = bench.settings, bench.demonstrations()
        self._bench, self._seed = bench, settings.seed
        self._cloned = bench.cloned if base is None else base
        annotation = settings.reward["annotation"]
        filled = fill_from_demonstrations(settings.algorithm, annotation, shown)
        self.algorithm = make_algorithm(filled, self._cloned, self._seed)
        self.algorithm.to(bench.device, compiled=settings.compile)
        spec = self.algorithm.required
        others = [EpisodeDataset(bench.run.path / name) for name in datasets]
        # Without other episodes all rows are demonstrations. A fraction of 0 is for online
        # learning.
        share = spec.demonstration_share or 0.5 if others else 1.0
        spec = replace(spec, demonstration_share=share)
        rows = stored_rows(shown, others, self._cloned, spec, chosen)
        self._rows = Rows(Sampler(rows, spec, np.random.default_rng(self._seed)))
        self._turning = turning_of(settings.environment, spec.fields, shown.schema)
        self._steps = sum(dataset.rows_total - len(dataset) for dataset in others)
        self.updates = 0

    def train(self, count: int) -> dict[str, float]:
        """Make `count` updates and return the mean metrics.

        Raises:
            LearningDiverged: A metric is not finite.
        """
        batches: Iterable[Batch] = self._rows.batches(count)
        if self._turning is not None:
            batches = self._turning.each_turned(batches, self._seed, self.updates)
        found = [self.algorithm.update(batch) for batch in batches]
        self.updates += count
        return finite_means(found, f"offline update {self.updates}")

    def save(self) -> None:
        """Write the checkpoint from which training resumes."""
        state = {
            "offline_updates": self.updates,
            "environment_steps": self._steps,
            "sampler": self._rows.state_dict(),
        }
        learned = self._cloned.learned(self.algorithm.policy(), self.updates)
        self._bench.checkpoint(OFFLINE, learned, self.algorithm.state_dict(), state)

    def load(self) -> None:
        """Restore the state written by `save`."""
        tensors, state = self._bench.training_state(OFFLINE)
        self.algorithm.load_state_dict(tensors)
        self._rows.load_state_dict(state["sampler"])
        self.updates = int(state["offline_updates"])

    def close(self) -> None:
        """Close the rows."""
        self._rows.close()


def stored_rows(
    shown: EpisodeDataset,
    others: Iterable[EpisodeDataset],
    cloned: Behaviour,
    spec: SampleSpec,
    chosen: Callable[[int], bool] = lambda number: True,
) -> EpisodeRows:
    """Return rows as a store would have them: successful demonstrations and all other episodes.

    `chosen` decides by an episode's number whether its rows are included.
    """
    names = {*spec.fields, *spec.chunk_fields, *(SCALARS.names or ())}
    runner, parts = PolicyRunner(cloned), []
    for dataset in (shown, *others):
        for index in range(len(dataset)):
            whose = SOURCE_DEMONSTRATION if dataset is shown else dataset.sources[index]
            if whose == SOURCE_DEMONSTRATION and not dataset.successes[index]:
                continue
            columns = stored_columns(dataset, index, runner)
            by_hand = (columns["source"] == SOURCE_INTERVENTION) & (dataset is not shown)
            columns["source"] = np.where(by_hand, SOURCE_INTERVENTION, whose).astype(np.uint8)
            parts.append({name: columns[name] for name in names})
    parts = [part for number, part in enumerate(parts) if chosen(number)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in sorted(names)}
    ends = np.cumsum([len(part["source"]) for part in parts])
    return EpisodeRows(arrays, ends, as_recorded=True)
