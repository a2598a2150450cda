"""One thread for every test of this folder, and the examples of the core's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

_TESTS = Path(__file__).resolve().parents[2]
sys.path += [str(_TESTS / name) for name in ("algorithms", "policies", "pipeline")]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
