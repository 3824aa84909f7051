"""What is typed about clusters, node pools and nodes, and the settings that they have."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import openb
from tests.support.shapes import ACCEPTED, WORKLOAD_ID, Reply, Request, ShapeServer


def test_a_node_pool_that_is_not_there_is_not_removed(api: ShapeServer, muster: Any) -> None:
    pools = [{"clusterId": "c-1", "name": "a100", "labelKey": "gpu", "labelValue": "a100"}]
    pools.append({"clusterId": "c-1", "name": "default", "labelKey": "", "labelValue": ""})
    api.on("GET", "/node-pools", Reply(body={"nodePools": pools}))
    api.on("DELETE", "/node-pools/c-1/a100", ACCEPTED)
    ran = muster("nodepool", "remove", "a10", "--cluster", "local")
    assert ran.code == 3
    assert "did you mean 'a100'?" in ran.err
    ran = muster("nodepool", "remove", "default", "--cluster", "local")
    assert ran.code == 2
    assert "nodes that are in no other pool" in ran.err
    assert muster("nodepool", "remove", "a100", "--cluster", "local").code == 0
    assert len(api.asked("DELETE", "/node-pools/c-1/a100")) == 1


def test_a_simulated_cluster_is_counted_or_read_from_a_csv(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "demo"}))
    assert muster("cluster", "add", "demo", "--simulated", "2x8", "--gpu-memory", "40Gi").code == 0
    [group] = api.requests[-1].body["simulatedNodes"]
    assert (group["names"], group["gpus"], group["gpuMemoryBytes"]) == (["demo-0", "demo-1"], 8, 40 * 1024**3)
    file = tmp_path / "nodes.csv"
    file.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,64000,262144,2,P100\nn-2,500,1,0,\n"
    )
    assert muster("cluster", "add", "trace", "--nodes", str(file)).code == 0
    first, second = api.requests[-1].body["simulatedNodes"]
    assert first["names"] == ["n-0", "n-1"]
    assert (first["cpuCores"], first["memoryBytes"], first["gpuModel"]) == (64.0, 262144 * 1024**2, "P100")
    assert (second["cpuCores"], second["gpus"], second["gpuMemoryBytes"]) == (0.5, 0, 0)


def test_nodes_of_a_csv_have_labels_taints_and_extended_resources(
    api: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "demo"}))
    file = tmp_path / "nodes.csv"
    file.write_text(
        "sn,cpu_milli,memory_mib,gpu,model,labels,taints,extended_resources\n"
        "n-0,1000,1,0,,zone=a;run.ai/type=big,team=x:NoSchedule; old:NoExecute,rdma/hca=2\n"
        "n-1,1000,1,0,,,,\n"
    )
    assert muster("cluster", "add", "trace", "--nodes", str(file)).code == 0
    first, second = api.requests[-1].body["simulatedNodes"]
    assert first["labels"] == [{"name": "zone", "value": "a"}, {"name": "run.ai/type", "value": "big"}]
    assert first["taints"] == [
        {"key": "team", "value": "x", "effect": "NoSchedule"},
        {"key": "old", "value": "", "effect": "NoExecute"},
    ]
    assert first["extendedResources"] == [{"resource": "rdma/hca", "amount": 2}]
    assert second["labels"] == second["taints"] == second["extendedResources"] == []


PLACED = "sn,cpu_milli,memory_mib,gpu,model,labels,taints,extended_resources\n"
BEFORE = "sn,cpu_milli,memory_mib,gpu,model\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{PLACED}n,1,1,0,,zone,,\n", "line 2, labels: must be KEY=VALUE"),
        (f"{PLACED}n,1,1,0,,,team=x,\n", "line 2, taints: must be KEY=VALUE:EFFECT or KEY:EFFECT"),
        (f"{PLACED}n,1,1,0,,,,a/b=many\n", "line 2, extended_resources: must be a whole number"),
        ("sn,gpu\nn,1\n", "line 1, cpu_milli: is required as a column"),
        (f"{BEFORE}n,many,1,1,x\n", "line 2, cpu_milli: must be a whole number of 1 to 100,000,000"),
        (f"{BEFORE}n,1,1,1,x\nm,1,1,,x\n", "line 3, gpu: is required"),
        (f"{BEFORE}n,1\n", "line 2: must have 5 values"),
        (f"{BEFORE},1,1,1,x\n", "line 2, sn: is required"),
        (f"{BEFORE}n,1,1,1,x\nm,1,1,1,x\nn,2,1,1,x\n", "line 4, sn: must be unique; line 2 has a node of this name"),
        (f"{BEFORE}n,1,1,1,x\n\nm,x,1,1,x\n", "line 4, cpu_milli: must be a whole number"),
    ],
)
def test_a_cell_of_a_csv_that_will_not_do_is_told_by_line_and_column(
    api: ShapeServer, muster: Any, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(text)
    ran = muster("cluster", "add", "trace", "--nodes", str(file))
    assert ran.code == 2
    assert told in ran.err
    assert api.requests == []


NODES_YAML = """\
nodes:
  - {name: gpu-0, cpu: 64, memory: 512Gi, gpus: 8, gpuModel: H100, labels: {zone: a}, pool: fast}
  - {name: gpu-1, cpu: 64, memory: 512Gi, gpus: 8, gpuModel: H100, labels: {zone: a}, pool: fast}
  - {name: cpu-0, cpu: 500m, memory: 1Gi, extendedResources: {rdma/hca: 2}}
"""


def test_a_file_of_yaml_says_all_of_a_node(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "demo"}))
    file = tmp_path / "nodes.yaml"
    file.write_text(NODES_YAML)
    ran = muster("cluster", "add", "demo", "--nodes", str(file), "--dry-run")
    assert "a new cluster demo would get 3 nodes of 2 kinds with 16 GPUs, in the pools fast" in ran.err
    assert not api.asked("POST", "/clusters")
    assert muster("cluster", "add", "demo", "--nodes", str(file), "--gpu-memory", "40Gi").code == 0
    gpu, cpu = api.requests[-1].body["simulatedNodes"]
    assert (gpu["names"], gpu["nodePool"], gpu["gpuMemoryBytes"]) == (["gpu-0", "gpu-1"], "fast", 40 * 1024**3)
    assert (cpu["cpuCores"], cpu["extendedResources"]) == (0.5, [{"resource": "rdma/hca", "amount": 2}])
    assert "nodePool" not in cpu


def test_all_that_is_wrong_with_a_file_is_told_at_once(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text("- {name: a, cpu: many, memory: 1Gi}\n- {name: b, memory: 1Gi, gpus: -1}\n")
    ran = muster("node", "add", "--cluster", "demo", "--nodes", str(file))
    assert ran.code == 2
    assert "3 values will not do" in ran.err
    for told in ("line 1, cpu: must be CPU cores", "line 2, cpu: is required", "line 2, gpus: must be a whole number"):
        assert told in ran.err
    assert api.requests == []


def test_ten_thousand_nodes_that_differ_go_in_parts(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "demo"}))
    api.on("POST", "/nodes", ACCEPTED)
    file = tmp_path / "nodes.csv"
    lines = [f"n-{number},64,512Gi,8,H100,rack=r{number}" for number in range(10_000)]
    file.write_text("\n".join(["name,cpu,memory,gpus,gpuModel,labels", *lines]))
    assert muster("cluster", "add", "demo", "--nodes", str(file), "--idempotency-key", "k").code == 0
    made, more = api.asked("POST", "/clusters"), api.asked("POST", "/nodes")
    assert {request.body["clusterId"] for request in more} == {"c-2"}
    keys = [request.headers["idempotency-key"] for request in (*made, *more)]
    assert keys == ["k", *(f"k-{number}" for number in range(1, len(keys)))]
    entries = [*made[0].body["simulatedNodes"], *(entry for request in more for entry in request.body["nodes"])]
    assert [name for entry in entries for name in entry["names"]] == [f"n-{number}" for number in range(10_000)]


SIMULATED = [{"id": "c-1", "name": "local", "kind": "local"}, {"id": "c-2", "name": "demo", "kind": "simulated"}]


def test_nodes_are_added_changed_and_removed(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": SIMULATED}))
    api.on("POST", "/nodes", ACCEPTED)
    node = {"name": "gpu-7", "clusterId": "c-2", "clusterName": "demo"}
    api.on("GET", "/nodes", Reply(body={"nodes": [node]}))
    asked = ("gpu-7", "gpu-8", "--gpus", "8", "--label", "zone=b", "--taint", "a=b:NoSchedule", "--pool", "fast")
    ran = muster("node", "add", *asked, "--extended-resource", "rdma/hca=2")
    assert (ran.code, ran.err) == (0, "2 nodes added to cluster demo\n")
    body = api.requests[-1].body
    assert body["clusterId"] == "c-2"
    [entry] = body["nodes"]
    assert (entry["names"], entry["gpus"], entry["nodePool"]) == (["gpu-7", "gpu-8"], 8, "fast")
    assert entry["taints"] == [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    assert entry["extendedResources"] == [{"resource": "rdma/hca", "amount": 2}]
    api.on("PATCH", "/nodes/c-2/gpu-7", ACCEPTED)
    changes = ("--gpus", "4", "--label", "zone-", "--taint", "a:NoSchedule-", "--extended-resource", "rdma/hca-")
    assert muster("node", "set", "gpu-7", *changes).code == 0
    assert api.requests[-1].body == {
        "gpus": 4,
        "labels": [{"name": "zone", "exclude": True}],
        "taints": [{"key": "a", "value": "", "effect": "NoSchedule", "exclude": True}],
        "extendedResources": [{"resource": "rdma/hca", "exclude": True}],
    }
    api.on("PATCH", "/nodes/c-2/gpu-7", Reply(202, {"code": 202, "message": "node gpu-7 was so already"}))
    assert muster("node", "set", "gpu-7", "--label", "nosuch-").err == (
        "node gpu-7 of cluster demo is so already: nothing was changed\n"
    )
    issues = [
        {"field": "cpuCores", "details": "must be at least 0.001, got 0"},
        {"field": "labels[0].name", "details": "is no key"},
    ]
    refused = {"code": 400, "message": "2 things are wrong with the request", "complianceIssues": issues}
    api.on("PATCH", "/nodes/c-2/gpu-7", Reply(400, refused))
    ran = muster("node", "set", "gpu-7", "--cpu-cores", "0", "--label", "a b=c")
    assert "cpuCores (--cpu-cores): must be at least 0.001" in ran.err
    assert "labels[0].name (--label): is no key" in ran.err
    api.on("PATCH", "/nodes/c-2/gpu-7", Reply(409, {"code": 409, "message": "real", "details": "not_simulated"}))
    assert muster("node", "set", "gpu-7", "--gpus", "3").err == "muster: real\n  code: not_simulated\n"
    assert (
        "--memory: 512 is 512 bytes, and must be at least 1Mi\n  → write 512Gi or 512Mi"
        in muster("node", "set", "gpu-7", "--memory", "512").err
    )
    api.on("GET", "/nodes/c-2/gpu-7/pods", Reply(body={"reserved": 3, "pods": []}))
    api.on("DELETE", "/nodes/c-2/gpu-7", ACCEPTED)
    ran = muster("node", "remove", "gpu-7", "--dry-run")
    assert "3 pods would end with node gpu-7 of cluster demo; nothing was removed" in ran.err
    assert muster("node", "remove", "gpu-7").err == "node gpu-7 of cluster demo removed\n"
    assert len(api.asked("DELETE", "/nodes/c-2/gpu-7")) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "n", "--cluster", "local"), "cluster local is of kind local: its agent reports its nodes"),
        (("add", "gpu-7", "--cluster", "demo", "--dry-run"), "already has nodes of these names: gpu-7"),
        (("add",), "give names of nodes, or a file with --nodes"),
        (("add", "n", "--gpu-model", "H100"), "--gpu-model needs nodes with GPUs"),
        (("add", "n", "--label", "a"), "--label: 'a' is not KEY=VALUE"),
        (("add", "n", "--gpus", "many"), "--gpus: 'many' is not a whole number"),
        (("add", "--nodes", "f", "--gpus", "1"), "--gpus goes with names"),
        (("set", "gpu-7"), "give something to change"),
        (("set", "gpu-7", "--taint", "a-"), "is not KEY=VALUE:EFFECT or KEY:EFFECT, or KEY:EFFECT-"),
        (("set", "gpu-7", "--extended-resource", "a/b=c"), "'c' is not a whole number"),
    ],
)
def test_what_cannot_be_done_to_nodes_is_refused_by_name(
    api: ShapeServer, muster: Any, arguments: tuple[str, ...], told: str
) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": SIMULATED}))
    api.on("GET", "/nodes", Reply(body={"nodes": [{"name": "gpu-7", "clusterId": "c-2", "clusterName": "demo"}]}))
    ran = muster("node", *arguments)
    assert ran.code in {2, 5}
    assert told in ran.err


def test_the_trace_s_own_node_list_is_read_whole(api: ShapeServer, muster: Any) -> None:
    listed = openb.rows(openb.NODES)
    api.on("POST", "/clusters", Reply(202, {"id": "c-2", "name": "openb"}))
    assert muster("cluster", "add", "openb", "--nodes", str(openb.FOLDER / f"{openb.NODES}.csv")).code == 0
    names = [name for group in api.requests[-1].body["simulatedNodes"] for name in group["names"]]
    assert len(names) == len(set(names)) == len(listed)


def test_settings_of_clusters_projects_and_pools(api: ShapeServer, muster: Any) -> None:
    api.on("PATCH", "/clusters/c-1", ACCEPTED)
    assert muster("cluster", "set", "local", "--ownership-protection", "on").code == 0
    assert api.requests[-1].body == {"ownershipProtection": True}
    api.on("PUT", "/org-unit/projects/p-1", ACCEPTED)
    security = {"podSecurity": "restricted", "privileged": False}
    assert muster("project", "set", "default", "--gpu-quota", "none").code == 0
    assert api.requests[-1].body == {"gpuQuota": None, "nodePools": ["a"], **security}
    assert muster("project", "set", "default", "--node-pools", "b, c").code == 0
    assert api.requests[-1].body == {"gpuQuota": 4.0, "nodePools": ["b", "c"], **security}
    assert muster("project", "set", "default", "--pod-security", "none").code == 0
    loose = security | {"podSecurity": None}
    assert api.requests[-1].body == {"gpuQuota": 4.0, "nodePools": ["a"], **loose}
    assert muster("project", "set", "default", "--privileged", "on").code == 0
    assert api.requests[-1].body == {"gpuQuota": 4.0, "nodePools": ["a"], **security, "privileged": True}
    assert "--privileged: 'maybe' is" in muster("project", "set", "default", "--privileged", "maybe").err
    api.on("POST", "/org-unit/projects", Reply(202, {"id": "p-2", "name": "vision"}))
    assert muster("project", "create", "vision", "--gpu-quota", "1.5").code == 0
    assert api.requests[-1].body == {"name": "vision", "gpuQuota": 1.5}
    api.on("POST", "/node-pools", ACCEPTED)
    nodes = [{"labels": {"gpu": "a100"}}, {"labels": {"gpu": "a100", "b": ""}}, {"labels": {"gpu": "t4"}}, {}]
    api.on("GET", "/nodes", Reply(body={"nodes": nodes}))
    ran = muster("nodepool", "add", "fast", "--label", "gpu=a100")
    assert (ran.code, ran.err) == (0, "node pool fast of cluster local set; 2 of 4 nodes carry gpu=a100 now\n")
    asked = api.asked("POST", "/node-pools")[0].body
    assert asked == {"clusterId": "c-1", "name": "fast", "labelKey": "gpu", "labelValue": "a100"}
    assert api.asked("GET", "/nodes")[0].query["clusterId"] == ["c-1"]
    ran = muster("nodepool", "add", "fast", "--label", "gpu=a1000")
    assert "0 of 4 nodes carry gpu=a1000 now; they have gpu=a100, gpu=t4" in ran.err
    ran = muster("nodepool", "add", "fast", "--label", "model=t4")
    assert "0 of 4 nodes carry model=t4 now; `muster node list -o json` shows their labels" in ran.err
    api.on("GET", "/nodes", Reply(body={"nodes": []}))
    assert "it has no nodes yet" in muster("nodepool", "add", "fast", "--label", "model=t4").err


def test_a_setting_that_somebody_else_changed_meanwhile_is_not_put_back(api: ShapeServer, muster: Any) -> None:
    settings = {"gpuQuota": 4.0, "nodePools": ["a"], "podSecurity": None, "privileged": False}
    version = 7

    def read(_: Request) -> Reply:
        return Reply(body={"id": "p-1", "name": "default", **settings}, headers={"X-Version": str(version)})

    def change(request: Request) -> Reply:
        nonlocal version
        if version == 7:  # somebody else is faster
            settings["gpuQuota"], version = 5.0, 8
        if request.headers.get("if-match") != str(version):
            return Reply(412, {"code": 412, "message": "read it again", "details": "version_moved"})
        settings.update(request.body)
        return ACCEPTED

    api.on("GET", "/org-unit/projects/p-1", read)
    api.on("PUT", "/org-unit/projects/p-1", change)
    assert muster("project", "set", "default", "--pod-security", "restricted").code == 0
    assert settings == {"gpuQuota": 5.0, "nodePools": ["a"], "podSecurity": "restricted", "privileged": False}


def test_set_without_a_setting_makes_the_default_of_the_context(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert muster("context", "add", "here", "--url", api.url, "--token", "t").code == 0
    monkeypatch.delenv("MUSTER_URL")
    assert muster("project", "set", "default").code == 0
    assert muster("cluster", "set", "local").code == 0
    shown = muster("context", "show", "-o", "json").json()
    assert (shown["project"], shown["cluster"]) == ("default", "local")


ANY = "00000000-0000-0000-0000-000000000000"
LOCAL = {"id": "c-1", "name": "local", "kind": "local"}
DEMO = {"id": "c-2", "name": "demo", "kind": "simulated"}
LAB = {"id": "c-3", "name": "lab", "kind": "kubernetes"}


@pytest.mark.parametrize(
    ("clusters", "given", "sent"),
    [
        pytest.param([LOCAL], [], "c-1", id="the only one"),
        pytest.param([LOCAL, DEMO], [], ANY, id="of several the scheduler chooses"),
        pytest.param([LAB, DEMO], [], ANY, id="of whatever kinds"),
        pytest.param([LAB, DEMO], ["--cluster", "demo"], "c-2", id="unless one is named"),
        pytest.param([LOCAL], ["--cluster", "any"], ANY, id="and where it is asked to"),
        pytest.param([LOCAL, dict(DEMO, name="any")], ["--cluster", "any"], "c-2", id="a cluster of that name is one"),
        pytest.param([LOCAL, LAB], [], "c-1", id="beside Kubernetes this machine"),
        pytest.param([LOCAL, LAB], ["-g", "2"], "c-1", id="where it has the GPUs"),
        pytest.param([LOCAL, LAB], ["-g", "4"], ANY, id="and else wherever there are as many"),
    ],
)
def test_where_no_cluster_is_named_the_scheduler_chooses_among_several(
    api: ShapeServer, muster: Any, clusters: list[dict[str, str]], given: list[str], sent: str
) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": clusters}))
    api.on("GET", "/nodes", Reply(body={"nodes": [{"name": "here", "clusterId": "c-1", "capacity": {"gpus": 2}}]}))
    assert muster("training", "submit", "hello", "-i", "a", *given).code == 0
    assert api.requests[-1].body["clusterId"] == sent


def test_a_default_cluster_is_one_that_is_named(api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": [LOCAL, DEMO]}))
    assert muster("context", "add", "here", "--url", api.url, "--token", "t").code == 0
    monkeypatch.delenv("MUSTER_URL")
    assert muster("cluster", "set", "demo").code == 0
    assert muster("training", "submit", "hello", "-i", "a").code == 0
    assert api.requests[-1].body["clusterId"] == "c-2"
    assert muster("training", "submit", "hello", "-i", "a", "--cluster", "any").code == 0
    assert api.requests[-1].body["clusterId"] == ANY


def test_code_is_sent_to_a_cluster_so_of_several_one_must_be_named(
    api: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": [LAB, DEMO]}))
    ran = muster("training", "submit", "hello", "-i", "a", "--code", str(tmp_path), "--", "ls")
    assert ran.code == 2
    assert "there are several clusters: lab, demo" in ran.err
    assert "--cluster" in ran.err


def test_files_that_name_no_cluster_are_for_any(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": [LAB, DEMO]}))
    file = tmp_path / "w.yaml"
    one = "kind: Training\nname: {}\nspec:\n  image: i\n"
    file.write_text(f"{one.format('w')}---\n{one.format('v')}clusterId: any\n")
    api.on("POST", "/workloads:batch", Reply(202, {"items": [{"code": 202, "id": WORKLOAD_ID} for _ in range(2)]}))
    ran = muster("apply", "-f", str(file))
    assert ran.code == 0, ran.err
    items = api.asked("POST", "/workloads:batch")[0].body["items"]
    assert [one["clusterId"] for one in items] == [ANY, ANY]


def test_a_pool_that_is_set_or_removed_is_told_with_its_cluster(api: ShapeServer, muster: Any) -> None:
    """Where there are several clusters and none is named, that of this machine is meant."""
    clusters = [{"id": "c-1", "name": "local", "kind": "local"}, {"id": "c-2", "name": "demo", "kind": "simulated"}]
    api.on("GET", "/clusters", Reply(body={"clusters": clusters}))
    api.on("POST", "/node-pools", ACCEPTED)
    api.on("DELETE", "/node-pools/c-1/fast", ACCEPTED)
    api.on("GET", "/node-pools", Reply(body={"nodePools": [{"name": "fast", "clusterId": "c-1"}]}))
    assert "node pool fast of cluster local set" in muster("nodepool", "add", "fast", "--label", "a=b").err
    assert "node pool fast of cluster local removed" in muster("nodepool", "remove", "fast").err


def test_simulated_nodes_of_a_cluster_have_names_that_nodes_may_have(api: ShapeServer, muster: Any) -> None:
    api.on("POST", "/clusters", ACCEPTED)
    assert muster("cluster", "add", "Über uns!", "--simulated", "2x8").code == 0
    body = api.requests[-1].body
    assert (body["name"], body["simulatedNodes"][0]["names"]) == ("Über uns!", ["ber-uns-0", "ber-uns-1"])
