"""A real replay server in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from robot_rl.processes.waiting import wait_until
from robot_rl.wire.endpoint import wait_for_endpoint

START_SECONDS = 120  # a busy machine may take long to import everything
SERVE = """
import json, sys
from pathlib import Path
from robot_rl.replay.server import serve
path, address, options = sys.argv[1:]
options = json.loads(options)
if options["keys"]:
    options["keys"] = Path(options["keys"])
serve(Path(path), address, **options)
"""


class ServerProcess:
    """A replay server as an operating-system process that can be killed and started again."""

    def __init__(
        self,
        store: Path,
        fsync: str = "none",
        address: str = "tcp://127.0.0.1:0",
        keys: Path | None = None,
        **options: object,
    ) -> None:
        self.store, self.fsync = store, fsync
        self.address, self.keys, self.options = address, keys, options
        self.start()

    def start(self, wait: bool = True) -> None:
        options = {"fsync": self.fsync, **self.options}
        options["keys"] = None if self.keys is None else str(self.keys)
        command = [sys.executable, "-c", SERVE, str(self.store), self.address, json.dumps(options)]
        self.process = subprocess.Popen(command)
        if wait:
            try:
                self._wait()
            except BaseException:
                self.kill()
                raise

    def _wait(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None
            return wait_for_endpoint(self.store, START_SECONDS).pid == self.process.pid

        assert wait_until(answers, START_SECONDS)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(20)
