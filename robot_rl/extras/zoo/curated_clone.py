"""`recipe=curated`: clone the demonstrations without rows in which progress falls.

After GR-RL (Li et al. 2025, "GR-RL: Going Dexterous and Precise for Long-Horizon Robotic
Manipulation", arXiv 2512.01801): with a sparse reward the value measures task progress, and rows in
which it falls are left out. An attempt could equally have ended where a retry starts, so the
critics can learn from such failures too. Unlike GR-RL, our critics evaluate states only.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.columns import FEATURES
from policies.compute import explained_memory
from policies.critics import Heads
from policies.encoders import Normalizer, StateEncoder
from policies.networks import move_towards
from policies.vision import ImageEncoder, observed_keys
from robot_rl.config import ConfigError, Settings
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.env.factory import observed_widths
from robot_rl.learning.algorithms.base import Batch, check_finite, check_range
from robot_rl.learning.algorithms.training import Training, adam, step
from robot_rl.learning.stages.clone import Clone, check_unused, clone, save_cloned
from robot_rl.learning.symmetry import turning_of
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import NEXT, SampleSpec
from robot_rl.run import CLONED, VISION

_RECORDS = "curation"
CURATED = f"{_RECORDS}.jsonl"

Columns = dict[str, npt.NDArray[Any]]
Segments = list[tuple[int, int]]  # row ranges: first, and one past the last

_HEADS, _HIDDEN, _RATE, _TARGET_RATE, _BATCH_SIZE = 10, (64, 64), 1e-3, 0.02, 256
_STEPS = 8  # steps of a return before bootstrapping
_EXPECTILE = 0.8  # expectile of returns: the value of a state if it goes well
_TAIL = 0.05  # fraction of readings at each end that may lie outside [-1, 1]
_SMOOTHED = 5  # moving-average window of progress [rows]


class Attempt(NamedTuple):
    """Observations of the T + 1 rows of an episode, up to its success or failure."""

    columns: Columns
    success: bool


class HLGauss(nn.Module):
    """A categorical value distribution, learned by cross-entropy with a Gaussian around the target.

    Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification for
    Scalable Deep RL", arXiv 2403.03950, with their σ of 0.75 bins. Our change: bins extend 3 σ
    beyond [0, 1], because a Gaussian truncated at a bound has a different mean than its target.

    Attributes:
        support: Bin centres (Z,).
        edges: Bin edges (Z + 1,).
    """

    _SIGMA = 0.75  # in bin widths
    support: Tensor
    edges: Tensor

    def __init__(self, bins: int = 51) -> None:
        super().__init__()
        width = 1 / (bins - 6 * self._SIGMA)
        beyond = 3 * self._SIGMA * width
        edges = torch.linspace(-beyond, 1 + beyond, bins + 1)
        self.register_buffer("edges", edges)
        self.register_buffer("support", (edges[:-1] + edges[1:]) / 2)
        self._scale = self._SIGMA * width * math.sqrt(2)

    def start(self) -> Tensor:
        """Return initial outputs (Z,), nearly all at 0, so nothing looks good at first."""
        return (self.encoded(torch.zeros(())) + 1e-3).log()

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the mean values (...) of outputs (..., Z)."""
        return outputs.softmax(-1) @ self.support

    def encoded(self, value: Tensor) -> Tensor:
        """Return the probability of N(value, σ²) in each bin (..., Z), normalised over all bins."""
        value = value.clamp(0, 1)[..., None]
        below = torch.erf((self.edges - value) / self._scale)
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy (...) of outputs (..., Z) with target probabilities."""
        return -(target * outputs.log_softmax(-1)).sum(-1)


class ProgressCritics(Training):
    """Distributional state values V(s): implicit values of n-step returns, in [0, 1].

    As in implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169, eq. 5), but without Q.
    """

    def __init__(self, encoder: StateEncoder, seed: int) -> None:
        super().__init__(seed)
        self.encoder, self.values = encoder, HLGauss()
        widths = [encoder.features, *_HIDDEN, len(self.values.support)]
        self.critics = Heads(widths, _HEADS, self._generator)
        with torch.no_grad():
            self.critics.biases[-1].copy_(self.values.start().expand(_HEADS, 1, -1))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self._optimizer = adam((self.critics.parameters(), _RATE))
        self.beside = [self.critics, self.targets, self.encoder, self.values]

    def update(self, batch: Batch) -> Tensor:
        """Learn from a batch. Returns the loss."""
        self.updates += 1
        values = self.values
        reward, discount = self.tensor(batch["reward"]), self.tensor(batch["discount"])
        outputs = self.critics(self.encoder(batch))
        with torch.no_grad():
            following = {name: batch[NEXT + name] for name in self.encoder.keys}
            target = reward + discount * values.mean(self.targets(self.encoder(following)))
            worse = target < values.mean(outputs)
            weight = torch.where(worse, 1 - _EXPECTILE, _EXPECTILE)
        loss = (weight * values.loss(outputs, values.encoded(target))).mean(1).sum()
        step(self._optimizer, loss)
        move_towards(self.targets, self.critics, _TARGET_RATE)
        return loss.detach()

    @torch.no_grad()
    def progress(self, observed: Columns) -> npt.NDArray[np.float32]:
        """Return the value (T,) of each row of an episode that has an action."""
        value = self.values.mean(self.critics(self.encoder(observed))).mean(0)
        progress: npt.NDArray[np.float32] = value[:-1].cpu().numpy()
        return progress


def falling_segments(progress: npt.NDArray[np.float32], fall: float, window: int) -> Segments:
    """Return row ranges in which smoothed progress (T,) drops from a peak by more than `fall`.

    A range ends when the drop is recovered, or `window` rows after the peak.
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


class CuratedClone(Clone):
    """Clones the demonstrations without the rows in which progress falls.

    The critics also learn from recorded failed attempts, stored with the demonstrations or
    separately.

    Args:
        updates: Number of critic updates.
        fall: Drop in progress, in [0, 1], beyond which rows are left out.
        window: Number of rows within which it must drop that far.
        retries: Whether retries are turned into failures and the critics trained again.
    """

    def __init__(
        self, settings: Settings, updates: int, fall: float, window: int, retries: bool
    ) -> None:
        super().__init__(settings)
        self.makes = (CURATED, CLONED) if settings.demonstrated else ()
        check_range("updates", updates, 1)
        check_range("fall", fall, 0.01, 1)
        check_range("window", window, 1)
        self._updates, self._fall, self._window, self._retries = updates, fall, window, retries

    @property
    def needs(self) -> Sequence[str]:
        """Like `Clone`. Raise if the policy has its own cameras, which the critics cannot use."""
        if self.settings.policy.get("cameras"):
            choices = self.settings.choices
            raise ConfigError(
                "critics of the demonstrations have no image encoder of their own",
                got=f"recipe={choices['recipe']} policy={choices['policy']}",
                hint="leave the recipe out, or choose another policy",
            )
        return super().needs

    @explained_memory("add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn values, optionally again with retries as failures, then clone the other rows."""
        check_unused(bench.run, self.settings.dataset)
        torch.set_num_threads(1)
        dataset, attempts, keys, vision = _recorded(bench)
        shown = [attempt for attempt in attempts if attempt.success]
        segments: list[Segments] = []
        for _ in range(1 + self._retries):
            made = [  # failures, as if an attempt had ended at each drop
                Attempt({name: column[: end + 1] for name, column in each.columns.items()}, False)
                for each, falls in zip(shown, segments, strict=False)
                for _, end in falls
            ]
            critics = _fitted(bench, [*attempts, *made], keys, self._updates)
            progress = [critics.progress(attempt.columns) for attempt in shown]
            segments = [falling_segments(p, self._fall, self._window) for p in progress]
        (bench.run.path / CURATED).unlink(missing_ok=True)  # from an earlier start
        starts, out = np.append(0, dataset.episode_ends), np.zeros(dataset.rows_total, bool)
        numbers = np.flatnonzero(dataset.successes).tolist()
        for number, values, falls in zip(numbers, progress, segments, strict=True):
            rounded = values.astype(float).round(3).tolist()
            record = {"episode": number, "rows": len(rounded), "left_out": falls}
            bench.run.append_jsonl(_RECORDS, {**record, "progress": rounded})
            for top, end in falls:
                out[starts[number] + top : starts[number] + end] = True
        bench.say(
            f"left out {out.sum():,} of {sum(map(len, progress)):,} rows of {len(shown)}"
            f" demonstrations, in {sum(map(bool, segments))} of which progress fell: see"
            f" {bench.run.path / CURATED}"
        )
        save_cloned(bench, clone(bench, [dataset], vision, bench.generator(), left_out=out))


def _recorded(
    bench: Workbench,
) -> tuple[EpisodeDataset, list[Attempt], dict[str, int], ImageEncoder | None]:
    """Return the demonstrations, all attempts to learn from, and the critics' keys and encoder."""
    dataset = bench.demonstrations()
    vision = bench.policy(VISION).vision if bench.settings.sees else None
    states = observed_widths(bench.settings.environment, dataset.schema)
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
    return dataset, attempts, observed_keys(states, vision), vision


def _fitted(
    bench: Workbench, attempts: Sequence[Attempt], keys: dict[str, int], updates: int
) -> ProgressCritics:
    """Train critics on attempts. The reward is 1 at the last step of a success and 0 elsewhere."""
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
    seed = bench.settings.seed
    rng = np.random.default_rng(seed)
    turning = turning_of(bench.settings.environment, spec.fields, bench.demonstrations().schema)
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
    check_finite("the critics' loss", loss, f"update {updates}", "leave recipe=curated out")
    return critics
