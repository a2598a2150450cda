"""Image encoders: features that travel with the policy, and images that do not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from policies import checkpoint
from policies.backbones import ResNet18, SpatialSoftmax
from policies.behaviour import Behaviour, Interface
from policies.columns import ENCODER_ID, FEATURES
from policies.diffusion import DiffusionPolicy
from policies.errors import PolicyError
from policies.networks import seeded
from policies.registry import RegistryError
from policies.runner import PolicyRunner
from policies.vision import ImageEncoder, build_image_encoder, observed_keys, random_shift

CAMERAS = {"images/front": (24, 32, 3), "images/wrist": (24, 32, 3)}
SMALL = {"class": "policies.backbones.SmallConvolutional", "channels": [4, 8]}


def encoder(seed=0, backbone=SMALL):
    return ImageEncoder(CAMERAS, backbone, 7, 5, [0.05, 0.3], 0.004, generator=seeded(seed))


def images(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 256, (count, *shape), np.uint8) for name, shape in CAMERAS.items()
    }


def behaviour(seed=0):
    vision = encoder(seed)
    keys = {"state/x": 3}
    rng = np.random.default_rng(0)
    columns = {"state/x": rng.normal(size=(20, 3)), "action": rng.uniform(-1, 1, (20, 2))}
    policy = DiffusionPolicy.create(
        columns,
        observed_keys(keys, vision),
        generator=seeded(1),
        observation_steps=2,
        horizon=4,
        identity=(FEATURES,),
        denoiser={"hidden": [16]},
    )
    return Behaviour(policy, Interface("reach", 10.0, ("x", "y")), 2, vision=vision)


@pytest.mark.parametrize("backbone", [SMALL, {"class": "policies.backbones.ResNet18"}])
def test_images_become_features_of_a_fixed_width(backbone):
    made = encoder(backbone=backbone)
    features = made.encode(images(3))
    assert (features.shape, features.dtype) == ((3, made.features), np.float16)
    assert made.features == 5 + 3 + 6
    histories = {name: array[None] for name, array in images(3).items()}
    np.testing.assert_allclose(made.encode(histories)[0], features, atol=2e-3)
    again = build_image_encoder(made.config)
    again.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(again.encode(images(3)), features)
    assert again.identifier == made.identifier


def test_an_encoder_without_a_motion_scale_estimates_none():
    options = {"hidden": 7, "features": 5, "motion_scale": None, "fine_scale": 0.004}
    made = ImageEncoder(CAMERAS, SMALL, **options, generator=seeded(0))
    features = made.encode(images(3))
    assert features.shape == (3, 5)
    again = build_image_encoder(made.config)
    again.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(again.encode(images(3)), features)


def test_the_identifier_follows_from_the_weights():
    one, other = encoder(0), encoder(1)
    assert one.identifier == encoder(0).identifier != other.identifier
    with torch.no_grad():
        one.motion.bias[0] += 1e-3
    assert one.identifier != encoder(0).identifier


def test_the_initial_weights_come_from_the_generator_alone():
    torch.manual_seed(0)
    once = encoder(3, {"class": "policies.backbones.ResNet18"}).state_dict()
    torch.manual_seed(1)
    again = encoder(3, {"class": "policies.backbones.ResNet18"}).state_dict()
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_spatial_softmax_says_where_a_channel_is_active():
    maps = torch.zeros(1, 1, 5, 9)
    maps[0, 0, 4, 2] = 50.0
    np.testing.assert_allclose(SpatialSoftmax(1)(maps)[0].detach(), [-0.5, 1.0], atol=1e-5)


def test_local_weights_are_loaded_and_wrong_ones_refused(tmp_path):
    source = ResNet18(generator=seeded(5))
    tensors = {n: t for n, t in source.state_dict().items() if not n.startswith("pool.")}
    path = tmp_path / "resnet.safetensors"
    save_file(tensors, path)
    loaded = ResNet18(str(path), generator=seeded(6))
    assert torch.equal(loaded.blocks[0].conv1.weight, source.blocks[0].conv1.weight)
    del tensors["stem.0.weight"]
    save_file(tensors, path)
    with pytest.raises(PolicyError, match=r"cannot be read.*Missing key.*\"stem.0.weight\""):
        ResNet18(str(path), generator=seeded(6))
    with pytest.raises(PolicyError, match="cannot be read"):
        ResNet18(str(tmp_path / "absent"), generator=seeded(6))


def test_an_encoder_with_local_weights_is_made_again_without_their_file(tmp_path):
    source = ResNet18(generator=seeded(5))
    tensors = {n: t for n, t in source.state_dict().items() if not n.startswith("pool.")}
    path = tmp_path / "resnet.safetensors"
    save_file(tensors, path)
    made = encoder(backbone={"class": "policies.backbones.ResNet18", "weights": str(path)})
    path.unlink()
    again = build_image_encoder(json.loads(json.dumps(made.config)))
    again.load_state_dict(made.state_dict())
    assert again.identifier == made.identifier
    assert again.features == made.features


def test_a_shift_moves_the_image_and_repeats_its_edge():
    image = np.zeros((1, 9, 9, 3), np.uint8)
    image[0, 4, 4] = 255
    seen = set()
    for seed in range(60):
        shifted = random_shift(image, 2, seeded(seed))
        (row,), (column,) = np.nonzero(shifted[0, ..., 0])
        seen.add((row, column))
    rows, columns = zip(*seen, strict=True)
    assert (min(rows), max(rows), min(columns), max(columns)) == (2, 6, 2, 6)
    edge = np.zeros((1, 4, 4, 3), np.uint8)
    edge[0, 0] = 7
    moved = next(m for s in range(99) if (m := random_shift(edge, 1, seeded(s)))[0, 1].any())
    np.testing.assert_array_equal(moved[0, :2], 7)


def test_a_policy_with_its_image_encoder_survives_the_wire_and_the_disk(tmp_path):
    made = behaviour()
    checkpoint.save(tmp_path / "policy", made)
    for copied in (
        checkpoint.from_bytes(checkpoint.to_bytes(made)),
        checkpoint.load(tmp_path / "policy"),
    ):
        assert copied.encoder_id == made.encoder_id
        assert copied.observation == {"state/x": 3} | dict.fromkeys(CAMERAS, 24 * 32 * 3)
        acted = [act(PolicyRunner(one)) for one in (made, copied)]
        np.testing.assert_array_equal(acted[0].action, acted[1].action)


def act(runner, count=1, seed=0):
    runner.reset(seeds=range(count))
    return runner.act({**images(count, seed), "state/x": np.ones((count, 3), np.float32)})


def test_the_runner_gives_the_features_that_the_policy_saw():
    made = behaviour()
    runner = PolicyRunner(made, slots=2)
    acted = act(runner, 2)
    np.testing.assert_array_equal(acted.features[FEATURES], made.vision.encode(images(2)))
    assert acted.features[ENCODER_ID].tolist() == [made.encoder_id] * 2
    concluded = runner.conclude({**images(2, 1), "state/x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(concluded.features[FEATURES], made.vision.encode(images(2, 1)))
    other = act(PolicyRunner(made), 1, seed=2)
    assert (other.action != acted.action[0]).any()  # the images matter


def test_labels_are_what_the_runner_would_have_proposed():
    made, runner = behaviour(), PolicyRunner(behaviour())
    columns = {**images(5), "state/x": np.ones((5, 3), np.float32)}
    labels = PolicyRunner(made).label(columns, seed=4)
    runner.reset(seeds=[4])
    for step in range(5):
        seen = {name: column[step : step + 1] for name, column in columns.items()}
        np.testing.assert_allclose(runner.act(seen).base_action[0], labels[step], atol=1e-5)


def test_images_that_do_not_fit_are_one_clear_error():
    made = behaviour()
    state = {"state/x": np.ones((1, 3), np.float32)}
    for broken, words in (
        ({"images/front": images(1)["images/front"]}, "lacks the camera 'images/wrist'"),
        (
            {**images(1), "images/wrist": np.zeros((1, 12, 16, 3), np.uint8)},
            r"'images/wrist' has images of another size; got: \(12, 16, 3\); expected: \(24",
        ),
    ):
        runner = PolicyRunner(made)
        runner.reset(seeds=[0])
        with pytest.raises(PolicyError, match=words):
            runner.act({**state, **broken})
    with pytest.raises(
        PolicyError, match="'images/front' differs; got: width 2304; expected: abse"
    ):
        made.expect(observation={"state/x": 3, "images/wrist": 2304})
    with pytest.raises(RegistryError, match="no class 'VGG'"):
        encoder(backbone={"class": "policies.backbones.VGG"})
    with pytest.raises(PolicyError, match="no RGB images"):
        ImageEncoder({"images/d": (24, 32, 1)}, SMALL, 7, 5, [1, 1], 1, generator=seeded(0))


def test_weights_with_another_image_encoder_are_refused():
    runner = PolicyRunner(behaviour(0))
    with pytest.raises(PolicyError, match="image encoder differs"):
        runner.set_behaviour(behaviour(1))
