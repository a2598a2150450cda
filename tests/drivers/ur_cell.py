"""The twin's UR controller in a process of its own, over an empty table, for the driver's tests.

In a process, for the library's constructors hold Python's global lock. Lines on its standard input
are events: methods of the controller, or `local` for a pendant in local control.
"""

import json
import sys

from omegaconf import OmegaConf

from drivers.twin.ur_controller import UrController
from policies import registry
from robot_rl.config import compose


def main(options):
    """Serve until the standard input closes; the options are the controller's, as JSON."""
    config = compose(["robot=twin_ur5e", "task=reach"])
    driver = OmegaConf.to_container(config.nodes.twin.parameters.driver, resolve=True)
    controller = registry.make(driver, UrController, **json.loads(options))
    controller.connect()
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    for line in sys.stdin:
        if line == "local\n":
            controller.remote = False
        else:
            getattr(controller, line.strip())()
    controller.close()


if __name__ == "__main__":
    main(sys.argv[1])
