"""The lines in Go of docs/concepts/subscribing.md read events. Here, as the compiler takes a minute the first time."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import serving
from tests.support.lacking import lacking

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def test_the_lines_for_go_read_events(nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        lacking("Go is not installed")
    for file in (ROOT / "tests" / "clients" / "go").iterdir():
        shutil.copy(file, tmp_path)
    page = (ROOT / "docs" / "concepts" / "subscribing.md").read_text()
    (lines,) = re.findall(r"```go\n(.*?)```", page, re.DOTALL)
    main = tmp_path / "main.go"
    main.write_text(main.read_text().replace("// LINES", lines))
    built = subprocess.run(
        [go, "build", "-mod=readonly", "-o", "subscriber", "."],
        cwd=tmp_path,
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "dial tcp" in built.stderr or "no such host" in built.stderr:
        lacking(f"the Go module proxy is not reached: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    with (
        serving(
            nats_server, postgres_server, tmp_path, "feed", callout_key_dir=nats_server.callout_key_dir()
        ) as served,
        served.client() as admin,
    ):
        given = admin.post("/api/v1/subscriptions", json={"projectId": served.project})
        assert given.status_code == 202, given.text
        training = served.training()
        assert admin.post("/api/v1/workloads/trainings", json=training).status_code == 202
        with subprocess.Popen(
            [tmp_path / "subscriber"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(given.json()))
            process.stdin.close()
            line = process.stdout.readline()
            process.kill()
    assert line.startswith("muster.WorkloadSubmitted.v1 ")
    assert training["name"] in line
