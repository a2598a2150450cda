"""π0 (Black et al. 2024) from Hugging Face transformers, as a `VLABackbone`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from policies.errors import PolicyError, installing, require
from policies.instructions import read_tokenizer
from policies.registry import factory
from policies.vla import VLAPolicy, around
from policies.vla_backbone import VLABackbone

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LINEAR = "(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
# π0 has one token table; a checkpoint may store it under two names.
_HEAD = re.compile(r"^.*paligemma\.lm_head\.weight$")
_EMBEDDING = re.compile(r"^.*language_model\.(model\.)?embed_tokens\.weight$")
_UNUSED = "tied_head"  # name for a head that is not read


@dataclass(frozen=True)
class _Prompt:
    """Output of the vision-language part: keys and values of each layer."""

    cache: Any
    mask: Tensor
    length: int


class PI0(VLABackbone):
    """PaliGemma with a Gemma action expert that attends to its keys and values.

    Wraps a `transformers.PI0ForConditionalGeneration`.

    Raises:
        PolicyError: Its training times are not drawn as t = scale · Beta(α, 1) + offset.
    """

    expert_modules: ClassVar[tuple[str, ...]] = (
        "model.model.dit.",
        "model.embed_action_time.",
        "model.action_out_proj.",
    )
    projection_modules: ClassVar[tuple[str, ...]] = (
        "model.embed_action_time.",
        "model.action_out_proj.",
    )
    adapted: ClassVar[str] = rf"model\.model\.(dit|vlm\.language_model)\..*\.{_LINEAR}"

    def __init__(self, model: Any) -> None:
        super().__init__()
        # The expert gets embedded actions; its token table would only use memory.
        model.model.dit.embed_tokens = None
        self.model = model.eval()
        config = model.config
        if config.time_sampling_beta_beta != 1.0:
            raise PolicyError(
                "the model's training times have another distribution",
                got=f"time_sampling_beta_beta {config.time_sampling_beta_beta}",
                expected=1.0,
            )
        self.state_width = int(config.max_state_dim)
        self.action_width = int(config.max_action_dim)
        self.horizon = int(config.chunk_size)
        self.vocabulary = int(config.vlm_config.text_config.vocab_size)
        vision = config.vlm_config.vision_config
        self.image_size = int(vision.image_size)
        self._image_tokens = (vision.image_size // vision.patch_size) ** 2

    @classmethod
    def load(cls, path: str, dtype: str, horizon: int) -> PI0:
        """Load published or your own weights, from safetensors only.

        `path` is a folder that `save_pretrained` wrote, or the id of a repository on the hub.
        `dtype` is "float32" or "bfloat16". `horizon`, the actions of a chunk, affects no weights.

        Raises:
            PolicyError: There is no such model, or its tensors do not fit π0.
        """
        transformers = _transformers()
        verbosity = transformers.logging.get_verbosity()
        try:
            transformers.logging.set_verbosity_error()  # the error below reports it
            with torch.random.fork_rng(devices=[]):  # missing tensors are drawn at random
                model, report = transformers.PI0ForConditionalGeneration.from_pretrained(
                    path,
                    dtype=_dtype(dtype),
                    chunk_size=int(horizon),
                    use_safetensors=True,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    key_mapping=_without_tied_head(path),
                )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise PolicyError(
                f"no π0 can be loaded from {path!r}",
                got=" ".join(str(error).split())[:300],
                expected="a folder with config.json and safetensors, or the id of a repository",
                hint="name it with policy.path=PATH; ids of the hub need a connection",
            ) from error
        finally:
            transformers.logging.set_verbosity(verbosity)
        # transformers would only warn.
        unused = "model.dit.embed_tokens."
        problems = {
            "missing": sorted(n for n in report["missing_keys"] if not n.startswith(unused)),
            "unexpected": sorted(set(report["unexpected_keys"]) - {_UNUSED}),
            "of another shape": sorted(str(entry[0]) for entry in report["mismatched_keys"]),
        }
        wrong = [f"{len(v)} {k}: {', '.join(v[:8])}" for k, v in problems.items() if v]
        if wrong:
            raise PolicyError(
                f"the weights in {path!r} are not those of its config.json",
                got="; ".join(wrong),
                expected="every tensor of PI0ForConditionalGeneration, and no other",
                hint="take config.json and weights from one model in the layout of transformers",
            )
        return cls(model)

    @property
    def config(self) -> dict[str, Any]:
        """The model's full configuration, including its parts."""
        content: dict[str, Any] = json.loads(self.model.config.to_json_string(use_diff=False))
        return content

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PI0:
        """Make a π0 of the configured shape and dtype, with arbitrary weights."""
        return cls(make_model(config))

    def prompt(self, tokens: Tensor, mask: Tensor, images: Tensor | None) -> _Prompt:
        """See `VLABackbone.prompt`."""
        model, numbers = self.model.model, mask.long()
        if images is None:
            # A batch has few distinct texts, so run each one once.
            texts = torch.cat([tokens, numbers], 1)
            different, which = torch.unique(texts, dim=0, return_inverse=True)
            tokens, seen = different.chunk(2, 1)
            cache = self._read(model.get_input_embeddings()(tokens), seen)
            cache.batch_select_indices(which)
            return _Prompt(cache, numbers, numbers.shape[1])
        batch, cameras = images.shape[:2]
        count = cameras * self._image_tokens
        places = tokens.new_full((batch, count), self.model.config.vlm_config.image_token_id)
        numbers = torch.cat([numbers.new_ones(batch, count), numbers], 1)
        present = torch.ones(batch, cameras, dtype=torch.bool, device=images.device)
        embedded = model.embed_prefix(
            torch.cat([places, tokens], 1), images.to(self.model.dtype), present
        )
        return _Prompt(self._read(embedded, numbers), numbers, numbers.shape[1])

    def velocity(self, prompt: _Prompt, state: Tensor, noisy: Tensor, time: Tensor) -> Tensor:
        """See `VLABackbone.velocity`."""
        dtype = self.model.dtype
        output = self.model(
            state=state.to(dtype),
            noise=noisy.to(dtype),
            timestep=time,
            attention_mask=prompt.mask,
            past_key_values=prompt.cache,
        )
        # The model appended the noisy actions; crop(-n) removes the last n entries.
        prompt.cache.crop(prompt.length - prompt.cache.get_seq_length())
        velocity: Tensor = output.logits.float()
        return velocity

    def _read(self, embedded: Tensor, mask: Tensor) -> Any:
        """Return keys and values of embedded prompts (B, L, width) with their mask (B, L)."""
        return self.model.model.vlm(
            inputs_embeds=embedded,
            attention_mask=mask,
            position_ids=mask.cumsum(-1) - 1,
            token_type_ids=torch.zeros_like(mask),  # one block with full attention
            use_cache=True,
        ).past_key_values

    def training_time(self, uniform: Tensor) -> Tensor:
        """Map uniform draws to scale · Beta(α, 1) + offset through the inverse CDF."""
        config = self.model.config
        drawn = uniform ** (1 / config.time_sampling_beta_alpha)
        time: Tensor = config.time_sampling_scale * drawn + config.time_sampling_offset
        return time


def make_model(config: Mapping[str, Any], seed: int = 0) -> Any:
    """Make a `PI0ForConditionalGeneration` with random weights.

    `config` has the keys of `transformers.PI0Config`; "dtype" is the dtype of the weights.
    """
    transformers = _transformers()
    content = dict(config)
    dtype = _dtype(str(content.pop("dtype", None) or "float32"))
    # The constructors draw from the global generator; leave its state unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.PI0ForConditionalGeneration._from_config(
            transformers.PI0Config(**content), dtype=dtype
        )


def _without_tied_head(path: str) -> dict[str, str]:
    """Return a key mapping that drops the language model's head if the embedding is stored too.

    π0 only reads the embedding; the head is a copy from before the fine-tuning. If only the head
    is stored, transformers uses it as the embedding.
    """
    utils = _transformers().utils
    index = utils.cached_file(
        path, utils.SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False
    )
    if index is not None:
        names = list(json.loads(Path(index).read_bytes())["weight_map"])
    else:
        weights = utils.cached_file(
            path, utils.SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False
        )
        if weights is None:
            return {}
        with safe_open(weights, "pt") as file:
            names = list(file.keys())
    both = all(any(map(pattern.match, names)) for pattern in (_HEAD, _EMBEDDING))
    return {_HEAD.pattern: _UNUSED} if both else {}


def _transformers() -> ModuleType:
    transformers = require("transformers", "vla")
    if not hasattr(transformers, "PI0ForConditionalGeneration"):
        raise PolicyError(
            "this transformers knows no π0",
            got=f"transformers {transformers.__version__}",
            expected="5.23 or newer",
            hint=installing("vla"),
        )
    return transformers


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise PolicyError("unknown dtype of a VLA", got=name, expected=sorted(DTYPES))
    return DTYPES[name]


# Token ids: begin token, one per byte, and the placeholder of an image patch.
_BYTES = 256
_IMAGE_TOKEN = _BYTES + 1


@factory
def create(
    arrays: Mapping[str, npt.NDArray[Any]],
    keys: Mapping[str, int],
    *,
    path: str | None,
    tokenizer: str | None,
    dtype: str,
    horizon: int,
    **options: Any,
) -> VLAPolicy:
    """Make a policy from a π0's weights: the `_target_` of configs/policy/vla.yaml.

    `path`, `dtype` and `horizon` are as in `PI0.load`. `tokenizer` is a folder or repository with
    `tokenizer.json`; None means `path`. For the rest see `around`.
    """
    if path is None:
        raise PolicyError(
            "the VLA has no weights",
            got="policy.path=null",
            expected="a folder, or the id of a repository on the hub",
            hint="name them with policy.path=PATH; policy=vla_tiny needs none",
        )
    backbone = PI0.load(path, dtype, horizon)
    return around(backbone, read_tokenizer(tokenizer or path), arrays, keys, **options)


@factory
def create_tiny(
    arrays: Mapping[str, npt.NDArray[Any]],
    keys: Mapping[str, int],
    *,
    generator: torch.Generator,
    horizon: int,
    model: Mapping[str, int],
    **options: Any,
) -> VLAPolicy:
    """Make an untrained policy: the `_target_` of configs/policy/vla_tiny.yaml.

    `model` has the options of `tiny_config`; for the rest see `create` and `around`.
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
    """Return keys of `transformers.PI0Config` for a small model.

    `width`, `layers` and `heads` apply to the language model, the expert and the image encoder.
    The other sizes are the model's states, actions and images; one token covers one patch.
    """
    sizes = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    transformer = {
        **sizes,
        "model_type": "gemma",
        "num_key_value_heads": 1,
        "head_dim": width // heads,
        "vocab_size": _BYTES + 2,
        # Preserves signal scale; the default is for widths in the thousands.
        "initializer_range": width**-0.5,
    }
    vision = {
        **sizes,
        "model_type": "siglip_vision_model",
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
    """Return a `tokenizer.json` with a begin token and one token per byte of text."""
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
