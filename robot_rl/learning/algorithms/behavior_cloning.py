"""Behaviour cloning of a chunk policy, trained like Diffusion Policy (Chi et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.networks import EMA, warm_up_cosine
from robot_rl.learning.algorithms.base import check_finite
from robot_rl.learning.symmetry import Turning
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import CHUNK, SampleSpec

Arrays = dict[str, npt.NDArray[Any]]


# Updates between two checks of the loss. Each check waits for the device.
_LOOK_EVERY = 100
_BETAS, _WEIGHT_DECAY = (0.95, 0.999), 1e-6  # for AdamW, as in Diffusion Policy
_GRADIENT_CLIP = 1.0  # maximum norm of the gradient
_LOWER_RATE = "lower cloning.learning_rate"


@dataclass(frozen=True)
class CloningOptions:
    """Training constants."""

    updates: int = 4000  # number of gradient updates, also the length of the cosine schedule
    batch_size: int = 256  # windows per update
    learning_rate: float = 1e-3  # peak learning rate of AdamW
    warm_up: int = 100  # updates of linear warm-up
    bf16: bool = False  # matrix products in bfloat16; weights, loss and averages stay in float32


class Cloneable(Protocol):
    """A module that can be trained on windows of demonstrations."""

    horizon: int  # actions H of a chunk

    @property
    def observation_steps(self) -> int:
        """Number n of observations in the input."""

    @property
    def cloning_fields(self) -> tuple[str, ...]:
        """Names of the batch columns that `loss` reads."""

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the loss of a batch. All random draws use the generator."""


Student = TypeVar("Student", bound=nn.Module)


def fit(
    policy: Student,
    sample: Callable[[], Mapping[str, npt.NDArray[Any]]],
    options: CloningOptions,
    generator: torch.Generator,
    on_progress: Callable[[int, Tensor], None] = lambda update, loss: None,
) -> Student:
    """Train with AdamW on a policy's own loss. Returns the averaged policy, for deployment.

    The policy is an untrained `Cloneable` with fitted normalisers. Its parameters that require a
    gradient are trained in place. Batches have the columns `Cloneable.cloning_fields`. Diffusion
    steps and noise come from the generator. After every update `on_progress` receives the number of
    updates made and the loss.

    Raises:
        LearningDiverged: A loss or weight is not finite.
    """
    cloneable, average = cast("Cloneable", policy), EMA(policy)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    device_type = next(policy.parameters()).device.type
    optimizer = torch.optim.AdamW(
        parameters, options.learning_rate, _BETAS, weight_decay=_WEIGHT_DECAY, fused=True
    )
    for update in range(1, options.updates + 1):
        share = warm_up_cosine(update - 1, options.warm_up, options.updates)
        optimizer.param_groups[0]["lr"] = options.learning_rate * share
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type, torch.bfloat16, enabled=options.bf16):
            loss = cloneable.loss(sample(), generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, _GRADIENT_CLIP, foreach=True)
        optimizer.step()
        average.update()
        if update % _LOOK_EVERY == 0:
            check_finite("the loss", loss, f"cloning update {update}", _LOWER_RATE)
        on_progress(update, loss.detach())
    for name, tensor in average.model.state_dict().items():
        check_finite(name, tensor, "the end of cloning", _LOWER_RATE)
    return average.model


def windows(
    policy: nn.Module,
    rows: EpisodeRows,
    batch_size: int,
    rng: np.random.Generator,
    turning: Turning | None = None,
) -> Callable[[], Arrays]:
    """Create a function that draws batches of B windows for a `Cloneable` policy.

    With n = `observation_steps` and H = `horizon`, observations are (B, n, ...), "action" is (B, H,
    d), and "valid" (B, H) is false after the episode's last action, which is repeated there as in
    Diffusion Policy. Other columns are those of the current row. `turning` transforms the rows.

    Raises:
        ReplayError: A column is missing.
    """
    acted, cloneable = ("action", "valid"), cast("Cloneable", policy)
    spec = SampleSpec(
        tuple(name for name in cloneable.cloning_fields if name not in acted),
        batch_size=batch_size,
        demonstration_share=1.0,
        next_fields=(),
        observation_steps=cloneable.observation_steps,
        chunk_fields=("action",),
        chunk_steps=cloneable.horizon,
    )
    sampler = Sampler(rows, spec, rng)

    def drawn() -> Arrays:
        batch = sampler.sample()
        batch = batch if turning is None else turning.turned(batch, rng)
        return {name.removeprefix(CHUNK): array for name, array in batch.items()}

    return drawn
