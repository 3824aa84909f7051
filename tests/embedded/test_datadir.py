"""The data folder: held by one, of one version, its secrets its owner's alone."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from development.servers import EVERYTHING, NatsServer
from muster.embedded.datadir import (
    LAYOUT_VERSION,
    DataDir,
    DataDirError,
    default_data_dir,
    open_data_dir,
    write_private,
)
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED, SYNC_TAG


def test_a_folder_in_use_is_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    with (
        open_data_dir(tmp_path / "data"),
        pytest.raises(DataDirError, match=rf"in use by process {os.getpid()}: .*--data-dir"),
        open_data_dir(tmp_path / "data"),
    ):
        pass


def test_a_folder_is_free_again_after_its_holder(tmp_path: Path) -> None:
    for _ in range(2):
        with open_data_dir(tmp_path / "data") as data:
            assert data.root == tmp_path / "data"


def test_a_folder_waits_for_servers_that_a_killed_holder_left_behind(tmp_path: Path) -> None:
    """They inherited the lock: until the kernel has ended them, nobody else may write here."""
    code = (
        "import os, sys, subprocess; from pathlib import Path; from muster.embedded.datadir import open_data_dir\n"
        "with open_data_dir(Path(sys.argv[1])) as data:\n"
        "  server = subprocess.Popen(['sleep', '1'], pass_fds=data.inherited_fds, stdout=subprocess.DEVNULL)\n"
        "  os.kill(os.getpid(), 9)"
    )
    holder = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], cwd=Path(__file__).parents[2], check=False
    )
    assert holder.returncode == -9
    with open_data_dir(tmp_path / "data"):
        pass


@pytest.mark.anyio
async def test_a_log_of_layout_1_is_found_again_in_an_account_of_its_own(tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "data") as data:
        pass
    (data.root / "version").write_text("1\n")
    server = NatsServer(tmp_path / "server", store_dir=data.nats / "jetstream")
    now = server.config
    server.configure(
        f'server_name: muster-test\nport: {server.port}\nserver_tags: ["{SYNC_TAG}"]\n'
        f'jetstream {{ store_dir: "{server.store_dir}", sync_interval: always }}\n'
        "accounts { MUSTER { jetstream: enabled, users: [ { user: u, password: p } ] } }\n"
    )
    server.start()
    client = await nats.connect(server.url, user="u", password="p")
    events = next(declared for declared in DECLARED if declared.name == "EVENTS")
    await client.request("$JS.API.STREAM.CREATE.EVENTS", json.dumps(events.config(1)).encode())
    assert (await client.jetstream().publish("ev.tenant.k", b"kept")).seq == 1
    await client.close()
    server.stop()

    with open_data_dir(data.root):
        pass

    server.configure(now)
    server.start()
    try:
        everything = await connect(server.settings(EVERYTHING), EVERYTHING)
        assert (await everything.jetstream().get_last_msg("EVENTS", "ev.tenant.k")).data == b"kept"
        await everything.close()
    finally:
        server.stop()
    assert (data.root / "version").read_text() == f"{LAYOUT_VERSION}\n"


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with open_data_dir(tmp_path):
        pass
    (tmp_path / "version").write_text(f"{LAYOUT_VERSION + 1}\n")
    with pytest.raises(DataDirError, match="written by a newer Muster"), open_data_dir(tmp_path):
        pass
    assert (tmp_path / "version").read_text() == f"{LAYOUT_VERSION + 1}\n"


def test_a_folder_that_holds_other_things_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(DataDirError, match=r"not empty and not a data folder of Muster \(it holds thesis.tex\)"):  # noqa: SIM117
        with open_data_dir(tmp_path):
            pass
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["muster.lock", "thesis.tex"]


def test_secrets_are_made_once_and_read_by_their_owner_alone(tmp_path: Path) -> None:
    with open_data_dir(tmp_path) as data:
        first = data.secret("nats/api")
        assert data.secret("nats/api") == first
        assert data.secret("nats/commands") != first
        assert (tmp_path / "secrets" / "nats" / "api").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700


def test_ports_stay_the_same_unless_somebody_took_one(tmp_path: Path) -> None:
    data = DataDir(root=tmp_path)
    first = data.choose_ports()
    assert data.choose_ports() == first
    with socket.socket() as other:
        other.bind(("127.0.0.1", first.nats))
        other.listen()
        second = data.choose_ports()
    assert second.nats != first.nats
    assert second.postgres == first.postgres
    assert data.choose_ports() == second


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MUSTER_DATA_DIR": "/srv/muster"}, "/srv/muster"),
        ({"XDG_DATA_HOME": "/home/u/data"}, "/home/u/data/muster"),
        ({"HOME": "/home/u"}, "/home/u/.local/share/muster"),
    ],
)
def test_where_data_is_kept_unless_said_otherwise(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MUSTER_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(default_data_dir()) == expected


def test_connected_clusters_are_the_files_named_by_an_id(tmp_path: Path) -> None:
    cluster_id = "5c4f0b1e-0000-8000-8000-000000000001"
    with open_data_dir(tmp_path / "data") as data:
        for name in (cluster_id, f".{cluster_id}.new", f"{cluster_id}~", "notes.txt"):
            (data.clusters / name).write_text("")
        assert list(data.connected_clusters()) == [cluster_id]
        write_private(data.clusters / cluster_id, "changed")
        assert len(data.connected_clusters()) == 1


def test_a_folder_whose_log_is_gone_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """With an empty log begun beside the tables of the old one, it hung, and then seemed ready."""
    root = tmp_path / "data"
    with open_data_dir(root) as data:
        (data.nats / "jetstream" / "jetstream" / "STORE_EVENTS" / "streams" / "EVENTS").mkdir(parents=True)
        write_private(data.token_file, "token")
    with open_data_dir(root):
        pass
    (root / "nats").rename(tmp_path / "elsewhere")
    with (
        pytest.raises(DataDirError, match=r"the event log is gone from .*put the folder `nats` back"),
        open_data_dir(root),
    ):
        pass


def test_a_first_start_that_was_cut_short_is_no_lost_log(tmp_path: Path) -> None:
    for _ in range(2):
        with open_data_dir(tmp_path / "data") as data:
            (data.postgres / "PG_VERSION").write_text("18")
