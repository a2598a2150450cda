"""Which parameters of a vision-language-action model are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from policies.errors import PolicyError
from policies.extras import require
from policies.vla_backbone import VLABackbone

MODES = ("full", "expert", "lora")
_ADAPTER = ".lora_"


@dataclass(frozen=True)
class Tuning:
    """What fine-tuning changes.

    Attributes:
        mode: "full": everything; "expert": the action expert and its projections, the
            vision-language model is frozen; "lora": low-rank adapters (Hu et al. 2021) in the
            language model and the expert, and the expert's projections.
        rank: Rank r of the adapters.
        alpha: The adapters' output is scaled by alpha / r.
    """

    mode: str
    rank: int = 16
    alpha: float = 16.0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.mode not in MODES:
            raise PolicyError("unknown tuning mode", got=self.mode, expected=MODES)
        if self.rank < 1 or self.alpha <= 0:
            raise PolicyError(
                "the adapters' rank or alpha is out of range",
                got=f"rank {self.rank}, alpha {self.alpha}",
                expected="rank >= 1 and alpha > 0",
            )

    @property
    def config(self) -> dict[str, Any]:
        """JSON values of the tuning."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Tuning:
        """Make a tuning from `config`."""
        return cls(str(config["mode"]), int(config["rank"]), float(config["alpha"]))

    def apply(self, backbone: VLABackbone, seed: int) -> None:
        """Put adapters into a backbone where the mode has them, and set what takes a gradient.

        Args:
            backbone: Changed in place.
            seed: Seed of the adapters' initial weights; with them the output is unchanged.
        """
        if self.mode == "full":
            backbone.requires_grad_(True)
            return
        backbone.requires_grad_(False)
        trained = backbone.expert_modules
        if self.mode == "lora":
            self._adapt(backbone, seed)
            trained = backbone.projection_modules
            for name in backbone.projection_modules:
                _compute_in_float32(backbone.get_submodule(name.rstrip(".")))
        for name, parameter in backbone.named_parameters():
            if _ADAPTER in name:
                parameter.data = parameter.data.float()  # bfloat16 swallows small steps
            if name.startswith(trained) or _ADAPTER in name:
                parameter.requires_grad_(True)

    def _adapt(self, backbone: VLABackbone, seed: int) -> None:
        peft = require("peft", "vla")
        options = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=0.0, target_modules=backbone.adapted
        )
        # peft draws from the global generator only.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(options, backbone)


def _compute_in_float32(module: nn.Module) -> None:
    """Let a module learn in float32 between others that stay in bfloat16, for the same reason."""
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
