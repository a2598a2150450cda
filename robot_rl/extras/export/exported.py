"""ONNX policies run by onnxruntime, for a robot computer without torch.

A folder has `policy.json` and one graph per network: `vision.onnx` from images to features,
`plan.onnx` from observations and noise to a chunk, `act.onnx` from observations, and a base action
if there is a base, to an action. The graphs include the normalisers. `write_onnx` writes the
folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from policies.behaviour import Behaviour, Interface
from policies.columns import Plan, looked_up
from policies.errors import CheckpointError, MissingExtra, PolicyError, require

if TYPE_CHECKING:
    from policies.policy import Policy
    from policies.vision import ImageEncoder

FORMAT_VERSION = 1
DESCRIPTION_FILE = "policy.json"
VISION_GRAPH, PLAN_GRAPH, ACT_GRAPH = "vision.onnx", "plan.onnx", "act.onnx"
NOISE, BASE_ACTION = "noise", "base_action"
GRAPHS = "graphs"
"""The key of `policy.json` that a checkpoint lacks: file name → SHA-256."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Graph:
    """One ONNX file, run on one CPU thread."""

    def __init__(self, path: Path) -> None:
        runtime, self._path = require("onnxruntime", "onnx-runtime"), path
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {i.name: (i.type, i.shape[1:]) for i in self._session.get_inputs()}

    def __call__(self, given: Mapping[str, Any]) -> Floats:
        """Map arrays (B, ...) by name to the output (B, ...); ignores names that are not inputs."""
        fed = {}
        for name, (kind, shape) in self._inputs.items():
            value = np.asarray(looked_up(given, name))
            dtype = np.uint8 if kind == "tensor(uint8)" else np.float32
            if value.size != len(value) * int(np.prod(shape)):
                raise PolicyError(
                    f"the observation {name!r} has another size",
                    got=value.shape[1:],
                    expected=tuple(shape),
                )
            fed[name] = np.ascontiguousarray(value.reshape(-1, 1, *shape), dtype)
        # Row by row: a robot has one row, and a fixed batch of 1 lets every network be exported.
        rows = zip(*fed.values(), strict=True)
        try:
            answers = [self._session.run(None, dict(zip(fed, row, strict=True)))[0] for row in rows]
            return np.concatenate(answers)
        except Exception as error:  # onnxruntime raises its own errors
            got, hint = " ".join(repr(error).split())[:300], "export the policy again"
            raise PolicyError(f"{self._path} cannot be computed", got=got, hint=hint) from error


class ExportedVision:
    """Stands in for an `ImageEncoder`."""

    def __init__(self, graph: Graph, description: Mapping[str, Any]) -> None:
        self._graph = graph
        self.cameras = {name: tuple(shape) for name, shape in description["cameras"].items()}
        self.features = int(description["features"])
        self.identifier = int(description["identifier"])

    def encode(self, images: Mapping[str, Any]) -> Array:
        """See `ImageEncoder.encode`."""
        return self._graph(images).astype(np.float16)


class ExportedPolicy:
    """Stands in for a `Policy` that acts deterministically.

    Two policies with the same file `checksums` act alike.
    """

    conditioned = on_torch = False
    extras: Mapping[str, int] = {}  # see `ChunkPolicy.extras`
    checksums: tuple[str, ...]

    def __init__(self, folder: Path, graph: str, description: Mapping[str, Any]) -> None:
        self._graph, self.checksums = Graph(folder / graph), (checksum(folder / graph),)
        self.kind = str(description["kind"])
        self.action_dimension = int(description["action_dimension"])
        self.encoder = SimpleNamespace(
            observed={str(name): int(width) for name, width in description["observed"].items()},
            observation_steps=int(description["observation_steps"]),
        )
        self.base: ExportedPlanner | None = None
        if (below := description.get("base")) is not None:
            self.base = ExportedPlanner(folder, below)
            self.checksums += self.base.checksums
        lower = self.encoder if self.base is None else self.base.encoder
        self.observation: dict[str, int] = {**lower.observed, **self.encoder.observed}
        self.observation_steps = max(lower.observation_steps, self.encoder.observation_steps)

    def acts_as(self, other: object) -> bool:
        """See `Policy.acts_as`."""
        return isinstance(other, ExportedPolicy) and self.checksums == other.checksums

    def parameters(self) -> tuple[()]:
        """A graph has no parameters to count."""
        return ()

    def act(
        self, observation: Mapping[str, Array], base_action: Floats | None, noise: Floats | None
    ) -> Floats:
        """See `Policy.act`; sampling is not supported."""
        return self._graph({**observation, BASE_ACTION: base_action})


class ExportedPlanner(ExportedPolicy):
    """Stands in for a `ChunkPolicy`."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        super().__init__(folder, PLAN_GRAPH, description)
        self.base, self.horizon = self, int(description["horizon"])
        self.noise_shape = tuple(int(size) for size in description["noise_shape"])

    def plan(self, observation: Mapping[str, Array], noise: Floats) -> Plan:
        """See `ChunkPolicy.plan`."""
        return Plan(self._graph({**observation, NOISE: noise}))


def describe(folder: Path) -> dict[str, Any]:
    """Read the `policy.json` of a folder.

    Raises:
        CheckpointError: The file is damaged, or has another format.
    """
    path = folder / DESCRIPTION_FILE
    try:
        description = dict(json.loads(path.read_bytes()))
        version = description["exported"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no exported policy", got=repr(error)[:300]) from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"the format of {path} differs",
            got=version,
            expected=FORMAT_VERSION,
            hint="export the policy again with this version of robot_rl",
        )
    return description


def load(folder: Path) -> Behaviour:
    """Read an exported policy as a behaviour that can act, but not be trained or saved.

    Raises:
        CheckpointError: A file is missing, damaged, or from another export.
        MissingExtra: onnxruntime is not installed.
    """
    description = describe(folder)
    try:
        for name, expected in description[GRAPHS].items():
            if name not in (VISION_GRAPH, PLAN_GRAPH, ACT_GRAPH):
                raise ValueError(f"{name!r} is no graph")
            if (found := checksum(folder / name)) != expected:
                raise CheckpointError(
                    f"{folder / name} is damaged, or of another export",
                    got=found,
                    expected=expected,
                )
        seen = description["vision"]
        vision = None if seen is None else ExportedVision(Graph(folder / VISION_GRAPH), seen)
        section = description["policy"]
        policy = (
            ExportedPlanner(folder, section)
            if "horizon" in section
            else ExportedPolicy(folder, ACT_GRAPH, section)
        )
        interface = Interface.of(description)
        steps, version = int(description["execute_steps"]), int(description["version"])
        if len(interface.action_names) != policy.action_dimension:
            raise ValueError(f"{policy.action_dimension} actions, {interface.action_names}")
        # They have the members that a runner and a behaviour use, but are not torch modules.
        acting, sees = cast("Policy", policy), cast("ImageEncoder | None", vision)
        return Behaviour(acting, interface, steps, version=version, vision=sees)
    except (CheckpointError, MissingExtra):
        raise
    except Exception as error:  # onnxruntime raises its own errors
        got = " ".join(repr(error).split())[:300]
        raise CheckpointError(f"{folder / DESCRIPTION_FILE} is damaged", got=got) from error


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
