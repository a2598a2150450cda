"""Processes by their kind, as configurations and checkpoints name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from policies.denoisers.registry import build_denoiser
from policies.errors import PolicyError
from policies.processes.base import Process
from policies.processes.ddim import DDIM
from policies.processes.flow import Flow

PROCESSES: dict[str, type[Process]] = {c.kind: c for c in (DDIM, Flow)}


def build_process(config: Mapping[str, Any], features: int, generator: torch.Generator) -> Process:
    """Make a process and its denoiser from what `Process.config` gives.

    Args:
        config: `horizon`, `action_dimension`, `denoiser`, the process's options, and its `kind`.
            Checkpoints from before there were several have no kind: "ddim".
        features: Width of the encoded observation.
        generator: Source of the initial weights.

    Raises:
        PolicyError: An unknown kind of process or denoiser, or options that do not fit it.
    """
    options = dict(config)
    kind = options.pop("kind", DDIM.kind)
    if kind not in PROCESSES:
        raise PolicyError("unknown process kind", got=kind, expected=sorted(PROCESSES))
    horizon, width = int(options.pop("horizon")), int(options.pop("action_dimension"))
    denoiser = build_denoiser(options.pop("denoiser"), features, horizon, width, generator)
    make: Any = PROCESSES[kind]  # each kind has options of its own
    try:
        process: Process = make(denoiser, **options)
    except TypeError as error:
        raise PolicyError(
            f"the options do not fit the process kind {kind!r}", got=str(error)
        ) from error
    return process
