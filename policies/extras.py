"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from policies.errors import PolicyError


def require(package: str, extra: str) -> ModuleType:
    """Import an optional package.

    Args:
        package: Name of the module.
        extra: The extra of robot_rl that installs it.

    Raises:
        PolicyError: It is not installed; names the extra.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise PolicyError(
            f"the package {error.name!r} is not installed",
            expected=f"the extra {extra!r}",
            hint=f"pip install 'robot_rl[{extra}]'",
        ) from error
