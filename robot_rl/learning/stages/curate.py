"""Which rows of the demonstrations are not worth imitating: those in which progress falls.

After GR-RL (Li et al. 2025, "GR-RL: Going Dexterous and Precise for Long-Horizon Robotic
Manipulation", arXiv 2512.01801): with a sparse reward the value is the progress of the task, and
rows in which it falls are left out. Where a retry begins, the attempt might as well have ended: the
critics can learn from such failures too. Ours: they judge states alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig
from torch import Tensor

from policies import registry
from policies.columns import FEATURES
from policies.compute import compute_device, explained_memory
from policies.critics import CriticEnsemble
from policies.encoders import Normalizer, StateEncoder
from policies.networks import move_towards
from policies.vision import observed_keys
from robot_rl.config import ConfigError, check_least
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.env.factory import observed_widths
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.learning.algorithms.base import Batch, check_finite, check_settings
from robot_rl.learning.algorithms.training import Training, adam, step
from robot_rl.learning.demonstrations import demonstrated
from robot_rl.learning.recipe import Stage
from robot_rl.learning.symmetry import turning_of
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress import WorkProgress
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import NEXT, SampleSpec
from robot_rl.run import DEMONSTRATIONS, VISION

CURATED = "curation.jsonl"

Columns = dict[str, npt.NDArray[Any]]
Segments = list[tuple[int, int]]  # of rows: the first, and the one behind the last

_HEADS, _HIDDEN, _RATE, _TARGET_RATE, _BATCH_SIZE = 10, (64, 64), 1e-3, 0.02, 256
_STEPS = 8  # of a return before it bootstraps
_EXPECTILE = 0.8  # of returns: what a state is worth to who goes on well from it
_TAIL = 0.05  # share of readings at each end that may lie outside [-1, 1]
_SMOOTHED = 5  # rows over which progress is averaged


@dataclass(frozen=True)
class Curation:
    """Settings of the critics, and of what counts as a fall."""

    updates: int  # of the critics; 0: all rows are imitated
    fall: float  # of the progress, in [0, 1], beyond which rows are left out
    window: int  # rows within which it falls so far
    retries: bool  # whether failures are made of retries, and the critics learn once more

    def __post_init__(self) -> None:
        check_settings(self, fall=(0.01, 1), window=1)


class Attempt(NamedTuple):
    """What was observed in the T + 1 rows of an episode, up to where it succeeded or failed."""

    columns: Columns
    success: bool


class ProgressCritics(Training):
    """Values V(s) of states, as distributions: implicit values of n-step returns, in [0, 1].

    As in implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169, eq. 5), without Q.
    """

    def __init__(self, encoder: StateEncoder, seed: int) -> None:
        super().__init__(seed)
        self.encoder = encoder
        width = encoder.features
        self.critics = CriticEnsemble(width, _HIDDEN, _HEADS, self._generator, "hl_gauss")
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self._optimizer = adam((self.critics.parameters(), _RATE))
        self.beside = [self.critics, self.targets, self.encoder]

    def update(self, batch: Batch) -> Tensor:
        """Learn from a batch, and give the loss."""
        self.updates += 1
        told = self.critics.value
        reward, discount = self.tensor(batch["reward"]), self.tensor(batch["discount"])
        outputs = self.critics.outputs(self.encoder(batch))
        with torch.no_grad():
            following = {name: batch[NEXT + name] for name in self.encoder.observed}
            target = reward + discount * self.targets(self.encoder(following))
            worse = target < told.mean(outputs)
            weight = torch.where(worse, 1 - _EXPECTILE, _EXPECTILE)
        loss = (weight * told.loss(outputs, told.encoded(target))).mean(1).sum()
        step(self._optimizer, loss)
        move_towards(self.targets, self.critics, _TARGET_RATE)
        return loss.detach()

    @torch.no_grad()
    def progress(self, observed: Columns) -> npt.NDArray[np.float32]:
        """The value (T,) of each row of an episode that has an action."""
        values = self.critics(self.encoder(observed)).mean(0)
        progress: npt.NDArray[np.float32] = values[:-1].cpu().numpy()
        return progress


def falling_segments(progress: npt.NDArray[np.float32], fall: float, window: int) -> Segments:
    """Rows that take progress (T,), averaged, from a top to where it is lower by more than `fall`.

    A segment goes on until that is made up for, or `window` rows after the top.
    """
    padded = np.pad(progress, _SMOOTHED // 2, mode="edge")
    smooth = np.convolve(padded, np.full(_SMOOTHED, 1 / _SMOOTHED), "valid")
    falls = np.zeros(len(smooth), bool)
    for end in range(1, len(smooth)):
        before = smooth[max(0, end - window) : end][::-1]
        if before.max() - smooth[end] > fall:
            falls[end - 1 - int(before.argmax()) : end] = True
    edges = np.flatnonzero(np.diff(falls, prepend=False, append=False))
    return [(int(top), int(end)) for top, end in edges.reshape(-1, 2)]


class Curate(Stage):
    """Finds the rows of successful demonstrations that `clone` leaves out; see `left_out`.

    Failed attempts that were kept, beside the demonstrations or among them, are learned from.
    """

    needs = (DEMONSTRATIONS,)
    makes = (CURATED,)
    records = "curation"

    def wanted(self, config: DictConfig) -> bool:
        """Only where there are updates of the critics."""
        check_least(config, {"curation.updates": 0})
        return demonstrated(config) and bool(config.curation.updates)

    def needed(self, config: DictConfig) -> tuple[str, ...]:
        """With cameras their encoder too."""
        return self.needs if config.observation.vision is None else (*self.needs, VISION)

    def check(self, config: DictConfig) -> None:
        """Check the settings, and that there is something that critics can look at."""
        registry.make(config.curation, Curation)
        compute_device(config)
        if config.policy.get("cameras"):
            raise ConfigError(
                "critics of the demonstrations have no image encoder of their own",
                got=f"curation.updates={config.curation.updates} policy={config.choices.policy}",
                hint="leave curation out, or choose another policy",
            )

    @explained_memory("add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn the values, perhaps again with failures made of retries, and write what falls."""
        torch.set_num_threads(1)
        options = registry.make(bench.config.curation, Curation)
        dataset, attempts, keys = _recorded(bench)
        shown = [attempt for attempt in attempts if attempt.success]
        segments: list[Segments] = []
        for _ in range(1 + options.retries):
            made = [  # failures, had an attempt ended where each fall does
                Attempt({name: column[: end + 1] for name, column in each.columns.items()}, False)
                for each, falls in zip(shown, segments, strict=False)
                for _, end in falls
            ]
            critics = _fitted(bench, [*attempts, *made], keys, options.updates)
            progress = [critics.progress(attempt.columns) for attempt in shown]
            segments = [falling_segments(p, options.fall, options.window) for p in progress]
        (bench.run.path / CURATED).unlink(missing_ok=True)  # what was found before
        numbers = np.flatnonzero(dataset.successes).tolist()
        for number, values, falls in zip(numbers, progress, segments, strict=True):
            told = values.astype(float).round(3).tolist()
            bench.note({"episode": number, "rows": len(told), "left_out": falls, "progress": told})
        out = sum(end - top for falls in segments for top, end in falls)
        total = sum(map(len, progress))
        bench.say(
            f"left out {out:,} of {total:,} rows of {len(shown)} demonstrations, in"
            f" {sum(map(bool, segments))} of which progress fell: see {bench.run.path / CURATED}"
        )


def left_out(bench: Workbench, dataset: EpisodeDataset) -> npt.NDArray[np.bool_]:
    """The rows (rows_total,) of a dataset that `Curate` has found; none of other datasets.

    Raises:
        RobotRLError: It has looked at other demonstrations.
    """
    out = np.zeros(dataset.rows_total, bool)
    wanted = Curate().wanted(bench.config) and dataset.path == bench.demonstrations().path
    found = bench.run.read_jsonl(Curate.records) if wanted else []
    starts = np.append(0, dataset.episode_ends)
    shown = [(n, int(starts[n + 1] - starts[n]) - 1) for n in np.flatnonzero(dataset.successes)]
    if wanted and [(each["episode"], each["rows"]) for each in found] != shown:
        raise RobotRLError(
            f"{bench.run.path / CURATED} is of other demonstrations",
            got=f"{len(found)} episodes",
            expected=f"the {len(shown)} successful ones of {dataset.path}",
            hint=f"look at these first: {in_shell('robot-rl', 'pretrain', bench.run.path)}",
        )
    for each in found:
        for top, end in each["left_out"]:
            out[starts[each["episode"]] + top : starts[each["episode"]] + end] = True
    return out


def _recorded(bench: Workbench) -> tuple[EpisodeDataset, list[Attempt], dict[str, int]]:
    """The demonstrations, all attempts to learn from, and what the critics see of them."""
    dataset = bench.demonstrations()
    vision = bench.policy(VISION).vision if bench.config.observation.vision is not None else None
    states = observed_widths(bench.config, dataset.schema)
    kept = dataset.path.with_name(bench.run.failures.name)
    datasets = [dataset, *([EpisodeDataset(kept).expect(dataset.schema)] if kept.exists() else ())]
    attempts: list[Attempt] = []
    for each in datasets:
        for index, success in enumerate((each.successes & (each is dataset)).tolist()):
            columns = each.episode(index)
            observed = {name: columns[name] for name in states}
            if vision is not None:
                observed[FEATURES] = vision.encode(columns)
            attempts.append(Attempt(observed, success))
    return dataset, attempts, observed_keys(states, vision)


def _fitted(
    bench: Workbench, attempts: Sequence[Attempt], keys: dict[str, int], updates: int
) -> ProgressCritics:
    """Critics that have learned from attempts: 1 for the last step of a success, 0 for others."""
    joined = {n: np.concatenate([a.columns[n] for a in attempts]) for n in keys}
    ends = np.cumsum([len(a.columns[next(iter(keys))]) for a in attempts])
    succeeded = np.array([attempt.success for attempt in attempts])
    ended = np.isin(np.arange(ends[-1]), ends - 2)  # last rows with an action
    won = ended & np.repeat(succeeded, np.diff(ends, prepend=0))
    rows = EpisodeRows({**joined, "reward": won.astype(np.float32), "terminated": ended}, ends)
    spec = SampleSpec(
        tuple(keys),
        _BATCH_SIZE,
        n_step=_STEPS,
        discount=1 - 1 / float(np.median(np.diff(ends, prepend=0)[succeeded])),
        demonstration_share=1.0,
    )
    seed = int(bench.config.seed)
    rng = np.random.default_rng(seed)
    turning = turning_of(bench.config, spec.fields, bench.demonstrations().schema)
    normalizer = Normalizer(keys, identity={FEATURES} & set(keys), tail=_TAIL)
    encoder = StateEncoder(keys, normalizer).fit({n: c[rows.indices] for n, c in joined.items()})
    critics, sampler = ProgressCritics(encoder, seed), Sampler(rows, spec, rng)
    critics.to(bench.device)
    with WorkProgress(updates, "critic updates") as progress:
        progress.phase("judging the demonstrations")
        for update in range(1, updates + 1):
            batch = sampler.sample()
            loss = critics.update(batch if turning is None else turning.turned(batch, rng))
            progress.update(update)
    check_finite("the critics' loss", loss, f"update {updates}", "leave curation out")
    return critics
