"""What the launch files here have in common: it finds robot_rl, and lets it describe the job.

`ros2` runs on the Python of the ROS installation; robot_rl may be in an environment of its own,
whose prefix these files were installed to.
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
    """Return what `ros2 launch` calls in a launch file, whose name begins with its job."""
    return partial(describe, Path(launch_file).name.partition(".")[0])
