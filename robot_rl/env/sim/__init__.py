"""MuJoCo simulation: the world, the simulated robot, its cameras, and the tasks."""

from __future__ import annotations

import ctypes
import os
import sys

# Libraries for rendering without a display, in order of preference: EGL uses a GPU if available.
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}


def choose_backend() -> None:
    """Set the environment variable ``MUJOCO_GL`` to an installed backend, unless already set."""
    if sys.platform != "linux" or os.environ.get("MUJOCO_GL"):
        return
    for backend, library in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ["MUJOCO_GL"] = backend
        # MuJoCo uses PyOpenGL for both, which has its own variable.
        os.environ.setdefault("PYOPENGL_PLATFORM", backend)
        return


# Must run before any module of this package imports MuJoCo, which reads the variable on import.
choose_backend()
