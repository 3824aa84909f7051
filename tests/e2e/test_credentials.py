"""A credential end to end on one machine: a run finds its value, and nothing that Muster keeps or says has it.

Requirement rows: S020, R10.
"""

import json
import os
import shlex
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, Stack, running

pytestmark = pytest.mark.e2e
MARK = "canary-e9d1c2-value-of-a-credential"
NEXT = "canary-77ab03-value-after-the-change"
PRINTED = "import os, hashlib; print('found', hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest())"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def holding(folder: Path, *marks: str) -> list[str]:
    """Files that hold one of the marks, in clear or in Base64."""
    import base64

    wanted = [form for mark in marks for form in (mark.encode(), base64.b64encode(mark.encode())[3:-4])]
    found: list[str] = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [str(path)] if any(mark in content for mark in wanted) else []
    return found


def environ_of(mark: str) -> list[int]:
    """Processes of this machine whose environment has it."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def test_a_run_finds_the_value_and_it_is_nowhere_else(stack: Stack, api: Api, tmp_path: Path) -> None:
    file = tmp_path / "credential.json"
    file.write_text(json.dumps({"spec": {"kind": "generic-secret", "data": {"token": MARK}}}))
    told = stack.muster("credentials", "create", "canary", "-f", str(file), "-p", "default")
    assert told.returncode == 0, told.stderr
    said = [told.stdout, told.stderr]

    def run(name: str) -> dict[str, Any]:
        variable = {"name": "TOKEN", "userCredential": {"name": "canary", "key": "token"}}
        command = shlex.join(["python3", "-c", PRINTED])
        made = api.submit(name, command=command, environmentVariables=[variable], backoffLimit=0)
        return api.wait(made["workloadId"], "Completed", "Failed")

    row = run("first")
    assert row["actualPhase"] == "Completed", row
    assert sha256(MARK.encode()).hexdigest() in api.logs(row["workloadId"])
    file.write_text(json.dumps({"spec": {"kind": "generic-secret", "data": {"token": NEXT}}}))
    told = stack.muster("credentials", "update", "canary", "-f", str(file))
    assert told.returncode == 0, told.stderr
    row = run("second")
    assert sha256(NEXT.encode()).hexdigest() in api.logs(row["workloadId"])
    said += [
        stack.muster(*words).stdout
        for words in (
            ("training", "describe", "second", "-o", "json"),
            ("workload", "history", "second", "-o", "json"),
            ("credentials", "list", "-o", "json"),
            ("credentials", "describe", "canary"),
            ("events", "list", "-o", "json"),
            ("audit", "list", "-o", "json"),
        )
    ]
    (tmp_path / "passphrase").write_text("a passphrase of the test")
    backup = tmp_path / "backup"
    told = stack.muster("backup", str(backup), "--key-file", str(tmp_path / "passphrase"))
    assert told.returncode == 0, told.stderr
    assert [text for text in said if MARK in text or NEXT in text] == []
    assert holding(stack.data_dir, MARK, NEXT) == []
    assert holding(backup, MARK, NEXT) == []
    assert environ_of(MARK) == environ_of(NEXT) == []
    # The search finds what is there: the log says the credential's name.
    assert holding(stack.data_dir / "nats", "canary")

    assert stack.muster("credentials", "delete", "canary", "-y").returncode == 0


def test_a_run_whose_credential_is_gone_fails_and_says_so(stack: Stack, api: Api, tmp_path: Path) -> None:
    file = tmp_path / "credential.json"
    file.write_text(json.dumps({"spec": {"kind": "generic-secret", "data": {"token": MARK}}}))
    assert stack.muster("credentials", "create", "gone", "-f", str(file), "-p", "default").returncode == 0
    variable = {"name": "TOKEN", "userCredential": {"name": "gone", "key": "token"}}
    made = api.submit("waits", command="sleep 600", environmentVariables=[variable], backoffLimit=0)
    workload = made["workloadId"]
    api.wait(workload, "Running")
    assert environ_of(MARK)
    assert stack.muster("training", "suspend", "waits", "--wait", "--timeout", "60s").returncode == 0
    assert stack.muster("credentials", "delete", "gone", "-y").returncode == 0
    assert stack.muster("training", "resume", "waits").returncode == 0
    api.wait(workload, "Failed")
    assert "credential 'gone' is not there any more" in json.dumps(api.history(workload))
