"""`robot-rl export-policy`: writes a policy as ONNX files, with its card, for `exported`."""

from __future__ import annotations

import json
import shutil
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
from policies.vision import ImageEncoder
from robot_rl.commands.runs import load_resolved
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.evaluation.ledger import open_policy, policy_checkpoint
from robot_rl.extras.card.card import CARD, card, described, policy_facts
from robot_rl.extras.export import exported
from robot_rl.extras.export.exported import BASE_ACTION, NOISE
from robot_rl.processes.files import new_folder
from robot_rl.run import CELL_FILE, CONFIG_FILE, RunDirectory, policy_folder

LARGEST_DIFFERENCE = 1e-4
_CASES = 64  # random observations for comparing the graphs with torch


def run(path: str, out: str, *, which: str, runs_directory: str) -> None:
    """Write the policy of a run, or of one of its checkpoints, into a new folder.

    The folder is also a run directory: robot-rl run and evaluate accept it.
    """
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RobotRLError(f"{target} exists", hint="name a folder that is not there")
    directory = RunDirectory.around(path, runs_directory, with_policy=True)
    folder = policy_folder(path)
    if folder is None:
        named = policy_checkpoint(directory, which)
        folder = directory.complete_folder(named) / "policy"
        behaviour, steps = open_policy(directory.path, which)
    elif (folder / exported.PLAN_GRAPH).is_file() or (folder / exported.ACT_GRAPH).is_file():
        raise RobotRLError(f"{path} is an exported policy already", hint="name its run")
    else:
        behaviour, steps = open_policy(path)
        here = Path(path).absolute()  # also works through runs/latest
        inside = next(above for above in here.parents if above.samefile(directory.path))
        named = str(here.relative_to(inside))
    config = load_resolved(directory.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(target, target.with_name(f".{target.name}.partial")) as partial:
        facts = policy_facts(directory, config, named, folder, behaviour, steps)
        apart = export(partial, behaviour, facts)
        for name in (CONFIG_FILE, CELL_FILE):
            if (directory.path / name).is_file():
                shutil.copy(directory.path / name, partial / name)
        text = card(directory, exported.describe(partial))
        (partial / CARD).write_text(text, encoding="utf-8")
    print(f"{named} of {directory.path}: the largest difference from torch is {apart:.1e}")
    plays = in_shell("robot-rl", "run", target)
    print(f"written to {target}: {plays} plays it; {target / CARD} is its card")


def export(folder: Path, behaviour: Behaviour, facts: Mapping[str, Any]) -> float:
    """Write `policy.json`, including `facts`, and the graphs into an empty folder.

    Returns the largest difference from torch's outputs on random observations.

    Raises:
        PolicyError: The policy cannot be exported as graphs, or their outputs differ from its own.
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
    """Return name → width of the policy's own observations, without its base's."""
    base = policy.base
    below = {} if base is None or base is policy else base.observation
    own = policy.encoder.keys
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
    """A policy's `plan` or `act` with positional tensors; noise or base action last."""

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
    if isinstance(policy, ChunkPolicy) and policy.conditioned:
        raise PolicyError(
            "a policy that follows instructions cannot be exported",
            got=policy.kind,
            expected="one that sees numbers and images alone",
        )
    given, name = _observations(policy), exported.ACT_GRAPH
    if isinstance(policy, ChunkPolicy):
        name = exported.PLAN_GRAPH
        given[NOISE] = torch.randn(_CASES, *policy.noise_shape, generator=seeded(0))
    elif policy.base is not None:
        given[BASE_ACTION] = _invented((policy.action_dimension,))
    return _traced(folder / name, _Acting(policy), given, f"the {policy.kind} policy")


def _observations(policy: Policy) -> dict[str, Tensor]:
    """Return observations (cases, n, ...) within the training range."""
    encoder = policy.encoder
    steps, normalizer = encoder.observation_steps, encoder.normalizer
    found = {}
    for name, width in _observed(policy).items():
        if name not in normalizer.widths:  # such as the last command, in [-1, 1]
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
    """Write one graph; returns its largest difference from torch."""
    example = tuple(tensor[:1] for tensor in given.values())
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # Use the tracer: torch's other exporter takes minutes for a U-Net and needs three more
            # packages. Both warn about shapes that are fixed here.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                example,
                str(path),
                dynamo=False,
                input_names=list(given),
            )
    except Exception as error:  # the tracer raises its own errors
        raise PolicyError(
            f"{what} cannot be written as ONNX", got=str(error).strip().partition("\n")[0]
        ) from error
    with torch.no_grad():
        expected = module(*given.values()).numpy()
    found = exported.Graph(path)({name: tensor.numpy() for name, tensor in given.items()})
    return float(np.abs(expected - found).max())
