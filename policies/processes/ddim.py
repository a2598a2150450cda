"""DDIM (Song et al. 2021): η = 0 is the deterministic sampler, η = 1 the DDPM-like one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import standard_normal
from policies.processes.base import Process, masked_mean_square

PREDICTIONS = ("epsilon", "sample")


class DDIM(Process):
    """Denoising with K of the T training steps.

    Noise schedule and timesteps come from diffusers (`tabulated`); `transition` equals its
    `DDIMScheduler.step` (tested at η = 0 and η = 1) where `std_bounds` is None.

    Args:
        denoiser: The network.
        train_steps: Number T of diffusion steps in training.
        steps: Number K of denoising steps at run time.
        eta: Share of the DDPM standard deviation, in [0, 1].
        prediction: What the network predicts: "epsilon" or "sample" (x^0).
        schedule: Name of diffusers' beta schedule.
        spacing: How diffusers picks K of T timesteps: "leading", "trailing" or "linspace".
        std_bounds: Clip of the standard deviation, in mean and density alike; RL on the chain
            needs a floor (RL-100: 0.0067 to 0.1). None leaves DDIM unchanged.
        noise_table: From a saved policy: see `tabulated`, which asks diffusers where it is None.
    """

    density_hint: ClassVar[str] = "set std_bounds with a positive floor, and eta > 0"
    _embeddings: Tensor
    _scales: Tensor
    _noise_scales: Tensor
    _std: Tensor
    _timesteps: Tensor

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
        """Tabulate the coefficients; see the class for the arguments."""
        if prediction not in PREDICTIONS:
            raise PolicyError("unknown prediction", got=prediction, expected=PREDICTIONS)
        if not 0 < steps <= train_steps or not 0 <= eta <= 1:
            raise PolicyError(
                "the process's steps or eta are out of range",
                got=f"steps {steps}, eta {eta}",
                expected=f"steps in 1 ... {train_steps}, eta in [0, 1]",
            )
        super().__init__(denoiser, steps, deterministic=eta == 0 and std_bounds is None)
        self.train_steps = int(train_steps)
        self.eta = float(eta)
        self.prediction = prediction
        self.schedule = schedule
        self.spacing = spacing
        self.std_bounds = None if std_bounds is None else (std_bounds[0], std_bounds[1])
        # It is kept with the policy: then it is no matter of diffusers' version, and who only runs
        # the policy does not wait for its import.
        table = noise_table or tabulated(train_steps, steps, schedule, spacing)
        self.noise_table = _checked(table, self.train_steps, self.steps)
        self._tabulate()

    def _tabulate(self) -> None:
        alphas = torch.tensor(self.noise_table["alphas"], dtype=torch.float64)
        self.register_buffer("_scales", alphas.sqrt().float(), persistent=False)
        self.register_buffer("_noise_scales", (1 - alphas).sqrt().float(), persistent=False)
        timesteps = torch.tensor(self.noise_table["timesteps"])
        previous = timesteps - self.train_steps // self.steps
        now = alphas[timesteps]
        after = torch.where(previous >= 0, alphas[previous.clamp(min=0)], 1.0)
        std = self.eta * ((1 - after) / (1 - now) * (1 - now / after)).clamp(min=0).sqrt()
        if self.std_bounds is not None:
            std = std.clamp(*self.std_bounds)
        # Python floats: as operands they are cheaper than one-element tensors.
        self._now = [(float(a**0.5), float((1 - a) ** 0.5)) for a in now]
        self._mean = [
            (float(a**0.5), float((1 - a - s**2).clamp(min=0) ** 0.5))
            for a, s in zip(after, std, strict=True)
        ]
        self.register_buffer("_std", std.float(), persistent=False)
        self.register_buffer("_timesteps", timesteps[:, None], persistent=False)
        # A table instead of sines at every call; it is no weight, so it is not saved.
        table = sinusoidal_embedding(torch.arange(self.train_steps), self.denoiser.embedding)
        self.register_buffer("_embeddings", table, persistent=False)

    @property
    def options(self) -> dict[str, Any]:
        """JSON values of the arguments that the process has beside its denoiser."""
        return {
            "train_steps": self.train_steps,
            "steps": self.steps,
            "eta": self.eta,
            "prediction": self.prediction,
            "schedule": self.schedule,
            "spacing": self.spacing,
            "std_bounds": None if self.std_bounds is None else list(self.std_bounds),
            "noise_table": self.noise_table,
        }

    def transition(self, x: Tensor, index: int, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give the Gaussian of the next entry (Song et al. 2021, eq. 12 and 16).

        The clean chunk is clamped to ±1; the noise estimate is not derived again from it.
        """
        output = self._predict(x, self._timesteps[index], features)
        scale, noise_scale = self._now[index]
        if self.prediction == "epsilon":
            noise = output
            clean = (x - noise_scale * output) / scale
        else:
            clean = output
            noise = (x - scale * output) / noise_scale
        clean_scale, direction_scale = self._mean[index]
        mean = clean_scale * clean.clamp(-1, 1) + direction_scale * noise
        return mean, self._std[index]

    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        """Give the denoising loss (Ho et al. 2020, eq. 14) over the valid actions."""
        timestep = torch.randint(
            self.train_steps, (len(actions),), generator=generator, device=generator.device
        ).to(actions.device)
        noise = standard_normal(actions.shape, actions, generator)
        noisy = (
            self._scales[timestep, None, None] * actions
            + self._noise_scales[timestep, None, None] * noise
        )
        target = noise if self.prediction == "epsilon" else actions
        return masked_mean_square(self._predict(noisy, timestep, features) - target, valid)

    def _predict(self, noisy: Tensor, timestep: Tensor, features: Tensor) -> Tensor:
        """The denoiser's output (B, H, d) at timesteps (B,) or (1,) in [0, T)."""
        output: Tensor = self.denoiser(noisy, self._embeddings[timestep], features)
        return output


def tabulated(train_steps: int, steps: int, schedule: str, spacing: str) -> dict[str, Any]:
    """Ask diffusers how much noise each step has, and which of them denoising visits.

    Returns:
        `alphas`, the T cumulative products ᾱ, and `timesteps`, K of them, noisiest first.
    """
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler  # takes three seconds

    scheduler = DDIMScheduler(
        num_train_timesteps=train_steps, beta_schedule=schedule, timestep_spacing=spacing
    )
    scheduler.set_timesteps(steps)
    alphas, timesteps = scheduler.alphas_cumprod.double(), scheduler.timesteps
    return {"alphas": alphas.tolist(), "timesteps": timesteps.tolist()}


def _checked(table: Mapping[str, Any], train_steps: int, steps: int) -> dict[str, Any]:
    """Check the table of a saved policy.

    Raises:
        PolicyError: It is no table of that size.
    """
    alphas = [float(alpha) for alpha in table["alphas"]]
    timesteps = [int(step) for step in table["timesteps"]]
    sizes = (len(alphas), len(timesteps))
    in_range = all(0 < a <= 1 for a in alphas) and all(0 <= t < train_steps for t in timesteps)
    if sizes != (train_steps, steps) or not in_range:
        raise PolicyError(
            "the policy's noise table does not fit its process",
            got=f"{sizes[0]} steps of diffusion, {sizes[1]} of denoising",
            expected=f"{train_steps} with products in (0, 1], and {steps} of them",
        )
    return {"alphas": alphas, "timesteps": timesteps}
