"""Policy card: lineage, evaluation results, and operating limits.

All content comes from the run's files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from policies.behaviour import Behaviour
from robot_rl.config import changed_settings
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import RowSchema
from robot_rl.evaluation.evaluator import conditions
from robot_rl.evaluation.ledger import (
    CHECKSUM,
    load_policy,
    made,
    policy_checkpoint,
    policy_checksum,
    read_ledger,
)
from robot_rl.evaluation.records import PolicyInputs, recorded_schema
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.processes.files import replace_text
from robot_rl.processes.machine import package_version, source_commit
from robot_rl.run import (
    ACCEPTED,
    ATTEMPTS,
    CLONED,
    CONFIG_FILE,
    LAST,
    LEARNED_POLICY,
    STATE_FILE,
    STUDENT,
    RunDirectory,
)

CARD = "CARD.md"
# Machine or command settings, which do not affect the policy.
_NOT_SETTINGS = (
    "choices",
    "runs_directory",
    "device",
    "cell",
    "evaluation",
    "console",
    "run",
    "distil",  # a student's settings are in its lineage
)


def policy_facts(
    run: RunDirectory,
    config: DictConfig,
    named: str,
    folder: Path,
    behaviour: Behaviour,
    steps: int,
) -> dict[str, Any]:
    """Collect the facts about the policy in `folder` for the card and `policy.json`.

    `named` is its checkpoint, `steps` its number of environment steps.
    """
    return {
        "robot_rl": package_version("robot_rl"),
        "commit": source_commit(),
        "run": run.path.resolve().name,
        "checkpoint": named,
        CHECKSUM: policy_checksum(folder),
        "environment_steps": steps,
        **conditions(config),
        **described(behaviour),
    }


def write_card(run: RunDirectory, config: DictConfig) -> Path:
    """Write the deployed policy's card into the run; returns its path."""
    named = policy_checkpoint(run)
    folder = run.complete_folder(named) / "policy"
    facts = policy_facts(run, config, named, folder, *load_policy(run))
    replace_text(run.path / CARD, card(run, facts))
    return run.path / CARD


def described(behaviour: Behaviour) -> dict[str, Any]:
    """Describe how a policy acts, for the card and an export's `policy.json`."""
    return {
        "task": behaviour.interface.task,
        "control_rate_hz": behaviour.interface.control_rate_hz,
        "action_names": list(behaviour.interface.action_names),
        "execute_steps": behaviour.execute_steps,
        "version": behaviour.version,
        "observation": behaviour.observation,
        "policy": {"kind": behaviour.policy.kind},
    }


def card(run: RunDirectory, facts: Mapping[str, Any]) -> str:
    """Return the card in Markdown, from `policy_facts` or an export's `policy.json`."""
    config = OmegaConf.load(run.path / CONFIG_FILE)
    assert isinstance(config, DictConfig)
    lines = [f"# Policy card: {facts['task']}, {facts['policy']['kind']}", ""]
    for title, part in (
        ("Lineage", _lineage(run, config, facts)),
        ("Data", _data(run, config)),
        ("Settings that differ from the defaults", _settings(config)),
        ("Statistics", _statistics(run, facts)),
        ("Limits", _limits(facts, recorded_schema(run, config.dataset))),
        ("Files", _files(facts)),
    ):
        lines += [f"## {title}", "", *(part or ["Nothing is recorded."]), ""]
    return "\n".join(lines)


def _lineage(run: RunDirectory, config: DictConfig, facts: Mapping[str, Any]) -> list[str]:
    chosen = ("robot", "domain", "policy", "algorithm", "recipe", "observation", "reward")
    rows = [(name, config.choices.get(name)) for name in chosen]
    rows += [("seed", config.seed), ("run", facts["run"]), ("checkpoint", facts["checkpoint"])]
    if facts["checkpoint"] == STUDENT:
        state = json.loads((run.complete_folder(STUDENT) / STATE_FILE).read_text(encoding="utf-8"))
        taught = f"{state['distil']['updates']:,} updates of {state['distil']['batch_size']} rows"
        rows += [("its teacher", state["teacher"]), ("distilled in", taught)]
    rows += [
        ("environment steps behind it", f"{facts['environment_steps']:,}"),
        ("gradient updates behind it", f"{facts['version']:,}"),
        ("written with", f"robot_rl {facts['robot_rl']}, commit {facts['commit']}"),
    ]
    stages = [
        (r["stage"], f"{r['seconds']:.0f} s", "yes" if r["finished"] else "no")
        for r in run.read_jsonl("stages")
    ]
    lines = [
        *_table(("", ""), ((name, value) for name, value in rows if value is not None)),
        "",
        *_table(("stage, by starts", "time", "run to its end"), stages),
    ]
    verdicts = [
        (v["candidate"], f"{v['gathered_steps']:,}", v["decision"], v["reason"])
        for v in run.read_jsonl("gate")
    ]
    if verdicts:
        lines += [
            "",
            *_table(("what the gate judged", "gathered steps", "verdict", "why"), verdicts),
        ]
    if (ledger := read_ledger(run)).entries:
        judged = [
            (e.policy, e.checkpoint, e.parent or "", f"{e.environment_steps:,}", e.count, e.verdict)
            for e in ledger.entries.values()
        ]
        head = ("policy", "checkpoint", "learned from", "environment steps", "solved", "verdict")
        lines += ["", *_table(head, judged), "", f"What the run has decided: {ledger}."]
    if facts["checkpoint"] == CLONED and LEARNED_POLICY in made(run):
        lines += ["", "This policy is the clone. It has learned nothing from later stages."]
    if facts["checkpoint"] == ACCEPTED and run.has_folder(LAST):
        lines += ["", "This policy is what the gate accepted. It has learned nothing online."]
    return lines


def _data(run: RunDirectory, config: DictConfig) -> list[str]:
    rows = []
    shown = [Path(config.dataset)] if config.dataset else []
    for path in (*shown, *sorted({*run.path.glob("*.zarr")} - {run.reward_examples})):
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
    given = [f"The demonstrations are {config.dataset}.", ""] if config.dataset else []
    head = ("recorded", "episodes", "successful", "steps", "of them by a person")
    return given + (_table(head, rows) if rows else [])


def _settings(config: DictConfig) -> list[str]:
    rows = [
        (key, value, "absent" if default is None else default)
        for key, value, default in changed_settings(config)
        if key.split(".")[0] not in _NOT_SETTINGS
    ]
    return _table(("setting", "value", "default"), rows) if rows else ["None."]


def _statistics(run: RunDirectory, facts: Mapping[str, Any]) -> list[str]:
    """Return the evaluations of this policy, and of the run's others for comparison."""
    rows = []
    for record in (*run.read_jsonl("evaluations"), *run.read_jsonl("evaluate")):
        result = EvaluationResult.from_json(record)
        if result.seed_set != "final":
            continue
        made = (result.environment_steps, result.gradient_updates)
        mine = record.get(CHECKSUM) == facts[CHECKSUM]
        if CHECKSUM not in record and facts["checkpoint"] != STUDENT:
            mine = made == (facts["environment_steps"], facts["version"])
        mean = result.mean_seconds_to_success
        rows.append(
            (
                "**this one**" if mine else result.name,
                result.count,
                result.interval,
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


def _limits(facts: Mapping[str, Any], recorded: RowSchema | None) -> list[str]:
    scenes = {"domain": facts["domain"], **facts["scenes"]}
    names = ", ".join(facts["action_names"])
    inputs = recorded and PolicyInputs.of(facts["observation"], recorded)
    return [
        f"- It acts at {facts['control_rate_hz']:g} Hz on the actions {names}, in [-1, 1].",
        f"- It executes {facts['execute_steps']} action(s) before it looks again.",
        f"- It must observe {', '.join(facts['observation'])}.",
        *([f"- Of what was recorded, {inputs}."] if inputs else []),
        "- It was trained in these scenes, and evaluated in them unless the table says otherwise:",
        "",
        *_table(("setting of the scene", "value"), scenes.items()),
    ]


def _files(facts: Mapping[str, Any]) -> list[str]:
    lines = [f"CRC-32 of the checkpoint: {facts[CHECKSUM]}."]
    if "graphs" not in facts:
        return lines
    apart = f"{facts['largest_difference']:.1e}"
    differs = f"Largest difference from the checkpoint's policy, on invented observations: {apart}."
    return [*_table(("file", "SHA-256"), facts["graphs"].items()), "", *lines, differs]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {line} |" for line in lines]
