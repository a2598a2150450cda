"""The simulated camera: renders a copy of the world at a rate of its own."""

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
    """One camera of the simulated arm's model, in the process of another node.

    Cameras of one rate on one machine look at the same time, as cameras with a common trigger do. A
    picture shows the first state of the world after it was due, and is stamped with that instant.
    Pictures that were due while nobody read, or while the world stood still, are left out.
    """

    camera: str  # its name in the model
    width: int = 128  # pixels
    height: int = 128  # pixels
    rate_hz: float = 30.0  # pictures per second
    depth: bool = False  # whether it sees depth too

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
        """Listen to the world."""
        self.listen()
        self._next_due()

    def read(self, timeout_s: float) -> Frame:
        """Wait until a picture is due and the world moves on, and render it."""
        deadline = time.monotonic() + timeout_s
        time.sleep(max(0.0, min(self._due, deadline) - time.monotonic()))
        if self._due > deadline:
            raise DriverTimeout("no picture of the simulated camera is due yet")
        stamp = self.wait(max(0.0, deadline - time.monotonic()))
        number = self._next_due()
        if self._renderer is None:  # here, since OpenGL wants one thread
            self._renderer = SceneRenderer(self._world, self.width, self.height)
        color = self._renderer.color(self.camera)
        depth = self._renderer.depth(self.camera)[..., 0] if self.depth else None
        return Frame(stamp, number, color, depth)

    def intrinsics(self) -> Intrinsics:
        """The intrinsics of the model's camera, which has no distortion."""
        width, height = self.width, self.height
        angle = math.radians(float(self._world.model.camera(self.camera).fovy[0]))
        focal = 0.5 * height / math.tan(0.5 * angle)
        return Intrinsics(width, height, focal, focal, 0.5 * (width - 1), 0.5 * (height - 1))

    def _next_due(self) -> int:
        """Note when the next picture is due; returns the number of the present one."""
        number = int(time.monotonic() / self._period)
        self._due = (number + 1) * self._period
        return number

    def close(self) -> None:
        """Stop listening, and release the renderer."""
        super().close()
        renderer, self._renderer = self._renderer, None
        if renderer is not None:
            renderer.close()
