"""Find `configs/`, `hardware/` and `launch/` for any kind of installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from policies import places
from robot_rl.errors import RobotRLError

RESOURCE_FOLDERS = ("configs", "hardware", "launch")
_SHARE = Path("share") / "robot_rl"


def find_resource(relative: str | Path) -> Path:
    """Return the absolute path of a shipped file or folder, such as `"hardware/panda/panda.xml"`.

    Searches, in this order: a checkout or editable install, a wheel (`share/robot_rl` under its
    install prefix, or under the folder given to `pip install --target`), the ROS prefixes in
    `AMENT_PREFIX_PATH`, and the user's folders, which may add files to `hardware`. `RobotRLError`
    lists the searched folders.
    """
    wanted = Path(relative)
    inside = not wanted.is_absolute() and ".." not in wanted.parts
    if not inside or wanted.parts[:1] not in [(name,) for name in RESOURCE_FOLDERS]:
        raise RobotRLError(
            "only the folders that robot_rl ships can be asked for",
            got=relative,
            expected="a relative path that begins with " + ", ".join(RESOURCE_FOLDERS),
        )
    searched = _resource_roots()
    for root in searched:
        if (root / wanted).exists():
            return root / wanted
    raise RobotRLError(
        f"{wanted.as_posix()!r} is not installed",
        got="searched " + ", ".join(str(root) for root in searched),
        hint="check the name, or install robot_rl again from its checkout: pip install .",
    )


def config_places() -> tuple[Path, ...]:
    """Return the configuration folders: the shipped one, then the user's."""
    return (find_resource("configs"), *places.config_folders())


def choice_file(group: str, choice: str) -> Path | None:
    """Return the file of a choice, shipped or the user's; None if there is none."""
    files = (place / group / f"{choice}.yaml" for place in config_places())
    # A name may come from another machine and not be a valid file name here.
    return next((file for file in files if os.path.isfile(file)), None)


def _resource_roots() -> list[Path]:
    """Return the folders that may hold resources, most specific first, without duplicates."""
    packages = Path(__file__).resolve().parents[2]
    candidates = [packages] if (packages / "pyproject.toml").exists() else []
    # <prefix>/lib/python3.x/site-packages is three levels below its prefix; --target, zero levels.
    candidates += [folder / _SHARE for folder in (packages, *packages.parents[:3])]
    candidates.append(Path(sys.prefix) / _SHARE)
    ament = os.environ.get("AMENT_PREFIX_PATH", "")
    candidates += [Path(prefix) / _SHARE for prefix in ament.split(os.pathsep) if prefix]
    candidates += places.folders()
    return list(dict.fromkeys(candidates))
