"""Denoisers by their kind, as configurations and checkpoints name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from policies.denoisers.base import Denoiser
from policies.denoisers.mlp import MLPDenoiser
from policies.denoisers.unet import ConditionalUNet
from policies.errors import PolicyError

DENOISERS: dict[str, type[Denoiser]] = {c.kind: c for c in (MLPDenoiser, ConditionalUNet)}


def build_denoiser(
    config: Mapping[str, Any],
    features: int,
    horizon: int,
    action_dimension: int,
    generator: torch.Generator,
) -> Denoiser:
    """Make the denoiser of `config["kind"]`; the other keys are its options.

    Args:
        config: Kind and options. Checkpoints from before there were several have no kind: "mlp".
        features: Width of the encoded observation.
        horizon: Number of actions H in a chunk.
        action_dimension: Number of action columns d.
        generator: Source of the initial weights.

    Raises:
        PolicyError: An unknown kind, or options that do not fit it.
    """
    options = dict(config)
    kind = options.pop("kind", MLPDenoiser.kind)
    if kind not in DENOISERS:
        raise PolicyError("unknown denoiser kind", got=kind, expected=sorted(DENOISERS))
    make: Any = DENOISERS[kind]  # each kind has options of its own
    try:
        denoiser: Denoiser = make(
            features, horizon, action_dimension, generator=generator, **options
        )
    except TypeError as error:
        raise PolicyError(
            f"the options do not fit the denoiser kind {kind!r}", got=str(error)
        ) from error
    return denoiser
