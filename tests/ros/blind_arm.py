"""A simulated arm that measures neither forces nor the velocity of its TCP."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drivers.arm.sim import SimArm


class BlindArm(SimArm):
    """See the module."""

    def read(self):
        unknown = np.full(6, np.nan)
        return replace(super().read(), tcp_velocity=unknown, tcp_wrench=unknown)
