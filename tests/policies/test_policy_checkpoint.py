"""Policies on disk and as bytes: one contract over every kind, and what damage gets."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from policy_examples import (
    INTERFACE,
    POLICIES,
    behaviour,
    diffusion,
    gaussian,
    observations,
    residual,
)

import policies
from policies import checkpoint
from policies.behaviour import Behaviour, Exploration
from policies.errors import PolicyError
from policies.policy import Policy
from policies.registry import RegistryError
from policies.runner import PolicyRunner


def test_every_kind_is_under_contract():
    for module in pkgutil.iter_modules(policies.__path__, "policies."):
        importlib.import_module(module.name)
    kinds = {Policy}
    for _ in range(3):
        kinds |= {below for kind in kinds for below in kind.__subclasses__()}
    ours = {k for k in kinds if k.__module__.startswith("policies.") and not inspect.isabstract(k)}
    assert {type(make()) for make in POLICIES.values()} == ours


@pytest.mark.parametrize("name", POLICIES)
def test_a_loaded_policy_acts_like_the_saved_one(name, tmp_path):
    saved = Behaviour(POLICIES[name](), INTERFACE, 1, Exploration("sample", "normal", 0.05), 17)
    checkpoint.save(tmp_path / "policy", saved)
    for loaded in (
        checkpoint.load(tmp_path / "policy"),
        checkpoint.from_bytes(checkpoint.to_bytes(saved)),
    ):
        assert (loaded.version, loaded.interface, loaded.exploration, loaded.execute_steps) == (
            saved.version,
            saved.interface,
            saved.exploration,
            saved.execute_steps,
        )
        acted = []
        for each in (saved, loaded):
            runner = PolicyRunner(each, 2)
            runner.reset(seeds=[1, 2], instructions=["push", "pull"])
            acted.append([runner.act(observations(2, step)).action for step in range(3)])
        np.testing.assert_array_equal(*acted)


def test_the_saved_normaliser_is_the_one_used_in_training(tmp_path):
    policy = diffusion()
    checkpoint.save(tmp_path / "policy", behaviour(policy))
    loaded = checkpoint.load(tmp_path / "policy").policy
    assert torch.equal(loaded.encoder.normalizer.center, policy.encoder.normalizer.center)
    assert torch.equal(loaded.action_normalizer.half_range, policy.action_normalizer.half_range)
    with pytest.raises(PolicyError, match="fitted already"):
        loaded.encoder.fit(observations(9))


def test_a_saved_diffusion_policy_keeps_its_noise_table(tmp_path):
    """Who only runs it does not wait seconds for diffusers and torch's compiler."""
    checkpoint.save(tmp_path / "policy", behaviour(diffusion()))
    loading = (
        "import sys, policies.checkpoint as c; from pathlib import Path;"
        f"c.load(Path({str(tmp_path / 'policy')!r}));"
        "print([name for name in ('diffusers', 'torch._dynamo') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("damage", ["short", "out of range"])
def test_a_noise_table_that_does_not_fit_is_refused(damage):
    content = behaviour(diffusion()).to_json()
    table = content["policy"]["config"]["process"]["noise_table"]
    if damage == "short":
        table["alphas"].pop()
    else:
        table["timesteps"][0] = 50
    with pytest.raises(PolicyError, match="noise table"):
        Behaviour.from_json(content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PolicyError, match=r"policy\.safetensors cannot be read"):
        checkpoint.load(tmp_path)
    checkpoint.save(tmp_path / "policy", behaviour(gaussian()))
    (tmp_path / "policy" / "policy.json").unlink()
    with pytest.raises(PolicyError, match=r"policy\.json cannot be read"):
        checkpoint.load(tmp_path / "policy")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_file_cut_short_is_named(name, share, tmp_path):
    checkpoint.save(tmp_path / "policy", behaviour(residual()))
    path = tmp_path / "policy" / name
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(PolicyError, match=f"{name} is truncated or damaged"):
        checkpoint.load(tmp_path / "policy")


@pytest.mark.parametrize("reach", [2500, None])
def test_a_flipped_bit_is_found_wherever_it_is(reach):
    data = checkpoint.to_bytes(behaviour(gaussian()))
    source = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data)
        damaged[source.integers(reach or len(data))] ^= 1 << int(source.integers(8))
        with pytest.raises(PolicyError):
            checkpoint.from_bytes(bytes(damaged))


def test_files_of_two_checkpoints_are_not_mixed(tmp_path):
    checkpoint.save(tmp_path / "a", behaviour(gaussian(), version=1))
    checkpoint.save(tmp_path / "b", behaviour(gaussian(), version=2))
    text = (tmp_path / "a" / "policy.json").read_bytes()
    (tmp_path / "b" / "policy.json").write_bytes(text)
    with pytest.raises(PolicyError, match="do not describe one policy"):
        checkpoint.load(tmp_path / "b")


def test_a_description_that_cannot_be_used_says_why():
    content = behaviour(gaussian()).to_json()
    with pytest.raises(PolicyError, match="format differs"):
        Behaviour.from_json({**content, "format": 0})
    with pytest.raises(PolicyError, match="damaged"):
        Behaviour.from_json({k: v for k, v in content.items() if k != "task"})
    with pytest.raises(PolicyError, match="does not fit the policy GaussianPolicy"):
        Behaviour.from_json({**content, "policy": {**content["policy"], "config": {}}})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("os.system", "'os.system' is not in the registry; got: a module 'os' of no known place"),
        ("octo.OctoPolicy", "next: name the folder with octo.py: ROBOT_RL_PATH=FOLDER"),
        ("policies.gaussian.GausianPolicy", "next: did you mean 'GaussianPolicy'?"),
        ("policies.diffusion.create", "is no class; expected: a Policy"),
        ("policies.checkpoint.load", "is no Policy"),
        ("policies.errors.importlib", "has no class 'importlib'"),
        ("policies.checkpoint.load_tensors", "has no class 'load_tensors'"),
        ("gaussian", "not named in full; got: gaussian; expected: module.Class"),
    ],
)
def test_a_checkpoint_names_policies_of_the_registry_and_nothing_else(name, expected):
    content = behaviour(gaussian()).to_json()
    with pytest.raises(RegistryError) as caught:
        Behaviour.from_json({**content, "policy": {**content["policy"], "class": name}})
    assert expected in str(caught.value)


def test_a_policy_that_nobody_could_read_is_not_saved(tmp_path):
    class Local(type(gaussian())):
        pass

    policy = gaussian()
    policy.__class__ = Local
    with pytest.raises(RegistryError, match="Local"):
        checkpoint.save(tmp_path / "policy", behaviour(policy))


def _with_tensors(change):
    """Bytes that are whole, but whose tensors are not those of their description."""
    good = behaviour(gaussian())
    tensors = {name: tensor.clone() for name, tensor in good.policy.state_dict().items()}
    change(tensors)
    good.policy.state_dict = lambda: tensors
    return checkpoint.to_bytes(good)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("actor.network.0.bias"), r"missing \['actor.network.0.bias'\]"),
        (lambda t: t.update(extra=torch.zeros(1)), r"unknown \['extra'\]"),
        (
            lambda t: t.update({"actor.network.0.bias": torch.zeros(3)}),
            r"'actor.network.0.bias'.*got: torch.float32 \(3,\); expected: torch.float32 \(32,\)",
        ),
        (
            lambda t: t.update({"actor.network.0.bias": torch.full((32,), torch.nan)}),
            "'actor.network.0.bias'.*not finite",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message):
    with pytest.raises(PolicyError, match=message):
        checkpoint.from_bytes(_with_tensors(change))


def test_a_policy_for_another_configuration_is_refused():
    mine = behaviour(gaussian())
    widths = {**mine.policy.observation, "state/more": 2}
    mine.expect(task="peg_insert", control_rate_hz=10, action_names="xyz", observation=widths)
    with pytest.raises(PolicyError, match="task differs; got: peg_insert; expected: reach"):
        mine.expect(task="reach")
    with pytest.raises(PolicyError, match=r"control_rate_hz differs; got: 10.0; expected: 20"):
        mine.expect(control_rate_hz=20)
    with pytest.raises(PolicyError, match="action_names differs"):
        mine.expect(action_names=["x", "y"])
    with pytest.raises(
        PolicyError, match="'state/relative' differs; got: width 3; expected: width 4"
    ):
        mine.expect(observation={**widths, "state/relative": 4})
    with pytest.raises(PolicyError, match=r"'state/relative' differs.*expected: absent"):
        mine.expect(observation={"state/tcp_pose": 7})


def test_a_behaviour_that_cannot_run_is_refused():
    with pytest.raises(PolicyError, match="execute_steps"):
        behaviour(diffusion(), execute_steps=9)
    with pytest.raises(PolicyError, match="execute_steps"):
        behaviour(gaussian(), execute_steps=2)
    with pytest.raises(PolicyError, match="mode 'base' needs"):
        behaviour(gaussian()).exploring("base")
    with pytest.raises(PolicyError, match="mode is impossible"):
        behaviour(gaussian()).exploring("greedy")
    with pytest.raises(PolicyError, match="mode 'base' needs"):
        behaviour(gaussian()).exploring("mean", base_share=0.5)
    with pytest.raises(PolicyError, match="base_share is impossible"):
        behaviour(gaussian()).exploring("mean", base_share=1.5)
    with pytest.raises(PolicyError, match="mean_share is impossible"):
        behaviour(gaussian()).exploring("sample", mean_share=-0.1)
    with pytest.raises(PolicyError, match="noise_scale"):
        behaviour(gaussian()).exploring("mean", "normal", -1.0)
