"""The chunks of recorded episodes, with the chains of transitions that they came from.

Rows have no chains. But the noise of an episode's plans follows from its seed, so that they can be
made again by the policy that has acted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from policies.behaviour import Behaviour
from policies.columns import INSTRUCTION
from policies.diffusion import DiffusionPolicy
from policies.runner import RunningEpisode
from robot_rl.learning.algorithms.base import AlgorithmError
from robot_rl.learning.algorithms.online_ppo import Chunks

# Largest difference between an action and what it is made again as, in action units: a batch is
# summed in another order than a single plan.
_TOLERANCE = 1e-3


@torch.no_grad()
def executed_chunks(
    columns: Mapping[str, npt.NDArray[Any]],
    behaviour: Behaviour,
    seed: int,
    instruction: str,
    gamma: float,
) -> Chunks:
    """The chunks of an episode in which this very behaviour acted and no operator took part.

    Args:
        columns: Of its T + 1 rows.
        behaviour: Who acted.
        seed: The episode's.
        instruction: What the robot was told to do.
        gamma: Discount per control step.

    Raises:
        AlgorithmError: What is made again is not what the rows say.
    """
    policy = behaviour.policy
    assert isinstance(policy, DiffusionPolicy)
    steps = len(columns["is_last"]) - 1
    begins = np.flatnonzero(columns["chunk_index"][:steps] == 0)
    ends = np.append(begins[1:], steps)
    columns = {**columns, **behaviour.features(columns, [instruction] * (steps + 1))}
    observed = _encoded(policy, columns, np.append(begins, steps), instruction)
    source = RunningEpisode.begin(behaviour, seed, instruction).plan_noise
    draws = [source.standard_normal(policy.noise_shape, np.float32) for _ in begins]
    chain = policy.process.sample(observed[:-1], torch.from_numpy(np.stack(draws)).to(observed))
    actions = policy.action_normalizer.denormalize(chain[:, -1]).clamp(-1, 1).cpu().numpy()
    alone = np.ones(len(begins), bool)
    rewards, discounts = np.zeros((2, len(begins)), np.float32)
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        alone[number] = not columns["intervened"][begin:end].any()
        powers = gamma ** np.arange(end - begin)
        rewards[number] = (powers * columns["reward"][begin:end]).sum()
        discounts[number] = gamma ** (end - begin) * (not columns["terminated"][end - 1])
        planned, done = actions[number, : end - begin], columns["policy_action"][begin:end]
        if alone[number] and not np.allclose(planned, done, atol=_TOLERANCE):
            raise AlgorithmError(
                "the recorded actions are not what the policy makes of this episode's noise",
                got=f"actions up to {np.abs(planned - done).max():.3g} apart at step {begin}",
                expected=f"at most {_TOLERANCE}",
                hint="learn from episodes that this very policy has acted in, without extra noise",
            )
    # The last chunk before a take-over bootstraps from where the operator began.
    continued = np.append(alone[1:], False)
    kept = torch.from_numpy(alone).to(observed.device)
    like: dict[str, Any] = {"device": observed.device}
    every = Chunks(
        observed[:-1],
        chain,
        torch.tensor(rewards, **like),
        torch.tensor(discounts, **like),
        observed[1:],
        torch.tensor(continued, **like),
    )
    return Chunks(*(column[kept] for column in every))


def joined(parts: list[Chunks]) -> Chunks:
    """The chunks of several episodes, one behind the other."""
    return Chunks(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _encoded(
    policy: DiffusionPolicy,
    columns: Mapping[str, npt.NDArray[Any]],
    rows: npt.NDArray[np.intp],
    instruction: str,
) -> Tensor:
    """Encoded histories (n, F) that end with these rows; before the episode its first row again."""
    history = np.arange(1 - policy.encoder.observation_steps, 1)
    seen = np.maximum(rows[:, None] + history, 0)
    windows = {name: columns[name][seen] for name in policy.observation}
    if policy.conditioned:
        windows[INSTRUCTION] = np.array([instruction] * len(rows))
    features: Tensor = policy.encoder(windows)
    return features
