"""Base class of vision-language-action models that `policies.vla` runs and trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.errors import PolicyError, require


class VLABackbone(nn.Module, ABC):
    """A vision-language model with an action expert trained by flow matching.

    The expert predicts the velocity dx/dt of x_t = t · noise + (1 − t) · actions, so that t = 1 is
    noise and t = 0 is data (Black et al. 2024, "π0", section IV, with t reversed).

    Attributes:
        state_width: Columns of the robot's state; narrower states are padded with zeros.
        action_width: Columns of an action; narrower actions are padded with zeros.
        horizon: Actions H of a chunk.
        vocabulary: Number of token ids.
        image_size: Height and width of its images.
        expert_modules: Name prefixes of the modules that the mode "expert" trains.
        projection_modules: Name prefixes that the mode "lora" trains besides the adapters.
        adapted: Regular expression for the names of linear layers that get adapters.
    """

    expert_modules: ClassVar[tuple[str, ...]]
    projection_modules: ClassVar[tuple[str, ...]]
    adapted: ClassVar[str]
    state_width: int
    action_width: int
    horizon: int
    vocabulary: int
    image_size: int

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a model of the same shape, without files."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> VLABackbone:
        """Make a model of the configured shape; its weights are loaded afterwards."""

    @abstractmethod
    def prompt(self, tokens: Tensor, mask: Tensor, images: Tensor | None) -> Any:
        """Run the vision-language part once, for any number of calls of `velocity`.

        Args:
            tokens: (B, L) int64.
            mask: (B, L) bool, false at padding.
            images: (B, cameras, 3, image_size, image_size) in [-1, 1], or None without cameras.
        """

    @abstractmethod
    def velocity(self, prompt: Any, state: Tensor, noisy: Tensor, time: Tensor) -> Tensor:
        """Run the action expert once: float32 (B, H, action_width).

        Args:
            prompt: Output of `prompt` for the same batch.
            state: (B, state_width) float32.
            noisy: (B, H, action_width) float32, x_t.
            time: (B,) float32, t.
        """

    @abstractmethod
    def training_time(self, uniform: Tensor) -> Tensor:
        """Map uniform draws (B,) to training times."""


MODES = ("full", "expert", "lora")
_ADAPTER = ".lora_"


@dataclass(frozen=True)
class Tuning:
    """Which weights fine-tuning changes."""

    # "full": everything; "expert": the action expert and its projections, with a frozen
    # vision-language model; "lora": low-rank adapters (Hu et al. 2021) in the language model and
    # the expert, and the expert's projections.
    mode: str
    rank: int = 16  # rank r of the adapters
    alpha: float = 16.0  # the adapters' output is scaled by alpha / r

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PolicyError("unknown tuning mode", got=self.mode, expected=MODES)
        if self.rank < 1 or self.alpha <= 0:
            raise PolicyError(
                "the adapters' rank or alpha is out of range",
                got=f"rank {self.rank}, alpha {self.alpha}",
                expected="rank >= 1 and alpha > 0",
            )

    def apply(self, backbone: VLABackbone, seed: int) -> None:
        """Insert adapters for "lora", and set which parameters take a gradient.

        `seed` draws the adapters' initial weights, which leave the output unchanged.
        """
        if self.mode == "full":
            backbone.requires_grad_(True)
            return
        backbone.requires_grad_(False)
        trained = backbone.expert_modules
        if self.mode == "lora":
            peft = require("peft", "vla")
            options = peft.LoraConfig(
                r=self.rank,
                lora_alpha=self.alpha,
                lora_dropout=0.0,
                target_modules=backbone.adapted,
            )
            # peft draws from the global generator only.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                peft.inject_adapter_in_model(options, backbone)
            trained = backbone.projection_modules
            for name in backbone.projection_modules:
                _compute_in_float32(backbone.get_submodule(name.rstrip(".")))
        for name, parameter in backbone.named_parameters():
            if _ADAPTER in name:
                parameter.data = parameter.data.float()  # bfloat16 would lose small steps
            if name.startswith(trained) or _ADAPTER in name:
                parameter.requires_grad_(True)


def _compute_in_float32(module: nn.Module) -> None:
    """Train a module in float32 among bfloat16 modules, so that small steps are not lost."""
    around = next(module.parameters()).dtype
    if around is torch.float32:
        return
    module.float()

    def widen(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        wide = {key: _as_dtype(value, torch.float32) for key, value in named.items()}
        return tuple(_as_dtype(value, torch.float32) for value in arguments), wide

    module.register_forward_pre_hook(widen, with_kwargs=True)
    module.register_forward_hook(lambda _module, _inputs, output: _as_dtype(output, around))


def _as_dtype(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
