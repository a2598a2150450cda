"""What a behaviour does in the episodes that run it: plans, queues of chunks, and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from policies.behaviour import Behaviour
from policies.errors import PolicyError
from policies.history import Rows
from policies.policy import INSTRUCTION, ChunkPolicy

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Acted:
    """One step of all slots; rows of inactive slots are zero.

    Attributes:
        action: (slots, d) float32 in [-1, 1], exploration included.
        base_action: (slots, d) float32, the base's proposal; zero without a base.
        chunk_index: (slots,) int16, position in the base's chunk; 0 without a base.
        version: (slots,) int64, version of the behaviour that acted.
        features: With an image encoder its ``features/image``, (slots, F) float16, as the policy
            saw them, and ``encoder_id``, (slots,) int64; where the behaviour
            `tells_instruction`, ``features/instruction``, (slots, 16) float16.
    """

    action: Floats
    base_action: Floats
    chunk_index: npt.NDArray[np.int16]
    version: npt.NDArray[np.int64]
    features: dict[str, Array]


@dataclass(frozen=True)
class Concluded:
    """What belongs to the final observation of an episode.

    Attributes:
        base_action: (slots, d) float32, the base's proposal; zero without a base.
        features: As in `Acted`.
    """

    base_action: Floats
    features: dict[str, Array]


@dataclass
class RunningEpisode:
    """What belongs to one running episode: who acts in it, its noise and its queue of actions.

    Attributes:
        behaviour: Acts in it; a newer one takes over where `at_boundary` holds.
        plan_noise: Source of the noise of plans.
        step_noise: Source of the noise of steps.
        instruction: What is to be done; empty where nothing was said.
        chunk: (execute_steps or more, d), what was planned; None before the first plan.
        position: Of the next action in the chunk.
    """

    behaviour: Behaviour
    plan_noise: np.random.Generator
    step_noise: np.random.Generator
    instruction: str
    chunk: Floats | None = None
    position: int = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the queue is empty, so that the next step starts something new."""
        return self.chunk is None or self.position >= self.behaviour.execute_steps

    @property
    def queued(self) -> Floats:
        """The next action of the chunk, (d,)."""
        if self.chunk is None:
            raise PolicyError("nothing was planned", hint="plan where at_boundary holds")
        return np.asarray(self.chunk[self.position])


def by_behaviour(episodes: Sequence[RunningEpisode]) -> list[Rows]:
    """Split the positions of episodes by behaviour; one group except around a switch."""
    groups: dict[int, list[int]] = {}
    for index, episode in enumerate(episodes):
        groups.setdefault(id(episode.behaviour), []).append(index)
    return [np.asarray(part) for part in groups.values()]


def act_in(
    episodes: Sequence[RunningEpisode], windows: dict[str, Array], rows: Rows, acted: Acted
) -> None:
    """Act where one behaviour runs.

    Args:
        episodes: Of the slots `rows`, r of them, all with the same behaviour.
        windows: Observation name → (r, n, ...shape), oldest first.
        rows: (r,) slots, whose rows of `acted` are filled.
        acted: The step of all slots.
    """
    behaviour = episodes[0].behaviour
    policy, exploration = behaviour.policy, behaviour.exploration
    proposal = None
    if policy.base is not None:
        proposal = advance(policy.base, episodes, windows)
        acted.base_action[rows] = proposal
        acted.chunk_index[rows] = [episode.position - 1 for episode in episodes]
    if proposal is not None and (exploration.mode == "base" or policy.base is policy):
        action = proposal
    else:
        noise = None
        if exploration.mode == "sample" and policy.stochastic:
            noise = torch.from_numpy(
                _normal([e.step_noise for e in episodes], (policy.action_dimension,))
            )
        given = None if proposal is None else torch.from_numpy(proposal)
        seen = _last(windows, policy.encoder.observation_steps)
        action = policy.act(seen, given, noise).cpu().numpy()
    if exploration.noise != "none":
        action = action + _extra_noise(behaviour, episodes)
    acted.action[rows] = action.clip(-1, 1)
    acted.version[rows] = behaviour.version


def advance(
    base: ChunkPolicy, episodes: Sequence[RunningEpisode], windows: dict[str, Array]
) -> Floats:
    """Plan where a chunk is used up, and take the next proposal (r, d) of each episode."""
    due = np.array([episode.at_boundary for episode in episodes])
    if due.any():
        planning = [episode for episode in episodes if episode.at_boundary]
        seen = windows if due.all() else take_rows(windows, due)
        sources = [episode.plan_noise for episode in planning]
        chunks = plan(base, seen, sources, [episode.instruction for episode in planning])
        for episode, chunk in zip(planning, chunks, strict=True):
            episode.chunk, episode.position = chunk, 0
    proposal = np.stack([episode.queued for episode in episodes])
    for episode in episodes:
        episode.position += 1
    return proposal


def noise_generators(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Make the generators of plans and of steps; plans alone can be repeated along a recording."""
    plan, step = np.random.SeedSequence(int(seed)).spawn(2)
    return np.random.default_rng(plan), np.random.default_rng(step)


def plan(
    base: ChunkPolicy,
    windows: dict[str, Array],
    sources: Sequence[np.random.Generator],
    instructions: Sequence[str],
) -> Floats:
    """Plan in one network call.

    Args:
        base: What plans.
        windows: Observation name → (r, n, ...shape), oldest first.
        sources: Of each plan's noise, r of them; one that stands there twice is drawn from twice.
        instructions: One text per plan; read where the base is conditioned.

    Returns:
        Chunks, (r, chunk length, d).
    """
    noise = torch.from_numpy(_normal(sources, base.noise_shape))
    seen = _last(windows, base.encoder.observation_steps)
    if base.conditioned:
        seen[INSTRUCTION] = np.array(instructions)
    chunk: Floats = base.plan(seen, noise).cpu().numpy()
    return chunk


def take_rows(windows: dict[str, Array], part: Array) -> dict[str, Array]:
    """Take some rows, by position or mask, of every observation."""
    return {name: window[part] for name, window in windows.items()}


def _extra_noise(behaviour: Behaviour, episodes: Sequence[RunningEpisode]) -> Floats:
    scale = np.float32(behaviour.exploration.noise_scale)
    sources = [episode.step_noise for episode in episodes]
    dimension = behaviour.policy.action_dimension
    if behaviour.exploration.noise == "normal":
        return scale * _normal(sources, (dimension,))
    return scale * (2 * np.stack([s.random(dimension, np.float32) for s in sources]) - 1)


def _normal(sources: Sequence[np.random.Generator], shape: tuple[int, ...]) -> Floats:
    return np.stack([source.standard_normal(shape, np.float32) for source in sources])


def _last(windows: dict[str, Array], steps: int) -> dict[str, Array]:
    return {name: window[:, -steps:] for name, window in windows.items()}
