"""What stands between a classifier's mistakes and the reward: frames in a row, and motion."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Observation

POSE = "state/tcp_pose"


class RewardGuard:
    """Lets a success through only after several frames in a row, and after the robot has moved.

    A success before the TCP has moved is no success: a camera that has turned, a light, a scene
    that was not reset. It is held back, and `alarm` says so until the next episode.

    Args:
        consecutive_frames: Frames in a row that must show success, from 1.
        least_motion: Distance [m] between two places of the TCP in the episode below which a
            success is not believed; 0 believes all. Without `state/tcp_pose` all are believed.

    Attributes:
        alarm: Why a success of this episode was held back, None if none was.
    """

    def __init__(self, consecutive_frames: int, least_motion: float) -> None:
        """See the class."""
        self._frames, self._least_motion = max(1, consecutive_frames), least_motion
        self._seen = 0
        self._start: npt.NDArray[np.float32] | None = None
        self._moved = 0.0
        self.alarm: str | None = None

    def reset(self, observation: Observation) -> None:
        """Begin an episode."""
        self._seen, self._moved, self.alarm = 0, 0.0, None
        pose = observation.get(POSE)
        self._start = None if pose is None else np.array(pose[:3])

    def passes(self, success: bool, observation: Observation) -> bool:
        """Whether a frame's verdict makes the step a success.

        Args:
            success: What the frame shows.
            observation: All that was seen with it.
        """
        if self._start is not None and POSE in observation:
            distance = float(np.linalg.norm(observation[POSE][:3] - self._start))
            self._moved = max(self._moved, distance)
        self._seen = self._seen + 1 if success else 0
        if self._seen < self._frames:
            return False
        if self._start is None or self._moved >= self._least_motion:
            return True
        self.alarm = (
            f"success without motion: the arm had moved {1e3 * self._moved:.1f} mm of at least"
            f" {1e3 * self._least_motion:.1f} mm; look at cameras, light and reset"
        )
        return False
