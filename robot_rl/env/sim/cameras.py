"""Simulated cameras with the latency and noise of real ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from robot_rl.data.pictures import millimetres
from robot_rl.data.schema import Field, Observation
from robot_rl.env.sim.world import World
from robot_rl.errors import RobotRLError


class CameraError(RobotRLError):
    """A camera that does not exist, or cannot be rendered on this machine."""


@dataclass(frozen=True)
class CameraOptions:
    """One camera of the robot's model."""

    name: str  # camera name in the MJCF; the observation is `images/<name>`
    width: int = 128
    height: int = 128
    depth: bool = False  # whether to observe `images/<name>_depth` too
    points: int = 0  # number N of points in `points/<name>`; 0 for none
    # Lowest and highest corner (2, 3) of the box to take points from [m, base frame].
    region: Sequence[Sequence[float]] = ((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
    noise: float = 0.0  # standard deviation of the noise on each value, out of 255

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("height", 1), ("noise", 0), ("points", 0)):
            value = getattr(self, name)
            if value < least:
                raise CameraError(
                    f"the {name} of camera {self.name!r} is out of range",
                    got=value,
                    expected=f">= {least}",
                )
        low, high = self.region
        if any(a >= b for a, b in zip(low, high, strict=True)):
            raise CameraError(
                f"the region of camera {self.name!r} is empty",
                got=[list(low), list(high)],
                expected="its lowest corner, then its highest",
            )


class RenderedCamera:
    """Renders one camera of a world; raises `CameraError` if the model has no such camera.

    Observes ``images/<name>`` uint8 (height, width, 3) RGB and optionally ``images/<name>_depth``
    uint16 (height, width, 1) in millimetres, 0 beyond 65 m, like a depth camera.
    ``points/<name>`` float32 (N, 6) are sampled from both: positions [m, base frame], spread far
    apart, and colours in [0, 1]; all zeros if the region is empty.
    """

    def __init__(self, world: World, options: CameraOptions) -> None:
        known = [world.model.camera(i).name for i in range(world.model.ncam)]
        if options.name not in known:
            raise CameraError(
                "the robot's model has no such camera", got=options.name, expected=known
            )
        self._world, self._options = world, options
        image = f"images/{options.name}"
        size = (options.height, options.width)
        self.fields = [Field(image, "uint8", (*size, 3))]
        if options.depth:
            self.fields.append(Field(f"{image}_depth", "uint16", (*size, 1)))
        if options.points:
            self.fields.append(Field(f"points/{options.name}", "float32", (options.points, 6)))
        self._renderer = SceneRenderer(world, options.width, options.height)
        self._rng = np.random.default_rng(0)
        self._frames: deque[tuple[float, Observation]] = deque()  # capture time [s], frame

    def reset(self, rng: np.random.Generator) -> None:
        """Drop all frames; `rng` is the source of the episode's noise."""
        self._rng = rng
        self._frames.clear()

    def shoot(self) -> None:
        """Capture a frame of the current state and queue it."""
        name = self._options.name
        image = self._renderer.color(name)
        if self._options.noise:
            noisy = image + self._rng.normal(0.0, self._options.noise, image.shape)
            image = noisy.round().clip(0, 255).astype(np.uint8)
        frame: Observation = {f"images/{name}": image}
        if self._options.depth or self._options.points:
            depth = self._renderer.depth(name)
            if self._options.depth:
                frame[f"images/{name}_depth"] = depth
            if self._options.points:
                low, high = np.asarray(self._options.region, float)
                places = self._renderer.positions(name, depth)
                inside = ((places >= low) & (places <= high)).all(-1) & (depth[..., 0] > 0)
                cloud = np.concatenate([places[inside], image[inside] / 255.0], -1)
                spread = _spread(cloud, self._options.points, self._rng)
                frame[f"points/{name}"] = spread.astype(np.float32)
        self._frames.append((float(self._world.data.time), frame))

    def observe(self, latency: int) -> Observation:
        """Return the frame from `latency` physics steps ago; until then, the episode's first."""
        if not latency or not self._frames:
            self._frames.clear()
            self.shoot()
        arrived = self._world.data.time - (latency - 0.5) / self._world.physics_rate_hz
        while len(self._frames) > 1 and self._frames[1][0] < arrived:
            self._frames.popleft()
        return self._frames[0][1]

    def close(self) -> None:
        """Release the renderer."""
        self._renderer.close()


class SceneRenderer:
    """Renders a world off-screen, without the markers meant for people.

    Raises:
        CameraError: The size exceeds the model's off-screen buffer, or no rendering library.
    """

    def __init__(self, world: World, width: int, height: int) -> None:
        self._model, self._data = world.model, world.data
        try:
            self._renderer = mujoco.Renderer(world.model, height, width)
        except Exception as error:  # each backend has its own errors
            raise CameraError(
                "the simulated cameras cannot be rendered",
                got=" ".join(str(error).split()),
                hint="robot-rl doctor says what is missing; on Debian:"
                " apt-get install libegl1 libosmesa6",
            ) from error
        self._options = mujoco.MjvOption()
        self._options.sitegroup[:] = 0

    def color(self, camera: str) -> npt.NDArray[np.uint8]:
        """Render a camera: uint8 (height, width, 3) RGB."""
        self._look_through(camera)
        return np.array(self._renderer.render())

    def depth(self, camera: str) -> npt.NDArray[np.uint16]:
        """Render distance along the camera's axis: uint16 (height, width, 1) in millimetres."""
        self._renderer.enable_depth_rendering()
        self._look_through(camera)
        metres = self._renderer.render()
        self._renderer.disable_depth_rendering()
        return millimetres(metres)[..., None]

    def positions(self, camera: str, depth: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
        """Position of each pixel (height, width, 3) [m, base frame], from current `depth`."""
        height, width, _ = depth.shape
        along = depth[..., 0] / 1000.0
        focal = height / 2 / math.tan(math.radians(self._model.camera(camera).fovy[0]) / 2)
        rows, columns = np.indices((height, width)) + 0.5
        # MuJoCo's cameras look along -z, and their y points up.
        right, up = (columns - width / 2) / focal, (height / 2 - rows) / focal
        seen = np.stack([right * along, up * along, -along], -1)
        pose = self._data.camera(camera)
        return np.asarray(seen @ pose.xmat.reshape(3, 3).T + pose.xpos)

    def _look_through(self, camera: str) -> None:
        # Joints may have been set since the last step.
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, camera, self._options)

    def close(self) -> None:
        """Release the off-screen buffer."""
        self._renderer.close()


def _spread(cloud: npt.NDArray[Any], count: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Choose `count` rows of a cloud (n, 3 or more) whose positions are far apart.

    Farthest point sampling (Qi et al. 2017, PointNet++, section 3.2) on a random subset of four
    times as many points: on all, it would take longer than rendering. If there are too few points,
    some repeat.
    """
    if not len(cloud):
        return np.zeros((count, cloud.shape[1]))
    few = cloud[rng.permutation(len(cloud))[: 4 * count]]
    places = np.ascontiguousarray(few[:, :3])
    squares = np.square(places).sum(1)
    chosen, far = np.zeros(count, np.int64), np.full(len(few), np.inf)
    for index in range(1, count):
        last = chosen[index - 1]
        # Squared distances via dot products; differences would take three times as long.
        np.minimum(far, squares - 2 * (places @ places[last]) + squares[last], out=far)
        chosen[index] = far.argmax()
    return np.asarray(few[chosen])
