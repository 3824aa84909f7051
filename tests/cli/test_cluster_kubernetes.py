"""`muster cluster add --kubeconfig` and `muster cluster agent`, as far as they need no Kubernetes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from development.ports import free_port
from tests.support.shapes import Reply, ShapeServer

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUBERNETES = {"id": "5c4f0b1e-0000-8000-8000-000000000001", "name": "prod", "kind": "kubernetes"}


@pytest.fixture
def kubernetes(api: ShapeServer) -> ShapeServer:
    local = {"id": "c-1", "name": "local", "kind": "local"}
    api.on("GET", "/clusters", Reply(body={"clusters": [local, KUBERNETES]}))
    return api


def kubeconfig(folder: Path, server: str) -> Path:
    file = folder / "kubeconfig"
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file.write_text(yaml.safe_dump(config))
    return file


def data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = folder / "data"
    data.mkdir()
    (data / "ports.json").write_text('{"nats": 1, "postgres": 2, "control_health": 3, "workers_health": 4}')
    monkeypatch.setenv("MUSTER_DATA_DIR", str(data))
    return data


def test_what_a_cluster_is_made_of_is_said_once(api: ShapeServer, muster: Any) -> None:
    for wrong in ([], ["--simulated", "1x1", "--kubernetes"], ["--kubernetes", "--context", "c"]):
        assert muster("cluster", "add", "x", *wrong).code == 2
    assert api.requests == []


def test_a_kubeconfig_needs_the_muster_up_of_this_machine(
    api: ShapeServer, muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kubeconfig(tmp_path, "https://127.0.0.1:1")
    ran = muster("cluster", "add", "lab", "--kubeconfig", str(file))
    assert ran.code == 2
    assert "muster cluster agent" in ran.err
    monkeypatch.setenv("MUSTER_DATA_DIR", str(tmp_path))
    assert "a data folder of `muster up`" in muster("cluster", "add", "lab", "--kubeconfig", str(file)).err


@pytest.mark.parametrize(
    "wrong",
    [
        ("https://127.0.0.1:{free}", [], 9, "does not take this kubeconfig"),
        ("http://127.0.0.1:1", [], 2, "must begin with https://"),
        ("https://127.0.0.1:1", ["--context", "there"], 2, "no context there; there are: here"),
    ],
)
def test_a_kubeconfig_that_leads_nowhere_adds_nothing(
    api: ShapeServer,
    muster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: tuple[str, list[str], int, str],
) -> None:
    server, options, code, said = wrong
    data = data_folder(tmp_path, monkeypatch)
    ran = muster(
        "cluster", "add", "lab", "--kubeconfig", str(kubeconfig(tmp_path, server.format(free=free_port()))), *options
    )
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert not (data / "clusters").exists()
    assert api.requests == []


def test_a_cluster_whose_agent_runs_in_it_is_only_added(api: ShapeServer, muster: Any) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "prod"}))
    ran = muster("cluster", "add", "prod", "--kubernetes")
    assert ran.code == 0
    assert api.requests[-1].body == {"name": "prod", "kind": "kubernetes"}
    assert "muster cluster agent prod" in ran.err


@pytest.mark.parametrize("ways", [False, True])
def test_an_agents_manifests_are_those_of_deploy_with_its_own_connection(
    kubernetes: ShapeServer, muster: Any, tmp_path: Path, *, ways: bool
) -> None:
    password, authority = tmp_path / "password", tmp_path / "ca.crt"
    authority.write_text("PEM")
    options = [
        "--password-file",
        str(password),
        "--ca-file",
        str(authority),
        "--image",
        "registry.example.com/muster:1",
        *(["--ways"] if ways else []),
    ]
    ran = muster("cluster", "agent", "prod", "--nats-url", "tls://n.example.com:4333", *options)
    assert ran.code == 0, ran.err
    made = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(ran.out)}
    written = {
        (one["kind"], one["metadata"]["name"])
        for file in DEPLOY.glob("*.yaml")
        if file.name
        not in {
            "kustomization.yaml",
            "proxy.yaml",
            "runai-public.yaml",
            "volumes.yaml",
            *(() if ways else ("ways.yaml",)),
        }
        for one in yaml.safe_load_all(file.read_text())
    }
    assert set(made) == written
    assert made["ConfigMap", "muster-agent-connection"]["data"] == {
        "MUSTER_AGENT_CLUSTER": KUBERNETES["id"],
        "MUSTER_NATS_URL": "tls://n.example.com:4333",
        "MUSTER_NATS_CA_FILE": "/etc/muster/connection/ca.crt",
    }
    secret = made["Secret", "muster-agent-connection"]["stringData"]
    assert secret == {"password": password.read_text(), "ca.crt": "PEM"}
    assert password.stat().st_mode & 0o777 == 0o600
    (container,) = made["Deployment", "muster-agent"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/muster:1"
    assert {"name": "MUSTER_KUBERNETES_RESERVATION_IMAGE", "value": "registry.example.com/muster:1"} in container["env"]
    egress = made["NetworkPolicy", "muster-agent"]["spec"]["egress"]
    assert [port["port"] for rule in egress for port in rule["ports"]] == [53, 53, 443, 6443, 4333, 2049, 9400]


def test_the_nats_user_has_the_password_of_the_manifests(kubernetes: ShapeServer, muster: Any, tmp_path: Path) -> None:
    options = ["--password-file", str(tmp_path / "password")]
    user = muster("cluster", "agent", "prod", "--nats-user", *options)
    assert user.code == 0
    assert f'user: agent-{KUBERNETES["id"]}, password: "{(tmp_path / "password").read_text()}"' in user.out
    manifests = muster("cluster", "agent", "prod", "--nats-url", "tls://n:4222", *options)
    assert (tmp_path / "password").read_text() in manifests.out


@pytest.mark.parametrize("url", ["nats://n:4222", "n:4222", "tls://", "tls://a:1,nats://b:1", "tls://n:port"])
def test_an_agent_of_another_machine_reaches_nats_by_tls_alone(
    kubernetes: ShapeServer, muster: Any, tmp_path: Path, url: str
) -> None:
    ran = muster("cluster", "agent", "prod", "--nats-url", url, "--password-file", str(tmp_path / "p"))
    assert (ran.code, ran.out) == (2, "")
    assert "write it as tls://HOST:4222" in ran.err
    assert not (tmp_path / "p").exists()


def test_other_clusters_have_no_agent_of_their_own(kubernetes: ShapeServer, muster: Any, tmp_path: Path) -> None:
    ran = muster("cluster", "agent", "local", "--nats-user", "--password-file", str(tmp_path / "p"))
    assert (ran.code, "of kind local" in ran.err) == (2, True)
    ran = muster("cluster", "agent", "prod", "--password-file", str(tmp_path / "p"))
    assert (ran.code, "--nats-url" in ran.err) == (2, True)


def test_a_list_counts_nodes_and_gpus_and_shows_what_is_wrong(kubernetes: ShapeServer, muster: Any) -> None:
    away = KUBERNETES | {"status": "Disconnected", "problem": "the API server does not answer", "nodes": None}
    kubernetes.on("GET", "/clusters", Reply(body={"clusters": [away]}))
    nodes = [{"clusterId": KUBERNETES["id"], "capacity": {"gpus": gpus}} for gpus in (8, 4)]
    kubernetes.on("GET", "/nodes", Reply(body={"nodes": [*nodes, {"clusterId": "other", "capacity": {"gpus": 1}}]}))
    columns = "name,kind,status,nodes,gpus,problem"
    ran = muster("cluster", "list", "-o", "csv", "--columns", columns, "--no-headers")
    assert ran.out.strip() == "prod,kubernetes,Disconnected,2,12,the API server does not answer"


def test_what_is_not_taken_of_an_agents_words_is_described_with_the_rule_and_the_value(
    kubernetes: ShapeServer, muster: Any
) -> None:
    report = {"about": "node", "name": "n1", "field": "facts.cpu_milli", "rule": "0 to 100,000,000", "value": "-1"}
    kubernetes.on("GET", "/clusters", Reply(body={"clusters": [KUBERNETES | {"refusedReports": [report]}]}))
    kubernetes.on("GET", "/nodes", Reply(body={"nodes": []}))
    assert "node n1 facts.cpu_milli: -1; must be 0 to 100,000,000" in muster("cluster", "describe", "prod").out


def test_removing_a_cluster_forgets_how_it_was_reached(
    kubernetes: ShapeServer, muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_folder(tmp_path, monkeypatch)
    (data / "clusters").mkdir()
    stored = data / "clusters" / KUBERNETES["id"]
    stored.write_text("{}")
    kubernetes.on("DELETE", f"/clusters/{KUBERNETES['id']}", Reply(403, {"code": "forbidden", "message": "no"}))
    assert muster("cluster", "remove", "prod", "-y").code == 4
    assert stored.exists()
    kubernetes.on("DELETE", f"/clusters/{KUBERNETES['id']}", Reply(202, {}))
    assert muster("cluster", "remove", "prod", "-y").code == 0
    assert not stored.exists()
