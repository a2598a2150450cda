"""Encoders of observations for actor and critics: frozen, or learning with the critics.

With images the cloned policy's image encoder is either frozen, and the features that replay keeps
are read; or the critics' loss goes on training it, on the images themselves, as in DrQ-v2 (Yarats
et al. 2021), RLPD and SERL: at the critics' step size, with randomly shifted images, one encoder
for actor, critics and targets, and no gradient from the actor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from policies.behaviour import Behaviour
from policies.columns import INSTRUCTION_FEATURES, INSTRUCTION_WIDTH
from policies.encoders import StateEncoder
from policies.networks import move_towards
from policies.policy import ChunkPolicy
from policies.vision import SeeingEncoder, random_shift
from robot_rl.learning.algorithms.base import AlgorithmError, Batch

FROZEN, CONTINUED = "frozen", "continued"


class Encoding:
    """A frozen encoder of observations.

    Attributes:
        encoder: From observations to features.
        deployed: The encoder of a deployed policy: the same, or its average where it learns.
        parameters: What the critics' loss trains.
        modules: What changes in training, by its name in a training state.
    """

    def __init__(self, encoder: StateEncoder) -> None:
        self.encoder = self.deployed = encoder
        self.parameters: list[Tensor] = []
        self.modules: dict[str, nn.Module] = {}

    def features(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Encode the observations and the next ones of a batch, (B, features) each.

        The batch has the columns ``encoder.observed``, and each as ``next/<name>``; augmentation
        draws from the generator.
        """
        following = {name: batch[f"next/{name}"] for name in self.encoder.observed}
        with torch.no_grad():
            return self.encoder(batch), self.encoder(following)

    def average(self, rate: float) -> None:
        """Move the average, where there is one, by `rate` towards the encoder."""
        if self.deployed is not self.encoder:
            move_towards(self.deployed, self.encoder, rate)


class ContinuedEncoding(Encoding):
    """An encoder of observations and images that learns by the critics' loss.

    `random_shift` is the largest shift of an image [pixels], drawn for each observation.
    """

    encoder: SeeingEncoder

    def __init__(self, encoder: SeeingEncoder, random_shift: int) -> None:
        super().__init__(encoder)
        encoder.requires_grad_(True)
        self.deployed = copy.deepcopy(encoder).requires_grad_(False)
        self.parameters = list(encoder.vision.parameters())
        self.modules = {"encoder": encoder, "average_encoder": self.deployed}
        self._shift = int(random_shift)

    def features(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Encode the observations, with gradients, and the next ones, without."""
        encoded = []
        for prefix in ("", "next/"):
            seen = {name: batch[prefix + name] for name in self.encoder.observed}
            for name in self.encoder.vision.cameras if self._shift else ():
                seen[name] = random_shift(seen[name], self._shift, generator)
            with torch.set_grad_enabled(not prefix):
                encoded.append(self.encoder(seen))
        return encoded[0], encoded[1]


def make_encoding(cloned: Behaviour, observation: Mapping[str, Any] | None = None) -> Encoding:
    """Make the encoding that the configuration's `observation` asks for; frozen without one.

    It is of single observations, with the keys and statistics of the cloned policy, which keeps the
    frozen encoder that it was cloned with.
    """
    base = cloned.policy
    assert isinstance(base, ChunkPolicy)
    normalizer = copy.deepcopy(base.encoder.normalizer)
    if base.conditioned:  # which instruction is meant
        normalizer = normalizer.with_identity(INSTRUCTION_FEATURES, INSTRUCTION_WIDTH)
    states = StateEncoder(normalizer.widths, normalizer)
    if observation is None or not trains_on(observation):
        return Encoding(states)
    assert cloned.vision is not None
    encoder = SeeingEncoder(states, copy.deepcopy(cloned.vision))
    return ContinuedEncoding(encoder, int(observation["vision_training"]["random_shift"]))


def trains_on(observation: Mapping[str, Any]) -> bool:
    """Whether a configuration's `observation` asks to go on training the image encoder.

    Raises:
        AlgorithmError: It asks for something else than frozen or continued, or for the training
            of an encoder that it does not have.
    """
    choice = observation.get("vision_online") or FROZEN
    if choice not in (FROZEN, CONTINUED):
        raise AlgorithmError(
            "observation.vision_online is not known",
            got=choice,
            expected=f"{FROZEN} or {CONTINUED}",
        )
    if choice == CONTINUED and observation.get("vision") is None:
        raise AlgorithmError(
            f"observation.vision_online={CONTINUED} needs an image encoder",
            got="observation.vision=null",
            hint="add observation=pixels; policy=vla has an encoder of its own, which stays frozen",
        )
    return bool(choice == CONTINUED)
