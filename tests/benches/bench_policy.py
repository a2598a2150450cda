"""How long a policy takes to act, on one thread."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import vla_plan
from omegaconf import DictConfig

from policies import checkpoint
from policies.behaviour import Behaviour, Interface
from policies.columns import FEATURES
from policies.critics import CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.encoders import StateEncoder
from policies.errors import MissingExtra
from policies.gaussian import GaussianTanh
from policies.improved import ResidualPolicy
from policies.processes.one_step import OneStep
from policies.runner import PolicyRunner
from policies.vision import ImageEncoder, observed_keys
from robot_rl.extras.export import exported
from robot_rl.extras.export.write_onnx import export
from robot_rl.learning.algorithms.behavior_cloning import CloningOptions, fit

# The widths of a 7-joint arm's state observations, and a 6-D motion.
_KEYS = {"state/tcp_pose": 7, "state/tcp_velocity": 6, "state/tcp_wrench": 6, "state/relative": 12}
_ACTIONS = ("x", "y", "z", "rx", "ry", "rz")
_HORIZON, _EXECUTE, _STEPS = 8, 4, 2
_BATCH, _TRAINING_BATCH = 100, 256

_REPETITIONS = 200

Arrays = dict[str, npt.NDArray[Any]]


def run(config: DictConfig) -> dict[str, float]:
    """Measure medians in milliseconds; sizes are fixed, so the configuration does not matter.

    Returns:
        `ddim10_act_ms`: one `PolicyRunner.act` that plans, 10 DDIM steps, MLP 3x256, batch 1.
        `ddim10_act_batch100_ms`: the same for 100 episodes in one call. `residual_act_ms`: a
        residual's step between two plans. `runner_overhead_ms`: the part of that step that is
        not network. `student_act_ms`: the first again with a one-step student, `..._cameras_...`:
        both with features of two 128 x 128 cameras; `exported_...`: the student as ONNX files, with
        the extra `export`. `bc_update_ms`: one cloning update, batch 256. `policy_bytes`,
        `policy_to_bytes_ms`, `policy_from_bytes_ms`: the residual policy with its base. With
        the extra `vla`, also what `vla_plan.measure` gives.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seed = int(config.seed)
        return _measure(_REPETITIONS, seed) | vla_plan.measure(_REPETITIONS, seed)
    finally:
        torch.set_num_threads(threads)


def _measure(repetitions: int, seed: int) -> dict[str, float]:
    source = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    data = _observations(source, 1000)
    data["action"] = source.uniform(-1, 1, (1000, len(_ACTIONS))).astype(np.float32)
    base = DiffusionPolicy.create(
        data, _KEYS, generator=generator, observation_steps=_STEPS, horizon=_HORIZON
    )
    encoder, width = StateEncoder(_KEYS).fit(data), len(_ACTIONS)
    seen = encoder.features + width
    actor = GaussianTanh(seen, width, generator=generator, zero_last_layer=True)
    critics = CriticEnsemble(seen + width, (128, 128), 6, generator)
    residual = ResidualPolicy(encoder, actor, base, critics)
    interface = Interface("bench", 10.0, _ACTIONS)
    planning = Behaviour(base, interface, 1)  # one executed step: every act plans
    stepping = Behaviour(residual, interface, _HORIZON).exploring("sample")
    one, many = _observations(source, 1), _observations(source, _BATCH)
    step = _time_steps(stepping, one, repetitions)
    network = _time_residual_network(residual, one, repetitions)
    data_bytes = checkpoint.to_bytes(stepping)
    return {
        "ddim10_act_ms": _time_runner(planning, one, repetitions),
        f"ddim10_act_batch{_BATCH}_ms": _time_runner(planning, many, repetitions),
        **_students(planning, one, source, repetitions),
        "residual_act_ms": step,
        "runner_overhead_ms": step - network,
        "bc_update_ms": _time_cloning(base, source, generator, repetitions),
        "policy_bytes": float(len(data_bytes)),
        "policy_to_bytes_ms": _median_ms(lambda: checkpoint.to_bytes(stepping), repetitions),
        "policy_from_bytes_ms": _median_ms(lambda: checkpoint.from_bytes(data_bytes), repetitions),
    }


def _students(
    teacher: Behaviour, seen: Arrays, source: np.random.Generator, repetitions: int
) -> dict[str, float]:
    """Time a one-step student, alone and exported, and with cameras its teacher too."""
    found: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    cameras = {f"images/{name}": (128, 128, 3) for name in ("front", "wrist")}
    backbone = {"class": "policies.backbones.SmallConvolutional", "channels": [16, 32, 32]}
    vision = ImageEncoder(cameras, backbone, 128, 8, [0.05, 0.3], 0.004, generator=generator)
    keys = observed_keys(_KEYS, vision)
    data = _observations(source, 1000)
    data["action"] = source.uniform(-1, 1, (1000, len(_ACTIONS))).astype(np.float32)
    data[FEATURES] = source.standard_normal((1000, vision.features)).astype(np.float32)
    seeing = DiffusionPolicy.create(data, keys, generator=generator, horizon=_HORIZON)
    looking = Behaviour(seeing, teacher.interface, vision=vision)
    images = {n: source.integers(0, 256, (1, *s), np.uint8) for n, s in cameras.items()}
    for name, behaviour, given in (("", teacher, seen), ("cameras_", looking, {**seen, **images})):
        base = behaviour.policy
        assert isinstance(base, DiffusionPolicy)
        student = replace(behaviour, policy=base.under(OneStep.student(base.process)))
        if name:
            found[f"ddim10_{name}act_ms"] = _time_runner(behaviour, given, repetitions)
        found[f"student_{name}act_ms"] = _time_runner(student, given, repetitions)
        with suppress(MissingExtra), tempfile.TemporaryDirectory() as folder:
            export(Path(folder), student, {})
            acting = exported.load(Path(folder))
            found[f"exported_{name}act_ms"] = _time_runner(acting, given, repetitions)
    return found


def _observations(source: np.random.Generator, count: int) -> Arrays:
    return {
        name: source.standard_normal((count, width), np.float32) for name, width in _KEYS.items()
    }


def _time_runner(behaviour: Behaviour, observation: Arrays, repetitions: int) -> float:
    slots = len(next(iter(observation.values())))
    runner = PolicyRunner(behaviour, slots)
    runner.reset(seeds=range(slots))
    return _median_ms(lambda: runner.act(observation), repetitions)


def _time_steps(behaviour: Behaviour, observation: Arrays, repetitions: int) -> float:
    """Time the steps between two plans only."""
    runner = PolicyRunner(behaviour)
    runner.reset(seeds=[0])
    runner.act(observation)
    times: list[float] = []
    while len(times) < repetitions:
        start = time.perf_counter()
        acted = runner.act(observation)
        duration = time.perf_counter() - start
        if acted.chunk_index[0] > 0:
            times.append(duration)
    return float(np.median(times)) * 1e3


def _time_residual_network(policy: ResidualPolicy, observation: Arrays, repetitions: int) -> float:
    zero = torch.zeros(1, len(_ACTIONS))
    with torch.inference_mode():
        return _median_ms(lambda: policy.act(observation, zero, zero), repetitions)


def _time_cloning(
    policy: DiffusionPolicy,
    source: np.random.Generator,
    generator: torch.Generator,
    repetitions: int,
) -> float:
    policy.requires_grad_(True)  # it was frozen as the residual's base
    batch: Arrays = {
        name: source.standard_normal((_TRAINING_BATCH, _STEPS, width), np.float32)
        for name, width in _KEYS.items()
    }
    shape = (_TRAINING_BATCH, _HORIZON, len(_ACTIONS))
    batch["action"] = source.uniform(-1, 1, shape).astype(np.float32)
    batch["valid"] = np.ones(shape[:2], np.bool_)
    times, options = [time.perf_counter()], CloningOptions(updates=repetitions)
    fit(policy, lambda: batch, options, generator, lambda *_: times.append(time.perf_counter()))
    return float(np.median(np.diff(times))) * 1e3


def _median_ms(call: Callable[[], object], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3
