"""DDIM (Song et al. 2021): η = 0 is the deterministic sampler, η = 1 with K = T steps is DDPM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import standard_normal
from policies.processes.base import Process, masked_mean_square

PREDICTIONS = ("epsilon", "sample")


class DDIM(Process):
    """Denoising with K of the T training steps.

    Noise schedule and timesteps come from diffusers (`tabulated`). `transition` equals its
    `DDIMScheduler.step` (tested at η = 0 and η = 1) if `std_bounds` is None.

    Args:
        denoiser: The network.
        train_steps: Number T of diffusion steps in training.
        steps: Number K of denoising steps at run time.
        eta: Fraction of the DDPM standard deviation, in [0, 1].
        prediction: What the network predicts: "epsilon" or "sample" (x^0).
        schedule: Name of the beta schedule in diffusers.
        spacing: How diffusers picks K of T timesteps: "leading", "trailing" or "linspace".
        std_bounds: Bounds of the standard deviation, applied in both mean and density. RL on the
            chain needs a floor (RL-100: 0.0067 to 0.1). None leaves DDIM unchanged.
        noise_table: Table from a saved policy; None computes it with diffusers (`tabulated`).
    """

    _embeddings: Tensor
    _scales: Tensor
    _noise_scales: Tensor

    def __init__(
        self,
        denoiser: Denoiser,
        *,
        train_steps: int = 50,
        steps: int = 10,
        eta: float = 0.0,
        prediction: str = "sample",
        schedule: str = "squaredcos_cap_v2",
        spacing: str = "leading",
        std_bounds: Sequence[float] | None = None,
        noise_table: Mapping[str, Any] | None = None,
    ) -> None:
        if prediction not in PREDICTIONS:
            raise PolicyError("unknown prediction", got=prediction, expected=PREDICTIONS)
        if not 0 < steps <= train_steps or not 0 <= eta <= 1:
            raise PolicyError(
                "the process's steps or eta are out of range",
                got=f"steps {steps}, eta {eta}",
                expected=f"steps in 1 ... {train_steps}, eta in [0, 1]",
            )
        bounds = None if std_bounds is None else [float(bound) for bound in std_bounds]
        if bounds is not None and not (len(bounds) == 2 and 0 <= bounds[0] <= bounds[1] < math.inf):
            raise PolicyError(
                "the process's std_bounds are out of range",
                got=std_bounds,
                expected="the least and the largest standard deviation",
            )
        super().__init__(denoiser, steps, deterministic=eta == 0 and std_bounds is None)
        self.train_steps, self.prediction = int(train_steps), prediction
        # Saved with the policy, so that it does not depend on the diffusers version and running
        # the policy does not import diffusers.
        table = noise_table or tabulated(train_steps, steps, schedule, spacing)
        self.options = {
            "train_steps": self.train_steps,
            "steps": self.steps,
            "eta": float(eta),
            "prediction": prediction,
            "schedule": schedule,
            "spacing": spacing,
            "std_bounds": bounds,
            "noise_table": _checked(table, self.train_steps, self.steps),
        }
        table = self.options["noise_table"]
        products = torch.tensor(table["alphas"], dtype=torch.float64)
        visited = torch.tensor(table["timesteps"])
        self.register_buffer("_scales", products.sqrt().float(), persistent=False)
        self.register_buffer("_noise_scales", (1 - products).sqrt().float(), persistent=False)
        previous = visited - self.train_steps // self.steps
        now = products[visited]
        after = torch.where(previous >= 0, products[previous.clamp(min=0)], 1.0)
        std = (1 - after) / (1 - now) * (1 - now / after)
        std = self.options["eta"] * std.clamp(min=0).sqrt()
        if bounds is not None:
            std = std.clamp(*bounds)
        # A table instead of sines at every call. It is not a weight, so it is not saved.
        embedded = sinusoidal_embedding(torch.arange(self.train_steps), denoiser.embedding)
        self.register_buffer("_embeddings", embedded, persistent=False)
        self._tabulate(
            embedded[visited],
            std,
            now.sqrt(),
            (1 - now).sqrt(),
            after.sqrt(),
            (1 - after - std.square()).clamp(min=0).sqrt(),
        )

    def transition(self, x: Tensor, index: int | Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gaussian of the next entry (Song et al. 2021, eq. 12 and 16).

        The clean chunk is clamped to ±1; the noise estimate is not recomputed from it.
        """
        time, (scale, noise_scale, clean_scale, direction_scale) = self._at(index)
        output = self.denoiser(x, time, features)
        if self.prediction == "epsilon":
            noise = output
            clean = (x - noise_scale * output) / scale
        else:
            clean = output
            noise = (x - scale * output) / noise_scale
        mean = clean_scale * clean.clamp(-1, 1) + direction_scale * noise
        return mean, self._std[index]

    def exploring(self, std: float) -> Process:
        """Return the sampler with η = 1 and standard deviations of at least `std`."""
        return self.varied(eta=1.0, std_bounds=[std, 1.0])

    def noiseless(self) -> Process:
        """Return the sampler with η = 0."""
        return self.varied(eta=0.0, std_bounds=None)

    def varied(self, **options: Any) -> Process:
        """Return the process with some options changed; new steps get a new noise table."""
        kept = {"steps", "schedule", "spacing", "train_steps"}.isdisjoint(options)
        return super().varied(**({} if kept else {"noise_table": None}) | options)

    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the denoising loss (Ho et al. 2020, eq. 14) over the valid actions."""
        timestep = torch.randint(
            self.train_steps, (len(actions),), generator=generator, device=generator.device
        ).to(actions.device)
        noise = standard_normal(actions.shape, actions, generator)
        scale, noise_scale = (s[timestep, None, None] for s in (self._scales, self._noise_scales))
        noisy = scale * actions + noise_scale * noise
        target = noise if self.prediction == "epsilon" else actions
        output = self.denoiser(noisy, self._embeddings[timestep], features)
        return masked_mean_square(output - target, valid)


def tabulated(train_steps: int, steps: int, schedule: str, spacing: str) -> dict[str, Any]:
    """Compute the T products ᾱ and the K timesteps to visit, noisiest first, with diffusers."""
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler  # takes three seconds

    scheduler = DDIMScheduler(
        num_train_timesteps=train_steps, beta_schedule=schedule, timestep_spacing=spacing
    )
    scheduler.set_timesteps(steps)
    alphas, timesteps = scheduler.alphas_cumprod.double(), scheduler.timesteps
    return {"alphas": alphas.tolist(), "timesteps": timesteps.tolist()}


def _checked(table: Mapping[str, Any], train_steps: int, steps: int) -> dict[str, Any]:
    alphas = [float(alpha) for alpha in table["alphas"]]
    timesteps = [int(step) for step in table["timesteps"]]
    sizes = (len(alphas), len(timesteps))
    in_range = all(0 < a < 1 for a in alphas) and all(0 <= t < train_steps for t in timesteps)
    falling = all(later <= each for each, later in itertools.pairwise(alphas))
    falling = falling and all(later < each for each, later in itertools.pairwise(timesteps))
    if sizes != (train_steps, steps) or not (in_range and falling):
        raise PolicyError(
            "the policy's noise table does not fit its process",
            got=f"{sizes[0]} steps of diffusion, {sizes[1]} of denoising",
            expected=f"{train_steps} with falling products in (0, 1), and {steps} of them",
        )
    return {"alphas": alphas, "timesteps": timesteps}
