"""Writes a behaviour as ONNX files; `exported` runs them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.behaviour import Behaviour, plans_chunks
from policies.errors import PolicyError, require
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy
from policies.vision import ImageEncoder, SeeingEncoder
from robot_rl.extras.card.card import described
from robot_rl.extras.export import exported
from robot_rl.extras.export.exported import BASE_ACTION, NOISE

LARGEST_DIFFERENCE = 1e-4
_CASES = 64  # invented observations on which the graphs are compared with torch


def export(folder: Path, behaviour: Behaviour, facts: Mapping[str, Any]) -> float:
    """Write `policy.json`, with further facts, and the graphs into an empty folder.

    Gives the largest difference of their outputs from torch's on invented observations.

    Raises:
        PolicyError: The policy cannot be written as graphs, or these compute something else.
        MissingExtra: onnx or onnxruntime is not installed.
    """
    require("onnx", "export")
    require("onnxruntime", "export")
    behaviour = behaviour.to(torch.device("cpu"))
    policy, vision = behaviour.acting, behaviour.vision
    found = [0.0]
    if vision is not None:
        seen = {name: _invented(shape, image=True) for name, shape in vision.cameras.items()}
        path = folder / exported.VISION_GRAPH
        found.append(_traced(path, _Vision(vision), seen, "the image encoder"))
    found.append(_write(folder, policy))
    if not plans_chunks(policy) and policy.base is not None:
        found.append(_write(folder, policy.base))
    description = {
        **facts,
        **described(behaviour),
        "exported": exported.FORMAT_VERSION,
        "policy": _described(policy),
        "vision": None
        if vision is None
        else {
            "cameras": {name: list(shape) for name, shape in vision.cameras.items()},
            "features": vision.features,
            "identifier": vision.identifier,
        },
        "largest_difference": max(found),
        exported.GRAPHS: {
            path.name: exported.checksum(path) for path in sorted(folder.glob("*.onnx"))
        },
    }
    text = json.dumps(description, indent=2) + "\n"
    (folder / exported.DESCRIPTION_FILE).write_text(text, encoding="utf-8")
    if not max(found) <= LARGEST_DIFFERENCE:
        raise PolicyError(
            "the exported graphs compute something else than the policy",
            got=f"a difference of {max(found):.2g}",
            expected=f"at most {LARGEST_DIFFERENCE:g}",
        )
    return max(found)


def _observed(policy: Policy) -> dict[str, int]:
    """Name → width of what the policy itself sees, without its base."""
    base = policy.base
    below = {} if base is None or base is policy else base.observation
    own = policy.encoder.observed
    return {n: w for n, w in policy.observation.items() if n in own or n not in below}


def _described(policy: Policy) -> dict[str, Any]:
    described = {
        "kind": policy.kind,
        "action_dimension": policy.action_dimension,
        "observed": _observed(policy),
        "observation_steps": policy.encoder.observation_steps,
    }
    if isinstance(policy, ChunkPolicy):
        described |= {"horizon": policy.horizon, "noise_shape": list(policy.noise_shape)}
    elif policy.base is not None:
        described["base"] = _described(policy.base)
    return described


class _Vision(nn.Module):
    def __init__(self, vision: ImageEncoder) -> None:
        super().__init__()
        self.vision = vision

    def forward(self, *images: Tensor) -> Tensor:
        features: Tensor = self.vision(dict(zip(self.vision.cameras, images, strict=True)))
        return features


class _Acting(nn.Module):
    """A policy's `plan` or `act` of tensors one behind the other; the last is noise or action."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, self.names = policy, list(_observed(policy))

    def forward(self, *given: Tensor) -> Tensor:
        observation = dict(zip(self.names, given, strict=False))
        last = given[-1] if len(given) > len(self.names) else None
        if not isinstance(self.policy, ChunkPolicy):
            return self.policy.act(observation, last, None)
        assert last is not None
        return torch.as_tensor(self.policy.plan(observation, last).actions)


def _write(folder: Path, policy: Policy) -> float:
    chunks = isinstance(policy, ChunkPolicy)
    if isinstance(policy, ChunkPolicy) and policy.conditioned:
        raise PolicyError(
            "a policy that follows instructions cannot be exported",
            got=policy.kind,
            expected="one that sees numbers and images alone",
        )
    given = _observations(policy)
    if isinstance(policy, ChunkPolicy):
        given[NOISE] = torch.randn(_CASES, *policy.noise_shape, generator=seeded(0))
    elif policy.base is not None:
        given[BASE_ACTION] = _invented((policy.action_dimension,))
    name = exported.PLAN_GRAPH if chunks else exported.ACT_GRAPH
    return _traced(folder / name, _Acting(policy), given, f"the {policy.kind} policy")


def _observations(policy: Policy) -> dict[str, Tensor]:
    """Observations (cases, n, ...) within the range of the training."""
    encoder = policy.encoder
    steps, normalizer = encoder.observation_steps, encoder.normalizer
    cameras = encoder.vision.cameras if isinstance(encoder, SeeingEncoder) else {}
    found = {}
    for name, width in _observed(policy).items():
        if name in cameras:
            found[name] = _invented((steps, *cameras[name]), image=True)
            continue
        if name not in normalizer.widths:  # such as what was commanded last, in [-1, 1]
            found[name] = _invented((steps, width))
            continue
        at = list(normalizer.widths).index(name)
        start = sum(list(normalizer.widths.values())[:at])
        part = slice(start, start + width)
        drawn = _invented((steps, width))
        found[name] = normalizer.center[part] + normalizer.half_range[part] * drawn
    return found


def _invented(shape: Sequence[int], *, image: bool = False) -> Tensor:
    if image:
        return torch.randint(256, (_CASES, *shape), generator=seeded(1), dtype=torch.uint8)
    return torch.randn(_CASES, *shape, generator=seeded(1)).clamp(-1, 1)


def _traced(path: Path, module: nn.Module, given: Mapping[str, Tensor], what: str) -> float:
    """Write one graph; gives its largest difference from torch."""
    example = tuple(tensor[:1] for tensor in given.values())
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # The tracer, as the other exporter of torch takes minutes for a U-Net, and three
            # packages more; both warn of shapes that are fixed here.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                example,
                str(path),
                dynamo=False,
                input_names=list(given),
            )
    except Exception as error:  # what it raises for a network that it cannot write is its own
        raise PolicyError(
            f"{what} cannot be written as ONNX", got=str(error).strip().partition("\n")[0]
        ) from error
    with torch.no_grad():
        expected = module(*given.values()).numpy()
    found = exported.Graph(path)({name: tensor.numpy() for name, tensor in given.items()})
    return float(np.abs(expected - found).max())
