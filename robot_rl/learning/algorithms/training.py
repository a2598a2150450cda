"""Training state shared by all algorithms: networks, optimisers, a counter and a generator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.encoders import StateEncoder
from policies.networks import seeded, to_device
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, check_finite
from robot_rl.replay.windows import CHUNK, NEXT, SampleSpec


class Training:
    """Networks that learn on a device, with a state that can be saved and loaded.

    `seed` seeds all draws.

    Attributes:
        updates: Number of updates made.
        device: Device of the networks.
        modules: Trained modules by their name in the state.
        optimizers: Their optimisers by name.
        beside: Other modules that move to the device but are not part of the state.
    """

    def __init__(self, seed: int) -> None:
        self.updates = 0
        self.device = torch.device("cpu")
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.beside: list[nn.Module] = []
        self._generator = seeded(seed)

    def to(self, device: torch.device, *, compiled: bool = False) -> None:
        """Move to a device. Call it before the first update or `load_state_dict`."""
        self.device = device
        for module in (*self.beside, *self.modules.values()):
            module.to(device)
        for module in self.modules.values() if compiled else ():
            module.compile()

    def tensor(self, column: npt.NDArray[Any]) -> Tensor:
        """Return a batch column as a tensor on the device."""
        return to_device(torch.from_numpy(column), self.device)

    def _trained(self) -> Iterator[tuple[str, torch.optim.Optimizer, Tensor]]:
        """Yield each trained parameter with its optimiser and the prefix of its optimiser state."""
        for name, optimizer in self.optimizers.items():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for index, parameter in enumerate(parameters):
                yield f"optimizer/{name}/{index}/", optimizer, parameter

    def state_dict(self) -> dict[str, Tensor]:
        """Return networks, optimisers, counter and generator as flat named tensors."""
        state = {
            "updates": torch.tensor(self.updates),
            "generator": self._generator.get_state(),
        }
        for name, module in self.modules.items():
            state |= {f"{name}/{key}": value for key, value in module.state_dict().items()}
        for prefix, optimizer, parameter in self._trained():
            known = optimizer.state.get(parameter, {})
            state |= {prefix + key: value for key, value in known.items()}
        # Copy, since training may continue while the caller still uses the state.
        return {key: value.detach().clone().contiguous().cpu() for key, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict` exactly.

        Raises:
            AlgorithmError: An entry is missing or does not fit. Create a new algorithm in this
                case.
        """
        try:
            self.updates = int(state["updates"])
            self._generator.set_state(state["generator"])
            for name, module in self.modules.items():
                module.load_state_dict(_below(state, f"{name}/"))
            for prefix, optimizer, parameter in self._trained():
                known = _below(state, prefix).items()
                optimizer.state[parameter] = {k: v.clone().to(self.device) for k, v in known}
        except (KeyError, RuntimeError) as error:
            raise AlgorithmError(
                "the training state does not fit the algorithm",
                got=" ".join(str(error).split()),
                hint="resume with the configuration that wrote it",
            ) from error


@torch.no_grad()
def encoded(encoder: StateEncoder, batch: Batch) -> tuple[Tensor, Tensor]:
    """Encode a batch's observations and next observations, (B, features) each."""
    following = {name: batch[f"{NEXT}{name}"] for name in encoder.keys}
    return encoder(batch), encoder(following)


def check_batch(batch: Batch, spec: SampleSpec) -> None:
    """Check that a batch has every column of a spec. `AlgorithmError` names a missing one."""
    returns = ("return", "return/valid") if spec.returns else ()
    required = ["reward", "discount", "source", *returns]
    for prefix, names, chunked in spec.sides:
        chunk = [CHUNK + name for name in (*chunked, "valid") if chunked]
        required += [prefix + name for name in (*names, *chunk)]
    for name in required:
        if name not in batch:
            raise AlgorithmError(
                f"the batch lacks the field {name!r}", got=sorted(batch), expected=required
            )


def means(found: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each metric over the updates that reported it."""
    values: dict[str, list[Tensor]] = {}
    for metrics in found:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: torch.stack(each).mean() for name, each in values.items()}


def finite_means(found: Iterable[Mapping[str, Tensor]], when: str) -> dict[str, float]:
    """Like `means`, but on the CPU. Raise `LearningDiverged` if one is not finite."""
    metrics = means(found)
    for name, mean in metrics.items():
        check_finite(name, mean, when)
    return {name: float(mean) for name, mean in metrics.items()}


def falling(weight: float, updates: int | None, done: int) -> float:
    """Return a weight that falls linearly to 0 over `updates`, after `done` of them.

    Without `updates` it is constant.
    """
    return weight * max(0.0, 1.0 - done / updates) if updates else weight


def adam(*groups: tuple[Iterable[Tensor], float]) -> torch.optim.Adam:
    """Create Adam over parameter groups, each with its own step size."""
    return torch.optim.Adam(
        [{"params": list(parameters), "lr": rate} for parameters, rate in groups], fused=True
    )


def step(optimizer: torch.optim.Optimizer, loss: Tensor, clip: float | None = None) -> None:
    """Make one optimiser step on a loss, with the gradient norm clipped to `clip`."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], clip)
    optimizer.step()


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
