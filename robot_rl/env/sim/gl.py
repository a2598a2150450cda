"""How MuJoCo renders without a display; it reads the choice once, when it is imported."""

from __future__ import annotations

import ctypes
import os
import sys

_VARIABLE = "MUJOCO_GL"
# In order of preference: EGL uses a GPU where there is one.
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}


def choose_backend() -> None:
    """Set the environment variable ``MUJOCO_GL`` to what is installed, unless the user did."""
    if sys.platform != "linux" or os.environ.get(_VARIABLE):
        return
    for backend, library in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ[_VARIABLE] = backend
        # PyOpenGL, which MuJoCo uses for both, has a switch of its own.
        os.environ.setdefault("PYOPENGL_PLATFORM", backend)
        return
