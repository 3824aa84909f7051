"""The command line against the real API, gate, commands and projector on NATS and Postgres: what the shapes promise.

Over https, with an authority that nobody knows but who is told: what is sent and streamed is the same as without.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from development.servers import EVERYTHING, NatsServer, PostgresServer
from development.stack import until
from muster.cli.contexts import Context, Contexts, read_contexts, save_contexts
from services.runtime.nats.connection import connect
from tests.support.api import Served, certified, report_node, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli-api")


@pytest.fixture(scope="module")
def served(nats_server: NatsServer, postgres_server: PostgresServer, folder: Path) -> Iterator[Served]:
    callout = {"callout_key_dir": nats_server.callout_key_dir()}
    with serving(nats_server, postgres_server, folder, **certified(folder), **callout) as running:
        yield running


@pytest.fixture
def admin(served: Served, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The administrator's environment."""
    monkeypatch.setenv("MUSTER_URL", served.url)
    monkeypatch.setenv("MUSTER_CA_FILE", str(served.ca_file))
    monkeypatch.setenv("MUSTER_TOKEN", served.token("admin"))
    monkeypatch.setenv("MUSTER_KEY_FILE", str(folder / "key.json"))
    return served


def test_a_training_is_submitted_listed_described_suspended_and_deleted(admin: Served, muster: Any) -> None:
    ran = muster(
        "training", "submit", "story", "-i", "python:3.13", "-e", "A=1", "-g", "1", "-p", "default", "-o", "json",
        "--", "python", "-c", "print(1)",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    identifier = ran.json()["workloadId"]
    assert ran.json()["spec"]["args"] == "python -c 'print(1)'"
    # A list is as new as the tables, which follow within moments.
    assert until(lambda: muster("training", "list", "-p", "default", "-o", "name").out or None, 60) == "story\n"
    assert muster("workload", "describe", "story", "-o", "json").json()["id"] == identifier
    assert "submitted by admin" in muster("workload", "history", "story").out
    assert muster("workload", "pods", identifier[:13], "-o", "json").code == 0
    assert muster("workload", "metrics", "@latest", "-o", "json").json() == []
    assert muster("workload", "set", "story", "--priority", "high").code == 0
    assert muster("workload", "suspend", "story", "--wait", "--timeout", "20s").code == 0
    assert muster("workload", "wait", "story", "--for", "jsonpath={.phase}=Stopped", "--timeout", "20s").code == 0
    found = ("workload", "list", "-p", "default", "--filter", "name==story", "-o", "jsonpath={[*].name}")
    assert muster(*found, "--sort", "phase,-created,name").out == "story"
    assert muster(*found, "--sort", "phase", "--offset", "1").out == ""
    ran = muster(*found, "--sort", "phase,-nose")
    assert (ran.code, "sortBy (--sort): there is no field 'nose'" in ran.err) == (6, True)
    assert muster("workload", "delete", "story", "-y", "--wait", "--timeout", "20s").code == 0
    assert muster("workload", "describe", "story").code == 0
    assert until(lambda: "story" in muster("workload", "list", "--deleted", "-o", "name").out or None, 60)


def test_a_name_that_is_taken_is_a_conflict_and_everything_wrong_comes_at_once(admin: Served, muster: Any) -> None:
    submit = ("training", "submit", "taken", "-i", "a", "-p", "default")
    assert muster(*submit, "--idempotency-key", "k1").code == 0
    assert muster(*submit, "--idempotency-key", "k1").code == 0
    assert muster(*submit, "--idempotency-key", "k1", "-g", "1").code == 5
    assert muster(*submit).code == 5
    ran = muster("training", "submit", "Bad_Name", "-p", "default", "--parallelism", "5", "-g", "-1")
    assert ran.code == 6
    assert "--image" in ran.err
    assert muster("workload", "set", "taken", "--priority", "high", "--if-match", "1").code == 5


def test_a_training_comes_again_living_deleted_and_from_its_description(
    admin: Served, muster: Any, tmp_path: Path
) -> None:
    more = ("-p", "default", "--cluster", "local", "-g", "1", "-e", "A=x: y", "--label", "team=vision")
    first = muster("training", "submit", "once", "-i", "a", *more, "-o", "json", "--", "sh", "-c", "echo 'a b'").json()
    ran = muster("training", "resubmit", "once")
    assert ran.code == 5
    assert "muster training resubmit once --name once-2" in ran.err
    ran = muster("training", "resubmit", "once", "--name", "once-2", "--set", "spec.compute.gpuDevicesRequest=2",
                 "--idempotency-key", "r", "-o", "json")  # fmt: skip
    assert ran.code == 0, ran.err
    second = ran.json()
    assert second["spec"] == first["spec"] | {"compute": first["spec"]["compute"] | {"gpuDevicesRequest": 2}}
    again = muster("training", "resubmit", "once", "--name", "once-2", "--set", "spec.compute.gpuDevicesRequest=2",
                   "--idempotency-key", "r", "-o", "json")  # fmt: skip
    assert again.json()["workloadId"] == second["workloadId"]
    assert muster("workload", "delete", "once", "-y", "--wait", "--timeout", "20s").code == 0
    assert until(lambda: "once" not in muster("workload", "list", "-A", "-o", "name").out.split() or None, 60)
    ran = muster("training", "resubmit", "once", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json()["workloadId"] != first["workloadId"]
    assert ran.json()["spec"] == first["spec"]
    file = tmp_path / "once.yaml"
    file.write_text(muster("training", "describe", "once", "-o", "yaml").out)
    ran = muster("training", "submit", "once-3", "-f", str(file), "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json()["spec"] == first["spec"]


def test_the_past_is_shown_as_of_a_sequence_a_time_and_a_time_ago(admin: Served, muster: Any) -> None:
    assert muster("training", "submit", "elder", "-i", "a", "-p", "default").code == 0
    made = muster("workload", "describe", "elder", "-o", "json").json()
    at = str(made["version"])
    assert muster("workload", "delete", "elder", "-y", "--wait", "--timeout", "20s").code == 0
    assert until(lambda: "elder" not in muster("workload", "list", "-A", "-o", "name").out.split() or None, 60)
    for words in ("workload list -A", "training list -p default", "project list", "cluster list", "node list",
                  "nodepool list", "project describe default", "cluster describe local",
                  "workload pods elder"):  # fmt: skip
        ran = muster(*words.split(), "--as-of", at)
        assert ran.code == 0, (words, ran.err)
    assert "elder" in muster("workload", "list", "-A", "-o", "name", "--as-of", at).out.split()
    then = muster("workload", "describe", "elder", "--as-of", at, "-o", "json").json()
    assert (then["id"], then["version"], then["deletedAt"]) == (made["id"], made["version"], None)
    assert muster("training", "describe", "elder", "--as-of", at, "-o", "json").json() == then
    told = muster("workload", "history", "elder", "--as-of", at).out
    assert "submitted by admin" in told
    assert "delet" not in told
    # Ages are those of then: it was made at that very moment.
    assert "0s" in muster("workload", "list", "-A", "--columns", "name,createdAt", "--as-of", made["createdAt"]).out
    assert "elder" not in muster("workload", "list", "-A", "-o", "name", "--as-of", "30d").out
    before = ("--as-of", str(int(at) - 1))
    ran = muster("workload", "describe", "elder", *before)
    assert (ran.code, f"at that moment ({' '.join(before)}) there was no workload 'elder'" in ran.err) == (3, True)
    for what in ("node", "cluster"):
        ran = muster(what, "describe", "elder", *before)
        assert (ran.code, f"there was no {what} 'elder'" in ran.err) == (3, True), ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("workload list --as-of soon", 2, "--as-of: 'soon' is no moment"),
        ("workload list -w --as-of 1h", 2, "--watch and --as-of cannot be used together"),
        ("workload list -A --as-of 2999-01-01", 6, "must be a moment of the past"),
        ("node list --as-of 999999999", 6, "must be a moment of the past: the log ends at"),
    ],
)
def test_what_is_no_moment_of_the_past_is_refused(admin: Served, muster: Any, words: str, code: int, said: str) -> None:
    ran = muster(*words.split())
    assert ran.code == code, ran.err
    assert said in ran.err


def test_two_moments_are_compared(admin: Served, muster: Any) -> None:
    assert muster("training", "submit", "moved", "-i", "a", "-p", "default").code == 0
    at = str(muster("workload", "describe", "moved", "-o", "json").json()["version"])
    assert muster("workload", "set", "moved", "--priority", "high").code == 0
    assert until(lambda: "high" in muster("workload", "list", "-A", "--columns", "name,PRIORITY").out or None, 60)
    ran = muster("diff", "--from", at)
    assert ran.code == 0, ran.err
    assert "moved" in ran.out.partition("Workloads")[2].partition("Events")[0]
    (row,) = muster("diff", "--from", at, "-p", "default", "-o", "json").json()["workloads"]
    assert (row["difference"], row["after"]["priorityClassName"]) == ("changed", "high")
    assert muster("diff", "--from", "soon").code == 2
    assert muster("diff", "--from", at, "--to", "1").code == 6


def test_a_list_is_kept_to_labels_within_what_its_reader_may_see(
    admin: Served, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert muster("project", "create", "apart").code == 0
    for name, project, label in (
        ("dev-1", "default", "stage=dev"),
        ("test-1", "default", "stage=test"),
        ("dev-2", "apart", "stage=dev"),
    ):
        flags = ("-p", project, "--label", label, "--label", "suite=labels", "--cluster", "local")
        assert muster("training", "submit", name, "-i", "a", *flags).code == 0

    def listed(*more: str) -> list[str]:
        return sorted(muster("workload", "list", "-A", "-o", "name", *more).out.split())

    assert until(lambda: len(listed("-l", "suite")) == 3 or None, 60)
    assert listed("-l", "suite=labels,stage in (dev)") == ["dev-1", "dev-2"]
    assert listed("-l", "suite,stage!=dev") == ["test-1"]
    assert muster("workload", "list", "-A", "-l", "stage=test", "-o", "json").json()[0]["labels"] == [
        "stage=test",
        "suite=labels",
    ]
    ran = muster("workload", "list", "-l", "stage>dev")
    assert ran.code == 6
    assert "labelSelector (--selector): 'stage>dev' is no key of a label; write KEY=VALUE" in ran.err
    made = muster("token", "create", "--user", "lea", "--role", "researcher", "--project", "apart")
    monkeypatch.setenv("MUSTER_TOKEN", made.out.strip())
    assert listed("-l", "suite,stage in (dev,test)") == ["dev-2"]
    assert listed("-l", "suite,!old") == ["dev-2"]


def test_a_token_is_made_with_its_role_and_the_owner_is_protected(
    admin: Served, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {user: muster("token", "create", "--user", user, "--role", "researcher") for user in ("ann", "ben")}
    assert [ran.code for ran in made.values()] == [0, 0]
    assert muster("token", "create", "--user", "cle").code == 0
    assert muster("token", "create", "--user", "root", "--role", "administrator", "--ttl", "1h").code == 0
    assert muster("token", "create", "--user", "dan", "--project", "nowhere").code == 3
    assert muster("token", "create", "--user", "dan", "--ttl", "2d").code == 2
    assert muster("token", "create", "--user", "dan", "--claim", "uid").code == 2
    assert muster("token", "create", "--user", "dan", "--claim", "sub=root").code == 2
    assert muster("token", "create", "--user", "dan", "--claim", "uid=1", "--claim", "gid=1").code == 0
    assert muster("cluster", "set", "local", "--ownership-protection", "on").code == 0
    tokens = {user: ran.out.strip() for user, ran in made.items()}
    assert all("\n" not in token for token in tokens.values())
    monkeypatch.setenv("MUSTER_TOKEN", tokens["ann"])
    assert muster("training", "submit", "anns", "-i", "a").code == 0
    monkeypatch.setenv("MUSTER_TOKEN", tokens["ben"])
    ran = muster("training", "delete", "anns", "-y")
    assert ran.code == 4
    assert "only its owner" in ran.err
    monkeypatch.setenv("MUSTER_TOKEN", "nonsense")
    assert muster("workload", "list").code == 4
    monkeypatch.setenv("MUSTER_TOKEN", tokens["ann"])
    assert muster("log", "list").code == 4
    assert muster("workload", "delete", "anns", "-y").code == 0


def test_clusters_pools_nodes_and_projects(admin: Served, muster: Any) -> None:
    assert muster("cluster", "add", "demo", "--simulated", "2x8").code == 0
    assert muster("cluster", "add", "demo", "--simulated", "2x8").code == 5
    assert muster("nodepool", "add", "fast", "--cluster", "demo", "--label", "gpu=a100").code == 0
    listed = muster("nodepool", "list", "--cluster", "demo", "-o", "json").json()
    assert [row["name"] for row in listed] == ["default", "fast"]
    assert muster("nodepool", "remove", "fast", "--cluster", "demo").code == 0
    assert muster("node", "list", "-o", "json").json() == []
    assert muster("cluster", "describe", "demo").code == 0
    assert muster("cluster", "remove", "demo", "-y").code == 0
    assert muster("cluster", "describe", "demo").code == 3
    assert muster("nodepool", "add", "a100", "--cluster", "local", "--label", "gpu=a100").code == 0
    for verb in ("create", "set"):
        nowhere = muster("project", verb, "default" if verb == "set" else "vision", "--node-pools", "default,nope")
        assert nowhere.code == 6
        assert "nodePools[1] (--node-pools): no cluster has a node pool 'nope'; there are a100, default" in nowhere.err
    assert muster("project", "create", "vision", "--gpu-quota", "2.5", "--node-pools", "a100").code == 0
    assert muster("project", "set", "vision", "--node-pools", "default,a100").code == 0
    project = muster("project", "describe", "vision", "-o", "json").json()
    assert (project["gpuQuota"], project["nodePools"]) == (2.5, ["default", "a100"])
    assert muster("project", "set", "vision", "--gpu-quota", "none", "--pod-security", "restricted").code == 0
    assert muster("project", "describe", "vision", "-o", "json").json()["podSecurity"] == "restricted"
    assert muster("project", "describe", "vision").code == 0
    assert muster("limit", "set", "vision", "Training").code == 2
    assert muster("limit", "set", "vision", "Cake", "--runtime", "7d").code == 2
    assert muster("limit", "set", "vision", "Workspace", "--idle-gpu", "1m").code == 6
    assert muster("limit", "set", "vision", "Training", "--runtime", "7d", "--pending", "1h").code == 0
    assert muster("limit", "set", "vision", "Workspace", "--idle-gpu", "1h").code == 0
    assert muster("limit", "set", "vision", "Training", "--pending", "none").code == 0
    assert muster("limit", "show", "vision", "-o", "json").json() == [
        {"kind": "Training", "runtimeSeconds": 604800, "idleGpuSeconds": None, "pendingSeconds": None},
        {"kind": "Workspace", "runtimeSeconds": None, "idleGpuSeconds": 3600, "pendingSeconds": None},
    ]


def test_an_operators_day_without_curl(admin: Served, muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What took curl: nodes, service accounts, the end of a project, and the log by what is looked for."""
    assert muster("cluster", "add", "lab", "--simulated", "1x8").code == 0
    lab = muster("cluster", "describe", "lab", "-o", "json").json()["id"]
    report_node(admin, lab, "lab-0", gpus=8)
    listed = until(lambda: muster("node", "list", "--cluster", "lab", "-o", "json").json() or None, 60)
    assert listed[0]["cordonedBy"] is None
    pools = muster("nodepool", "list", "--cluster", "lab", "-o", "json").json()
    assert [(pool["name"], pool["nodes"]) for pool in pools] == [("default", 1)]
    assert "node lab-0 of cluster lab cordoned" in muster("node", "cordon", "lab-0").err
    assert until(lambda: "by admin" in muster("node", "describe", "lab-0").out or None, 60)
    assert "admin" in muster("node", "list", "--cluster", "lab").out
    assert muster("node", "uncordon", "lab-0", "--cluster", "lab").code == 0
    assert muster("node", "drain", "lab-0", "--dry-run").code == 0
    assert muster("node", "drain", "lab-0", "--dry-run", "--no-wait").code == 2
    drained = muster("node", "drain", "lab-0", "--timeout", "20s")
    assert (drained.code, "it is empty, and stays cordoned" in drained.err) == (0, True)
    assert "empty since" in muster("node", "describe", "lab-0").out
    assert "lab-0" in muster("log", "list", "--type", "NodeDrained").out
    typo = muster("node", "cordon", "lab-1")
    assert typo.code == 3
    assert "lab-0" in typo.err

    assert muster("project", "create", "brief").code == 0
    made = muster("service-account", "create", "ci", "--role", "researcher", "-p", "brief")
    token = made.out.strip()
    assert token.startswith("muster_sa_")
    assert muster("service-account", "create", "ci", "-p", "brief").code == 5
    assert muster("service-account", "create", "x", "--role", "administrator", "-p", "brief").code == 2
    assert muster("service-account", "list", "-p", "brief", "-o", "name").out == "ci\n"
    assert "service-account:brief/ci" in muster("service-account", "describe", "ci", "-p", "brief").out
    rotated = muster("service-account", "rotate", "ci", "-p", "brief").out.strip()
    for given, code in ((token, 4), (rotated, 0)):
        monkeypatch.setenv("MUSTER_TOKEN", given)
        assert muster("workload", "list", "-p", "brief").code == code
    monkeypatch.setenv("MUSTER_TOKEN", admin.token("admin"))

    made = muster("subscription", "create", "-p", "brief", "--name", "chat", "-o", "json").out
    made, _ = json.JSONDecoder().raw_decode(made, made.index("{\n"))  # amid what the service in this process logs
    assert {"id", "name", "url", "seed", "domain", "inboxPrefix", "stream", "consumer", "subjects"} <= made.keys()
    assert made["seed"].startswith("SU")
    assert muster("subscription", "create", "-p", "brief", "--name", "chat").code == 5
    both = muster("subscription", "create", "-p", "brief", "--from-seq", "1", "--from-time", "2026-01-01T00:00:00Z")
    assert both.code == 2
    assert muster("subscription", "list", "-p", "brief", "-o", "name").out == "chat\n"
    described = muster("subscription", "describe", made["id"], "-p", "brief").out
    assert "chat" in described
    assert made["seed"] not in described
    again = muster("subscription", "create", "-p", "brief", "--name", "two", "--idempotency-key", "two")
    assert (again.code, "SU" in again.out) == (0, True)
    again = muster("subscription", "create", "-p", "brief", "--name", "two", "--idempotency-key", "two")
    assert again.code == 1
    assert "muster subscription delete two -p brief" in again.err
    assert muster("subscription", "delete", "chat", "-p", "brief", "-y").code == 0
    assert muster("subscription", "describe", "chat", "-p", "brief").code == 3

    assert muster("training", "submit", "late", "-i", "a", "-p", "brief", "--cluster", "lab").code == 0
    refused = muster("project", "delete", "brief", "-y")
    assert refused.code == 5
    assert "1 workload lives in the project" in refused.err
    assert muster("workload", "delete", "late", "-p", "brief", "-y").code == 0
    assert muster("project", "delete", "brief", "-y").code == 0
    assert muster("project", "describe", "brief").code == 3
    newest = muster("log", "list", "--type", "ProjectDeleted", "--actor", "admin", "--since", "1h", "-o", "json").json()
    assert [commit["events"][0]["type"] for commit in newest] == ["ProjectDeleted"]
    assert "lab-0" in muster("log", "list", "--type", "NodeCordoned").out
    assert muster("cluster", "remove", "lab", "-y").code == 0


def test_maintenance_is_planned_changed_and_cancelled_by_the_command_line(admin: Served, muster: Any) -> None:
    """What cannot be is refused by name (issue 14 section 2)."""
    assert muster("cluster", "add", "shop", "--simulated", "1x8").code == 0
    shop = muster("cluster", "describe", "shop", "-o", "json").json()["id"]
    report_node(admin, shop, "shop-0", gpus=8)
    until(lambda: muster("node", "list", "--cluster", "shop", "-o", "json").json() or None, 60)
    calendar = ("calendar", "maintenance")
    window = ("--from", "2099-01-01T06:00:00Z", "--to", "2099-01-01T12:00:00Z")
    assert "366 days" in muster(*calendar, "create", "far", "--node", "shop-0", "--cluster", "shop", *window).err
    soon = datetime.now(UTC) + timedelta(days=2)
    window = ("--from", soon.isoformat(), "--to", (soon + timedelta(hours=1)).isoformat())
    assert "shop-9" in muster(*calendar, "create", "fan", "--node", "shop-9", "--cluster", "shop", *window).err
    assert muster(*calendar, "create", "fan", "--cluster", "shop", *window).code == 2
    assert muster(*calendar, "create", "fan", "--node", "shop-0", "--cluster", "shop", *window).code == 0
    assert muster(*calendar, "create", "fan", "--node", "shop-0", "--cluster", "shop", *window).code == 5
    row = muster(*calendar, "list", "-o", "json").json()[0]
    assert (row["name"], row["state"], row["nodes"], row["plannedBy"]) == ("fan", "Planned", ["shop-0"], "admin")
    assert muster(*calendar, "set", "fan", "--cluster", "shop", "--lead", "3d", "--force", "on").code == 0
    assert "told to end, too" in muster(*calendar, "describe", "fan", "--cluster", "shop").out
    assert "MaintenancePlanned" in muster("log", "list", "--type", "MaintenancePlanned").out
    assert muster(*calendar, "delete", "fan", "--cluster", "shop", "-y").code == 0
    assert muster(*calendar, "list").out.count("fan") == 0
    assert muster(*calendar, "delete", "fan", "--cluster", "shop", "-y").code == 3
    assert muster("cluster", "remove", "shop", "-y").code == 0


def test_windows_of_a_project_are_set_by_the_command_line(admin: Served, muster: Any) -> None:
    """What cannot be is refused by name (issue 14 section 2)."""
    assert muster("project", "create", "nightly").code == 0
    window = ("calendar", "window")
    assert "at any time" in muster(*window, "show", "nightly").out
    assert "Europe/Atlantis" in muster(*window, "set", "nightly", "20:00-06:00", "--zone", "Europe/Atlantis").err
    wrong = muster(*window, "set", "nightly", "Mo 20:00-06:00")
    assert (wrong.code, "'Mo' is no day" in wrong.err) == (6, True)
    given = ("Mon-Fri 20:00-06:00", "Sat,Sun 00:00-24:00", "--zone", "Europe/Berlin", "--ends-running")
    assert "Mon-Fri 20:00-06:00" in muster(*window, "set", "nightly", *given).err
    row = muster(*window, "show", "nightly", "-o", "json").json()[0]
    assert (row["windows"], row["endsRunning"]) == (["Mon-Fri 20:00-06:00", "Sat,Sun 00:00-24:00"], True)
    assert row["changesAt"]
    assert muster(*window, "delete", "nightly").code == 0
    assert muster(*window, "show", "nightly", "-o", "json").json()[0]["open"] is True
    assert muster("project", "delete", "nightly", "-y").code == 0


def test_capacity_is_reserved_changed_and_given_back_by_the_command_line(admin: Served, muster: Any) -> None:
    """What cannot be is refused by name (issue 14 section 2)."""
    assert muster("cluster", "add", "hall", "--simulated", "1x8").code == 0
    hall = muster("cluster", "describe", "hall", "-o", "json").json()["id"]
    report_node(admin, hall, "hall-0", gpus=8)
    until(lambda: muster("node", "list", "--cluster", "hall", "-o", "json").json() or None, 60)
    reservation, at = ("calendar", "reservation"), ("--cluster", "hall")
    soon = datetime.now(UTC) + timedelta(days=2)
    window = ("--from", soon.isoformat(), "--to", (soon + timedelta(hours=1)).isoformat())
    made = ("create", "bench", "--node", "hall-0", *at, *window)
    assert "nobody" in muster(*reservation, *made, "--for", "nobody").err
    assert muster(*reservation, "create", "bench", "--for", "default", *at, *window).code == 2
    assert "hall-9" in muster(*reservation, "create", "x", "--for", "default", "--node", "hall-9", *at, *window).err
    assert muster(*reservation, *made, "--for", "default", "--gpus", "4", "--weekly").code == 0
    assert muster(*reservation, *made, "--for", "default").code == 5
    row = muster(*reservation, "list", "-o", "json").json()[0]
    assert (row["projectName"], row["state"], row["gpus"], row["weekly"]) == ("default", "Planned", 4, True)
    assert muster(*reservation, "set", "bench", *at, "--gpus", "all", "--weekly", "off").code == 0
    row = muster(*reservation, "list", "-o", "json").json()[0]
    assert (row["gpus"], row["weekly"], row["nodes"]) == (None, False, ["hall-0"])
    assert muster(*reservation, "set", "bench", *at, "--node-count", "1", "--for-label", "use=demo").code == 0
    row = muster(*reservation, "list", "-o", "json").json()[0]
    assert (row["nodeCount"], row["projectId"], row["workloadLabels"]) == (1, None, {"use": "demo"})
    assert muster(*reservation, "set", "bench", *at, "--gpus", "2", "--exact", "on").code == 0
    assert muster("calendar", "window", "set", "default", "20:00-06:00", "--over-quota-only").code == 0
    entries = muster("calendar", "list", "-o", "json").json()
    assert {(each["kind"], each["name"]) for each in entries} >= {("reservation", "bench"), ("window", "default")}
    told = {each["name"]: each["about"] for each in entries}
    assert told["bench"] == "for use=demo: exactly 2 GPUs of node hall-0"
    assert told["default"] == "over quota only Mon-Sun 20:00-06:00 UTC"
    assert muster("calendar", "window", "list", "-o", "json").json()[0]["overQuotaOnly"] is True
    assert muster("calendar", "window", "delete", "default").code == 0
    assert muster("calendar", "window", "list", "-o", "json").json() == []
    assert muster(*reservation, "delete", "bench", *at, "-y").code == 0
    assert muster(*reservation, "delete", "bench", *at, "-y").code == 3
    assert muster("project", "create", "leaves").code == 0
    assert muster(*reservation, *made, "--for", "leaves").code == 0
    assert muster("project", "delete", "leaves", "-y").code == 0
    assert muster(*reservation, "list", "-o", "json").json() == []
    rows = muster(*reservation, "list", "--all", "-o", "json").json()
    assert [(row["projectName"], row["state"]) for row in rows] == [("leaves", "Over")], "it keeps nodes for nobody"
    assert muster(*reservation, "delete", "bench", *at, "-y").code == 0
    assert muster("cluster", "remove", "hall", "-y").code == 0


def test_an_entry_is_found_without_its_cluster_and_the_cluster_is_told(admin: Served, muster: Any) -> None:
    """Given two clusters, when an entry of one of them is described or deleted, then it need not be said which."""
    soon = datetime.now(UTC) + timedelta(days=2)
    window = ("--from", soon.isoformat(), "--to", (soon + timedelta(hours=1)).isoformat())
    for cluster in ("north", "south"):
        assert muster("cluster", "add", cluster, "--simulated", "1x1").code == 0
    for verb, owner in (("maintenance", ()), ("reservation", ("--for", "default"))):
        calendar = ("calendar", verb)
        made = ("--label", "a=b", *owner, *window)
        told = muster(*calendar, "create", "fan", "--cluster", "south", *made)
        assert (told.code, "no node of the cluster" in told.err) == (0, True)
        assert "south" in muster(*calendar, "describe", "fan").out
        assert "+" in muster(*calendar, "describe", "fan", "--tz", "Asia/Tokyo").out
        assert muster(*calendar, "describe", "fan", "--cluster", "north").code == 3
        assert "(cluster south)" in muster(*calendar, "set", "fan", "--lead", "2d").err
        assert muster(*calendar, "create", "fan", "--cluster", "north", *made).code == 0
        several = muster(*calendar, "delete", "fan", "-y")
        assert (several.code, "north, south" in several.err, "--cluster" in several.err) == (2, True, True)
        assert "(cluster north)" in muster(*calendar, "delete", "fan", "-y", "--cluster", "north").err
        assert "(cluster south)" in muster(*calendar, "delete", "fan", "-y").err
    for cluster in ("north", "south"):
        assert muster("cluster", "remove", cluster, "-y").code == 0


def test_what_is_done_by_name_and_comes_again_with_its_key_is_answered_as_the_first_time(
    admin: Served, muster: Any
) -> None:
    """The second time nothing living has the name any more."""
    assert muster("training", "submit", "again", "-i", "a", "-p", "default", "--cluster", "local").code == 0
    assert muster("cluster", "add", "passing", "--simulated", "1x1").code == 0
    assert muster("nodepool", "add", "once", "--cluster", "passing", "--label", "a=b").code == 0
    for command in (
        ("workload", "delete", "again", "-p", "default", "-y"),
        ("nodepool", "remove", "once", "--cluster", "passing"),
        ("cluster", "remove", "passing", "-y"),
    ):
        first = muster(*command, "--idempotency-key", "by-name")
        assert first.code == 0, first.err
        if command[0] == "workload":
            gone = ("workload", "list", "-p", "default", "--search", "again", "-o", "name")
            assert until(lambda gone=gone: not muster(*gone).out, 60)
        second = muster(*command, "--idempotency-key", "by-name")
        assert (second.code, second.err) == (0, first.err)
        assert muster(*command).code == 3, "without a key a name that is not there is a mistake"
    never = muster("cluster", "remove", "never-there", "-y", "--idempotency-key", "by-name")
    assert never.code == 3


def test_roles_are_given_shown_and_taken_away_and_the_audit_tells(admin: Served, muster: Any) -> None:
    assert muster("role", "grant", "eve", "researcher", "-p", "default").code == 0
    assert muster("role", "grant", "eve", "researcher", "-p", "default").code == 0, "it is so already"
    assert muster("role", "grant", "eve", "viewer", "--everywhere").code == 0
    listed = muster("role", "list", "--user", "eve", "-o", "json").json()
    assert {(row["role"], row["where"]) for row in listed} == {("researcher", "default"), ("viewer", "everywhere")}
    in_project = muster("role", "list", "-p", "default", "-o", "json").json()
    assert "eve" in {row["user"] for row in in_project}
    assert {row["where"] for row in in_project} == {"default"}
    users = {row["user"]: row["roles"] for row in muster("user", "list", "-o", "json").json()}
    assert users["eve"] == ["viewer everywhere", "researcher in default"]
    assert users["admin"] == ["administrator everywhere"]
    assert "eve" in muster("user", "list").out
    assert muster("role", "revoke", "eve", "researcher", "-p", "default").code == 0
    again = muster("role", "revoke", "eve", "researcher", "-p", "default")
    assert again.code == 3
    assert "'eve' does not have the role researcher in project 'default'" in again.err
    assert muster("role", "revoke", "eve", "project-admin", "--everywhere").code == 6
    assert muster("role", "grant", "eve", "viewer", "-p", "nowhere").code == 3
    told = muster(
        "audit", "list", "--type", "RevokeProjectRole", "--actor", "admin", "--since", "1h", "-o", "json"
    ).json()
    assert (told[0]["command"], told[0]["projectName"]) == ("RevokeProjectRole", "default")
    assert "RevokeProjectRole" in muster("audit", "list", "--limit", "500").out
    assert muster("nodepool", "add", "audited", "--cluster", "local", "--label", "a=b").code == 0
    assert muster("nodepool", "remove", "audited", "--cluster", "local").code == 0
    for command in ("SetNodePool", "RemoveNodePool"):
        newest = muster("audit", "list", "--type", command, "--limit", "1", "-o", "json").json()[0]
        assert newest["target"].startswith("audited: "), "the pool, not its cluster alone"
    assert muster("audit", "list", "--actor", "nobody").out.splitlines()[1:] == []
    unknown = muster("audit", "list", "--type", "Revoke")
    assert unknown.code == 6
    assert "RevokeProjectRole" in unknown.err


def test_the_log_is_listed_whole_and_the_doctor_sees_the_rest(admin: Served, muster: Any) -> None:
    rows = [json.loads(line) for line in muster("log", "list", "--limit", "0", "-o", "jsonl").out.splitlines()]
    assert [row["sequence"] for row in rows] == list(range(len(rows), 0, -1))
    assert muster("projections", "status", "-o", "json").json()["halted"] is None
    findings = {one["check"]: one for one in muster("doctor", "-o", "json").json()["findings"]}
    assert findings["server"]["verdict"] == findings["clock"]["verdict"] == "ok"
    assert findings["token"]["found"] == "admin: administrator everywhere"
    assert findings["projections"]["verdict"] == "ok"
    assert muster("version", "-o", "json").json()["api"] == "1"


def test_verify_and_rebuild_work_on_the_log_with_the_operator_s_credential(
    admin: Served, nats_server: NatsServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_NATS_URL", nats_server.url)
    monkeypatch.setenv("MUSTER_NATS_PASSWORD_DIR", str(nats_server.password_dir()))
    monkeypatch.setenv("MUSTER_POSTGRES_URL", str(admin.settings.postgres_url))
    with admin.client() as client:
        assert client.post("/api/v1/workloads/trainings", json=admin.training()).status_code == 202
    command = [sys.executable, "-m", "muster.cli.main", "log", "verify", "-o", "json"]
    before = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (before.returncode, before.stdout) == (0, "[]\n"), before.stderr
    rebuilt = muster("projections", "rebuild", "-o", "json")
    assert rebuilt.code == 0, rebuilt.err
    assert "is in use" in rebuilt.err
    assert json.loads(rebuilt.out)["schema"] == "muster_v2"
    shadow = muster("projections", "rebuild", "--until", "1", "-o", "name")
    assert (shadow.code, shadow.out) == (0, "muster_until_1\n"), shadow.err
    asyncio.run(_rename_every_workload(admin.settings.postgres_url))
    compared = muster("projections", "diff", "-o", "jsonl")
    assert compared.code == 1
    assert {json.loads(line)["column"] for line in compared.out.splitlines()} == {"name"}
    after = muster("log", "verify", "-o", "jsonl")
    assert after.code == 1
    assert {json.loads(line)["column"] for line in after.out.splitlines()} == {"name"}
    assert "projections rebuild" in after.err
    assert muster("projections", "rebuild").code == 0
    whole = muster("log", "verify")
    assert whole.code == 0
    assert "every row follows from the log\n" in whole.err
    forged = asyncio.run(_forge(nats_server))
    part = muster("log", "verify")
    assert part.code == 0
    assert f"every row follows from the log up to {forged - 1}; the log goes on to {forged}" in part.err
    assert "muster projections status" in part.err
    # The tests after this one have the same log.
    with admin.client() as client:
        answer = client.post("/api/v1/events/voids", json={"sequence": forged, "reason": "a test"})
    assert answer.status_code == 202, answer.text


def test_a_replay_is_looked_at_with_the_same_commands_and_removed_by_one(
    admin: Served, nats_server: NatsServer, muster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with admin.client() as client:
        assert client.post("/api/v1/workloads/trainings", json=admin.training(name="played")).status_code == 202
    live = Context(url=admin.url, token=admin.token("admin"), project="default")
    contexts = home / "config" / "muster" / "config.toml"
    save_contexts(contexts, Contexts(current="live", contexts={"live": live}))
    for name, value in {
        "NATS_URL": nats_server.url,
        "NATS_PASSWORD_DIR": nats_server.password_dir(),
        "POSTGRES_URL": admin.settings.postgres_url,
        "JWKS_FILE": admin.settings.jwks_file,
    }.items():
        monkeypatch.setenv(f"MUSTER_{name}", str(value))
    command = [sys.executable, "-m", "muster.cli.main", "replay", "--into", "then"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr is not None
        heard = ""
        while "it is served until Ctrl-C" not in heard:
            line = it.stderr.readline()
            assert line, heard
            heard += line
        assert "muster --context then workload list" in heard
        assert "played" in muster("--context", "then", "workload", "list", "-o", "name").out.split()
        refused = muster("--context", "then", "workload", "delete", "played", "-y")
        assert refused.code == 4
        assert "this is the sandbox then" in refused.err
        assert "give the command without `--context`" in refused.err
        (row,) = json.loads(muster("replay", "list", "-o", "json").out)
        assert (row["name"], row["state"], row["from"]) == ("then", "served", "0")
        taken = muster("replay", "--into", "other", "--port", row["url"].rpartition(":")[2])
        assert (taken.code, "cannot listen at 127.0.0.1" in taken.err) == (2, True), taken.err
        assert len(json.loads(muster("replay", "list", "-o", "json").out)) == 1, "nothing was made"
        gone = muster("replay", "rm", "then")
        assert gone.code == 0, gone.err
        assert it.wait(60) == 1
        assert "was removed" in it.stderr.read()
    assert list(read_contexts(contexts).contexts) == ["live"]


async def _forge(nats_server: NatsServer) -> int:
    """The sequence of a message at the end of the log that nobody can read: the tables stop before it."""
    connection = await connect(nats_server.settings(), EVERYTHING)
    try:
        return (await connection.jetstream().publish("ev.project.forged", b"{")).seq
    finally:
        await connection.close()


async def _rename_every_workload(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        await connection.execute(f"UPDATE \"{schema}\".workloads SET name = name || 'x'")
    finally:
        await connection.close()


def test_typing_errors_in_a_file_and_in_values_are_refused_with_what_was_meant(
    admin: Served, muster: Any, tmp_path: Path
) -> None:
    """Every fault at once, each with its field, and none is sent twice: by the API, and without it."""
    file = tmp_path / "training.yaml"
    file.write_text(
        "name: typo\nspec:\n  imgae: python:3.13\n  priorityClass: hihg\n  compute:\n    gpuDevicesReqest: 1\n"
    )
    submit = ("training", "submit", "-f", str(file), "-p", "default")
    for ran in (muster(*submit), muster(*submit, "--dry-run=client")):
        assert (ran.code, ran.out) == (6, ""), ran.err
        assert "spec.imgae: is unknown; did you mean 'image'?" in ran.err
        assert "spec.compute.gpuDevicesReqest: is unknown; did you mean 'gpuDevicesRequest'" in ran.err
        assert "spec.priorityClass (--priority): 'hihg' is none of " in ran.err
        assert "did you mean 'high'?" in ran.err
    file.write_text("name: typo\nspce:\n  image: a\n")
    ran = muster(*submit)
    assert (ran.code, "unknown field 'spce'" in ran.err, "did you mean 'spec'?" in ran.err) == (2, True, True)
    ran = muster("training", "submit", "x", "-i", "a", "-p", "default", "--priority", "hihg")
    assert (ran.code, "did you mean 'high'?" in ran.err) == (6, True)


def test_a_project_that_is_not_there_or_not_mine_leads_to_those_that_i_may_use(
    admin: Served, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given alice, a researcher in `default` alone; `other` is there, and its name is not told to her."""
    monkeypatch.setenv("MUSTER_TOKEN", admin.token("alice"))
    for typed in ("training submit x -i a -p {} -- x", "workload list -p {}", "training logs x -p {}"):
        for name in ("nope", "other"):
            ran = muster(*typed.format(name).split())
            assert (ran.code, ran.out) == (3, ""), ran.err
            assert f"there is no project '{name}'" in ran.err
            assert "projects that you may see: default" in ran.err
    # With one project only, that one is the default.
    ran = muster("training", "submit", "mine", "-i", "a", "-o", "json", "--", "x")
    assert ran.code == 0, ran.err
    assert ran.json()["projectId"] == admin.project
    # An administrator has several, and says which.
    monkeypatch.setenv("MUSTER_TOKEN", admin.token("admin"))
    ran = muster("training", "submit", "mine", "-i", "a", "--", "x")
    assert (ran.code, "there are several projects: " in ran.err) == (2, True), ran.err
