"""Simulated camera: renders a copy of the world at its own rate."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from drivers.base import DriverError, DriverTimeout, check_ranges
from drivers.camera.base import RATES, Frame, Intrinsics
from drivers.live_world import SimDevice
from robot_rl.env.sim.cameras import SceneRenderer


@dataclass(eq=False, kw_only=True)
class SimCamera(SimDevice):
    """One camera of the simulated arm's model, which runs in another node's process.

    Cameras with the same rate on one machine capture simultaneously, like cameras with a common
    trigger. An image shows the first world state after its due time, and has that state's stamp.
    Images due while no reader waits or the world is paused are skipped.
    """

    camera: str  # camera name in the model
    width: int = 128  # pixels
    height: int = 128  # pixels
    rate_hz: float = 30.0  # frames per second
    depth: bool = False  # whether to render depth

    def __post_init__(self) -> None:
        check_ranges("camera", self, rate_hz=RATES)
        super().__post_init__()
        compiled = self._world.model
        known = [compiled.camera(i).name for i in range(compiled.ncam)]
        if self.camera not in known:
            raise DriverError("the arm's model has no such camera", got=self.camera, expected=known)
        self._period = 1.0 / self.rate_hz
        self._renderer: SceneRenderer | None = None
        self._due = 0.0

    def connect(self) -> None:
        """Subscribe to the world."""
        self.listen()
        self._next_due()

    def read(self, timeout_s: float) -> Frame:
        """Wait until an image is due and the world advances, then render it."""
        deadline = time.monotonic() + timeout_s
        time.sleep(max(0.0, min(self._due, deadline) - time.monotonic()))
        if self._due > deadline:
            raise DriverTimeout("no picture of the simulated camera is due yet")
        stamp = self.wait(max(0.0, deadline - time.monotonic()))
        number = self._next_due()
        if self._renderer is None:  # created here because OpenGL needs one thread
            self._renderer = SceneRenderer(self._world, self.width, self.height)
        color = self._renderer.color(self.camera)
        depth = self._renderer.depth(self.camera)[..., 0] if self.depth else None
        return Frame(stamp, number, color, depth)

    def intrinsics(self) -> Intrinsics:
        """Return the intrinsics of the model's camera, which has no distortion."""
        width, height = self.width, self.height
        angle = math.radians(float(self._world.model.camera(self.camera).fovy[0]))
        focal = 0.5 * height / math.tan(0.5 * angle)
        return Intrinsics(width, height, focal, focal, 0.5 * (width - 1), 0.5 * (height - 1))

    def _next_due(self) -> int:
        """Schedule the next image; returns the sequence number of the current one."""
        number = int(time.monotonic() / self._period)
        self._due = (number + 1) * self._period
        return number

    def close(self) -> None:
        """Unsubscribe and release the renderer."""
        super().close()
        renderer, self._renderer = self._renderer, None
        if renderer is not None:
            renderer.close()
