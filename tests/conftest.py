"""What all tests share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

# Before anything imports torch or NumPy: several processes share two cores in the tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

# Drivers and other parts that tests define are a user's own: configurations name them all the same.
_HERE = Path(__file__).parent
_WITH_PARTS = (
    _HERE,
    *(_HERE / name for name in ("algorithms", "drivers", "extras/calibration", "ros")),
)
os.environ["ROBOT_RL_PATH"] = os.pathsep.join(map(str, _WITH_PARTS))

# A busy machine is slow by chance; examples are derandomised so that a failure comes back.
settings.register_profile(
    "robot_rl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("robot_rl")

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout that the tests belong to."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What outlives a process, such as an arm's stop, must not outlive the tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def source_tree(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building leaves no files in it."""
    target = tmp_path_factory.mktemp("source") / "tree"
    unwanted = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(checkout, target, ignore=unwanted)
    return target


@pytest.fixture
def default_signals() -> Iterator[None]:
    """For tests that send signals: nohup, or a script that runs us aside, has them ignored."""
    defaults = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    previous = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture
def robot_rl_command(tmp_path: Path) -> Command:
    """Run `robot-rl` as a user does, in an empty working directory."""

    def run(*words: str, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "robot_rl.cli", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "COLUMNS": "80"},
            check=False,
        )

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of so much, such as `24m`: a tmpfs, which needs root."""
    place = tmp_path / "disk"

    def mount(size: str) -> Path:
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a tmpfs needs root")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Takes what is to be closed at the end, the latest first, and hands it back."""
    with ExitStack() as stack:
        yield lambda thing: stack.enter_context(closing(thing))


@pytest.fixture
def connected(opened: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Connects drivers; they are closed at the end."""

    def connect(device: Any) -> Any:
        opened(device).connect()
        return device

    return connect


_LONGEST = ("test_learning.py", "test_train.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, else one core would wait for the other at the end."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: a third of the time a test waits for something."""
    return (os.cpu_count() or 1) + 1


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was left out, and why."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if config.option.markexpr:
        terminalreporter.write_line(f"left out by -m: all but {config.option.markexpr!r}")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"left out: {count} of {reason!r}")
