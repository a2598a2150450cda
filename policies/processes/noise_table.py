"""How much noise each diffusion step has, and which of the steps denoising visits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policies.errors import PolicyError


@dataclass(frozen=True)
class NoiseTable:
    """A noise schedule and its timesteps, as diffusers gave them when the policy was made.

    A policy keeps its table: it is then no matter of diffusers' version, and who only runs the
    policy does not wait three seconds for its import.

    Attributes:
        alphas: The T cumulative products ᾱ of the diffusion steps, each in (0, 1].
        timesteps: The K steps that denoising visits, noisiest first.
    """

    alphas: tuple[float, ...]
    timesteps: tuple[int, ...]

    @classmethod
    def from_diffusers(
        cls, train_steps: int, steps: int, *, schedule: str, spacing: str
    ) -> NoiseTable:
        """Ask diffusers.

        Args:
            train_steps: Number T of diffusion steps.
            steps: Number K of denoising steps.
            schedule: Name of diffusers' beta schedule.
            spacing: How diffusers picks K of T timesteps.
        """
        from diffusers.schedulers.scheduling_ddim import DDIMScheduler

        scheduler = DDIMScheduler(
            num_train_timesteps=train_steps, beta_schedule=schedule, timestep_spacing=spacing
        )
        scheduler.set_timesteps(steps)
        alphas, timesteps = scheduler.alphas_cumprod.double(), scheduler.timesteps
        return cls(tuple(alphas.tolist()), tuple(timesteps.tolist()))

    @classmethod
    def from_json(cls, content: Mapping[str, Any], train_steps: int, steps: int) -> NoiseTable:
        """Read what `to_json` gives.

        Args:
            content: JSON values.
            train_steps: Number T of diffusion steps that are expected.
            steps: Number K of denoising steps that are expected.

        Raises:
            PolicyError: It is no table of that size.
        """
        alphas = tuple(float(alpha) for alpha in content["alphas"])
        timesteps = tuple(int(step) for step in content["timesteps"])
        sizes = (len(alphas), len(timesteps))
        in_range = all(0 < a <= 1 for a in alphas) and all(0 <= t < train_steps for t in timesteps)
        if sizes != (train_steps, steps) or not in_range:
            raise PolicyError(
                "the policy's noise table does not fit its process",
                got=f"{sizes[0]} steps of diffusion, {sizes[1]} of denoising",
                expected=f"{train_steps} with products in (0, 1], and {steps} of them",
            )
        return cls(alphas, timesteps)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"alphas": list(self.alphas), "timesteps": list(self.timesteps)}
