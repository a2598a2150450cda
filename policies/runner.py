"""The only owner of observation history, chunk queue and random numbers of a running policy."""

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
    """The columns of the final row of an episode."""

    base_action: Floats  # (slots, d) float32, the base's proposal; zero without a base
    features: dict[str, Array]  # `Behaviour.features` of the slots; empty where none is active


@dataclass(frozen=True)
class Decision(Conclusion):
    """One step of all slots; rows of inactive slots are zero."""

    action: Floats  # (slots, d) float32 in [-1, 1], exploration included
    # (slots,) int16, position in the base's chunk; 0 without a base.
    chunk_index: npt.NDArray[np.int16]
    version: npt.NDArray[np.int64]  # (slots,) int64, version of the behaviour that acted
    # (slots,) bool, whether the policy's base acted, without noise.
    base_alone: npt.NDArray[np.bool_]
    noiseless: npt.NDArray[np.bool_]  # (slots,) bool, whether nothing was drawn or added to explore


@dataclass
class RunningEpisode:
    """The state of one running episode: its behaviour, noise, history and queue of actions."""

    behaviour: Behaviour  # acts in it; a newer one takes over where `at_boundary` holds
    # Source of the noise of plans, which alone can be repeated along a recording.
    plan_noise: np.random.Generator
    step_noise: np.random.Generator  # source of the noise of steps
    exploration_draw: float  # uniform in [0, 1): see `Exploration.in_episode`
    instruction: str  # the task in words; may be empty
    # (execute_steps or more, d), the planned actions; None before the first plan.
    chunk: Floats | None = None
    position: int = 0  # of the next action in the chunk
    # Name → (width,), what rows keep of that plan: see `ChunkPolicy.extras`.
    extras: dict[str, Floats] = field(default_factory=dict)
    # Name → (n, ...shape), the latest observations that its policies have seen, oldest first.
    seen: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def begin(cls, behaviour: Behaviour, seed: int, instruction: str) -> RunningEpisode:
        """Begin an episode whose noise follows from a seed."""
        plan, step, draw = map(np.random.default_rng, np.random.SeedSequence(int(seed)).spawn(3))
        return cls(behaviour, plan, step, draw.random(), instruction)

    @property
    def exploration(self) -> Exploration:
        """How it explores."""
        return self.behaviour.exploration.in_episode(self.exploration_draw)

    @property
    def at_boundary(self) -> bool:
        """Whether the queue is empty, so that the next step starts something new."""
        return self.chunk is None or self.position >= self.behaviour.execute_steps


class PolicyRunner:
    """Runs a behaviour in several episodes (slots) side by side, with a receding horizon.

    Each slot draws from generators seeded by its own episode seed, so an episode's noise does
    not depend on the other slots. Planning of all slots that need it is one network call.
    """

    def __init__(self, behaviour: Behaviour, slots: int = 1) -> None:
        self.slots = slots
        self.behaviour = behaviour  # the newest, which slots switch to at their next boundary
        self._running: list[RunningEpisode | None] = [None] * slots
        self._all = np.arange(slots)

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Switch to new weights at each slot's next chunk or episode boundary.

        Without chunks every step is a boundary. May be called from another thread.

        Raises:
            PolicyError: The new behaviour has other action columns, or another image encoder.
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
        """Start episodes in some slots, or all: history and chunk queue are emptied.

        Each slot gets its episode's seed, non-negative, and its instruction, which conditioned
        policies need.
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
        """Choose the actions of one step in the `active` (slots,) of them, or all.

        Observations are (slots, ...shape) by name; rows of inactive slots are not read.

        Raises:
            PolicyError: A slot was not reset, or the observation or the policy's output has
                another shape, or is not finite. Chunks are dropped then, so that
                the next call plans again.
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
        for index, episode in enumerate(episodes):  # copies: a camera may write to the same memory
            episode.seen = {name: window[index].copy() for name, window in windows.items()}
        return acted

    def observe_override(self, slots: Sequence[int] | None = None) -> None:
        """Drop the chunks of slots in which an operator's action was executed.

        A chunk was planned for another course. While the take-over lasts `act` plans at every
        step, and the hand-back starts from the fresh history.
        """
        rows = self._all if slots is None else np.asarray(slots, np.intp)
        for episode in self._episodes(rows):
            episode.chunk = None

    def conclude(
        self, observation: Mapping[str, Array], active: npt.NDArray[np.bool_] | None = None
    ) -> Conclusion:
        """Give the base's proposals and the features for observations that are not acted on.

        It takes what `act` takes. It is for the final observation of an episode, whose row needs a
        true base action, and changes nothing: history, queue and generators stay as they are.
        """
        rows = self._all if active is None else np.flatnonzero(active)
        proposals = np.zeros((self.slots, self.behaviour.policy.action_dimension), np.float32)
        if not len(rows):
            return Conclusion(proposals, {})
        # Copies: planning for them draws from copied generators and fills copied queues.
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
        """Give the base's proposals (T + 1, d) along a recorded episode, at the deployed cadence.

        It equals running the base from a reset with that seed and instruction while the
        observations come from the recording, (T + 1, ...shape) by name, the final one included; all
        plans are one network call.

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
        # Before the episode its first row is repeated.
        seen = np.maximum(at[:, None] + np.arange(1 - base.encoder.observation_steps, 1), 0)
        episode = RunningEpisode.begin(behaviour, seed, instruction)
        chunks, _ = _plan(base, [episode] * len(at), _parts(columns, seen))
        labels = chunks[:, : behaviour.execute_steps].reshape(-1, base.action_dimension)
        return np.ascontiguousarray(labels[:rows])

    def _see(
        self, observation: Mapping[str, Array], rows: Rows, episodes: Sequence[RunningEpisode]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """`Behaviour.features` of the slots `rows` (r,), and the histories of what policies see.

        Features are (slots, ...), zero in other slots. A history ends with this observation, and is
        not kept: name → (r, n, ...shape).
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
            # The last observations with the new one; the first that is known is repeated.
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
    """Split the positions of episodes by behaviour and exploration."""
    groups: dict[tuple[int, Exploration], list[int]] = {}
    for index, episode in enumerate(episodes):
        groups.setdefault((id(episode.behaviour), episode.exploration), []).append(index)
    return [np.asarray(part) for part in groups.values()]


def _act_in(
    episodes: Sequence[RunningEpisode], windows: dict[str, Array], rows: Rows, acted: Decision
) -> None:
    """Act in r episodes of the slots `rows` (r,), which share behaviour and exploration.

    The windows are (r, n, ...shape), oldest first; the slots' rows of `acted` are filled.
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
    """The policy whose chunks an episode executes or corrects; None without chunks."""
    policy, mode = episode.behaviour.policy, episode.exploration.mode
    if mode == "base" or not plans_chunks(policy):
        return policy.base
    exploring: ChunkPolicy = getattr(policy, "exploring", policy) if mode == "sample" else policy
    return exploring


def _advance(
    planner: ChunkPolicy, episodes: Sequence[RunningEpisode], windows: dict[str, Array]
) -> Floats:
    """Plan where a chunk is used up, and take the next proposal (r, d) of each episode."""
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
    """Plan chunks (r, H, d) for r episodes in one network call; one may stand there twice.

    With them what rows keep of each, by name: (r, width).
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
    """Compute without gradients; an exported policy does so without torch."""
    return torch.inference_mode() if (torch := sys.modules.get("torch")) else nullcontext()


def _made(policy: Policy, what: str, made: Any, shape: tuple[int, ...]) -> Floats:
    """Check the output of a policy: an array of this shape, all of it finite."""
    array: Floats = made if isinstance(made, np.ndarray) else made.cpu().numpy()
    who = f"{type(policy).__name__} made {what}"
    if array.shape != shape:
        raise PolicyError(f"{who} of another shape", got=array.shape, expected=shape)
    if not (finite := np.isfinite(array)).all():
        hint = "its weights are damaged, or its training has diverged"
        raise PolicyError(f"{who} that are not finite", got=array[~finite][0], hint=hint)
    return array


def _of_rows(array: Array, rows: Rows) -> Array:
    """Some rows of an array (slots, ...), in ascending order; not copied if these are all."""
    return array if len(rows) == len(array) else np.asarray(array[rows])


def _parts(windows: dict[str, Array], part: Any) -> dict[str, Array]:
    """Take a part, such as some rows by position or mask, of every observation."""
    return {name: window[part] for name, window in windows.items()}
