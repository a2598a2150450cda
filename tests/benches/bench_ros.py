"""How old what a policy sees is when it acts over ROS 2 topics, and whether pictures get lost.

Arm, gripper and two cameras of 128x128 at 30 Hz are simulated, and nodes in processes of their own;
the policy acts in this one. The pictures are counted afterwards, with nothing beside them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from omegaconf import DictConfig
from topics import own_domain


def run(config: DictConfig) -> dict[str, object]:
    """Act for `bench.ticks` steps, then receive `bench.frames` pictures of 640x480 at 30 Hz.

    Returns:
        `age_p50_ms` of each topic, from its stamp until the command that follows from it is
        published, inference included; the same of the older camera of each step, `p50` and `p99`;
        `decision_…`: from tick to published command, with `inference_budget_ms` taken off
        `lateness_p99_ms`, and `tick_lateness_p99_ms`: how late the tick itself was;
        `command_to_node_and_back_…`: from publishing a command to hearing `applied_pose` of it,
        two ways and so more than the latency to the node; `interrupted_episodes`: by a topic that
        was late. Then of the pictures: see `picture_path`.
    """
    with own_domain(), tempfile.TemporaryDirectory() as folder:
        # ROS is loaded where it is known to be there.
        from acting import act_over_topics
        from picture_path import count_pictures

        acted = act_over_topics(config, Path(folder))
        counted = count_pictures(config, Path(folder) / "pictures")
    budget = 1e3 * float(config.inference_budget_seconds)
    return {"inference_budget_ms": budget, **acted, **counted}
