"""`robot-rl keys`: who may talk to the replay server of this machine from another one."""

from __future__ import annotations

from pathlib import Path

from robot_rl.wire.keys import add_client, create_keys


def run(folder: str, client: str | None = None) -> None:
    """Make the keys of a replay server, or of one more client, and say where they belong.

    Args:
        folder: Where the server's keys are, or are to be.
        client: Name of the client to add; None makes the server's keys and those of the
            processes on its own machine.

    Raises:
        KeysError: Something would be overwritten, or the server's keys are not there.
    """
    keys = Path(folder)
    if client is None:
        create_keys(keys)
        print(
            f"made {keys}: it stays on the replay server's machine, secret keys for you alone\n"
            f"  start the server, and actor and learner beside it, with: replay=network"
            f" replay.keys={keys}\n"
            f"  let another machine in with: robot-rl keys {keys} client=NAME",
            flush=True,
        )
        return
    own = add_client(keys, client)
    print(
        f"made {own}: copy this folder, and nothing else of {keys}, to {client}, for example with\n"
        f"  scp -rp {own} {client}:\n"
        f"restart the replay server, so that it lets {client} in; then there add\n"
        f"  replay.connect=tcp://HOST_OF_THE_SERVER:PORT replay.keys={own.name}\n"
        f"to shut {client} out again, delete {keys / 'clients' / (client + '.public')} and restart"
        " the server",
        flush=True,
    )
