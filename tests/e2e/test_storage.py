"""Volumes end to end on one machine: what pods find, who may ask for what, and what is left when a workload is over."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development.ports import free_port
from development.stack import Api, Stack, running, until

pytestmark = pytest.mark.e2e
EXAMPLE = Path("examples") / "volumes.yaml"
PLACE = "/muster-test-data"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def made(api: Api, name: str) -> dict[str, Any]:
    (row,) = until(lambda: api.get("/workloads", filterBy=f"name=={name}")["workloads"] or None, 60)
    return api.get(f"/workloads/{row['id']}")


def claims(stack: Stack) -> list[str]:
    found = (stack.data_dir / "local").glob("*/claims/*/*")
    return sorted(path.name for path in found if path.is_dir() and path.parent.name != ".removed")


def submit(stack: Stack, name: str, *words: str, wait: bool = True) -> Any:
    waits = ("--wait", "--timeout", "60s") if wait else ()
    return stack.muster("training", "submit", name, "-i", "x", *waits, *words)


def test_the_example_runs_and_its_claim_goes_when_it_has_ended(stack: Stack, api: Api) -> None:
    """S052, R40: ephemeral; its two pods share it, one after the other."""
    told = stack.muster("training", "submit", "-f", str(EXAMPLE), "--wait", "--timeout", "60s")
    assert told.returncode == 0, told.stderr
    said = api.logs(made(api, "volumes")["workloadId"])
    assert "run 1 of pod 0" in said
    until(lambda: claims(stack) == [] or None, 60)


def test_a_master_and_its_workers_have_volumes_of_their_own_and_share_a_claim(
    stack: Stack, api: Api, tmp_path: Path
) -> None:
    """S066: each looks for what the other has; the master ends once it has found in the claim what its worker wrote."""
    shared = {"claimInfo": {"size": "1Gi"}, "ephemeral": True}
    worker, master = "/muster-test-of-worker", "/muster-test-of-master"
    request = {
        "name": "apart",
        "spec": {
            "image": "x",
            "numWorkers": 1,
            "backoffLimit": 0,
            "command": f"sh -c 'test -d {worker} && test ! -e {master} && echo saw > {worker}/shared/it'",
            "storage": {"pvc": [{"path": f"{worker}/shared", **shared}], "emptyDirVolume": [{"path": f"{worker}/own"}]},
        },
        "masterSpec": {
            "image": "x",
            "command": f"sh -c 'until test -s {master}/it; do sleep 0.2; done; test ! -e {worker} && cat {master}/it'",
            "storage": {"pvc": [{"path": master, **shared}]},
        },
    }
    file = tmp_path / "apart.yaml"
    file.write_text(json.dumps(request))
    told = stack.muster("training", "pytorch", "submit", "-f", str(file), "--wait", "--timeout", "120s")
    assert told.returncode == 0, told.stderr
    found = made(api, "apart")
    assert "saw" in api.logs(found["workloadId"])
    assert [one["path"] for one in found["masterSpec"]["storage"]["pvc"]] == [master]
    until(lambda: claims(stack) == [] or None, 60)


def test_a_claim_is_kept_until_its_workload_is_deleted(stack: Stack, api: Api) -> None:
    """C16. Another workload uses it by its name."""
    words = ("--pvc", f"claimName=sets,path={PLACE},claimInfo.size=1Gi", "--command", "--")
    assert submit(stack, "first", *words, "sh", "-c", f"echo kept > {PLACE}/a").returncode == 0
    words = ("--pvc", f"claimName=sets,path={PLACE},existingPvc=true,readOnly=true", "--command", "--")
    told = submit(stack, "second", *words, "cat", f"{PLACE}/a")
    assert told.returncode == 0, told.stderr
    assert "kept" in api.logs(made(api, "second")["workloadId"])
    assert stack.muster("training", "delete", "second", "-y", "--wait", "--timeout", "60s").returncode == 0
    assert claims(stack) == ["sets"]
    assert stack.muster("training", "delete", "first", "-y", "--wait", "--timeout", "60s").returncode == 0
    until(lambda: claims(stack) == [] or None, 60)


def test_config_maps_and_secrets_are_folders_of_the_machine(stack: Stack, api: Api) -> None:
    """S060. Given one that is not there at first: the sentence says which folder to make, and then it runs."""
    at = ("--configmap-volume", f"configMap=settings,mountPath={PLACE}/all")
    words = (*at, "--secret-volume", f"secret=login,mountPath={PLACE}/login,defaultMode=0400", "--command", "--")
    script = f"cat {PLACE}/all/rate {PLACE}/login/token"
    refused = submit(stack, "configured", *words, "sh", "-c", script)
    assert "make the folder" in refused.stderr
    failed = made(api, "configured")
    assert (failed["actualPhase"], failed["phaseReason"]) == ("Failed", "no_volume")
    root = stack.data_dir / "local" / api.cluster("local")
    settings = root / "config-maps" / api.project() / "settings"
    assert f"make the folder {settings}" in failed["phaseMessage"]
    login = root / "secrets" / api.project() / "login"
    for folder, key, value in ((settings, "rate", "0.1"), (login, "token", "t-1")):
        folder.mkdir(parents=True)
        (folder / key).write_text(f"{value}\n")
    told = submit(stack, "configured-2", *words, "sh", "-c", script)
    assert told.returncode == 0, told.stderr
    assert api.logs(made(api, "configured-2")["workloadId"]).split() == ["0.1", "t-1"]


def test_a_path_of_the_machine_needs_a_privileged_project(stack: Stack, api: Api, tmp_path: Path) -> None:
    """S059."""
    (tmp_path / "a").write_text("of the machine")
    words = ("--host-path", f"path={tmp_path},mountPath={PLACE}", "--command", "--", "cat", f"{PLACE}/a")
    refused = submit(stack, "host", *words)
    assert refused.returncode != 0
    assert "muster project set default --privileged on" in refused.stderr
    assert stack.muster("project", "set", "default", "--privileged", "on").returncode == 0
    told = submit(stack, "host", *words)
    assert told.returncode == 0, told.stderr
    assert "of the machine" in api.logs(made(api, "host")["workloadId"])
    assert stack.muster("project", "set", "default", "--privileged", "off").returncode == 0
    assert "Privileged" in stack.muster("project", "describe", "default").stdout


def test_a_workload_is_initializing_until_its_pod_is_ready(stack: Stack, api: Api, tmp_path: Path) -> None:
    """R21. Its server begins to answer once a file is there."""
    port = free_port()
    script = (
        "import http.server, pathlib, time\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.1)\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), http.server.SimpleHTTPRequestHandler).serve_forever()"
    )
    readiness = {"periodSeconds": 1, "handler": {"httpGet": {"port": port}}}
    body = {
        "name": "probed",
        "projectId": api.project(),
        "clusterId": api.cluster("local"),
        "spec": {"image": "x", "command": "python3 -c", "args": f'"{script}"', "probes": {"readiness": readiness}},
    }
    answer = api.http.post("/workloads/trainings", json=body)
    assert answer.status_code == 202, answer.text
    workload = f"/workloads/{answer.json()['workloadId']}"
    until(lambda: api.get(workload)["actualPhase"] == "Initializing" or None, 60)
    (tmp_path / "go").touch()
    until(lambda: api.get(workload)["actualPhase"] == "Running" or None, 60)
    assert stack.muster("training", "delete", "probed", "-y", "--wait", "--timeout", "60s").returncode == 0
