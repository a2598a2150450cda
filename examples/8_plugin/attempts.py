"""The functions that `plugin.py` names."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from robot_rl.run import RunDirectory


def show(path: str = "latest", *, runs_directory: str) -> None:
    """Print the attempts of a run."""
    print(attempts(RunDirectory.open(path, runs_directory)))


def few_demonstrations(run: RunDirectory, config: DictConfig) -> list[str]:
    """Warn of fewer demonstrations than a robot should learn from."""
    count = int(config.demonstrations)
    return [f"{count} demonstrations are few: record 10 or more"] if count < 10 else []


def write(run: RunDirectory, config: DictConfig) -> Path:
    """Write the attempts into the run; returns the file."""
    path = run.path / "attempts.txt"
    path.write_text(f"{attempts(run)}\n", encoding="utf-8")
    return path


def attempts(run: RunDirectory) -> str:
    """Count the episodes that succeeded."""
    episodes = run.read_jsonl("episodes")
    return f"{sum(bool(e['success']) for e in episodes)} of {len(episodes)} episodes succeeded"
