"""Shared code of the launch files: find robot_rl and let it describe the job.

`ros2` runs on the Python of the ROS installation. robot_rl may be in a separate environment; these
files are installed to its prefix.
"""

import sys
from functools import partial
from pathlib import Path


def describe(job):
    """Return the launch description of a job; see robot_rl/commands/launching.py."""
    prefix = Path(__file__).resolve().parents[3]
    sys.path += map(str, sorted(prefix.glob("lib/python3*/site-packages")))
    from robot_rl.cli import command_config
    from robot_rl.commands.launching import launch_description

    return launch_description(job, command_config)


def of(launch_file):
    """Return the function that `ros2 launch` calls; the launch file's name starts with its job."""
    return partial(describe, Path(launch_file).name.partition(".")[0])
