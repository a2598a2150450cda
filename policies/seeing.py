"""A state encoder with an image encoder of its own, which learning goes on with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from policies.encoders import ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.vision import FEATURES, ImageEncoder, build_image_encoder


class SeeingEncoder(StateEncoder):
    """Encode states and images; the features are made here and not given with the observation.

    With the cloned policy's image encoder it gives what a `StateEncoder` gives on cached features,
    but for their rounding. It is part of a policy's weights, so it is published and saved with
    them, while the base policy keeps the encoder that it was cloned with.

    Args:
        states: Keys and statistics, the image features among them.
        vision: The image encoder.
    """

    def __init__(self, states: StateEncoder, vision: ImageEncoder) -> None:
        """Join the parts; see the class for the arguments."""
        super().__init__(states.keys, states.normalizer, observation_steps=states.observation_steps)
        if self.keys.get(FEATURES) != vision.features:
            raise PolicyError(
                "the image encoder does not fit the policy",
                got=f"{vision.features} features",
                expected=f"{self.keys.get(FEATURES)} features",
                hint="take both from one checkpoint",
            )
        self.vision = vision

    @property
    def observed(self) -> dict[str, int]:
        """Name → width of what it is given: the states, and images in place of features."""
        states = {name: width for name, width in self.keys.items() if name != FEATURES}
        return {**states, **{n: math.prod(shape) for n, shape in self.vision.cameras.items()}}

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes an encoder of the same shape."""
        return {**super().config, "vision": self.vision.config}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SeeingEncoder:
        """Make an encoder of the configured shape; its weights are then loaded."""
        vision = build_image_encoder(config["vision"])
        return cls(StateEncoder.from_config(config), vision)

    def forward(self, observation: ObservationBatch) -> Tensor:
        """Encode a batch of observations or of observation histories, images among them.

        Args:
            observation: As for `StateEncoder`, with images uint8 (B, ..., H, W, 3); features in
                it are not looked at.

        Returns:
            float32 (B, features), with gradients to the image encoder.

        Raises:
            PolicyError: A key or camera is missing or has another width or size.
        """
        seen: Tensor = self.vision(observation)
        return super().forward({**observation, FEATURES: seen})
