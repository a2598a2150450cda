"""Typed configuration sections, so that functions need not take the whole configuration.

A command creates its `Settings` once. A number out of range, or a value of another type, raises a
`ConfigError` that names the key.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import Meta
from omegaconf import DictConfig, OmegaConf

from robot_rl.config.values import ConfigError, flatten

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Part = dict[str, Any]  # configuration of an object that `policies.registry.make` creates
_Section = TypeVar("_Section")


@dataclass(frozen=True, kw_only=True)
class ScheduleSection:
    """The part of `algorithm.schedule` that is known before the algorithm is created."""

    warmup_steps: Natural
    critic_only_updates: Natural
    updates_per_step: Positive
    demonstration_share: float
    hindsight_share: float
    offline_updates: int = 0


@dataclass(frozen=True, kw_only=True)
class WindowSection:
    """The numbers of `policy` common to all policies."""

    horizon: Positive
    observation_steps: Positive


@dataclass(frozen=True, kw_only=True)
class TrainingSection:
    """The numbers of `cloning` and `distil`, without the optimiser's."""

    updates: Positive
    batch_size: Positive


@dataclass(frozen=True, kw_only=True)
class DaggerSection:
    """`dagger`: rounds, and episodes per round."""

    rounds: Natural
    episodes: Positive


@dataclass(frozen=True, kw_only=True)
class RecordingSection:
    """`recording`: how a person records demonstrations; times in seconds."""

    countdown_s: float
    wait_for_start: bool
    undo_s: float
    keep_failures: bool


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """`evaluation`: the scenes and their number."""

    every_steps: Positive
    episodes: Positive
    final_episodes: Positive
    seed: Natural | None
    final_seed: Natural | None
    slots: Positive
    periodic: bool
    compare: bool
    videos: Natural


@dataclass(frozen=True, kw_only=True)
class ProofSection:
    """`proof`: the claim that `compare` and `certify` test."""

    confidence: Annotated[float, Meta(gt=0.5, lt=1)]
    seed: Natural
    scenes: Positive
    score: str
    claim: Annotated[float, Meta(gt=0, lt=1)]
    episodes: Positive | None


@dataclass(frozen=True, kw_only=True)
class DeploymentSection:
    """`deployment`: for `robot-rl run`."""

    episodes: Natural
    most_failures: Positive


@dataclass(frozen=True, kw_only=True)
class RecorderSection:
    """`recorder`: the flight recorder."""

    minutes: Annotated[float, Meta(ge=0)]
    segment_s: Annotated[float, Meta(ge=1)]


@dataclass(frozen=True, kw_only=True)
class ReplaySection:
    """`replay`: for a client of the replay server."""

    connect: str | None
    keys: str | None
    spool_bytes: int
    capacity_rows: int | None


# Sections whose configuration key differs from their name.
_PLACES = {"schedule": "algorithm.schedule", "window": "policy"}
# Robot, task and operator: keys that `make_env` and `Evaluator` read.
_ENVIRONMENT = (
    *("arms", "choices", "classifier", "clock", "control_rate_hz", "device", "domain"),
    *("evaluation", "nodes", "observation", "operator", "reset", "reward", "robot"),
    *("runs_directory", "seed", "simulation", "start_nodes", "task", "teleop"),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a recipe and its workbench; other functions take one section or value."""

    seed: int
    device: str
    clock: str
    compile: bool
    runs_directory: str
    run: str | None
    artifacts: str | None
    stage: str | None
    dataset: str | None
    demonstrations: Natural
    actors: Positive
    block_steps: Positive
    environment_steps: int
    execute_steps: Positive
    choices: dict[str, str | None]
    recipe: Part
    policy: Part
    window: WindowSection
    algorithm: Part
    schedule: ScheduleSection
    observation: Part
    cloning: Part
    distil: Part
    gate: Part
    classifier: Part
    reward: Part
    dagger: DaggerSection
    recording: RecordingSection
    evaluation: EvaluationSection
    replay: ReplaySection
    environment: DictConfig

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """Read the settings; `ConfigError` for an unusable value."""
        plain: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
        plain |= {name: _selected(plain, place) for name, place in _PLACES.items()}
        kept = [name for name in _ENVIRONMENT if name in config]
        plain["environment"] = environment = OmegaConf.masked_copy(config, kept)
        OmegaConf.set_struct(environment, True)
        for name in ("cloning", "distil"):
            _read(plain[name], TrainingSection, name)
        return _read(plain, cls)

    @property
    def demonstrated(self) -> bool:
        """Whether the run starts with demonstrations; with `demonstrations=0` it explores.

        `ConfigError` if both `dataset` and `demonstrations=0` are set.
        """
        if self.dataset is not None and not self.demonstrations:
            got, hint = f"demonstrations=0 dataset={self.dataset}", "leave out one of the two"
            raise ConfigError("a run with and without demonstrations", got=got, hint=hint)
        return self.dataset is not None or self.demonstrations > 0

    @property
    def sees(self) -> bool:
        """Whether the policy has its own image encoder."""
        return self.observation.get("vision") is not None


def section(config: DictConfig, name: str, kind: type[_Section]) -> _Section:
    """Read one section; `ConfigError` if one of its values is unusable."""
    return _read(OmegaConf.to_container(config[name]), kind, name)


def _read(plain: Any, kind: type[_Section], place: str = "") -> _Section:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        parts = [part for part in path.strip("`.").split(".") if part]
        if missing := re.search(r"missing required field `(\w+)`", problem):
            parts.append(missing[1])
        key = ".".join([place] * bool(place) + [_PLACES.get(parts[0], parts[0]), *parts[1:]])
        if missing:
            hint = "write it into the configuration of your own part, as the others have it"
            raise ConfigError(f"{key} is missing", hint=hint) from error
        words = problem.removeprefix("Expected ").partition(", got")[0].replace("`", "")
        expected = re.sub(r"^(?:int|float)(?: \| null)? (?=[<>])", "", words)
        got = _selected(plain, ".".join(parts))
        raise ConfigError(f"{key} is out of range", got=got, expected=expected) from error


def _selected(plain: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key; some keys contain dots themselves."""
    found = flatten(plain)
    return found[key] if key in found else functools.reduce(operator.getitem, key.split("."), plain)
