"""What a vision-language-action model must give so that `policies.vla` can run and train it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn


class VLABackbone(nn.Module, ABC):
    """A vision-language model with an action expert that flow matching has trained.

    The expert predicts the velocity dx/dt of x_t = t · noise + (1 − t) · actions, so that t = 1 is
    noise and t = 0 is data (Black et al. 2024, "π0", section IV, with t reversed).

    Attributes:
        state_width: Columns of the robot's state; narrower states are padded with zeros.
        action_width: Columns of an action; narrower ones are padded.
        horizon: Actions H of a chunk.
        vocabulary: Number of token ids.
        image_size: Height and width of its images.
        expert_modules: Prefixes of the names of what is trained in the mode "expert".
        projection_modules: Prefixes of what is trained beside the adapters in the mode "lora".
        adapted: Regular expression over names of the linear layers that get adapters.
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
        """JSON values from which `from_config` makes a model of the same shape, with no file."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> VLABackbone:
        """Make a model of the configured shape; its weights are then loaded."""

    @abstractmethod
    def prompt(self, tokens: Tensor, mask: Tensor, images: Tensor | None) -> Any:
        """Run the vision-language part once.

        Args:
            tokens: (B, L) int64.
            mask: (B, L) bool, false at padding.
            images: (B, cameras, 3, image_size, image_size) in [-1, 1], or None without cameras.

        Returns:
            What `velocity` attends to; it may be used several times.
        """

    @abstractmethod
    def velocity(self, prompt: Any, state: Tensor, noisy: Tensor, time: Tensor) -> Tensor:
        """Run the action expert once.

        Args:
            prompt: From `prompt`, of the same batch.
            state: (B, state_width) float32.
            noisy: (B, H, action_width) float32, x_t.
            time: (B,) float32, t.

        Returns:
            float32 (B, H, action_width).
        """

    @abstractmethod
    def training_time(self, uniform: Tensor) -> Tensor:
        """Map uniform draws (B,) to the times that the model is trained at."""
