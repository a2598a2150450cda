"""Success classifier: maps a few consecutive camera frames to a probability.

A folder holds `classifier.json` (description, and the threshold chosen by `train-reward`) and
`classifier.safetensors` (weights). Loading either cannot execute code.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from policies import registry
from policies.backbones import Backbone
from policies.encoders import camera_image, image_pixels
from policies.networks import linear, seeded
from robot_rl.data.schema import Observation
from robot_rl.env.task import FIRST_MODEL, Outcome, RewardError, RewardSource
from robot_rl.errors import RobotRLError
from robot_rl.rewards.source import sparse

DESCRIPTION_FILE = "classifier.json"
TENSOR_FILE = "classifier.safetensors"
POSE = "state/tcp_pose"

Array = npt.NDArray[Any]

_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError),
    *(SafetensorError, RobotRLError),
)


class SuccessClassifier(nn.Module):
    """One backbone shared by all cameras and frames, and a small head on its features.

    Args:
        cameras: Observation name → shape (height, width, 3) of its images.
        frames: Number of consecutive input observations, from 1.
        backbone: ``class`` and options of the backbone; see `policies.backbones`.
        hidden: Width of the head's hidden layer.
        generator: Source of the initial weights.
    """

    def __init__(
        self,
        cameras: Mapping[str, Sequence[int]],
        frames: int,
        backbone: Mapping[str, Any],
        hidden: int,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.cameras = {name: tuple(map(int, shape)) for name, shape in cameras.items()}
        if not self.cameras or frames < 1:
            raise RewardError(
                "a success classifier needs a camera and a frame",
                got=f"cameras {sorted(self.cameras)}, frames {frames}",
                hint="name cameras with classifier.cameras",
            )
        self.frames = int(frames)
        self._options = {"backbone": dict(backbone), "hidden": int(hidden)}
        self.backbone = registry.build(Backbone, backbone, generator=generator)
        joined = self.backbone.features * len(self.cameras) * self.frames
        self.head = nn.Sequential(
            linear(joined, hidden, generator),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            linear(hidden, 1, generator),
        )

    @property
    def config(self) -> dict[str, Any]:
        """JSON values for `registry.build` to make a classifier of the same shape."""
        kind = registry.name_of(type(self))
        cameras = {name: list(shape) for name, shape in self.cameras.items()}
        return {registry.CLASS: kind, "cameras": cameras, "frames": self.frames, **self._options}

    def forward(self, images: Mapping[str, Array]) -> Tensor:
        """Map uint8 images (B, frames, H, W, 3), oldest first, to uncalibrated float32 logits (B,).

        Raises:
            PolicyError: A camera is missing, or has images of another size.
        """
        device = next(self.parameters()).device
        parts = []
        for name in self.cameras:
            seen = camera_image(images, name, self.cameras).to(device)
            pixels = image_pixels(seen).contiguous(memory_format=torch.channels_last)
            parts.append(self.backbone(pixels).reshape(len(seen), -1))
        logits: Tensor = self.head(torch.cat(parts, -1))
        return logits[:, 0]


@dataclass(frozen=True)
class Calibration:
    """Probability and threshold of a classifier's logits, both chosen on held-out data."""

    scale: float = 1.0  # probability = sigmoid(scale · logit + offset) (Platt 1999)
    offset: float = 0.0  # see `scale`
    threshold: float = 0.5  # probability from which a frame shows success

    def probability(self, logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Calibrated probabilities of logits, of the same shape."""
        scaled = self.scale * np.asarray(logits, np.float64) + self.offset
        return 1.0 / (1.0 + np.exp(-np.clip(scaled, -60.0, 60.0)))


@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier with its calibration."""

    network: SuccessClassifier  # in evaluation mode
    decision: Calibration  # calibration and threshold
    task: str  # task it was trained on

    def save(self, folder: Path) -> None:
        """Write both files into an existing folder."""
        state = {n: t.detach().cpu().contiguous() for n, t in self.network.state_dict().items()}
        (folder / TENSOR_FILE).write_bytes(save_tensors(state))
        text = json.dumps(self._to_json(), indent=2)
        (folder / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str) -> TrainedClassifier:
        """Read the files that `save` writes.

        Raises:
            RewardError: A file is missing, damaged, or from another network.
        """
        place = Path(folder)
        try:
            content = json.loads((place / DESCRIPTION_FILE).read_text(encoding="utf-8"))
            network = registry.build(SuccessClassifier, content["network"], generator=seeded(0))
            network.load_state_dict(load_tensors((place / TENSOR_FILE).read_bytes()))
            decision = Calibration(**{name: float(v) for name, v in content["decision"].items()})
            task = str(content["task"])
        except _UNREADABLE as error:
            raise RewardError(
                f"the success classifier in {place} cannot be read",
                got=" ".join(str(error).split())[:300],
                expected=f"a folder with {DESCRIPTION_FILE} and {TENSOR_FILE}",
                hint="make one with: robot-rl collect-reward, then robot-rl train-reward",
            ) from error
        return cls(network.eval(), decision, task)

    @property
    def version(self) -> int:
        """`reward_version` from a hash of weights and description."""
        digest = hashlib.sha256(json.dumps(self._to_json(), sort_keys=True).encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        span = 2**31 - FIRST_MODEL
        return FIRST_MODEL + int.from_bytes(digest.digest()[:8], "little") % span

    @torch.no_grad()
    def logits(self, images: Mapping[str, Array]) -> npt.NDArray[np.float32]:
        """Logits (B,) of images in the format of `SuccessClassifier.forward`."""
        return np.asarray(self.network(images).cpu().numpy())

    def _to_json(self) -> dict[str, Any]:
        decision = asdict(self.decision)
        return {"task": self.task, "network": self.network.config, "decision": decision}


@dataclass
class RewardGuard:
    """Accepts a success only after several frames in a row, and after the robot has moved.

    A success before the TCP has moved is not real: a camera was turned, the light changed, or the
    scene was not reset. It is rejected, and `alarm` gives the reason until the next episode.
    """

    consecutive_frames: int  # frames in a row that must show success, from 1
    # Least TCP distance from the episode's start [m] for a success to be accepted; 0 accepts all.
    # Without `state/tcp_pose` all are accepted.
    least_motion: float
    _seen: int = field(default=0, init=False)
    _moved: float = field(default=0.0, init=False)
    _start: npt.NDArray[np.float32] | None = field(default=None, init=False)
    # Why a success in this episode was rejected, None if none was.
    alarm: str | None = field(default=None, init=False)

    def reset(self, observation: Observation) -> None:
        """Start an episode."""
        self._seen, self._moved, self.alarm = 0, 0.0, None
        pose = observation.get(POSE)
        self._start = None if pose is None else np.array(pose[:3])

    def passes(self, success: bool, observation: Observation) -> bool:
        """Return whether a frame's result makes the step a success, given its observation."""
        if self._start is not None and POSE in observation:
            distance = float(np.linalg.norm(observation[POSE][:3] - self._start))
            self._moved = max(self._moved, distance)
        self._seen = self._seen + 1 if success else 0
        if self._seen < max(1, self.consecutive_frames):
            return False
        if self._start is None or self._moved >= self.least_motion:
            return True
        self.alarm = (
            f"success without motion: the arm had moved {1e3 * self._moved:.1f} mm of at least"
            f" {1e3 * self.least_motion:.1f} mm; look at cameras, light and reset"
        )
        return False


class ClassifierReward(RewardSource):
    """Success from an image classifier, filtered by a `RewardGuard`.

    `path` is a folder written by `robot-rl train-reward`.

    Raises:
        RewardError: There is no such classifier.
    """

    def __init__(self, path: str, consecutive_frames: int, least_motion: float) -> None:
        self.classifier = TrainedClassifier.load(path)
        self.version = self.classifier.version
        self._guard = RewardGuard(consecutive_frames, least_motion)
        network = self.classifier.network
        self.observed = tuple(network.cameras)
        self._frames: deque[Observation] = deque(maxlen=network.frames)

    def reset(self, observation: Observation) -> None:
        """Start an episode: its first frame replaces the missing earlier ones.

        Raises:
            RewardError: A camera has images of another size.
        """
        for name, shape in self.classifier.network.cameras.items():
            if observation[name].shape != shape:
                raise RewardError(
                    f"the camera {name!r} has images of another size than the classifier's",
                    got=observation[name].shape,
                    expected=shape,
                    hint="set the camera as it was when the examples were collected",
                )
        self._guard.reset(observation)
        self.alarm = self._guard.alarm
        self._frames.extend([observation] * (self._frames.maxlen or 1))

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Return reward 1 and end the episode once enough frames in a row show success."""
        self._frames.append(observation)
        images = {n: np.stack([f[n] for f in self._frames])[None] for n in self.observed}
        decision = self.classifier.decision
        shown = decision.probability(self.classifier.logits(images))[0] >= decision.threshold
        success = self._guard.passes(bool(shown), observation)
        self.alarm = self._guard.alarm
        return sparse(success, task)
