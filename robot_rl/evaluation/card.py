"""The card of a policy: what it comes from, how good it was found to be, and where it may act.

All of it is from the files of its run; what they do not say, the card does not either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from robot_rl.config import composed, flatten
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.run import ATTEMPTS, CONFIG_FILE, STATE_FILE, STUDENT, RunDirectory

# What a machine has of its own, or a command was asked for once; it made nothing of the policy.
_NOT_SETTINGS = ("choices", "runs_directory", "device", "cell", "evaluation", "console", "run")


def card(run: RunDirectory, exported: Mapping[str, Any]) -> str:
    """Write the card, in Markdown, of an exported policy: the content of its `policy.json`."""
    config = OmegaConf.load(run.path / CONFIG_FILE)
    assert isinstance(config, DictConfig)
    lines = [f"# Policy card: {exported['task']}, {exported['policy']['kind']}", ""]
    for title, part in (
        ("Lineage", _lineage(run, config, exported)),
        ("Data", _data(run, config)),
        ("Settings that differ from the defaults", _settings(config)),
        ("Statistics", _statistics(run, exported)),
        ("Limits", _limits(exported)),
        ("Files", _files(exported)),
    ):
        lines += [f"## {title}", "", *(part or ["Nothing is recorded."]), ""]
    return "\n".join(lines)


def _lineage(run: RunDirectory, config: DictConfig, exported: Mapping[str, Any]) -> list[str]:
    chosen = ("robot", "domain", "policy", "algorithm", "recipe", "observation", "reward")
    rows = [(name, config.choices.get(name)) for name in chosen]
    rows += [("seed", config.seed), ("run", exported["run"]), ("policy", exported["checkpoint"])]
    if exported["checkpoint"] == STUDENT:
        state = (run.complete_folder(STUDENT) / STATE_FILE).read_text(encoding="utf-8")
        rows.append(("its teacher", json.loads(state)["teacher"]))
    rows += [
        ("environment steps behind it", f"{exported['environment_steps']:,}"),
        ("gradient updates behind it", f"{exported['version']:,}"),
        ("exported with", f"robot_rl {exported['robot_rl']}, commit {exported['commit']}"),
    ]
    stages = [
        (r["stage"], f"{r['seconds']:.0f} s", "yes" if r["finished"] else "no")
        for r in run.read_jsonl("stages")
    ]
    return [
        *_table(("", ""), ((name, value) for name, value in rows if value is not None)),
        "",
        *_table(("stage, by starts", "time", "run to its end"), stages),
    ]


def _data(run: RunDirectory, config: DictConfig) -> list[str]:
    rows = []
    for path in sorted({run.demonstrations, *run.path.glob("*.zarr")} - {run.reward_examples}):
        if path.exists():
            found = EpisodeDataset(path)
            steps = found.rows_total - len(found)
            won = int(np.count_nonzero(found.successes))
            rows.append((path.name, len(found), won, f"{steps:,}", ""))
    episodes = run.read_jsonl("episodes")
    if episodes:
        rows.append(
            (
                "online learning",
                len(episodes),
                sum(bool(e["success"]) for e in episodes),
                f"{sum(int(e['length']) for e in episodes):,}",
                f"{sum(int(e['intervened_steps']) for e in episodes):,}",
            )
        )
    given = [f"Demonstrations from {config.dataset}.", ""] if config.dataset else []
    head = ("recorded", "episodes", "successful", "steps", "of them by a person")
    return given + (_table(head, rows) if rows else [])


def _settings(config: DictConfig) -> list[str]:
    choices = [f"{group}={name}" for group, name in config.choices.items() if name is not None]
    defaults, mine = flatten(composed(choices)), flatten(config)
    rows = [
        (key, value, defaults.get(key, "absent"))
        for key, value in mine.items()
        if key.split(".")[0] not in _NOT_SETTINGS and defaults.get(key) != value
    ]
    return _table(("setting", "value", "default"), rows) if rows else ["None."]


def _statistics(run: RunDirectory, exported: Mapping[str, Any]) -> list[str]:
    """Evaluations of this policy, and of others of the run for comparison."""
    rows = []
    for record in (*run.read_jsonl("evaluations"), *run.read_jsonl("evaluate")):
        result = EvaluationResult.from_json(record)
        if result.seed_set != "final":
            continue
        made = (result.environment_steps, result.gradient_updates)
        mine = record.get("policy_checksum") == exported["policy_checksum"]
        if "policy_checksum" not in record and exported["checkpoint"] != STUDENT:
            mine = made == (exported["environment_steps"], exported["version"])
        name = "a student" if record.get("evaluated") == "student" else result.name
        interval = f"{100 * result.confidence_low:.1f} – {100 * result.confidence_high:.1f} %"
        mean = result.mean_seconds_to_success
        rows.append(
            (
                "**this one**" if mine else name,
                result.count,
                interval,
                "" if mean is None else f"{mean:.1f} s",
                f"{result.first_seed} …",
                " ".join(record.get("overrides", ())),
            )
        )
    head = ("policy", "successes", "95 % interval", "mean time", "scenes", "asked with")
    lines = _table(head, rows) if rows else []
    if not any(row[0] == "**this one**" for row in rows):
        lines = [*lines, "", "**This policy has not been evaluated.**"]
    if attempts := run.read_jsonl(ATTEMPTS):
        won = sum(bool(a["success"]) for a in attempts)
        lines += ["", f"At work (`robot-rl run`): {won} of {len(attempts)} attempts succeeded."]
    return lines


def _limits(exported: Mapping[str, Any]) -> list[str]:
    scenes = {"domain": exported["domain"], **exported["scenes"]}
    names = ", ".join(exported["action_names"])
    return [
        f"- It acts at {exported['control_rate_hz']:g} Hz on the actions {names}, in [-1, 1].",
        f"- It executes {exported['execute_steps']} action(s) before it looks again.",
        f"- It must observe {', '.join(exported['observation'])}.",
        "- It was trained in these scenes, and evaluated in them unless the table says otherwise:",
        "",
        *_table(("setting of the scene", "value"), scenes.items()),
    ]


def _files(exported: Mapping[str, Any]) -> list[str]:
    apart = exported["largest_difference"]
    return [
        *_table(("file", "SHA-256"), exported["graphs"].items()),
        "",
        f"CRC-32 of the checkpoint: {exported['policy_checksum']}. Largest difference of the files"
        f" from the checkpoint's policy, on invented observations: {apart:.1e}.",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {line} |" for line in lines]
