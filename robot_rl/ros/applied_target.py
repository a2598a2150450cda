"""What the arm's node makes of a command: whether it limited the target further."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped

from robot_rl.ros import messages
from robot_rl.ros.client import RosClient
from robot_rl.ros.sensors import Sensor
from robot_rl.safety import rotations

# A tenth of what an action of 1 does. Where both keep the same lead, theirs differs by as much as
# the arm has moved between the two measurements: 0.03 mm at most in a simulated insertion.
_TOLERANCES = np.repeat([1e-3, 5e-3], 3)  # m, rad


class AppliedTarget:
    """Compares the newest command with what the arm's node says that it has applied.

    The node answers every command that it accepts on `applied_pose`: the target after its limits of
    workspace, tilt, step and lead, with the stamp of the command. Its limit of speed is not in it,
    nor that it holds later, which its `mode` says. A command without an answer by now, as of a
    foreign arm that never gives one, counts as not limited.

    Args:
        client: The node that listens.
    """

    def __init__(self, client: RosClient) -> None:
        """See the class."""
        self._answers = Sensor(client, PoseStamped, "applied_pose", math.inf, messages.pose_array)
        self._stamp_ns = 0
        self._target: npt.NDArray[np.float64] | None = None

    def expect(self, target: npt.NDArray[np.float64], stamp_ns: int) -> None:
        """Note a command: its target pose (7,) and its stamp [ns, system clock]."""
        self._target, self._stamp_ns = target, stamp_ns

    def limited(self) -> bool:
        """Whether the node, as far as it has answered, applied another target than was sent.

        Raises:
            BadMeasurement: Its answer is no pose.
        """
        answer = self._answers.of_stamp(self._stamp_ns)
        if self._target is None or answer is None:
            return False
        difference = rotations.between(self._target, self._answers.value(answer))
        return bool((np.abs(difference) > _TOLERANCES).any())
