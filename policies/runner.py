"""The only owner of observation history, chunk queue and random numbers of a running policy."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from policies.acting import (
    Acted,
    Concluded,
    RunningEpisode,
    act_in,
    advance,
    by_behaviour,
    noise_generators,
    plan,
    take_rows,
)
from policies.behaviour import Behaviour
from policies.errors import PolicyError
from policies.history import ObservationHistory, Rows, episode_windows, of_rows
from policies.instructions import (
    INSTRUCTION_FEATURES,
    INSTRUCTION_WIDTH,
    instruction_features,
)
from policies.vision import ENCODER_ID, FEATURES

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class PolicyRunner:
    """Runs a behaviour in several episodes (slots) side by side, with a receding horizon.

    Each slot draws from generators seeded by its own episode seed, so an episode's noise does
    not depend on the other slots. Planning of all slots that need it is one network call.

    Args:
        behaviour: What to run.
        slots: Number of episodes B side by side.
    """

    def __init__(self, behaviour: Behaviour, slots: int = 1) -> None:
        """Prepare the slots; `reset` starts their episodes."""
        self.slots = slots
        self._latest = behaviour
        self._history = ObservationHistory(slots)
        self._running: list[RunningEpisode | None] = [None] * slots
        self._all = np.arange(slots)

    @property
    def behaviour(self) -> Behaviour:
        """The newest behaviour, which slots switch to at their next boundary."""
        return self._latest

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Switch to new weights at each slot's next chunk or episode boundary.

        Without chunks every step is a boundary. May be called from another thread.

        Raises:
            PolicyError: The new behaviour has other action columns, or another image encoder.
        """
        behaviour.expect(action_names=self._latest.interface.action_names)
        if behaviour.encoder_id != self._latest.encoder_id:
            raise PolicyError(
                "the new weights have another image encoder",
                got=behaviour.encoder_id,
                expected=self._latest.encoder_id,
                hint="an image encoder is frozen when online learning begins",
            )
        self._latest = behaviour

    def reset(
        self,
        slots: Sequence[int] | None = None,
        *,
        seeds: Sequence[int],
        instructions: Sequence[str] | None = None,
    ) -> None:
        """Start episodes: history and chunk queue are emptied, after a truncation too.

        Args:
            slots: Which slots; None for all.
            seeds: One episode seed per slot, non-negative.
            instructions: What is to be done, one text per slot; conditioned policies need it.
        """
        rows = self._all if slots is None else np.asarray(slots, np.intp)
        texts = [""] * len(rows) if instructions is None else list(instructions)
        for name, given in (("seed", seeds), ("instruction", texts)):
            if len(given) != len(rows):
                raise PolicyError(
                    f"one {name} per slot is needed", got=len(given), expected=len(rows)
                )
        self._history.forget(rows)
        for row, seed, text in zip(rows, seeds, texts, strict=True):
            self._running[row] = RunningEpisode(self._latest, *noise_generators(seed), text)

    def act(
        self, observation: Mapping[str, Array], active: npt.NDArray[np.bool_] | None = None
    ) -> Acted:
        """Choose the actions of one step.

        Args:
            observation: Name → (slots, ...shape); rows of inactive slots are not read.
            active: (slots,) bool; None for all.

        Raises:
            PolicyError: A slot was not reset, or the observation does not fit the policy.
        """
        rows = self._all if active is None else np.flatnonzero(active)
        dimension = self._latest.policy.action_dimension
        acted = Acted(
            np.zeros((self.slots, dimension), np.float32),
            np.zeros((self.slots, dimension), np.float32),
            np.zeros(self.slots, np.int16),
            np.zeros(self.slots, np.int64),
            self._features(observation, rows),
        )
        if not len(rows):
            return acted
        episodes = self._episodes(rows)
        self._switch(episodes)
        windows = self._history.shifted({**observation, **acted.features}, rows)
        with torch.inference_mode():
            for part in by_behaviour(episodes):
                members = [episodes[index] for index in part]
                seen = windows if len(part) == len(rows) else take_rows(windows, part)
                act_in(members, seen, rows[part], acted)
        self._history.keep(windows, rows)
        return acted

    def observe_override(self, executed: Floats, slots: Sequence[int] | None = None) -> None:
        """Tell that an operator's actions were executed in place of the policy's.

        The chunk was planned for another course, so it is dropped: while the take-over lasts
        `act` plans anew at every step, and the hand-back starts from the fresh history.

        Args:
            executed: (slots given, d) actions that were sent.
            slots: Which slots; None for all.
        """
        rows = self._all if slots is None else np.asarray(slots, np.intp)
        expected = (len(rows), self._latest.policy.action_dimension)
        if np.shape(executed) != expected or not np.isfinite(executed).all():
            raise PolicyError(
                "the executed actions do not fit",
                got=f"shape {np.shape(executed)}",
                expected=f"finite, shape {expected}",
            )
        for episode in self._episodes(rows):
            episode.chunk = None

    def conclude(
        self, observation: Mapping[str, Array], active: npt.NDArray[np.bool_] | None = None
    ) -> Concluded:
        """Give the base's proposals and the features for observations that are not acted on.

        It is for the final observation of an episode, whose row needs a true base action. It
        changes nothing: history, queue and generators stay as they are.

        Args:
            observation: Name → (slots, ...shape).
            active: (slots,) bool; None for all; the others' values are zero.
        """
        rows = self._all if active is None else np.flatnonzero(active)
        proposals = np.zeros((self.slots, self._latest.policy.action_dimension), np.float32)
        # Copies: planning for them draws from copied generators and fills copied queues.
        episodes = [copy.copy(episode) for episode in self._episodes(rows)]
        for episode in episodes:
            episode.plan_noise = copy.deepcopy(episode.plan_noise)
        self._require(episodes)
        features = self._features(observation, rows)
        windows = self._history.shifted({**observation, **features}, rows)
        with torch.inference_mode():
            for part in by_behaviour(episodes):
                members = [episodes[index] for index in part]
                base = members[0].behaviour.policy.base
                if base is not None:
                    proposals[rows[part]] = advance(base, members, take_rows(windows, part))
        return Concluded(proposals, features)

    def label(self, observations: Mapping[str, Array], seed: int, instruction: str = "") -> Floats:
        """Give the base's proposals along a recorded episode, at the deployed cadence.

        It equals running the base from a reset with `seed` while the observations come from
        the recording; all plans are one network call.

        Args:
            observations: Name → (T + 1, ...shape), the final observation included.
            seed: Episode seed.
            instruction: The recorded episode's; conditioned policies need it.

        Returns:
            (T + 1, d) float32.

        Raises:
            PolicyError: The policy has no base, or the recording lacks an observation.
        """
        behaviour = self._latest
        base = behaviour.policy.base
        if base is None:
            raise PolicyError("the policy has no base to label with", got=behaviour.kind)
        names = base.observation
        if behaviour.vision is not None and FEATURES not in observations:
            observations = {**observations, FEATURES: behaviour.vision.encode(observations)}
        rows = min((len(observations[name]) for name in names if name in observations), default=0)
        at = np.arange(0, rows, behaviour.execute_steps)
        windows = episode_windows(observations, names, at, base.encoder.observation_steps)
        source = noise_generators(seed)[0]
        with torch.inference_mode():
            chunks = plan(base, windows, [source] * len(at), [instruction] * len(at))
        labels = chunks[:, : behaviour.execute_steps].reshape(-1, base.action_dimension)
        return np.ascontiguousarray(labels[:rows])

    def _features(self, observation: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """What rows carry beside the observation: of the images, and of the instruction."""
        told = self._told(rows) if self._latest.tells_instruction else {}
        return {**self._seen(observation, rows), **told}

    def _told(self, rows: Rows) -> dict[str, Array]:
        """What tells the slots' instructions apart."""
        features = np.zeros((self.slots, INSTRUCTION_WIDTH), np.float16)
        texts = [episode.instruction for episode in self._episodes(rows)]
        if texts:
            features[rows] = instruction_features(texts)
        return {INSTRUCTION_FEATURES: features}

    def _seen(self, observation: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """What the image encoder makes of the slots' images, and whose features these are."""
        vision = self._latest.vision
        if vision is None:
            return {}
        features = np.zeros((self.slots, vision.features), np.float16)
        seen = {name: observation[name] for name in vision.cameras if name in observation}
        if len(rows):
            features[rows] = vision.encode(
                {name: of_rows(image, rows) for name, image in seen.items()}
            )
        identifiers = np.full(self.slots, self._latest.encoder_id, np.int64)
        return {FEATURES: features, ENCODER_ID: identifiers}

    def _episodes(self, rows: Rows) -> list[RunningEpisode]:
        episodes = []
        for row in rows:
            episode = self._running[row]
            if episode is None:
                raise PolicyError(
                    f"slot {row} has no episode", hint="call reset(seeds=...) before act"
                )
            episodes.append(episode)
        return episodes

    def _switch(self, episodes: Sequence[RunningEpisode]) -> None:
        latest = self._latest
        for episode in episodes:
            if episode.behaviour is not latest and episode.at_boundary:
                episode.behaviour = latest
                episode.chunk = None
        self._require(episodes)

    def _require(self, episodes: Sequence[RunningEpisode]) -> None:
        for behaviour in {id(e.behaviour): e.behaviour for e in episodes}.values():
            self._history.require(behaviour.policy.observation, behaviour.policy.observation_steps)
