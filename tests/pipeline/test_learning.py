"""Learning online must make a weak cloned policy clearly better."""

from __future__ import annotations

import json

import pytest

EASY_REACH = (
    "task=reach",
    "task.environment.tolerance=0.006",
    "task.environment.angle_tolerance=0.3",
    "task.environment.position_range=0.05",
    "task.environment.yaw_range=0.2",
    "task.environment.time_limit_steps=30",
)
WEAK_CLONING = (
    "demonstrations=8",
    "cloning.updates=250",
    "policy.denoiser.hidden=[128,128]",
    "execute_steps=2",
)
# Small networks and fast rates: learning that takes seconds on one core.
QUICK_LEARNING = (
    "environment_steps=3000",
    "block_steps=50",
    "algorithm.settings.actor_hidden=[64,64]",
    "algorithm.schedule.warmup_steps=300",
    "algorithm.schedule.critic_only_updates=300",
    "algorithm.schedule.updates_per_step=2",
    "algorithm.schedule.batch_size=128",
    "algorithm.schedule.discount=0.9",
    "algorithm.settings.critic_heads=2",
    "algorithm.settings.critic_hidden=[64,64]",
    "algorithm.settings.critic_rate=0.001",
    "algorithm.settings.actor_rate=0.001",
    "algorithm.settings.actor_every=1",
    "algorithm.settings.average_rate=0.02",
)
EVALUATION = (
    "evaluation.every_steps=3000",
    "evaluation.episodes=50",
    "evaluation.final_episodes=100",
    "evaluation.slots=50",
)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_online_learning_improves_on_cloning(tmp_path, robot_rl_command):
    """Seeds 0 to 3 gave 21 → 50, 65 → 100, 41 → 83 and 19 → 100 % on an Intel Xeon.

    Bits, and with them the luck of a seed, differ between kinds of processors: before episodes
    without noise seed 0 gave 22 → 85 % on an AMD EPYC.
    """
    done = robot_rl_command(
        "train", "seed=0", *EASY_REACH, *WEAK_CLONING, *QUICK_LEARNING, *EVALUATION, timeout=880
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "runs/latest/summary.json").read_text())
    assert summary["evaluation_episodes"] == 100
    assert summary["bc_success_rate"] < 0.6
    # Of 100 scenes each, 15 points are a chance of some 1 %.
    assert summary["rl_success_rate"] >= summary["bc_success_rate"] + 0.15
    assert summary["rl_success_rate"] > summary["bc_success_rate"] + 0.3
