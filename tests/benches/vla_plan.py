"""How long a vision-language-action policy takes to plan, and what that means for a large one."""

from __future__ import annotations

import importlib.util
import time

import numpy as np
import torch

from policies.behaviour import Behaviour, Interface
from policies.runner import PolicyRunner
from policies.vla_pi0 import create_tiny
from robot_rl.errors import require

_KEYS = {"state/tcp_pose": 7, "state/tcp_velocity": 6, "state/relative": 6}
_ACTIONS = ("x", "y", "z", "rx", "ry", "rz")
_HORIZON, _STEPS, _PROMPT = 8, 10, 48
_INSTRUCTION = "move the gripper to the red marker"
# The published size, as it is used: cameras of 224 x 224, its own horizon.
_CAMERAS, _IMAGE_TOKENS, _PUBLISHED_HORIZON = 2, 256, 50


def measure(repetitions: int, seed: int) -> dict[str, float]:
    """Measure the tiny model, one thread; nothing where the extra `vla` is not installed.

    Returns:
        `vla_tiny_act_ms`: one `PolicyRunner.act` that plans, 10 flow steps, states and
        instruction, batch 1. `vla_tiny_parameters`. `vla_published_act_s_extrapolated`: not
        measured: the multiplications of a plan of the published size (2 cameras, 48 tokens, 50
        actions, 10 flow steps) at this thread's measured rate of large float32 products.
    """
    if importlib.util.find_spec("transformers") is None:
        return {}
    source = np.random.default_rng(seed)
    data = {n: source.standard_normal((100, width), np.float32) for n, width in _KEYS.items()}
    data["action"] = source.uniform(-1, 1, (100, len(_ACTIONS))).astype(np.float32)
    policy = create_tiny(
        data,
        _KEYS,
        generator=torch.Generator().manual_seed(seed),
        horizon=_HORIZON,
        model={},
        observation_steps=1,
        tuning={"mode": "full"},
        instruction_tokens=_PROMPT,
        steps=_STEPS,
    )
    runner = PolicyRunner(Behaviour(policy, Interface("bench", 10.0, _ACTIONS), 1))
    runner.reset(seeds=[seed], instructions=[_INSTRUCTION])
    observation = {name: data[name][:1] for name in _KEYS}
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        runner.act(observation)
        times.append(time.perf_counter() - start)
    return {
        "vla_tiny_act_ms": float(np.median(times)) * 1e3,
        "vla_tiny_parameters": float(sum(p.numel() for p in policy.backbone.parameters())),
        "vla_published_act_s_extrapolated": _published_operations() / _rate(),
    }


def _published_operations() -> float:
    """Floating-point operations of one plan: two for each weight and token that it meets."""
    transformers = require("transformers", "vla")
    with torch.device("meta"):
        model = transformers.PI0ForConditionalGeneration(transformers.PI0Config()).model
    image_tokens = _CAMERAS * _IMAGE_TOKENS
    vision = image_tokens * _weights(model.vlm.vision_tower)
    language = (image_tokens + _PROMPT) * _weights(model.vlm.language_model.layers)
    expert = _STEPS * (1 + _PUBLISHED_HORIZON) * _weights(model.dit.layers)
    return 2.0 * (vision + language + expert)


def _weights(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _rate() -> float:
    """Operations per second of a product of two large matrices."""
    size = 1024
    left, right = torch.rand(size, size), torch.rand(size, size)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        torch.matmul(left, right)
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / float(np.median(times))
