"""Whatever is kept anywhere says what a backup does with it."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

from muster.embedded.datadir import open_data_dir
from projections import tables
from services.runtime.backup.files import kept_in_data_dir, kept_in_environment
from services.runtime.backup.holdings import HOLDINGS
from services.runtime.nats.declared import DECLARED, DISPOSABLE_STREAMS


def names(kind: str) -> list[str]:
    return [one.name for one in HOLDINGS if one.kind == kind]


def test_every_stream_has_its_line_and_what_is_disposable_is_made_again() -> None:
    assert sorted(names("stream")) == sorted(declared.name for declared in DECLARED)
    derived = {one.name for one in HOLDINGS if one.kind == "stream" and one.treatment == "derived"}
    assert derived == {*DISPOSABLE_STREAMS, "FEED"}


def test_every_table_that_is_no_projection_has_its_line() -> None:
    assert sorted(names("table")) == sorted({"projections", *(table.name for table in tables.lasting.tables.values())})


def test_every_file_of_a_data_folder_has_its_line(tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "data") as data:
        data.choose_ports()
        for name in ("nats/api", "nats/agent-x", "postgres", "token"):
            data.secret(name)
        for path in (
            data.key_file,
            data.webhook_key_file,
            data.jwks_file,
            data.clusters / "x",
            data.logs / "nats.log",
            data.nats / "nats.conf",
        ):
            path.write_text("x")
        files = [str(path.relative_to(data.root)) for path in data.root.rglob("*") if path.is_file()]
    patterns = names("file")
    assert [file for file in files if not any(fnmatch(file, pattern) for pattern in patterns)] == []
    assert sorted(kept_in_data_dir(tmp_path / "data")) == [
        "clusters/x",
        "keys/local.json",
        "keys/webhooks",
        "secrets/nats/agent-x",
    ]


@pytest.mark.parametrize("there", [True, False])
def test_a_key_that_a_variable_names_is_kept_where_it_is_there(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "key").write_text("k")
    found = kept_in_environment({"MUSTER_KEY_FILE": str(tmp_path / "key")})
    assert found == ({"keys/local.json": b"k"} if there else {})
    assert kept_in_environment({}) == {}


def test_whatever_is_left_out_or_kept_says_why() -> None:
    assert all(one.reason for one in HOLDINGS)
