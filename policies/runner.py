"""Run policies: observation history, chunk queue and random numbers live only here."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policies.behaviour import Behaviour, Exploration, normal, plans_chunks
from policies.columns import FEATURES, INSTRUCTION, PLAN, check_numbers, looked_up
from policies.errors import PolicyError

if TYPE_CHECKING:  # see policies.behaviour
    from policies.policy import ChunkPolicy, Policy

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Conclusion:
    """Columns of an episode's final row."""

    base_action: Floats  # (slots, d) float32, the base's proposal; zero without a base
    features: dict[str, Array]  # `Behaviour.features` of the slots; empty if no slot is active


@dataclass(frozen=True)
class Decision(Conclusion):
    """One step of all slots; rows of inactive slots are zero."""

    action: Floats  # (slots, d) float32 in [-1, 1], exploration included
    # (slots,) int16, position in the base's chunk; 0 without a base.
    chunk_index: npt.NDArray[np.int16]
    version: npt.NDArray[np.int64]  # (slots,) int64, version of the behaviour that acted
    # (slots,) bool, true if only the policy's base acted, without noise.
    base_alone: npt.NDArray[np.bool_]
    # (slots,) bool, true if the policy was not sampled and no noise was added.
    noiseless: npt.NDArray[np.bool_]


@dataclass
class RunningEpisode:
    """State of one running episode: behaviour, noise, history and action queue."""

    behaviour: Behaviour  # acts in the episode; a newer one replaces it at a boundary
    # Generator for plan noise, separate from step noise so that `label` can repeat it.
    plan_noise: np.random.Generator
    step_noise: np.random.Generator  # generator for step noise
    exploration_draw: float  # uniform in [0, 1): see `Exploration.in_episode`
    instruction: str  # the task in words; may be empty
    # (execute_steps or more, d), planned actions; None if there is no plan.
    chunk: Floats | None = None
    position: int = 0  # index of the next action in the chunk
    # Name → (width,), columns of the plan that rows store: see `ChunkPolicy.extras`.
    extras: dict[str, Floats] = field(default_factory=dict)
    # Name → (n, ...shape), latest observations, oldest first.
    seen: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def begin(cls, behaviour: Behaviour, seed: int, instruction: str) -> RunningEpisode:
        """Start an episode with all noise derived from a seed."""
        plan, step, draw = map(np.random.default_rng, np.random.SeedSequence(int(seed)).spawn(3))
        return cls(behaviour, plan, step, draw.random(), instruction)

    @property
    def exploration(self) -> Exploration:
        """Exploration of this episode."""
        return self.behaviour.exploration.in_episode(self.exploration_draw)

    @property
    def at_boundary(self) -> bool:
        """Whether the chunk queue is empty; always true without chunks."""
        return self.chunk is None or self.position >= self.behaviour.execute_steps


class PolicyRunner:
    """Runs a behaviour in several episodes (slots) side by side, with a receding horizon.

    Each slot draws from generators seeded by its own episode seed, so an episode's noise does
    not depend on the other slots. All slots that need a plan share one network call.
    """

    def __init__(self, behaviour: Behaviour, slots: int = 1) -> None:
        self.slots = slots
        self.behaviour = behaviour  # the latest; slots switch to it at their next boundary
        self._running: list[RunningEpisode | None] = [None] * slots
        self._all = np.arange(slots)

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Switch to new weights at each slot's next chunk or episode boundary.

        Without chunks every step is a boundary. Can be called from another thread.

        Raises:
            PolicyError: The new behaviour has different action columns or image encoder.
        """
        now = self.behaviour
        self.behaviour = behaviour.expect(
            action_names=now.interface.action_names, encoder_id=now.encoder_id
        )

    def reset(
        self,
        slots: Sequence[int] | None = None,
        *,
        seeds: Sequence[int],
        instructions: Sequence[str] | None = None,
    ) -> None:
        """Start episodes in some or all slots, with empty history and chunk queue.

        Each slot needs a non-negative seed. Conditioned policies also need an instruction.
        """
        rows = self._all if slots is None else np.asarray(slots, np.intp)
        texts = [""] * len(rows) if instructions is None else list(instructions)
        for name, given in (("seed", seeds), ("instruction", texts)):
            if len(given) != len(rows):
                raise PolicyError(
                    f"one {name} per slot is needed", got=len(given), expected=len(rows)
                )
        for row, seed, text in zip(rows, seeds, texts, strict=True):
            self._running[row] = RunningEpisode.begin(self.behaviour, seed, text)

    def act(
        self, observation: Mapping[str, Array], active: npt.NDArray[np.bool_] | None = None
    ) -> Decision:
        """Choose the actions of one step for the slots in the mask `active` (slots,), or all.

        Observations are (slots, ...shape) by name; rows of inactive slots are not read.

        Raises:
            PolicyError: A slot was not reset, or the observation or the policy's output has
                the wrong shape or is not finite. After a bad observation the chunks are dropped,
                so the next call plans again.
        """
        rows = self._all if active is None else np.flatnonzero(active)
        dimension = self.behaviour.policy.action_dimension
        acted = Decision(
            base_action=np.zeros((self.slots, dimension), np.float32),
            features={},
            action=np.zeros((self.slots, dimension), np.float32),
            chunk_index=np.zeros(self.slots, np.int16),
            version=np.zeros(self.slots, np.int64),
            base_alone=np.zeros(self.slots, bool),
            noiseless=np.zeros(self.slots, bool),
        )
        if not len(rows):
            return acted
        episodes, latest = self._episodes(rows), self.behaviour
        for episode in episodes:
            if episode.behaviour is not latest and episode.at_boundary:
                episode.behaviour, episode.chunk = latest, None
        try:
            features, windows = self._see(observation, rows, episodes)
        except PolicyError:
            for episode in episodes:
                episode.chunk = None
            raise
        acted.features.update(features)
        for part in _by_behaviour(episodes):
            members = [episodes[index] for index in part]
            seen = windows if len(part) == len(rows) else _parts(windows, part)
            _act_in(members, seen, rows[part], acted)
        for index, episode in enumerate(episodes):  # copy: a camera may reuse the memory
            episode.seen = {name: window[index].copy() for name, window in windows.items()}
        return acted

    def observe_override(self, slots: Sequence[int] | None = None) -> None:
        """Drop the chunks of slots that executed an operator's action.

        Those chunks were planned for another course. During the take-over `act` plans at every
        step, so the hand-back starts from fresh history.
        """
        rows = self._all if slots is None else np.asarray(slots, np.intp)
        for episode in self._episodes(rows):
            episode.chunk = None

    def conclude(
        self, observation: Mapping[str, Array], active: npt.NDArray[np.bool_] | None = None
    ) -> Conclusion:
        """Return the base's proposals and the features for observations without acting.

        Arguments are as for `act`. Use it for the final observation of an episode, whose row needs
        a true base action. History, queue and generators don't change.
        """
        rows = self._all if active is None else np.flatnonzero(active)
        proposals = np.zeros((self.slots, self.behaviour.policy.action_dimension), np.float32)
        if not len(rows):
            return Conclusion(proposals, {})
        # Plan on copies, so that generators and queues don't change.
        episodes = [
            replace(episode, plan_noise=copy.deepcopy(episode.plan_noise))
            for episode in self._episodes(rows)
        ]
        features, windows = self._see(observation, rows, episodes)
        for part in _by_behaviour(episodes):
            members = [episodes[index] for index in part]
            if (planner := _planner(members[0])) is not None:
                proposals[rows[part]] = _advance(planner, members, _parts(windows, part))
        return Conclusion(proposals, features)

    def label(self, observations: Mapping[str, Array], seed: int, instruction: str = "") -> Floats:
        """Return the base's proposals (T + 1, d) along a recorded episode at the deployed cadence.

        Equals running the base from a reset with this seed and instruction on the recorded
        observations: name → (T + 1, ...shape), final one included. All plans share one network
        call.

        Raises:
            PolicyError: The recording lacks an observation, or one is not finite.
        """
        behaviour, base = self.behaviour, self.behaviour.policy.base
        assert base is not None
        if behaviour.vision is not None and FEATURES not in observations:
            observations = {**observations, FEATURES: behaviour.vision.encode(observations)}
        columns = {n: np.asarray(looked_up(observations, n)) for n in base.observation}
        for name, values in columns.items():
            check_numbers(name, values)
        rows = min(map(len, columns.values()))
        at = np.arange(0, rows, behaviour.execute_steps)
        # Pad the history with the first row.
        seen = np.maximum(at[:, None] + np.arange(1 - base.encoder.observation_steps, 1), 0)
        episode = RunningEpisode.begin(behaviour, seed, instruction)
        chunks, _ = _plan(base, [episode] * len(at), _parts(columns, seen))
        labels = chunks[:, : behaviour.execute_steps].reshape(-1, base.action_dimension)
        return np.ascontiguousarray(labels[:rows])

    def _see(
        self, observation: Mapping[str, Array], rows: Rows, episodes: Sequence[RunningEpisode]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return `Behaviour.features` and the observation histories of the slots `rows` (r,).

        Features are (slots, ...), zero in other slots. Histories are name → (r, n, ...shape), end
        with this observation, and are not stored here.
        """
        behaviour, found = self.behaviour, dict(observation)
        cameras = () if behaviour.vision is None else behaviour.vision.cameras
        images = {n: _of_rows(observation[n], rows) for n in cameras if n in observation}
        features = {}
        for name, values in behaviour.features(images, [e.instruction for e in episodes]).items():
            features[name] = found[name] = np.zeros((self.slots, *values.shape[1:]), values.dtype)
            features[name][rows] = values
        policies = {id(e.behaviour): e.behaviour.policy for e in episodes}.values()
        steps = max(policy.observation_steps for policy in policies)
        windows = {}
        for name in {name: None for policy in policies for name in policy.observation}:
            known = [episode.seen.get(name) for episode in episodes]
            array = np.asarray(looked_up(found, name))
            shape = next((seen.shape for seen in known if seen is not None), array.shape)[1:]
            if array.shape != (self.slots, *shape):
                raise PolicyError(
                    f"the observation {name!r} has another shape",
                    got=array.shape,
                    expected=(self.slots, *shape),
                )
            new = _of_rows(array, rows)
            check_numbers(name, new)
            if steps == 1:
                windows[name] = new[:, None]  # not copied
                continue
            # Append the new observation; pad with the oldest known one.
            pairs = [(seen, new[at : at + 1]) for at, seen in enumerate(known)]
            joined = [one if seen is None else np.concatenate([seen, one]) for seen, one in pairs]
            last = np.arange(-steps, 0)
            windows[name] = np.stack([each[np.maximum(len(each) + last, 0)] for each in joined])
        return features, windows

    def _episodes(self, rows: Rows) -> list[RunningEpisode]:
        found = [episode for row in rows if (episode := self._running[row]) is not None]
        if idle := [row for row in rows if self._running[row] is None]:
            hint = "call reset(seeds=...) before act"
            raise PolicyError(f"slot {idle[0]} has no episode", hint=hint)
        return found


def _by_behaviour(episodes: Sequence[RunningEpisode]) -> list[Rows]:
    """Group episode indices by behaviour and exploration."""
    groups: dict[tuple[int, Exploration], list[int]] = {}
    for index, episode in enumerate(episodes):
        groups.setdefault((id(episode.behaviour), episode.exploration), []).append(index)
    return [np.asarray(part) for part in groups.values()]


def _act_in(
    episodes: Sequence[RunningEpisode], windows: dict[str, Array], rows: Rows, acted: Decision
) -> None:
    """Act in r episodes (slots `rows`) that share behaviour and exploration.

    Windows are (r, n, ...shape), oldest first. Fills the slots' rows of `acted`.
    """
    behaviour = episodes[0].behaviour
    policy, exploration = behaviour.policy, episodes[0].exploration
    sources, width = [episode.step_noise for episode in episodes], policy.action_dimension
    proposal = None
    if (planner := _planner(episodes[0])) is not None:
        proposal = _advance(planner, episodes, windows)
        acted.base_action[rows] = proposal
        for row, episode in zip(rows, episodes, strict=True):
            acted.chunk_index[row] = place = episode.position - 1
            for name, values in episode.extras.items() if place == 0 else ():
                acted.features[PLAN + name][row] = values
    if exploration.mode == "noise":
        action = np.zeros((len(episodes), width), np.float32)
    elif proposal is not None and (exploration.mode == "base" or plans_chunks(policy)):
        action = proposal
    else:
        noise = normal(sources, (width,)) if exploration.mode == "sample" else None
        seen = _parts(windows, np.s_[:, -policy.encoder.observation_steps :])
        with _inference():
            chosen = policy.act(seen, proposal, noise)
        action = _made(policy, "actions", chosen, (len(episodes), width))
    acted.action[rows] = exploration.noisy(action, sources)
    acted.version[rows] = behaviour.version
    acted.base_alone[rows] = exploration.base_alone
    acted.noiseless[rows] = exploration.noiseless


def _planner(episode: RunningEpisode) -> ChunkPolicy | None:
    """Return the policy whose chunks an episode executes or corrects; None without chunks."""
    policy, mode = episode.behaviour.policy, episode.exploration.mode
    if mode == "base" or not plans_chunks(policy):
        return policy.base
    exploring: ChunkPolicy = getattr(policy, "exploring", policy) if mode == "sample" else policy
    return exploring


def _advance(
    planner: ChunkPolicy, episodes: Sequence[RunningEpisode], windows: dict[str, Array]
) -> Floats:
    """Plan for episodes with an empty queue; return each episode's next proposal (r, d)."""
    due = np.array([episode.at_boundary for episode in episodes])
    if due.any():
        planning = [episode for episode in episodes if episode.at_boundary]
        seen = windows if due.all() else _parts(windows, due)
        chunks, extras = _plan(planner, planning, seen)
        for index, episode in enumerate(planning):
            episode.chunk, episode.position = chunks[index], 0
            episode.extras = {name: values[index] for name, values in extras.items()}
    proposals = []
    for episode in episodes:
        assert episode.chunk is not None
        proposals.append(episode.chunk[episode.position])
        episode.position += 1
    return np.stack(proposals)


def _plan(
    planner: ChunkPolicy, episodes: Sequence[RunningEpisode], windows: dict[str, Array]
) -> tuple[Floats, dict[str, Floats]]:
    """Plan chunks (r, H, d) for r episodes, repeats allowed, in one network call.

    Also returns the plan columns that rows store: name → (r, width).
    """
    noise = normal([episode.plan_noise for episode in episodes], planner.noise_shape)
    seen = _parts(windows, np.s_[:, -planner.encoder.observation_steps :])
    if planner.conditioned:
        seen[INSTRUCTION] = np.array([episode.instruction for episode in episodes])
    with _inference():
        plan = planner.plan(seen, noise)
    count, shape = len(noise), (len(noise), planner.horizon, planner.action_dimension)
    extras = {
        name: _made(planner, name, made, (count, planner.extras[name]))
        for name, made in plan.extras.items()
    }
    return _made(planner, "plans", plan.actions, shape), extras


def _inference() -> AbstractContextManager[Any]:
    """Disable gradients; a no-op if torch is not loaded, as with an exported policy."""
    return torch.inference_mode() if (torch := sys.modules.get("torch")) else nullcontext()


def _made(policy: Policy, what: str, made: Any, shape: tuple[int, ...]) -> Floats:
    """Check that a policy's output has this shape and is finite; return it as an array."""
    array: Floats = made if isinstance(made, np.ndarray) else made.cpu().numpy()
    who = f"{type(policy).__name__} made {what}"
    if array.shape != shape:
        raise PolicyError(f"{who} of another shape", got=array.shape, expected=shape)
    if not (finite := np.isfinite(array)).all():
        hint = "its weights are damaged, or its training has diverged"
        raise PolicyError(f"{who} that are not finite", got=array[~finite][0], hint=hint)
    return array


def _of_rows(array: Array, rows: Rows) -> Array:
    """Select rows of an array (slots, ...), ascending; no copy if all are selected."""
    return array if len(rows) == len(array) else np.asarray(array[rows])


def _parts(windows: dict[str, Array], part: Any) -> dict[str, Array]:
    """Index every observation, for example by row positions or a mask."""
    return {name: window[part] for name, window in windows.items()}
