"""A π0 of a million parameters with random weights: the whole path of a VLA without a download."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch

from policies.extras import require
from policies.vla import VLAPolicy, around
from policies.vla_pi0 import PI0, make_model

# Token ids: the beginning, one for each byte, and the place of an image patch.
_BYTES = 256
_IMAGE_TOKEN = _BYTES + 1


def create(
    arrays: Mapping[str, npt.NDArray[Any]],
    keys: Mapping[str, int],
    *,
    generator: torch.Generator,
    horizon: int,
    model: Mapping[str, int],
    **options: Any,
) -> VLAPolicy:
    """Make an untrained policy: the `_target_` of configs/policy/vla_tiny.yaml.

    Args:
        arrays: See `policies.vla.around`, as for `keys` and the options.
        keys: State name → width.
        generator: Source of the initial weights.
        horizon: Actions of a chunk.
        model: Options of `tiny_config`.
        **options: See `policies.vla.around`.
    """
    seed = int(torch.randint(2**31, (), generator=generator))
    backbone = PI0(make_model(tiny_config(horizon=horizon, **model), seed))
    return around(backbone, byte_tokenizer(), arrays, keys, generator=generator, **options)


def tiny_config(
    *,
    horizon: int = 8,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    state_width: int = 32,
    action_width: int = 8,
    image_size: int = 32,
    patch_size: int = 8,
) -> dict[str, Any]:
    """Give keys of `transformers.PI0Config` for a small model.

    Args:
        horizon: Actions of a chunk.
        width: Width of every transformer.
        layers: Layers of the language model, of the expert and of the image encoder.
        heads: Attention heads of each.
        state_width: Columns of the model's state.
        action_width: Columns of the model's action.
        image_size: Height and width of its images.
        patch_size: Height and width of what one token of an image covers.
    """
    transformer = {
        "model_type": "gemma",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": width // heads,
        "vocab_size": _BYTES + 2,
        # What keeps the scale of a signal; the default is meant for widths of thousands.
        "initializer_range": width**-0.5,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "image_size": image_size,
        "patch_size": patch_size,
        "vision_use_head": False,
        "projection_dim": width,
    }
    language = {
        "model_type": "paligemma",
        "text_config": transformer,
        "vision_config": vision,
        "projection_dim": width,
        "hidden_size": width,
        "image_token_id": _IMAGE_TOKEN,
    }
    return {
        "vlm_config": language,
        "dit_config": dict(transformer),
        "chunk_size": horizon,
        "max_state_dim": state_width,
        "max_action_dim": action_width,
    }


def byte_tokenizer() -> bytes:
    """Give a `tokenizer.json` with one token for each byte of a text, after a begin token."""
    tokenizers = require("tokenizers", "vla")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<bos>": 0} | {letter: number for number, letter in enumerate(alphabet, 1)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return str(tokenizer.to_str()).encode()
