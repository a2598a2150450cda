"""Policies that somebody changed by hand: they act, or one kind of error says what is wrong."""

import copy
import json
import zlib

import numpy as np
import pytest
import torch
from policy_examples import POLICIES, behaviour, observations
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from policies import checkpoint
from policies.errors import CheckpointError
from policies.registry import RegistryError
from policies.runner import PolicyRunner

GONE = object()
HUGE, NAN = 10**12, float("nan")
VALUES = (GONE, None, "x", -1, 2.5, HUGE, 10**30, NAN, [], {}, [[1]], True)
FORGED = ("gaussian", "diffusion", "residual")


def places(content, path=()):
    """Every place in JSON values; of a list the first entry alone."""
    yield path
    entries = content.items() if isinstance(content, dict) else enumerate(content[:1])
    for key, inner in entries:
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))
        else:
            yield (*path, key)


def changed(content, path, value):
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


def checksum(text, tensors) -> str:
    crc = zlib.crc32(text.encode())
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes(), crc)
    return f"{crc:08x}"


def sealed(content, tensors) -> bytes:
    """The bytes of a policy whose checksum is right, whatever is in it."""
    text = json.dumps(content)
    return save_tensors(tensors, {"policy": text, "crc32": checksum(text, tensors)})


@pytest.fixture(scope="module", params=FORGED)
def made(request):
    policy = behaviour(POLICIES[request.param]())
    return policy.to_json(), load_tensors(checkpoint.to_bytes(policy))


def acts(data: bytes) -> None:
    runner = PolicyRunner(checkpoint.from_bytes(data), 1)
    runner.reset(seeds=[1], instructions=["push"])
    assert np.isfinite(runner.act(observations(1)).action).all()


def test_a_changed_description_is_refused_by_name_or_acts(made):
    content, tensors = made
    acts(sealed(content, tensors))
    refused = 0
    for number, path in enumerate(places(content)):
        for value in VALUES[number % 4 :: 4] if path else ():
            try:
                acts(sealed(changed(content, path, value), tensors))
            except (CheckpointError, RegistryError):
                refused += 1
    assert refused > 30


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "{", '{"format": 3}'])
def test_a_description_that_is_none_is_refused(made, text):
    _, tensors = made
    sealed_text = save_tensors(tensors, {"policy": text, "crc32": checksum(text, tensors)})
    with pytest.raises(CheckpointError):
        checkpoint.from_bytes(sealed_text)


CHANGES = {
    "shape": lambda t: t.reshape(-1, 1),
    "dtype": lambda t: t.double(),
    "half": lambda t: t.half(),
    "whole": lambda t: t.to(torch.int64),
    "none": lambda t: t[:0],
    "NaN": lambda t: torch.full_like(t, torch.nan),
    "inf": lambda t: torch.full_like(t, torch.inf),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_tensor_is_named(made, change):
    content, tensors = made
    for name, tensor in list(tensors.items())[::3]:
        if not tensor.is_floating_point():
            continue
        with pytest.raises(CheckpointError, match=name):
            checkpoint.from_bytes(sealed(content, {**tensors, name: change(tensor)}))


def test_tensors_more_and_less_are_named(made):
    content, tensors = made
    name, *_ = tensors
    with pytest.raises(CheckpointError, match=name):
        checkpoint.from_bytes(sealed(content, {n: t for n, t in tensors.items() if n != name}))
    with pytest.raises(CheckpointError, match="further"):
        checkpoint.from_bytes(sealed(content, {**tensors, "further": torch.zeros(1)}))
    more = {f"further.{number}": torch.zeros(1) for number in range(1000)}
    with pytest.raises(CheckpointError, match="further") as refused:
        checkpoint.from_bytes(sealed(content, {**tensors, **more}))
    assert len(str(refused.value)) < 600
    with pytest.raises(CheckpointError, match="tensors"):
        checkpoint.from_bytes(sealed(content, {}))


@pytest.mark.parametrize("hidden", [[40_000, 40_000], [1 << 16] * 4])
def test_a_description_of_far_more_weights_than_there_are_makes_none(hidden):
    policy = behaviour(POLICIES["gaussian"]())
    content, tensors = policy.to_json(), load_tensors(checkpoint.to_bytes(policy))
    content["policy"]["config"]["actor"]["hidden"] = hidden
    with pytest.raises(CheckpointError):
        checkpoint.from_bytes(sealed(content, tensors))


@pytest.mark.parametrize("length", [0, 1, 7, 2**31, 2**63, 2**64 - 1])
def test_a_header_of_any_length_is_refused(tmp_path, length):
    checkpoint.save(tmp_path / "policy", behaviour(POLICIES["gaussian"]()))
    file = tmp_path / "policy/policy.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    for read in (checkpoint.load, checkpoint.checksum):
        with pytest.raises(CheckpointError, match=r"policy\.safetensors"):
            read(tmp_path / "policy")


@pytest.mark.parametrize("place", [".", "/tmp", "../elsewhere", "\0"])
def test_a_base_is_looked_for_where_a_copy_has_it(tmp_path, place):
    saved = behaviour(POLICIES["residual"]())
    checkpoint.save(tmp_path / "base", behaviour(POLICIES["diffusion"]()))
    stored = checkpoint.StoredBase(saved.policy.base, checkpoint.checksum(tmp_path / "base"))
    checkpoint.save(tmp_path / "policy", saved, stored, place)
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "policy")


def _apart(run, place, base):
    """Write checkpoints/last, whose base is at `place`, beside which it lies at `base`."""
    saved = behaviour(POLICIES["residual"]())
    whole = run / "checkpoints" / "whole"
    checkpoint.save(whole, behaviour(saved.policy.base))
    stored = checkpoint.StoredBase(saved.policy.base, checkpoint.checksum(whole))
    checkpoint.save(run / "checkpoints/last/policy", saved, stored, place)
    base.parent.mkdir(parents=True, exist_ok=True)
    whole.rename(base)
    return run / "checkpoints/last/policy"


def test_a_base_beside_its_checkpoint_is_read(tmp_path):
    run = tmp_path / "run"
    folder = _apart(run, "../../bc/policy", run / "checkpoints/bc/policy")
    assert checkpoint.load(folder).policy.base is not None
    (tmp_path / "link").symlink_to(folder.parent)
    assert checkpoint.load(tmp_path / "link/policy").policy.base is not None


@pytest.mark.parametrize("linked", [False, True])
def test_a_base_elsewhere_is_not_read(tmp_path, linked):
    run, base = tmp_path / "run", tmp_path / "lab/policy"
    place = "../../bc" if linked else "../../../../lab/policy"
    folder = _apart(run, place, base)
    if linked:
        (run / "checkpoints/bc").symlink_to(base)
    with pytest.raises(CheckpointError, match="a checkpoint beside its own"):
        checkpoint.load(folder)


def test_a_base_that_has_a_base_is_refused_at_once(tmp_path):
    folder = _apart(tmp_path / "run", ".", tmp_path / "run/checkpoints/bc/policy")
    with pytest.raises(CheckpointError, match="no base"):
        checkpoint.load(folder)
