"""Diffusion policy (Chi et al. 2023): chunks of actions from any generative process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from policies import registry
from policies.columns import Plan
from policies.denoisers import MLPDenoiser
from policies.encoders import Array, Normalizer, ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.networks import seeded, to_device
from policies.policy import ChunkPolicy
from policies.processes.base import Process, build_process
from policies.processes.ddim import DDIM

Batch = Mapping[str, npt.NDArray[Any] | Tensor]


class DiffusionPolicy(ChunkPolicy):
    """Encoder of observation histories, generative process and action normaliser.

    The process generates normalised chunks by denoising or along a flow. With an
    `exploration_std` it can explore: each transition then has at least that standard deviation, in
    normalised actions.
    """

    kind: ClassVar[str] = "diffusion"

    def __init__(
        self,
        encoder: StateEncoder,
        process: Process,
        action_normalizer: Normalizer,
        exploration_std: float | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.process = encoder, process
        if exploration_std is not None and not 0.0 < exploration_std <= 1.0:
            raise PolicyError(
                "exploration_std is out of range",
                got=exploration_std,
                expected="above 0 and at most 1, or null",
            )
        self.exploration_std = exploration_std
        self.action_normalizer = action_normalizer
        self.horizon, self.action_dimension = process.horizon, process.action_dimension
        self.noise_shape = process.noise_shape

    @classmethod
    @registry.factory
    def create(
        cls,
        arrays: Mapping[str, npt.NDArray[Any]],
        keys: Mapping[str, int],
        *,
        generator: torch.Generator,
        observation_steps: int = 2,
        horizon: int = 8,
        denoiser: Mapping[str, Any] | None = None,
        identity: Sequence[str] = (),
        range_floor: float = 0.02,
        observation_tail: float = 0.0,
        process: str = registry.name_of(DDIM),
        **options: Any,
    ) -> DiffusionPolicy:
        """Make an untrained policy with normalisers fitted on demonstrations.

        Args:
            arrays: Recorded columns, each (n, ...): the `keys` and "action" (n, d).
            keys: Observation name → width, in order.
            generator: Draws the initial weights.
            observation_steps: Length of the observation history.
            horizon: Number of actions H of a chunk.
            denoiser: `class` (default `MLPDenoiser`) and options of the denoiser.
            identity: Keys that are not normalised.
            range_floor: See `Normalizer`.
            observation_tail: The `tail` of the observations' `Normalizer`.
            process: Class of the process; see `policies.processes`.
            **options: Options of the process.

        Raises:
            RegistryError: An unknown class, or options that do not fit it.
        """
        normalizer = Normalizer(
            keys, identity=identity, range_floor=range_floor, tail=observation_tail
        )
        encoder = StateEncoder(keys, normalizer, observation_steps=observation_steps).fit(arrays)
        width = int(arrays["action"].shape[-1])
        actions = Normalizer({"action": width}, range_floor=range_floor)
        config = {
            **options,
            registry.CLASS: process,
            "horizon": horizon,
            "action_dimension": width,
            "denoiser": {registry.CLASS: registry.name_of(MLPDenoiser), **(denoiser or {})},
        }
        return cls(encoder, build_process(config, encoder.features, generator), actions.fit(arrays))

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            "encoder": self.encoder.config,
            "process": self.process.config,
            "range_floor": self.action_normalizer.range_floor,
            "exploration_std": self.exploration_std,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DiffusionPolicy:
        """Make a policy of the configured shape; its weights are loaded afterwards."""
        encoder = StateEncoder.from_config(config["encoder"])
        process = build_process(config["process"], encoder.features, seeded(0))
        actions = Normalizer(
            {"action": process.action_dimension}, range_floor=config["range_floor"]
        )
        return cls(encoder, process, actions, config["exploration_std"])

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the imitation loss of a batch of windows, with random diffusion steps and noise.

        Args:
            batch: Observation names (B, n, ...), "action" (B, H, d) in [-1, 1], "valid" (B, H).
            generator: Draws both.
        """
        features = self.encoder(batch)
        action = to_device(torch.as_tensor(batch["action"]).to(features.dtype), features.device)
        valid = to_device(torch.as_tensor(batch["valid"]), features.device)
        clean = self.action_normalizer.normalize(action)
        return self.process.loss(clean, features, valid, generator)

    def under(self, process: Process) -> DiffusionPolicy:
        """Return this policy with another process; encoder and normaliser are shared."""
        process.to(self.action_normalizer.center.device)  # its tables; the network is already there
        return DiffusionPolicy(self.encoder, process, self.action_normalizer)

    @cached_property
    def exploring(self) -> DiffusionPolicy:
        """The policy with the exploring process; the networks are shared."""
        if self.exploration_std is None:
            return self
        return self.under(self.process.exploring(self.exploration_std))

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the denoiser, which does nearly all of the work."""
        self.process.denoiser.compile(*arguments, **options)

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) and noise (B, *noise_shape) to chunks (B, H, d) in ±1."""
        features = self.encoder(observation)
        return Plan(self.chunks(features, torch.as_tensor(noise).to(features.device)))

    def chunks(self, features: Tensor, noise: Tensor) -> Tensor:
        """Map encoded observations (B, F) and noise (B, *noise_shape) to chunks, as in `plan`."""
        chain = self.process.sample(features, noise)
        return self.action_normalizer.denormalize(chain[:, -1]).clamp(-1, 1)


create = DiffusionPolicy.create
"""The `_target_` of the configs/policy files that clone into a chunk policy."""
