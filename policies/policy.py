"""Base classes of policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies import registry
from policies.columns import INSTRUCTION, Plan
from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.errors import PolicyError


class Policy(nn.Module, ABC):
    """An encoder and networks that choose one action per step.

    Attributes:
        kind: Short name for records and reports; defaults to the class name.
        encoder: Encoder of the per-step part's observations.
        action_dimension: Number of action columns d.
        on_torch: Whether it is a torch module, which computes on a device.
    """

    kind: ClassVar[str]
    on_torch = True
    encoder: StateEncoder
    action_dimension: int

    def __init_subclass__(cls, **options: Any) -> None:
        """Set `kind` to the class name unless the class sets it."""
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):
            cls.kind = cls.__name__

    @property
    @abstractmethod
    def base(self) -> ChunkPolicy | None:
        """The chunk policy whose proposal is `base_action`; a chunk policy is its own base."""

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Policy:
        """Make a policy of the configured shape; its weights are loaded afterwards."""

    @abstractmethod
    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Choose one action (B, d) in [-1, 1].

        Args:
            observation: Name → (B, n, ...shape).
            base_action: (B, d) proposal of the base at this step, if there is a base.
            noise: (B, d) of N(0, 1) to sample with; None for the mean.
        """

    def acts_as(self, other: object) -> bool:
        """Whether another policy has the same class and weights."""
        if not isinstance(other, Policy) or type(other) is not type(self):
            return False
        mine, theirs = self.state_dict(), other.state_dict()
        return mine.keys() == theirs.keys() and all(
            torch.equal(mine[name], theirs[name]) for name in mine
        )

    @property
    def observation(self) -> dict[str, int]:
        """Name → width of every observation that the policy or its base sees."""
        base = self.base
        below = base.observation if base is not None and base is not self else {}
        return {**below, **self.encoder.keys}

    @property
    def observation_steps(self) -> int:
        """Longest observation history that any part of the policy sees."""
        base = self.base
        own = self.encoder.observation_steps
        return max(own, base.encoder.observation_steps) if base else own


class ChunkPolicy(Policy):
    """A policy that plans H actions at a time and can be a base.

    A policy that can explore has another chunk policy as its attribute `exploring`.

    Attributes:
        horizon: Number of actions H of a chunk.
        noise_shape: Shape of the N(0, 1) noise of one plan; no noise by default.
        conditioned: Whether plans depend on the episode's instruction. Observations and batches
            then have it under `INSTRUCTION`.
        extras: Name → width of a plan's columns besides its actions; rows store them as
            `plan/<name>`.
    """

    conditioned: ClassVar[bool] = False
    horizon: int
    noise_shape: tuple[int, ...] = (0,)
    extras: Mapping[str, int] = {}  # read-only

    @property
    def base(self) -> ChunkPolicy:
        """The policy itself."""
        return self

    @property
    def cloning_fields(self) -> tuple[str, ...]:
        """Names of the batch columns that `loss` reads.

        "action" and "valid" are the ``chunk/action`` and ``chunk/valid`` of a `SampleSpec`;
        `robot_rl.learning.algorithms.behavior_cloning.windows` gives them these names.
        """
        instruction = (INSTRUCTION,) if self.conditioned else ()
        return (*self.observation, *instruction, "action", "valid")

    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Return the plan's action (B, d) at this step unchanged; its noise is in the plan."""
        if base_action is None:
            raise PolicyError("a chunk policy acts by its planned action", got="none")
        return torch.as_tensor(base_action)

    @abstractmethod
    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) and noise (B, *noise_shape) to chunks (B, H, d)."""

    @abstractmethod
    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the imitation loss (scalar) of a batch with the columns `cloning_fields`."""


def describe(policy: Policy) -> dict[str, Any]:
    """Return JSON values from which `build` makes a policy of the same class and shape.

    Raises:
        RegistryError: Its class is not in the registry, so `build` could not find it.
    """
    described = {registry.CLASS: registry.name_of(type(policy)), "config": policy.config}
    if policy.base is not None and policy.base is not policy:
        described["base"] = describe(policy.base)
    return described


def build(description: Mapping[str, Any], base: ChunkPolicy | None = None) -> Policy:
    """Make a policy from the output of `describe`, with arbitrary weights.

    If `base` is given, the policy uses it with its weights instead of making a new one.

    Raises:
        RegistryError: Its class is not in the registry, or is not a policy.
        PolicyError: The configuration does not fit the class.
    """
    kind: type[Policy] = registry.find_class(description[registry.CLASS], Policy)
    if base is not None and issubclass(kind, ChunkPolicy):
        return base
    config = dict(description["config"])
    if "base" in description:
        config["base"] = build(description["base"]) if base is None else base
    try:
        return kind.from_config(config)
    except (KeyError, TypeError, AttributeError) as error:
        raise PolicyError(
            f"the configuration does not fit the policy {kind.__name__}",
            got=repr(error),
            hint="load it with the code of the policy that wrote it",
        ) from error
