"""A camera that learns of its lens late, as one on topics may."""

from __future__ import annotations

from drivers.camera.base import Intrinsics
from drivers.camera.uvc import UvcCamera
from drivers.errors import DriverError


class LateLens(UvcCamera):
    """Knows nothing at first, then something that cannot be used, then its lens."""

    asked = 0

    def intrinsics(self) -> Intrinsics | None:
        self.asked += 1
        if self.asked < 5:
            return None
        if self.asked < 60:
            raise DriverError("this model of lenses is not supported")
        return super().intrinsics()
