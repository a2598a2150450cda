"""A policy as ONNX files acts as it does with torch, and where there is no torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from policy_examples import ACTIONS, INTERFACE, POLICIES, behaviour, diffusion, observations, vla

from policies.behaviour import Behaviour
from policies.columns import FEATURES
from policies.errors import PolicyError
from policies.networks import seeded
from policies.runner import PolicyRunner
from policies.vision import ImageEncoder
from robot_rl.extras.export import exported
from robot_rl.extras.export.write_onnx import LARGEST_DIFFERENCE, export

onnx = pytest.importorskip("onnx", reason="needs the extra export")
pytest.importorskip("onnxruntime", reason="needs the extra export")

FACTS = {"environment_steps": 0}


def acted(mine, seen):
    runner = PolicyRunner(mine, len(next(iter(seen[0].values()))))
    runner.reset(seeds=range(runner.slots))
    return np.stack([runner.act(observation).action for observation in seen])


def each():
    """The names of policies; those whose graphs take long to write are slow."""
    for name in POLICIES:
        if name != "vla":
            slow = "U-Net" in name or "transformer" in name
            yield pytest.param(name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("name", list(each()))
def test_the_files_act_as_the_policy(name, tmp_path):
    policy = POLICIES[name]()
    mine = behaviour(policy, 2 if policy.base is not None else 1)
    assert export(tmp_path, mine, FACTS) <= LARGEST_DIFFERENCE
    theirs = exported.load(tmp_path)
    assert (theirs.interface, theirs.observation) == (mine.interface, mine.observation)
    seen = [observations(3, seed) for seed in range(5)]
    np.testing.assert_allclose(acted(theirs, seen), acted(mine, seen), atol=LARGEST_DIFFERENCE)


def test_images_are_encoded_by_the_files_too(tmp_path):
    cameras = {"images/front": (16, 16, 3), "images/wrist": (16, 16, 3)}
    backbone = {"class": "policies.backbones.SmallConvolutional", "channels": [4, 4]}
    vision = ImageEncoder(cameras, backbone, 8, 4, [0.05, 0.3], 0.004, generator=seeded(0))
    source = np.random.default_rng(0)
    data = {FEATURES: source.normal(size=(50, vision.features)).astype("f4")}
    data["action"] = source.uniform(-1, 1, (50, len(ACTIONS))).astype("f4")
    policy = type(diffusion()).create(
        data, {FEATURES: vision.features}, generator=seeded(0), identity=[FEATURES]
    )
    mine = Behaviour(policy, INTERFACE, 1, vision=vision)
    export(tmp_path, mine, FACTS)
    images = {n: source.integers(0, 256, (2, *s), np.uint8) for n, s in cameras.items()}
    theirs = exported.load(tmp_path)
    assert theirs.encoder_id == mine.encoder_id
    # Features are rounded to float16, which may go the other way.
    np.testing.assert_allclose(acted(theirs, [images]), acted(mine, [images]), atol=1e-3)


def test_what_cannot_be_exported_or_read_says_why(tmp_path):
    with pytest.raises(PolicyError, match="follows instructions cannot be exported"):
        export(tmp_path, behaviour(vla()), FACTS)
    export(tmp_path, behaviour(diffusion()), FACTS)
    theirs = PolicyRunner(exported.load(tmp_path))
    theirs.reset(seeds=[0])
    with pytest.raises(PolicyError, match="lacks 'state/relative'"):
        theirs.act({"state/tcp_pose": np.zeros((1, 7), "f4")})
    graph = tmp_path / exported.PLAN_GRAPH
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(PolicyError, match=r"plan\.onnx is damaged"):
        exported.load(tmp_path)


def test_a_graph_that_cannot_be_computed_says_so(tmp_path):
    export(tmp_path, behaviour(diffusion()), FACTS)
    path, description = tmp_path / exported.PLAN_GRAPH, tmp_path / exported.DESCRIPTION_FILE
    graph = onnx.load(path)
    last = graph.graph.output[0].name
    for node in graph.graph.node:
        node.output[:] = ["uncut" if name == last else name for name in node.output]
    shape = onnx.numpy_helper.from_array(np.array([977], np.int64), "shape")
    graph.graph.initializer.append(shape)
    graph.graph.node.append(onnx.helper.make_node("Reshape", ["uncut", "shape"], [last]))
    graph.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(graph, path)
    described = json.loads(description.read_text())
    described[exported.GRAPHS][exported.PLAN_GRAPH] = exported.checksum(path)
    description.write_text(json.dumps(described))
    runner = PolicyRunner(exported.load(tmp_path))
    runner.reset(seeds=[0])
    with pytest.raises(PolicyError, match=r"plan\.onnx cannot be computed; got: .*; next: export"):
        runner.act(observations(1, 0))


def test_it_acts_without_torch(tmp_path):
    export(tmp_path, behaviour(diffusion()), FACTS)
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
from pathlib import Path
import numpy as np
import robot_rl.commands.deployment
from robot_rl.extras.export import exported
from policies.runner import PolicyRunner
runner = PolicyRunner(exported.load(Path({str(tmp_path)!r})))
runner.reset(seeds=[0])
widths = runner.behaviour.observation
print(runner.act({{n: np.zeros((1, w), "f4") for n, w in widths.items()}}).action.shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "(1, 3)", done.stderr
