"""Simulation on MuJoCo: the world, the simulated robot, its cameras, and the tasks."""

from __future__ import annotations

import ctypes
import os
import sys

# How MuJoCo renders without a display, in order of preference: EGL uses a GPU where there is one.
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}


def choose_backend() -> None:
    """Set the environment variable ``MUJOCO_GL`` to what is installed, unless the user did."""
    if sys.platform != "linux" or os.environ.get("MUJOCO_GL"):
        return
    for backend, library in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ["MUJOCO_GL"] = backend
        # PyOpenGL, which MuJoCo uses for both, has a switch of its own.
        os.environ.setdefault("PYOPENGL_PLATFORM", backend)
        return


# Before any module of this package imports MuJoCo, which reads the choice at its import.
choose_backend()
