"""Where networks compute: the one place that chooses a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from omegaconf import DictConfig

from policies.errors import RobotRLError

CPU = torch.device("cpu")


class ComputeError(RobotRLError):
    """A device that is not there, or has too little memory."""


def compute_device(config: DictConfig) -> torch.device:
    """The device that `device` of the configuration names; auto takes a CUDA card if there is one.

    Raises:
        ComputeError: `device=cuda`, and there is none.
    """
    wanted = str(config.device)
    if wanted == "cpu":
        return CPU
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ComputeError(
            "there is no CUDA device",
            got="device=cuda",
            expected="device=auto or device=cpu here",
            hint="robot-rl doctor says what is missing",
        )
    return torch.device("cuda") if available else CPU


@contextmanager
def explained_memory(hint: str) -> Iterator[None]:
    """Turn a device's lack of memory into one `ComputeError` that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ComputeError(
            "the GPU has too little memory", got=str(error).partition("\n")[0], hint=hint
        ) from error
