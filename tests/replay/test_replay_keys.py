"""Who gets in: loopback without keys, everybody else with a key that the server admits."""

import os
import socket
import stat
import time

import psutil
import pytest
from store_writing import read_back

from robot_rl import cli
from robot_rl.config import compose
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.server import ReplayServer
from robot_rl.wire import AddressRefused, KeysError, KeysRefused, ServerUnreachable
from robot_rl.wire.endpoint import read_endpoint
from robot_rl.wire.keys import CLIENTS, ClientKeys, ServerKeys, add_client, create_keys

RESEND_SECONDS = 0.1
# Far below the time after which an unanswered request gives up by itself.
BOUND_SECONDS = 60.0


@pytest.fixture
def keys(tmp_path):
    create_keys(tmp_path / "keys")
    return tmp_path / "keys"


def stored(store):
    return sum(len(rows) for _, rows in read_back(store))


def refusal(address, keys, **options):
    """Return the text of the error with which a client without entry ends, without waiting."""
    started = time.monotonic()
    client = ReplayClient(address, keys=keys, request_seconds=BOUND_SECONDS, **options)
    with client, pytest.raises(KeysRefused) as caught:
        client.statistics()
    assert time.monotonic() - started < BOUND_SECONDS / 2
    return str(caught.value)


def test_key_files_are_complete_and_secret(keys):
    robot = add_client(keys, "robot2")
    files = {str(file.relative_to(keys)) for file in keys.rglob("*") if file.is_file()}
    assert files == {
        "server.secret",
        "server.public",
        "client.secret",
        "clients/local.public",
        "clients/robot2.public",
        "robot2/server.public",
        "robot2/client.secret",
    }
    for file in files:
        secret = file.endswith(".secret")
        assert stat.S_IMODE((keys / file).stat().st_mode) & 0o077 == (0 if secret else 0o044)
    assert len(ServerKeys.load(keys).clients) == 2
    assert ClientKeys.load(robot) != ClientKeys.load(keys)
    shown = f"{ServerKeys.load(keys)} {ClientKeys.load(keys)}"
    assert (keys / "server.secret").read_text().strip() not in shown
    assert (keys / "client.secret").read_text().strip() not in shown


def test_keys_are_never_overwritten_and_bad_ones_are_named(keys, tmp_path):
    before = {file: file.read_bytes() for file in keys.rglob("*") if file.is_file()}
    with pytest.raises(KeysError, match=r"server\.secret exists.*client=NAME"):
        create_keys(keys)
    add_client(keys, "robot2")
    with pytest.raises(KeysError, match=r"robot2\.public exists"):
        add_client(keys, "robot2")
    assert all(file.read_bytes() == content for file, content in before.items())
    for name in ("clients", "", "a/b", "../x", "x" * 65):
        with pytest.raises(KeysError, match="name of a client"):
            add_client(keys, name)
    with pytest.raises(KeysError, match=r"no key .*server\.public.*robot-rl keys"):
        add_client(tmp_path / "nowhere", "robot2")
    with pytest.raises(KeysError, match=r"no key .*server\.public"):
        ReplayClient(tmp_path / "store", keys=keys / "clients")
    (keys / "client.secret").chmod(0o644)
    with pytest.raises(KeysError, match=r"read by others.*mode 644.*chmod 600"):
        ClientKeys.load(keys)
    (keys / "server.public").write_text("short")
    with pytest.raises(KeysError, match=r"server\.public is not a key.*40 characters"):
        ClientKeys.load(keys)
    for file in (keys / "clients").iterdir():
        file.unlink()
    with pytest.raises(KeysError, match="admit nobody"):
        ReplayServer(tmp_path / "store", keys=keys)


def test_the_command_line_makes_keys_and_says_where_they_belong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["keys", "lab"]) == 0
    shown = capsys.readouterr().out
    assert "replay=network replay.keys=lab" in shown
    assert "robot-rl keys lab client=NAME" in shown
    assert cli.main(["keys", "lab", "client=robot2"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "lab/robot2",
        "restart the replay server",
        "replay.keys=robot2",
        "replay.connect=",
    ):
        assert part in shown
    secret = (tmp_path / "lab/robot2/client.secret").read_text().strip()
    assert secret not in shown
    assert {f.stem for f in (tmp_path / "lab" / CLIENTS).iterdir()} == {"local", "robot2"}
    for words, problem in (
        (["keys", "lab"], "server.secret exists"),
        (["keys", "lab", "client=robot2"], "robot2.public exists"),
        (["keys", "lab", "client=a/b"], "name of a client"),
        (["keys", "other", "client=robot2"], "robot-rl keys other"),
        (["keys"], "robot-rl keys keys client=robot2"),
        (["keys", "lab", "klient=x"], "did you mean client?"),
    ):
        assert cli.main(words) == cli.EXIT_ERROR
        (line,) = capsys.readouterr().err.splitlines()
        assert problem in line


def test_the_network_configuration_is_complete():
    settings = compose(["replay=network"]).replay
    local = compose([]).replay
    assert set(settings) == set(local)
    assert (settings.address, settings["keys"]) == ("tcp://0.0.0.0:5555", "keys")
    assert (local["keys"], local.connect) == (None, None)


@pytest.mark.parametrize(
    "address",
    ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://10.1.2.3:5555", "tcp://lab:5"],
)
def test_beyond_loopback_nothing_starts_without_keys(tmp_path, address):
    for start in (
        lambda: ReplayServer(tmp_path / "store", address),
        lambda: ReplayClient(address),
    ):
        with pytest.raises(AddressRefused) as caught:
            start()
        for part in ("neither authenticated nor encrypted", "robot-rl keys", "replay.keys="):
            assert part in str(caught.value)


def test_an_address_that_is_not_of_this_machine_is_refused(tmp_path, keys):
    with pytest.raises(AddressRefused, match=r"192\.0\.2\.77.*an address of this machine"):
        ReplayServer(tmp_path / "store", "tcp://192.0.2.77:0", keys=keys)


def test_whoever_has_a_key_works_as_without(start_server, keys, schema, make_episode):
    server = start_server(keys=keys)
    robot = add_client(keys, "robot2")
    assert "does not admit" in refusal(server.store, robot)  # made after the server's start
    server.stop()
    server.start()
    sent = []
    for actor, own in enumerate((keys, robot)):
        with ReplayClient(server.store, keys=own) as client:
            client.open_session(schema, actor)
            rows = make_episode(20)
            client.append_episode(rows)
            client.flush(20)
            client.put_weights("policy", actor, os.urandom(1 << 20))
            assert client.get_weights("policy").version == actor
            sent += rows
    assert stored(server.store) == len(sent)


def test_whoever_has_none_learns_why_and_nobody_notices(
    start_server, keys, tmp_path, schema, make_episode
):
    server = start_server(keys=keys)
    create_keys(tmp_path / "others")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, source in (("client.secret", tmp_path / "others"), ("server.public", keys)):
        (mixed / name).write_bytes((source / name).read_bytes())
        (mixed / name).chmod(0o600)
    with ReplayClient(server.store, keys=keys, resend_seconds=RESEND_SECONDS) as honest:
        honest.open_session(schema)
        honest.append_episode(make_episode(5))
        assert "did not accept a client without keys" in refusal(server.store, None)
        assert "does not admit this client's key" in refusal(server.store, mixed)
        # A wrong server.public cannot be told from a server that goes away.
        wrong = ReplayClient(server.store, keys=tmp_path / "others", request_seconds=1)
        with wrong, pytest.raises(ServerUnreachable, match="ends every handshake"):
            wrong.statistics()
        honest.append_episode(make_episode(5))
        honest.flush(20)
        assert honest.statistics()["clients_refused"] >= 1
    assert stored(server.store) == 12


def test_a_client_with_keys_does_not_talk_to_a_server_without(server, keys):
    assert "uses keys, and the server does not" in refusal(server.store, keys)


def test_a_revoked_client_keeps_its_rows_until_it_is_let_in_again(
    start_server, keys, schema, make_episode
):
    robot = add_client(keys, "robot2")
    server = start_server(keys=keys)
    with ReplayClient(server.store, keys=robot, resend_seconds=RESEND_SECONDS) as client:
        client.open_session(schema)
        rows = make_episode(30)
        for row in rows[:10]:
            client.append(row)
        client.flush(20)
        server.kill()
        admitted = keys / "clients" / "robot2.public"
        key = admitted.read_bytes()
        admitted.unlink()
        server.start()
        # Nothing is raised in the middle of an episode; the rows wait.
        for row in rows[10:]:
            client.append(row)
        with pytest.raises(KeysRefused, match="does not admit"):
            client.statistics()
        with pytest.raises(KeysRefused, match="21 rows are not acknowledged"):
            client.flush(0.5)
        assert isinstance(client.problem, KeysRefused)
        with ReplayClient(server.store, keys=keys) as other:
            assert other.statistics()["rows"] == 10
        server.kill()
        admitted.write_bytes(key)
        server.start()
        client.flush(30)
        assert client.problem is None
    assert stored(server.store) == 31


def interfaces():
    """Addresses of this machine's network interfaces, loopback apart."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up
        and address.family == socket.AF_INET
        and not address.address.startswith(("127.", "169.254."))
    ]


def test_an_actor_on_a_network_interface_needs_a_key(start_server, keys, schema, make_episode):
    if not interfaces():
        pytest.skip("this machine has no network interface but loopback")
    robot = add_client(keys, "robot2")
    server = start_server(address="tcp://0.0.0.0:0", keys=keys)
    local = read_endpoint(server.store).address
    assert local.startswith("tcp://127.0.0.1:")
    remote = f"tcp://{interfaces()[0]}:{local.rpartition(':')[2]}"
    with ReplayClient(remote, keys=robot) as client:
        client.open_session(schema, actor=1)
        client.append_episode(make_episode(10))
        client.flush(20)
    with pytest.raises(AddressRefused, match="robot-rl keys"):
        ReplayClient(remote)
    with ReplayClient(server.store, keys=keys) as client:
        assert client.statistics()["rows"] == 11


def test_the_endpoint_of_one_interface_reaches_it(start_server, keys):
    if not interfaces():
        pytest.skip("this machine has no network interface but loopback")
    host = interfaces()[0]
    server = start_server(address=f"tcp://{host}:0", keys=keys)
    assert read_endpoint(server.store).address.startswith(f"tcp://{host}:")
    with ReplayClient(server.store, keys=keys) as client:
        assert client.statistics()["clients_refused"] == 0


def test_ipv6_loopback_needs_no_keys(start_server):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    server = start_server(address="tcp://[::1]:0")
    with ReplayClient(server.store) as client:
        assert client.statistics()["clients_refused"] == 0
