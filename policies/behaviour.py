"""A policy as an actor runs it, with its exploration and the task it was trained for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from policies.columns import (
    ENCODER_ID,
    FEATURES,
    INSTRUCTION_FEATURES,
    PLAN,
    instruction_features,
)
from policies.errors import CheckpointError, PolicyError, RobotRLError

if TYPE_CHECKING:  # importing torch takes seconds, and an exported policy needs none
    import torch

    from policies.policy import ChunkPolicy, Policy
    from policies.vision import ImageEncoder

Floats = npt.NDArray[np.float32]
MODES = ("mean", "sample", "base", "noise")
NOISES = ("none", "normal", "uniform")
FORMAT_VERSION = 5
_INTERFACE = ("task", "control_rate_hz", "action_names")


def plans_chunks(policy: Policy) -> TypeGuard[ChunkPolicy]:
    """Whether a policy is a `ChunkPolicy` or its exported form; does not load torch."""
    return hasattr(policy, "plan")


def normal(sources: Sequence[np.random.Generator], shape: tuple[int, ...]) -> Floats:
    """Draw N(0, 1) from n generators: (n, *shape) float32."""
    return np.stack([source.standard_normal(shape, np.float32) for source in sources])


@dataclass(frozen=True)
class Exploration:
    """How the executed action deviates from the policy's best guess."""

    # "mean" of the policy, a "sample" from it, only its "base", or only the "noise".
    mode: str = "mean"
    # Extra noise on the action, before the clip to ±1: "none", "normal", "uniform".
    noise: str = "none"
    noise_scale: float = 0.0  # standard deviation or half width of the extra noise, in action units
    # Fraction of episodes in which the base acts without noise, for comparison.
    base_share: float = 0.0
    mean_share: float = 0.0  # fraction in which the policy's mean acts without noise

    def __post_init__(self) -> None:
        for name, fits, known in (
            ("mode", self.mode in MODES, MODES),
            ("noise", self.noise in NOISES, NOISES),
            ("noise_scale", 0 <= self.noise_scale < math.inf, "a finite number >= 0"),
            ("base_share", 0 <= self.base_share <= 1, "0 to 1"),
            ("mean_share", 0 <= self.mean_share <= 1, "0 to 1"),
        ):
            if not fits:
                raise PolicyError(
                    f"the exploration's {name} is impossible",
                    got=getattr(self, name),
                    expected=known,
                )

    def in_episode(self, draw: float) -> Exploration:
        """Return an episode's exploration from its uniform draw in [0, 1)."""
        if draw < self.base_share:
            return Exploration("base")
        return Exploration() if draw < self.base_share + self.mean_share else self

    def noisy(self, action: Floats, sources: Sequence[np.random.Generator]) -> Floats:
        """Return actions (n, d) with extra noise from n generators, clipped to ±1."""
        noise: Floats
        if self.noise == "normal":
            noise = normal(sources, action.shape[1:])
        elif self.noise == "uniform":
            drawn = [source.random(action.shape[1], np.float32) for source in sources]
            noise = 2 * np.stack(drawn) - np.float32(1)
        else:
            return action.clip(-1, 1)
        return (action + np.float32(self.noise_scale) * noise).clip(-1, 1)

    @property
    def noiseless(self) -> bool:
        """Whether the policy is not sampled and no noise is added."""
        return self.mode in ("mean", "base") and self.noise == "none"

    @property
    def base_alone(self) -> bool:
        """Whether only the base acts, without noise."""
        return self.mode == "base" and self.noiseless


@dataclass(frozen=True)
class Interface:
    """The task, rate and action columns that a policy was trained for."""

    task: str  # name of the task
    control_rate_hz: float  # control rate of its actions [Hz]
    action_names: tuple[str, ...]  # one name per action column

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Interface:
        """Read it from a policy's JSON description; `CheckpointError` if a value is invalid."""
        values: list[Any] = [described.get(key) for key in _INTERFACE]
        task, rate, names = values
        is_rate = type(rate) in (int, float) and 0 < rate < math.inf
        texts = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        distinct = texts and 0 < len({*names}) == len(names)
        if not (isinstance(task, str) and is_rate and distinct):
            raise CheckpointError(
                "the policy's description is damaged",
                got={key: described.get(key) for key in _INTERFACE},
                expected="a name, a rate above 0 [Hz], and a name for each column of an action",
            )
        return cls(task, float(rate), tuple(names))


@dataclass(frozen=True)
class Behaviour:
    """A policy with everything an actor needs to run it, except a seed."""

    policy: Policy  # the networks with their normalisers
    interface: Interface  # task, rate and actions that it was trained for
    # Actions of a chunk to execute before the next plan; 1 without chunks.
    execute_steps: int = 1
    # How the executed action deviates from the policy's best guess.
    exploration: Exploration = field(default_factory=Exploration)
    version: int = 0  # number of gradient updates, strictly increasing within a run
    # Image encoder. The policy sees its features; if it sees the images itself, the features are
    # only stored in the rows.
    vision: ImageEncoder | None = None

    def __post_init__(self) -> None:
        base = self.policy.base
        longest = 1 if base is None else base.horizon
        if not 1 <= self.execute_steps <= longest:
            raise PolicyError(
                "execute_steps does not fit the chunk",
                got=self.execute_steps,
                expected=f"1 ... {longest}",
            )
        explored = self.exploration
        if base is None and (explored.mode == "base" or explored.base_share > 0):
            raise PolicyError(
                "exploration mode 'base' needs a policy with a base",
                got=self.policy.kind,
                hint="take the mode 'mean' or 'sample'",
            )

    def learned(self, policy: Policy, version: int) -> Behaviour:
        """Return this behaviour with a policy that was learned from the current one."""
        steps = self.execute_steps if policy.base is not None else 1
        return replace(self, policy=policy, execute_steps=steps, version=version)

    @cached_property
    def encoder_id(self) -> int:
        """`ImageEncoder.identifier` of the image encoder; 0 without one."""
        return 0 if self.vision is None else self.vision.identifier

    @property
    def held_back(self) -> bool:
        """Whether the policy learned on top of a base is disabled, so that only the base acts."""
        return not getattr(self.policy, "enabled", True)

    def hold_back(self, held: bool = True) -> None:
        """Disable the policy learned on top of the base, or enable it with `held=False`."""
        if hasattr(self.policy, "enabled"):
            setattr(self.policy, "enabled", not held)  # noqa: B010  # only on these policies

    @property
    def acting(self) -> Policy:
        """The policy that acts: its base if the learned policy is disabled."""
        base = self.policy.base
        return base if self.held_back and base is not None else self.policy

    @property
    def extras(self) -> Mapping[str, int]:
        """See `ChunkPolicy.extras`; empty for a policy that does not plan."""
        found: Mapping[str, int] = getattr(self.policy, "extras", {})
        return found

    @property
    def uses_instruction(self) -> bool:
        """Whether rows carry a code of the episode's instruction.

        True for a policy that follows instructions, and for one learned on top of it, even
        without that policy as its base.
        """
        base = self.policy.base
        conditioned = base is not None and base.conditioned
        return conditioned or INSTRUCTION_FEATURES in self.policy.observation

    @property
    def observation(self) -> dict[str, int]:
        """Name → width of every observation that the robot must provide."""
        derived = (FEATURES, INSTRUCTION_FEATURES)
        seen = self.policy.observation
        own = {name: width for name, width in seen.items() if name not in derived}
        cameras = self.vision.cameras if self.vision is not None else {}
        return {**own, **{name: math.prod(shape) for name, shape in cameras.items()}}

    def features(
        self, images: Mapping[str, npt.NDArray[Any]], instructions: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        """Compute the columns that n rows carry besides observations, from images and instructions.

        With an image encoder: ``features/image`` (n, F) float16 and ``encoder_id`` (n,) int64.
        If `uses_instruction`: ``features/instruction`` (n, 16) float16. For each of `extras`:
        ``plan/<name>`` (n, width) float32, 0 until the policy plans.

        Args:
            images: Camera → uint8 (n, H, W, 3); other observations are ignored.
            instructions: n texts.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        if self.vision is not None:
            found[FEATURES] = self.vision.encode(images)
            found[ENCODER_ID] = np.full(len(instructions), self.encoder_id, np.int64)
        if self.uses_instruction:
            found[INSTRUCTION_FEATURES] = instruction_features(instructions)
        for name, width in self.extras.items():
            found[PLAN + name] = np.zeros((len(instructions), width), np.float32)
        return found

    def exploring(
        self,
        mode: str,
        noise: str = "none",
        noise_scale: float = 0.0,
        base_share: float = 0.0,
        mean_share: float = 0.0,
    ) -> Behaviour:
        """Return this behaviour with another `Exploration`; the networks are shared."""
        exploration = Exploration(mode, noise, noise_scale, base_share, mean_share)
        return replace(self, exploration=exploration)

    def to(self, device: torch.device) -> Behaviour:
        """Move the networks to a device; the runner's inputs and outputs stay on the CPU."""
        self.policy.to(device)
        if self.vision is not None:
            self.vision.to(device)
        return self

    def to_json(self) -> dict[str, Any]:
        """Describe the behaviour as JSON values, without its weights."""
        from policies.policy import describe  # late: loads torch

        return {
            "format": FORMAT_VERSION,
            "version": self.version,
            **asdict(self.interface),
            "observation": self.observation,
            "vision": None if self.vision is None else self.vision.config,
            "execute_steps": self.execute_steps,
            "exploration": asdict(self.exploration),
            "policy": describe(self.policy),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], base: ChunkPolicy | None = None) -> Behaviour:
        """Make a behaviour from the output of `to_json`, with arbitrary weights.

        If `base` is given, the policy uses it with its weights instead of making a new one.

        Raises:
            PolicyError: Another format, or a missing or wrong key.
            RegistryError: A class that is not in the registry.
        """
        from policies.policy import build  # late: loads torch
        from policies.vision import build_image_encoder

        if content.get("format") != FORMAT_VERSION:
            raise PolicyError(
                "the policy's format differs",
                got=content.get("format"),
                expected=FORMAT_VERSION,
                hint="load it with the robot_rl version that wrote it",
            )
        try:
            interface = Interface.of(content)
            exploration = Exploration(**content["exploration"])
            execute_steps, version = content["execute_steps"], content["version"]
            is_version = type(version) is int and 0 <= version < 2**63
            if type(execute_steps) is not int or not is_version:
                raise TypeError(f"execute_steps {execute_steps!r}, version {version!r}")
            seen = content.get("vision")
            vision = None if seen is None else build_image_encoder(seen)
            policy = build(content["policy"], base)
        except RobotRLError:
            raise
        except Exception as error:  # a class may raise anything for options it does not know
            got = " ".join(repr(error).split())[:300]
            raise CheckpointError("the policy's description is damaged", got=got) from error
        made = cls(policy, interface, execute_steps, exploration, version, vision)
        for key, described, found in (
            ("action_names", len(interface.action_names), policy.action_dimension),
            ("observation", content.get("observation"), made.observation),
        ):
            if described != found:
                raise CheckpointError(
                    f"the policy's {key} is not that of its networks",
                    got=described,
                    expected=found,
                )
        return made

    def expect(
        self,
        *,
        task: str | None = None,
        control_rate_hz: float | None = None,
        action_names: Iterable[str] | None = None,
        encoder_id: int | None = None,
        observation: Mapping[str, int] | None = None,
    ) -> Behaviour:
        """Check that the policy fits where it will run; return itself.

        `observation` is name → width of everything the environment provides, which may be more
        than the policy uses.

        Raises:
            PolicyError: Names the first field that differs, with got and expected.
        """
        mine = self.interface
        fields: list[tuple[str, object, object]] = [
            ("task", mine.task, task),
            ("control_rate_hz", mine.control_rate_hz, control_rate_hz),
            ("action_names", mine.action_names, action_names and tuple(action_names)),
            ("image encoder", self.encoder_id, encoder_id),
        ]
        if observation is not None:
            for name, width in self.observation.items():
                given = f"width {observation[name]}" if name in observation else "absent"
                fields.append((f"observation {name!r}", f"width {width}", given))
        for what, got, expected in fields:
            if expected is not None and got != expected:
                raise PolicyError(
                    f"the policy's {what} differs",
                    got=got,
                    expected=expected,
                    hint="use a policy that was trained for this configuration",
                )
        return self
