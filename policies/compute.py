"""Device selection for networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from policies.errors import RobotRLError

if TYPE_CHECKING:  # an exported policy runs without torch
    import torch

    from policies.behaviour import Behaviour


class ComputeError(RobotRLError):
    """A device that is missing or has too little memory."""


def compute_device(name: str) -> torch.device:
    """Return the device cpu, cuda or auto; auto uses a CUDA GPU if there is one.

    Raises:
        ComputeError: `device=cuda`, but there is no CUDA GPU.
    """
    import torch

    if name == "cpu":
        return torch.device("cpu")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ComputeError(
            "there is no CUDA device",
            got="device=cuda",
            expected="device=auto or device=cpu here",
            hint="robot-rl doctor says what is missing",
        )
    return torch.device("cuda") if available else torch.device("cpu")


def ready(behaviour: Behaviour, device: str) -> Behaviour:
    """Move a behaviour to a device and limit torch to one CPU thread.

    An exported policy is returned unchanged.

    Raises:
        ComputeError: As in `compute_device`.
    """
    if not behaviour.policy.on_torch:
        return behaviour
    import torch

    torch.set_num_threads(1)
    return behaviour.to(compute_device(device))


@contextmanager
def explained_memory(hint: str) -> Iterator[None]:
    """Turn a GPU out-of-memory error into a `ComputeError` with `hint`."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ComputeError(
            "the GPU has too little memory", got=str(error).partition("\n")[0], hint=hint
        ) from error
