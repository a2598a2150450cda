"""Vision-language-action policy: flow matching from images and an instruction to action chunks.

Black et al. 2024, "π0: A Vision-Language-Action Flow Model for General Robot Control".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from policies import registry
from policies.columns import INSTRUCTION, Plan
from policies.encoders import (
    Array,
    Normalizer,
    ObservationBatch,
    StateEncoder,
    camera_image,
    image_pixels,
)
from policies.errors import PolicyError
from policies.instructions import InstructionTokenizer
from policies.networks import standard_normal
from policies.policy import ChunkPolicy
from policies.processes.base import masked_mean_square
from policies.vla_backbone import Tuning, VLABackbone


class VLAPolicy(ChunkPolicy):
    """A backbone adapted to a robot: normalisers, padding, tokeniser and images.

    Args:
        backbone: The model.
        tuning: Which part of it is trained; already applied.
        encoder: Encodes the robot's state, for the model and for a residual on top.
        action_normalizer: Normaliser with the single key "action".
        tokenizer: Tokeniser of the model.
        cameras: Observation name → (H, W, 3), in the model's order; empty for a state-only policy.
        steps: Euler steps K of the flow when acting.

    Raises:
        PolicyError: The state or the action is wider than the model's, or the tokeniser is not
            the model's.
    """

    kind: ClassVar[str] = "vla"

    conditioned: ClassVar[bool] = True

    def __init__(
        self,
        backbone: VLABackbone,
        tuning: Tuning,
        encoder: StateEncoder,
        action_normalizer: Normalizer,
        tokenizer: InstructionTokenizer,
        cameras: Mapping[str, Iterable[int]],
        steps: int,
    ) -> None:
        super().__init__()
        self.action_dimension = action_normalizer.widths["action"]
        other = "name fewer observation.states, or take"
        for name, width, most, choose in (
            ("state", encoder.features, backbone.state_width, other),
            ("action", self.action_dimension, backbone.action_width, "take"),
        ):
            if width > most:
                raise PolicyError(
                    f"the {name} is wider than the model's",
                    got=f"{width} columns",
                    expected=f"at most {most}",
                    hint=f"{choose} a model with a larger max_{name}_dim",
                )
        if steps < 1:
            raise PolicyError(
                "the number of flow steps is out of range", got=steps, expected=">= 1"
            )
        self.backbone, self.tuning, self.encoder = backbone, tuning, encoder
        self.action_normalizer, self.tokenizer = action_normalizer, tokenizer
        self.cameras = {str(name): tuple(map(int, shape)) for name, shape in cameras.items()}
        self.steps = int(steps)
        self.horizon = backbone.horizon
        self.noise_shape = (backbone.horizon, backbone.action_width)

    @property
    def observation(self) -> dict[str, int]:
        """Name → width of state keys and images."""
        images = {name: int(np.prod(shape)) for name, shape in self.cameras.items()}
        return {**self.encoder.keys, **images}

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            "backbone": {
                registry.CLASS: registry.name_of(type(self.backbone)),
                "config": self.backbone.config,
            },
            "tuning": asdict(self.tuning),
            "encoder": self.encoder.config,
            "action_dimension": self.action_dimension,
            "range_floor": self.action_normalizer.range_floor,
            "tokenizer_bytes": len(self.tokenizer.file),
            "instruction_tokens": self.tokenizer.length,
            "cameras": {name: list(shape) for name, shape in self.cameras.items()},
            "steps": self.steps,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> VLAPolicy:
        """Make a policy of the configured shape; its weights are loaded afterwards."""
        kind = registry.find_class(config["backbone"][registry.CLASS], VLABackbone)
        backbone = kind.from_config(config["backbone"]["config"])
        tuning = Tuning(**config["tuning"])
        tuning.apply(backbone, seed=0)
        width = int(config["action_dimension"])
        return cls(
            backbone,
            tuning,
            StateEncoder.from_config(config["encoder"]),
            Normalizer({"action": width}, range_floor=config["range_floor"]),
            InstructionTokenizer(config["tokenizer_bytes"], config["instruction_tokens"]),
            config["cameras"],
            config["steps"],
        )

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the flow-matching loss: velocity error (noise − action) at random times.

        Args:
            batch: Observation names (B, n, ...), "instruction" (B, n) texts, "action" (B, H, d) in
                [-1, 1], "valid" (B, H).
            generator: Draws times and noise.
        """
        prompt, state = self._see(batch)
        actions = torch.as_tensor(batch["action"]).to(state)
        data = self._padded(self.action_normalizer.normalize(actions), self.backbone.action_width)
        noise = standard_normal(data.shape, data, generator)
        uniform = torch.rand(len(data), generator=generator, device=generator.device)
        time = self.backbone.training_time(uniform).to(data)
        share = time[:, None, None]
        noisy = share * noise + (1 - share) * data
        error = self.backbone.velocity(prompt, state, noisy, time) - (noise - data)
        valid = torch.as_tensor(batch["valid"]).to(data.device)
        return masked_mean_square(error[..., : self.action_dimension], valid)

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Integrate the flow from noise (B, H, action_width) at t = 1 to chunks (B, H, d) in ±1.

        Columns that the robot lacks follow their training path, t · noise.
        """
        prompt, state = self._see(observation)
        start = torch.as_tensor(noise).to(state)
        x, used = start, self.action_dimension
        for step in range(self.steps):
            time = torch.full((len(x),), 1 - step / self.steps, device=x.device)
            velocity = self.backbone.velocity(prompt, state, x, time)
            velocity = torch.cat([velocity[..., :used], start[..., used:]], -1)
            x = x - velocity / self.steps
        return Plan(self.action_normalizer.denormalize(x[..., :used]).clamp(-1, 1))

    def _see(self, observation: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Run the vision-language part; return the prompt and the state (B, state_width)."""
        if INSTRUCTION not in observation:
            raise PolicyError(
                "the observation lacks the instruction",
                got=sorted(observation),
                expected=INSTRUCTION,
            )
        features = self.encoder(observation)
        texts = np.asarray(observation[INSTRUCTION]).reshape(len(features), -1)[:, -1]
        tokens, mask = self.tokenizer([str(text) for text in texts])
        views = []
        for name in self.cameras:
            image = camera_image(observation, name, self.cameras)
            newest = image if image.ndim == 4 else image[:, -1]
            pixels = image_pixels(newest.to(features.device))
            views.append(resized_with_padding(pixels, self.backbone.image_size))
        images = torch.stack(views, 1) if views else None
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._trains_prompt):
            prompt = self.backbone.prompt(tokens, mask, images)
        return prompt, self._padded(features, self.backbone.state_width)

    @property
    def _trains_prompt(self) -> bool:
        """Whether any parameter outside the action expert takes a gradient."""
        return any(
            parameter.requires_grad and not name.startswith(self.backbone.expert_modules)
            for name, parameter in self.backbone.named_parameters()
        )

    @staticmethod
    def _padded(values: Tensor, width: int) -> Tensor:
        return functional.pad(values, (0, width - values.shape[-1]))


def around(
    backbone: VLABackbone,
    tokenizer: bytes,
    arrays: Mapping[str, npt.NDArray[Any]],
    keys: Mapping[str, int],
    *,
    generator: torch.Generator,
    observation_steps: int,
    tuning: Mapping[str, Any],
    instruction_tokens: int,
    cameras: Iterable[str] = (),
    identity: Iterable[str] = (),
    steps: int = 10,
    range_floor: float = 0.02,
    observation_tail: float = 0.0,
) -> VLAPolicy:
    """Make a policy around a backbone, with normalisers fitted on demonstrations.

    Args:
        backbone: The model.
        tokenizer: Content of its `tokenizer.json`.
        arrays: Recorded columns, each (n, ...): the `keys`, "action" (n, d) and the images.
        keys: State name → width, in order.
        generator: Draws the adapters' initial weights.
        observation_steps: Length of the state history.
        tuning: Mode and, for "lora", rank and alpha; see `Tuning`.
        instruction_tokens: Number of tokens to which an instruction is padded.
        cameras: Names of the cameras, in the model's order.
        identity: State keys that are not normalised.
        steps: Euler steps of the flow when acting.
        range_floor: See `Normalizer`.
        observation_tail: The `tail` of the observations' `Normalizer`.
    """
    normalizer = Normalizer(keys, identity=identity, range_floor=range_floor, tail=observation_tail)
    encoder = StateEncoder(keys, normalizer, observation_steps=observation_steps)
    width = int(arrays["action"].shape[-1])
    actions = Normalizer({"action": width}, range_floor=range_floor)
    text = InstructionTokenizer.of_file(tokenizer, instruction_tokens)
    if text.vocabulary > backbone.vocabulary:
        raise PolicyError(
            "the tokeniser is not the model's",
            got=f"{text.vocabulary} tokens",
            expected=f"at most {backbone.vocabulary}",
            hint="name the model's own with policy.tokenizer=PATH",
        )
    changed = Tuning(**tuning)
    changed.apply(backbone, int(torch.randint(2**31, (), generator=generator)))
    names = [f"images/{name}" for name in cameras]
    for name in names:
        if name not in arrays:
            raise PolicyError(
                f"the demonstrations lack the camera {name!r}",
                got=sorted(key for key in arrays if key.startswith("images/")),
                expected=name,
                hint="record them with this camera, or name others in policy.cameras",
            )
    shapes = {name: arrays[name].shape[1:] for name in names}
    fitted = encoder.fit(arrays), actions.fit(arrays)
    return VLAPolicy(backbone, changed, *fitted, text, shapes, steps)


def resized_with_padding(images: Tensor, size: int) -> Tensor:
    """Resize (B, 3, H, W) in [-1, 1] to (B, 3, size, size), keeping proportions; pad with black.

    Bilinear, with the image centred, as in π0's training (openpi, `resize_with_pad`).
    """
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    # Truncate as openpi does: 225 × 225 becomes 223 × 223.
    ratio = max(height, width) / size
    new = (max(1, int(height / ratio)), max(1, int(width / ratio)))
    smaller = functional.interpolate(images, new, mode="bilinear", align_corners=False)
    above, left = (size - new[0]) // 2, (size - new[1]) // 2
    padding = (left, size - new[1] - left, above, size - new[0] - above)
    return functional.pad(smaller.clamp(-1, 1), padding, value=-1.0)
