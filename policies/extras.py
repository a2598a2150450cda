"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from policies.errors import PolicyError, RobotRLError


def require(package: str, extra: str, error: type[RobotRLError] = PolicyError) -> ModuleType:
    """Import an optional package when it is needed, not before.

    Args:
        package: Dotted name of the module.
        extra: The extra of robot_rl that installs it.
        error: What is raised.

    Raises:
        RobotRLError: Names the extra to install, or the library that the package itself lacks.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        raise error(
            f"the package {package!r} is not installed",
            got=f"no module named {missing.name!r}",
            hint=f"pip install 'robot_rl[{extra}]'",
        ) from missing
    except ImportError as broken:  # it is there, but a shared library or another version is not
        raise error(
            f"{package!r} is installed and does not load",
            got=broken,
            hint=f"install the libraries that it names, or reinstall 'robot_rl[{extra}]'",
        ) from broken
