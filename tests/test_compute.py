"""Where networks compute, as the configuration says."""

from __future__ import annotations

import pytest
import torch

from policies.compute import ComputeError, compute_device, explained_memory
from robot_rl.config import ConfigError, compose


def test_auto_takes_a_card_only_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute_device("auto") == torch.device("cuda")
    assert compute_device("cpu") == torch.device("cpu")


def test_a_card_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ComputeError, match=r"device=cuda; expected: .*device=cpu.*doctor"):
        compute_device("cuda")
    with pytest.raises(ConfigError, match="expected: one of auto, cpu, cuda"):
        compose(["device=gpu"])


def test_too_little_memory_says_what_to_change():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nDetails")
    with (
        pytest.raises(ComputeError, match=r"too little memory; got: .* 9 GiB; next: lower"),
        explained_memory("lower cloning.batch_size"),
    ):
        raise error
