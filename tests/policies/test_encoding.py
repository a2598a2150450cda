"""Normaliser and encoder: what a network sees."""

import numpy as np
import pytest
import torch
from policy_examples import KEYS, observations, recorded

from policies.encoders import FEATURE_LIMIT, Normalizer, StateEncoder
from policies.errors import PolicyError


def test_the_data_fills_minus_one_to_one_and_comes_back():
    data = {"action": np.random.default_rng(0).uniform([-3, 5], [1, 9], (100, 2))}
    normalizer = Normalizer({"action": 2}).fit(data)
    raw = torch.tensor(data["action"], dtype=torch.float32)
    scaled = normalizer.normalize(raw)
    torch.testing.assert_close(scaled.amin(0), torch.full((2,), -1.0))
    torch.testing.assert_close(scaled.amax(0), torch.full((2,), 1.0))
    torch.testing.assert_close(normalizer.denormalize(scaled), raw)


def test_a_near_constant_dimension_is_not_blown_up():
    data = {"a": np.array([[0.5], [0.5 + 1e-7]])}
    normalizer = Normalizer({"a": 1}, range_floor=0.02).fit(data)
    assert abs(float(normalizer.normalize(torch.tensor([[0.51]])))) < 1.01


def test_identity_keys_pass_unchanged():
    data = {"a": np.random.default_rng(0).normal(size=(9, 2)), "b": np.full((9, 1), 7.0)}
    normalizer = Normalizer({"a": 2, "b": 1}, identity=["b"]).fit(data)
    assert float(normalizer.normalize(torch.tensor([[0.0, 0.0, 7.0]]))[0, 2]) == 7.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "needs data of 'a'"),
        ({"a": np.zeros((4, 3))}, "another width"),
        ({"a": np.full((4, 2), np.nan)}, "not finite"),
        ({"a": np.zeros((0, 2))}, "another width"),
    ],
)
def test_unfit_statistics_are_refused(data, message):
    with pytest.raises(PolicyError, match=message):
        Normalizer({"a": 2}).fit(data)


def test_a_fitted_normaliser_is_never_refitted():
    normalizer = Normalizer({"a": 1}).fit({"a": np.zeros((2, 1))})
    with pytest.raises(PolicyError, match="fitted already"):
        normalizer.fit({"a": np.ones((2, 1))})


def test_unknown_identity_keys_are_refused():
    with pytest.raises(PolicyError, match="identity keys"):
        Normalizer({"a": 1}, identity=["b"])


def test_history_is_encoded_step_by_step_from_arrays_and_tensors_alike():
    encoder = StateEncoder(KEYS, observation_steps=2).fit(recorded())
    single = StateEncoder(KEYS).fit(recorded())
    data = observations(2)
    history = {name: value[None] for name, value in data.items()}
    features = encoder(history)
    assert features.shape == (1, encoder.features) == (1, 20)
    torch.testing.assert_close(features.view(2, 10), single(data))
    tensors = {name: torch.from_numpy(value) for name, value in history.items()}
    torch.testing.assert_close(encoder(tensors), features)


def test_nested_shapes_are_flattened_and_other_names_ignored():
    encoder = StateEncoder({"state/object_poses": 14})
    poses = np.random.default_rng(0).normal(size=(3, 2, 7))
    features = encoder({"state/object_poses": poses, "images/wrist": np.zeros((3, 4, 4, 3))})
    np.testing.assert_allclose(features.numpy(), poses.reshape(3, 14), rtol=1e-6)


def test_a_wild_reading_is_limited():
    encoder = StateEncoder({"state/tcp_wrench": 1}).fit({"state/tcp_wrench": np.zeros((2, 1))})
    assert float(encoder({"state/tcp_wrench": np.full((1, 1), 1e6)})) == FEATURE_LIMIT


def test_a_missing_or_misshapen_key_is_named_with_got_and_expected():
    encoder = StateEncoder(KEYS)
    with pytest.raises(PolicyError, match=r"lacks 'state/relative'; got: \['state/tcp_pose'\]"):
        encoder({"state/tcp_pose": np.zeros((1, 7))})
    with pytest.raises(PolicyError, match=r"'state/relative'.*got: \(1, 4\); expected: \(batch, 3"):
        encoder({"state/tcp_pose": np.zeros((1, 7)), "state/relative": np.zeros((1, 4))})


def test_a_tail_keeps_spikes_from_squeezing_all_other_readings():
    readings = np.linspace(-1.0, 1.0, 201, dtype=np.float32)
    readings[100] = 50.0  # one spike of a force sensor
    plain = Normalizer({"force": 1}).fit({"force": readings[:, None]})
    robust = Normalizer({"force": 1}, tail=0.05).fit({"force": readings[:, None]})
    usual = torch.tensor([[0.5]])
    rest = torch.tensor([[-0.5]])
    assert (plain.normalize(usual) - plain.normalize(rest)).item() < 0.05
    assert (robust.normalize(usual) - robust.normalize(rest)).item() > 0.9
    with pytest.raises(PolicyError, match="tail"):
        Normalizer({"force": 1}, tail=0.5)


def test_an_encoder_made_from_its_configuration_keeps_the_tail():
    encoder = StateEncoder({"force": 1}, Normalizer({"force": 1}, tail=0.05))
    assert StateEncoder.from_config(encoder.config).normalizer.tail == 0.05
