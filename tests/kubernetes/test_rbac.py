"""What deploy/kubernetes gives the agent and the pods that hold shared devices, on a real API server (log.md 6.5).

Issue section 2.6: the agent's token can do what it needs and nothing else.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.admin import Admin, AdminError
from development.stack import until
from muster.cli.agent_manifests import agent
from services.agent.backends.kubernetes.act.manifests import reservation_manifest
from services.agent.backends.kubernetes.configuration import RESERVATION_ACCOUNT
from services.proxy.service import bounds_of
from services.runtime.process.settings import Settings

pytestmark = pytest.mark.kubernetes

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
GOLDEN = Path(__file__).parent / "golden" / "rights.yaml"
OWN, OTHER, PROXY = "muster-system", "kube-system", "ingress-muster"
PROJECT, PREPARED = "muster-rbac", "muster-prepared"
"""Namespaces of projects: one that is in use, and one that an administrator made and nothing was yet done with."""
CONTAINER = {
    "name": "main",
    "image": "python:3.13",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
ENFORCE = "pod-security.kubernetes.io/enforce"
OURS = {"muster.dev/cluster": "c"}


def pod(labels: dict[str, str], *, account: str = "default", name: str = "p") -> dict[str, Any]:
    spec = {"containers": [CONTAINER], "securityContext": RESTRICTED, "serviceAccountName": account}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def service(labels: dict[str, str], *, name: str = "s") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"clusterIP": "None"}}


def config_map(labels: dict[str, str], *, name: str = "m") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "binaryData": {"part": "AAAA"}}


def secret(labels: dict[str, str], *, name: str = "muster-credentials-s", type_: str = "Opaque") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "type": type_, "data": {"variable.TOKEN": "AAAA"}}


def claim(labels: dict[str, str], *, name: str = "v") -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


WAYS = ("exec?command=ls&container=main", "attach?container=main", "portforward?ports=80")
POD, OUR_POD = pod({}), pod(OURS)
ROLE_REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"

NEEDED: list[tuple[str, str, Any]] = [
    ("GET", "/api/v1/nodes", None),
    ("GET", "/api/v1/namespaces", None),
    ("GET", f"/api/v1/namespaces/{OTHER}", None),
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "muster-new", "labels": {ENFORCE: "restricted"}}}),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}", {"metadata": {"labels": {"muster.dev/project": "p"}}}),
    ("PATCH", f"/api/v1/namespaces/{PREPARED}", {"metadata": {"labels": {**OURS, ENFORCE: "baseline"}}}),
    ("GET", "/api/v1/pods", None),
    ("POST", f"/api/v1/namespaces/{PROJECT}/pods", OUR_POD),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}/pods/ours", {"metadata": {"annotations": {"a": "b"}}}),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/pods/ours", None),
    ("POST", f"/api/v1/namespaces/{OWN}/pods", pod(OURS, account="muster-gpu-reservation")),
    ("GET", "/api/v1/events", None),
    ("POST", f"/api/v1/namespaces/{PROJECT}/services", service(OURS)),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/services/ours", None),
    ("POST", f"/api/v1/namespaces/{PROJECT}/configmaps", config_map(OURS)),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/configmaps/ours", None),
    ("POST", f"/api/v1/namespaces/{PROJECT}/secrets", secret(OURS)),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/secrets/muster-credentials-ours", None),
    ("GET", "/api/v1/persistentvolumeclaims", None),
    ("POST", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims", claim(OURS)),
    ("GET", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims/theirs", None),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims/ours", {"metadata": {"annotations": {"a": "b"}}}),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims/ours", None),
    ("GET", f"/api/v1/namespaces/{OWN}/configmaps", None),
    ("POST", f"/api/v1/namespaces/{OWN}/configmaps", config_map(OURS)),
    ("PATCH", f"/api/v1/namespaces/{OWN}/configmaps/ours", {"data": {"a": "b"}}),
]
REFUSED: list[tuple[str, str, Any]] = [
    ("GET", "/api/v1/secrets", None),
    ("GET", f"/api/v1/namespaces/{OWN}/secrets", None),
    ("GET", f"/api/v1/namespaces/{OWN}/secrets/muster-agent-connection", None),
    ("GET", f"/api/v1/namespaces/{OTHER}/secrets/s", None),
    ("GET", f"/api/v1/namespaces/{PROJECT}/secrets", None),
    ("GET", f"/api/v1/namespaces/{PROJECT}/secrets/muster-credentials-ours", None),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}/secrets/muster-credentials-ours", {"data": {"a": "AAAA"}}),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/secrets", None),
    ("GET", f"/api/v1/namespaces/{OTHER}/configmaps", None),
    ("GET", f"/api/v1/namespaces/{PROJECT}/configmaps/ours", None),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}/configmaps/ours", {"data": {"a": "b"}}),
    ("POST", f"/api/v1/namespaces/{OTHER}/pods/p/exec?command=ls", None),
    ("POST", f"/api/v1/namespaces/{OTHER}/pods/p/attach", None),
    ("POST", f"/api/v1/namespaces/{OTHER}/pods/p/portforward", None),
    *(("GET", f"/api/v1/namespaces/{PROJECT}/pods/ours/{way}", None) for way in WAYS),
    ("PATCH", f"/api/v1/namespaces/{OTHER}/pods/p/ephemeralcontainers", {}),
    ("PATCH", f"/api/v1/namespaces/{OTHER}/pods/p/status", {}),
    ("DELETE", f"/api/v1/namespaces/{OTHER}/pods", None),
    ("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "rules": []}),
    ("POST", f"{RBAC}/clusterrolebindings", {"metadata": {"name": "r"}, "roleRef": ROLE_REF}),
    ("POST", f"{RBAC}/namespaces/{OWN}/roles", {"metadata": {"name": "r"}, "rules": []}),
    ("POST", f"{RBAC}/namespaces/{OWN}/rolebindings", {"metadata": {"name": "r"}, "roleRef": ROLE_REF}),
    ("PATCH", f"{RBAC}/clusterroles/muster-agent", {"rules": [{"apiGroups": ["*"], "resources": ["*"]}]}),
    ("DELETE", f"/api/v1/namespaces/{OWN}", None),
    ("DELETE", "/api/v1/namespaces/default", None),
    ("PATCH", "/api/v1/nodes/n", {"spec": {"unschedulable": True}}),
    ("POST", "/api/v1/nodes", {"metadata": {"name": "n"}}),
    ("DELETE", "/api/v1/nodes/n", None),
    ("GET", "/api/v1/nodes/n/proxy/pods", None),
    ("GET", f"/api/v1/namespaces/{OTHER}/services", None),
    ("GET", f"/api/v1/namespaces/{OTHER}/services/s/proxy/", None),
    ("POST", f"/api/v1/namespaces/{OWN}/serviceaccounts", {"metadata": {"name": "a"}}),
    ("POST", f"/api/v1/namespaces/{OTHER}/serviceaccounts/default/token", {"spec": {}}),
    ("POST", f"/apis/apps/v1/namespaces/{OTHER}/deployments", {"metadata": {"name": "d"}}),
    ("GET", "/apis/apps/v1/deployments", None),
    ("POST", f"/api/v1/namespaces/{OTHER}/events", {"metadata": {"name": "e"}}),
]
OUT_OF_POLICY: list[tuple[str, str, Any, str]] = [
    ("POST", f"/api/v1/namespaces/{PROXY}/pods", OUR_POD, f"and not in {PROXY}"),
    (
        "POST",
        "/api/v1/namespaces",
        {"metadata": {"name": "mine", "labels": {ENFORCE: "restricted"}}},
        "and not in mine",
    ),
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "muster-new"}}, "restricted or baseline"),
    (
        "POST",
        "/api/v1/namespaces",
        {"metadata": {"name": "muster-new", "labels": {ENFORCE: "privileged"}}},
        "restricted or baseline",
    ),
    ("PATCH", f"/api/v1/namespaces/{OTHER}", {"metadata": {"labels": OURS}}, "and not in kube-system"),
    ("PATCH", f"/api/v1/namespaces/{OWN}", {"metadata": {"labels": OURS}}, "and not in muster-system"),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}", {"metadata": {"labels": {ENFORCE: "baseline"}}}, "changes it nowhere"),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}", {"metadata": {"labels": {ENFORCE: None}}}, "changes it nowhere"),
    ("PATCH", f"/api/v1/namespaces/{PREPARED}", {"metadata": {"labels": {ENFORCE: "privileged"}}}, "restricted or"),
    ("POST", f"/api/v1/namespaces/{OTHER}/pods", OUR_POD, "and not in kube-system"),
    ("POST", f"/api/v1/namespaces/{PREPARED}/pods", OUR_POD, "has no label"),
    ("POST", f"/api/v1/namespaces/{PROJECT}/pods", POD, "somebody else's"),
    ("PATCH", f"/api/v1/namespaces/{PROJECT}/pods/theirs", {"metadata": {"labels": OURS}}, "somebody else's"),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/pods/theirs", None, "somebody else's"),
    ("POST", f"/api/v1/namespaces/{PROJECT}/pods", pod(OURS, account="powerful"), "under the account default"),
    ("POST", f"/api/v1/namespaces/{OWN}/pods", pod(OURS, account="muster-agent"), "muster-gpu-reservation"),
    ("POST", f"/api/v1/namespaces/{OTHER}/services", service(OURS), "and not in kube-system"),
    ("POST", f"/api/v1/namespaces/{OWN}/services", service(OURS), "and not in muster-system"),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/services/theirs", None, "somebody else's"),
    ("POST", f"/api/v1/namespaces/{OTHER}/persistentvolumeclaims", claim(OURS), "and not in kube-system"),
    ("POST", f"/api/v1/namespaces/{OWN}/persistentvolumeclaims", claim(OURS), "and not in muster-system"),
    ("POST", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims", claim({}), "somebody else's"),
    (
        "PATCH",
        f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims/theirs",
        {"metadata": {"labels": OURS}},
        "somebody else's",
    ),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims/theirs", None, "somebody else's"),
    ("POST", f"/api/v1/namespaces/{OTHER}/configmaps", config_map(OURS), "and not in kube-system"),
    ("POST", f"/api/v1/namespaces/{PROJECT}/configmaps", config_map({}), "somebody else's"),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/configmaps/theirs", None, "somebody else's"),
    ("DELETE", f"/api/v1/namespaces/{OTHER}/configmaps/ours", None, "and not in kube-system"),
    ("POST", f"/api/v1/namespaces/{OTHER}/secrets", secret(OURS), "and not in kube-system"),
    ("POST", f"/api/v1/namespaces/{OWN}/secrets", secret(OURS), "and not in muster-system"),
    ("POST", f"/api/v1/namespaces/{PROJECT}/secrets", secret({}), "somebody else's"),
    ("POST", f"/api/v1/namespaces/{PROJECT}/secrets", secret(OURS, name="s"), "are called muster-credentials-"),
    (
        "POST",
        f"/api/v1/namespaces/{PROJECT}/secrets",
        secret(OURS, type_="kubernetes.io/bootstrap-token"),
        "nothing that Kubernetes adds to",
    ),
    ("DELETE", f"/api/v1/namespaces/{PROJECT}/secrets/muster-credentials-theirs", None, "somebody else's"),
    ("DELETE", f"/api/v1/namespaces/{OWN}/configmaps/ours", None, "and not in muster-system"),
]
"""What rights allow and the policy does not, and words of the refusal."""


def documents(*names: str) -> list[dict[str, Any]]:
    files = [FOLDER / name for name in names] or sorted(FOLDER.glob("*.yaml"))
    found = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return [document for document in found if document["kind"] != "Kustomization"]


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> ControlPlane:
    control_plane.apply(documents("namespace.yaml", "accounts.yaml", "roles.yaml", "reservations.yaml", "policy.yaml"))
    control_plane.apply([one for one in documents("proxy.yaml") if one["kind"] == "Namespace"])
    admin = control_plane.admin
    admin("POST", "/api/v1/namespaces", {"metadata": {"name": PREPARED}})
    admin("POST", "/api/v1/namespaces", {"metadata": {"name": PROJECT, "labels": {**OURS, ENFORCE: "restricted"}}})
    for account in ("default", "powerful"):
        with contextlib.suppress(AdminError):  # Kubernetes makes the first by itself
            admin("POST", f"/api/v1/namespaces/{PROJECT}/serviceaccounts", {"metadata": {"name": account}})
    for name, labels in (("ours", OURS), ("theirs", {})):
        admin("POST", f"/api/v1/namespaces/{PROJECT}/pods", pod(labels, name=name))
        admin("POST", f"/api/v1/namespaces/{PROJECT}/services", service(labels, name=name))
        admin("POST", f"/api/v1/namespaces/{PROJECT}/configmaps", config_map(labels, name=name))
        admin("POST", f"/api/v1/namespaces/{PROJECT}/persistentvolumeclaims", claim(labels, name=name))
        admin("POST", f"/api/v1/namespaces/{PROJECT}/secrets", secret(labels, name=f"muster-credentials-{name}"))
    for namespace in (OWN, OTHER):
        admin("POST", f"/api/v1/namespaces/{namespace}/configmaps", config_map(OURS, name="ours"))
    method, path, body, _ = OUT_OF_POLICY[0]
    agent = as_account(control_plane, "muster-agent")
    until(lambda: status(agent, method, path, body) == 403, 30, lambda: "the policy is not in force")
    return control_plane


def as_account(plane: ControlPlane, account: str) -> Admin:
    return Admin(url=plane.url, ca_file=plane.ca_file, token=plane.service_account_token(OWN, account))


def rights(account: Admin, namespace: str) -> dict[str, str]:
    """Verbs per resource that the server says this account has there."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    review = account.call("POST", path, {"spec": {"namespace": namespace}})["status"]
    assert not review["incomplete"]
    verbs: dict[str, set[str]] = {}
    for rule in review["resourceRules"]:
        assert "resourceNames" not in rule
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs.setdefault(f"{resource}.{group}".rstrip("."), set()).update(rule["verbs"])
    return {resource: " ".join(sorted(verbs[resource])) for resource in sorted(verbs)}


def call(account: Admin, method: str, path: str, body: Any) -> Any:
    """Whether it would be done: nothing is."""
    return account.call(method, path, body, **({} if method == "GET" or "?" in path else {"dryRun": "All"}))


def status(account: Admin, method: str, path: str, body: Any) -> int:
    try:
        call(account, method, path, body)
    except AdminError as error:
        return error.status
    return 200


def test_the_rights_are_exactly_those_of_the_golden(installed: ControlPlane) -> None:
    """Where the server gives everybody something more, the golden shows it, too."""
    found = {
        account: {namespace: rights(as_account(installed, account), namespace) for namespace in (OWN, OTHER)}
        for account in ("muster-agent", RESERVATION_ACCOUNT)
    }
    golden = yaml.safe_load(GOLDEN.read_text())
    assert found == {account: golden[account] for account in found}


@pytest.mark.parametrize(("method", "path", "body"), NEEDED)
def test_the_agent_can_do_what_it_needs(installed: ControlPlane, method: str, path: str, body: Any) -> None:
    assert status(as_account(installed, "muster-agent"), method, path, body) == 200


@pytest.mark.parametrize(("method", "path", "body"), REFUSED)
def test_everything_else_is_refused(installed: ControlPlane, method: str, path: str, body: Any) -> None:
    assert status(as_account(installed, "muster-agent"), method, path, body) == 403


@pytest.mark.parametrize(("method", "path", "body", "words"), OUT_OF_POLICY)
def test_the_policy_refuses_what_rights_cannot(
    installed: ControlPlane, method: str, path: str, body: Any, words: str
) -> None:
    with pytest.raises(AdminError, match=words) as refused:
        call(as_account(installed, "muster-agent"), method, path, body)
    assert refused.value.status == 403
    assert "ValidatingAdmissionPolicy 'muster-agent'" in str(refused.value)


@pytest.mark.parametrize(("method", "path", "body"), [each[:3] for each in OUT_OF_POLICY])
def test_the_policy_is_for_the_agent_alone(installed: ControlPlane, method: str, path: str, body: Any) -> None:
    admin = Admin(url=installed.url, ca_file=installed.ca_file, token=installed.admin_token)
    assert status(admin, method, path, body) == 200


@pytest.fixture
def with_ways(installed: ControlPlane) -> Iterator[ControlPlane]:
    installed.apply(documents("ways.yaml"))
    account = as_account(installed, "muster-agent")
    path = f"/api/v1/namespaces/{PROJECT}/pods/ours/{WAYS[0]}"
    until(lambda: status(account, "GET", path, None) != 403, 30, lambda: "the role is not in force")
    yield installed
    for document in reversed(documents("ways.yaml")):
        installed.admin("DELETE", f"{RBAC}/{document['kind'].lower()}s/{document['metadata']['name']}")
    until(lambda: status(account, "GET", path, None) == 403, 30, lambda: "the role is still in force")


def test_the_optional_role_adds_ways_into_pods_and_nothing_else(with_ways: ControlPlane) -> None:
    agent = as_account(with_ways, "muster-agent")
    golden = yaml.safe_load(GOLDEN.read_text())
    for namespace in (OWN, OTHER):
        found = rights(agent, namespace)
        assert found == golden["muster-agent"][namespace] | golden["muster-agent-ways"]


def test_with_the_optional_role_ways_lead_into_pods_of_projects_alone(with_ways: ControlPlane) -> None:
    agent = as_account(with_ways, "muster-agent")
    for verb, way in product(("GET", "POST"), WAYS):
        for namespace in (OWN, OTHER):
            with pytest.raises(AdminError, match=f"and not in {namespace}") as refused:
                agent.call(verb, f"/api/v1/namespaces/{namespace}/pods/p/{way}")
            assert refused.value.status == 403
        with pytest.raises(AdminError, match="does not have a host assigned") as late:
            agent.call(verb, f"/api/v1/namespaces/{PROJECT}/pods/ours/{way}")
        assert late.value.status == 400


VOLUMES = "/api/v1/persistentvolumes"
SHARED = "muster-shared-a"
OF_VOLUMES = {"muster.dev/cluster": "c", "muster.dev/data-volume": "d"}
DRIVER, KEY = "sets.csi.example.com", {"namespace": "storage", "name": "key"}
NFS = {"server": "nfs.example.com", "path": "/exports/sets", "readOnly": True}
CSI = {"driver": DRIVER, "volumeHandle": "v-1", "readOnly": True}


def volume(
    source: dict[str, Any], *, name: str = SHARED, labels: dict[str, str] = OF_VOLUMES, claim: Any = None, **spec: Any
) -> dict[str, Any]:
    own = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": PROJECT, "name": name}
    usual = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadOnlyMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": own | (claim or {}),
    }
    return {"metadata": {"name": name, "labels": labels}, "spec": usual | spec | source}


def with_meta(**more: Any) -> dict[str, Any]:
    made = volume({"nfs": NFS})
    return made | {"metadata": made["metadata"] | more}


def told(**attributes: str) -> dict[str, Any]:
    """Of the driver that is named, which is told these attributes."""
    return volume({"csi": CSI | {"volumeAttributes": attributes}})


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "u"}
IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"
ATTRIBUTES = [f"{DRIVER}:fsName", f"{DRIVER}:server=files.example.com"]
SHAREABLE: list[tuple[str, dict[str, Any]]] = [
    ("of NFS", volume({"nfs": NFS}, mountOptions=["nfsvers=4.1", "hard", "ro"])),
    ("of a driver that is named, with a Secret that is", volume({"csi": CSI | {"nodeStageSecretRef": KEY}})),
    *((f"of NFS at {server}", volume({"nfs": NFS | {"server": server}})) for server in ("nas1", "10.0.0.5", "fd00::5")),
    *((f"of NFS, path {path}", volume({"nfs": NFS | {"path": path}})) for path in ("/", "/a.b/c_d-1/")),
    ("with attributes that are named", told(fsName="sets", server="files.example.com")),
    ("with a file system that is usual", volume({"csi": CSI | {"fsType": "ext4"}})),
    ("with an option that is named", volume({"nfs": NFS}, mountOptions=["port=20049"])),
]
NOT_SHAREABLE: list[tuple[str, dict[str, Any], str]] = [
    ("a path of nodes", volume({"hostPath": {"path": "/etc"}}), "of the kinds csi and nfs alone"),
    ("another name", volume({"nfs": NFS}, name="sets"), "somebody else's"),
    ("no labels", volume({"nfs": NFS}, labels={}), "somebody else's"),
    ("no label of a data volume", volume({"nfs": NFS}, labels=OURS), "somebody else's"),
    ("data that goes", volume({"nfs": NFS}, persistentVolumeReclaimPolicy="Delete"), "with the reclaim policy Retain"),
    ("written", volume({"nfs": NFS}, accessModes=["ReadWriteMany"]), "are read alone"),
    ("written, too", volume({"nfs": NFS}, accessModes=["ReadOnlyMany", "ReadWriteMany"]), "are read alone"),
    ("a server that is written to", volume({"nfs": NFS | {"readOnly": False}}), "are read alone"),
    ("a driver that writes", volume({"csi": CSI | {"readOnly": False}}), "are read alone"),
    ("for another namespace", volume({"nfs": NFS}, claim={"namespace": OTHER}), "in a namespace of a project"),
    ("for its own namespace", volume({"nfs": NFS}, claim={"namespace": OWN}), "in a namespace of a project"),
    ("for somebody's claim", volume({"nfs": NFS}, claim={"name": "theirs"}), "for a claim of the same name"),
    ("for anybody", volume({"nfs": NFS}, claimRef=None), "for a claim of the same name"),
    ("of a class", volume({"nfs": NFS}, storageClassName="fast"), "of no storage class"),
    ("of another driver", volume({"csi": CSI | {"driver": "block.example.com"}}), "is not among those whose volumes"),
    *(
        (
            f"with somebody's Secret: {field}",
            volume({"csi": CSI | {field: {"namespace": OTHER, "name": "key"}}}),
            "needs a Secret that is not among those",
        )
        for field in (
            "controllerPublishSecretRef",
            "nodeStageSecretRef",
            "nodePublishSecretRef",
            "controllerExpandSecretRef",
            "nodeExpandSecretRef",
        )
    ),
    *(
        (f"a server that is {server}", volume({"nfs": NFS | {"server": server}}), "no host name")
        for server in (
            "/tmp/x",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "0.0.0.0",
            "::1",
            "0:0::1",
            "::ffff:7f00:1",
        )
    ),
    *(
        (f"a server that is {server}", volume({"nfs": NFS | {"server": server}}), "a loopback one")
        for server in (
            "localhost",
            "LocalHost",
            "localhost.localdomain",
            "ip6-localhost",
            "a.localhost",
            "a,b",
            "-o",
            "a\nb",
        )
    ),
    *(
        (f"a path that is {path!r}", volume({"nfs": NFS | {"path": path}}), "no plain path")
        for path in ("/a/../../etc", "/a/..", "/a/./b", "/a,b", "/a,\nb", "/a b", "/a\\b", "//a")
    ),
    ("an odd port", volume({"nfs": NFS}, mountOptions=["port=22"]), "a mount option that shared volumes cannot"),
    (
        "mount options that kubelet takes before those of the volume",
        with_meta(annotations={"volume.beta.kubernetes.io/mount-options": "bind,suid,dev"}),
        "without annotations",
    ),
    *(
        (f"an annotation {name}", with_meta(annotations={f"pv.kubernetes.io/{name}": "yes"}), "without annotations")
        for name in ("provisioned-by", "bound-by-controller")
    ),
    ("a finalizer", with_meta(finalizers=["example.com/never"]), "without annotations, finalizers"),
    ("an owner", with_meta(ownerReferences=[OWNER]), "without annotations, finalizers, owners"),
    ("a label of others", with_meta(labels=OF_VOLUMES | {"a": "b"}), "and labels of others"),
    *(
        (f"an attribute {key} of its driver", told(**{key: value}), rf"can have \({re.escape(key)}\): an administrator")
        for key, value in (
            ("secretName", "key"),
            ("secretNamespace", OTHER),
            ("mountOptions", "bind"),
            ("kernelMountOptions", "bind"),
            ("share", "/etc"),
            ("server", "elsewhere.example.com"),
            ("FSNAME", "sets"),
            ("server=files.example.com", ""),
            (IDENTITY, "1"),
        )
    ),
    ("an attribute with a line in it", told(fsName="a\nb"), "attributes that are not among"),
    ("a handle with an option in it", volume({"csi": CSI | {"volumeHandle": "v,suid"}}), "volumeHandle"),
    ("a device", volume({"csi": CSI}, volumeMode="Block"), "no devices"),
    ("a file system of choice", volume({"csi": CSI | {"fsType": "overlay"}}), "the file system overlay is not among"),
    (
        "for a namespace without a name",
        volume({"nfs": NFS}, claim={"namespace": "muster-"}),
        "in a namespace of a proj",
    ),
    ("an option of mounts", volume({"nfs": NFS}, mountOptions=["bind"]), "a mount option that shared volumes cannot"),
    ("options in one", volume({"nfs": NFS}, mountOptions=["ro,bind"]), "a mount option that shared volumes cannot"),
]


@pytest.fixture(scope="module")
def with_volumes(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With what an administrator wrote into the policy: a driver, a Secret, attributes and a mount option."""
    found = documents("volumes.yaml")
    words = {
        "drivers": f'["{DRIVER}"]',
        "secrets": f'["{KEY["namespace"]}/{KEY["name"]}"]',
        "attributes": json.dumps(ATTRIBUTES),
        "options": '["port=20049"]',
    }
    for variable in found[0]["spec"]["variables"]:
        variable["expression"] = words.get(variable["name"], variable["expression"])
    installed.apply(found)
    labels = {
        "theirs": {},
        "muster-shared-theirs": {},
        "muster-shared-ours": OF_VOLUMES,
        "muster-shared-lost": OF_VOLUMES,
    }
    for name, own in labels.items():
        policy = "Delete" if name == "muster-shared-lost" else "Retain"
        body = volume({"nfs": NFS}, name=name, labels=own, persistentVolumeReclaimPolicy=policy)
        installed.admin("POST", VOLUMES, body)
    account = as_account(installed, "muster-agent")
    until(lambda: status(account, "POST", VOLUMES, SHAREABLE[1][1]) == 200, 30, lambda: "the role is not in force")
    refused = NOT_SHAREABLE[0][1]
    until(lambda: status(account, "POST", VOLUMES, refused) == 403, 30, lambda: "the policy is not in force")
    yield installed
    for document in reversed(found):
        installed.admin("DELETE", Admin.path_of(account, document))
    until(lambda: status(account, "GET", f"{VOLUMES}/theirs", None) == 403, 30, lambda: "the role is still in force")


def test_without_the_optional_role_volumes_are_nothing_of_the_agents(installed: ControlPlane) -> None:
    """S060."""
    account = as_account(installed, "muster-agent")
    for method, path, body in (
        ("GET", VOLUMES, None),
        ("GET", f"{VOLUMES}/theirs", None),
        ("POST", VOLUMES, SHAREABLE[0][1]),
        ("DELETE", f"{VOLUMES}/muster-shared-ours", None),
    ):
        assert status(account, method, path, body) == 403


@pytest.mark.parametrize("body", [case[1] for case in SHAREABLE], ids=[case[0] for case in SHAREABLE])
def test_with_it_the_agent_makes_volumes_that_are_read(with_volumes: ControlPlane, body: dict[str, Any]) -> None:
    """S060."""
    assert status(as_account(with_volumes, "muster-agent"), "POST", VOLUMES, body) == 200


@pytest.mark.parametrize(
    ("body", "words"), [case[1:] for case in NOT_SHAREABLE], ids=[case[0] for case in NOT_SHAREABLE]
)
def test_with_it_every_other_volume_is_refused(with_volumes: ControlPlane, body: dict[str, Any], words: str) -> None:
    """S060: whoever makes volumes could read what is on every node, and every storage of the cluster."""
    with pytest.raises(AdminError, match=words) as refused:
        call(as_account(with_volumes, "muster-agent"), "POST", VOLUMES, body)
    assert refused.value.status == 403
    assert "ValidatingAdmissionPolicy 'muster-agent-volumes'" in str(refused.value)


def test_with_it_the_agent_deletes_its_own_volumes_alone_and_changes_none(with_volumes: ControlPlane) -> None:
    """S060."""
    account = as_account(with_volumes, "muster-agent")
    assert status(account, "GET", f"{VOLUMES}/theirs", None) == 200
    assert status(account, "DELETE", f"{VOLUMES}/muster-shared-ours", None) == 200
    for name, words in (
        ("theirs", "somebody else's"),
        ("muster-shared-theirs", "somebody else's"),
        ("muster-shared-lost", "reclaim policy Retain"),
    ):
        with pytest.raises(AdminError, match=words):
            call(account, "DELETE", f"{VOLUMES}/{name}", None)
    for method, path, body in (
        ("GET", VOLUMES, None),
        ("DELETE", VOLUMES, None),
        ("PATCH", f"{VOLUMES}/muster-shared-ours", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
    ):
        assert status(account, method, path, body) == 403


def test_a_pod_that_holds_a_device_can_write_notes_on_pods_of_its_namespace_alone(installed: ControlPlane) -> None:
    account = as_account(installed, RESERVATION_ACCOUNT)
    change = {"metadata": {"annotations": {"muster.dev/visible-devices": "GPU-1"}}}
    assert status(account, "PATCH", f"/api/v1/namespaces/{OWN}/pods/none/status", change) == 404
    for method, path, body in [
        ("PATCH", f"/api/v1/namespaces/{OTHER}/pods/none/status", change),
        ("PATCH", f"/api/v1/namespaces/{OWN}/pods/none", change),
        ("GET", f"/api/v1/namespaces/{OWN}/pods", None),
        ("DELETE", f"/api/v1/namespaces/{OWN}/pods/none", None),
        ("GET", f"/api/v1/namespaces/{OWN}/configmaps", None),
        ("GET", f"/api/v1/namespaces/{OWN}/secrets", None),
        ("POST", f"/api/v1/namespaces/{OWN}/pods", POD),
    ]:
        assert status(account, method, path, body) == 403, (method, path)


def test_every_manifest_is_accepted_by_the_server(installed: ControlPlane) -> None:
    admin = Admin(url=installed.url, ca_file=installed.ca_file, token=installed.admin_token)
    made = agent(
        cluster_id="c",
        nats_url="tls://n:4333",
        password="p",
        authority="PEM",
        image="registry.example.com/m:1",
        ways=True,
    )
    for document in [*documents(), *made]:
        if document["metadata"].get("namespace") == "runai-public":
            document["metadata"]["namespace"] = PREPARED  # its own is only tried, so it is not there
        admin.call("APPLY", admin.path_of(document), document, dryRun="All", fieldManager="test", force=True)


def test_the_pods_of_the_agents_namespace_meet_its_own_pod_security(installed: ControlPlane) -> None:
    """The Deployment's pod is judged when it is made, not when the Deployment is."""
    (deployment,) = (document for document in documents("agent.yaml") if document["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    running = {"metadata": {"name": "agent", **template["metadata"]}, "spec": template["spec"]}
    holder = reservation_manifest(
        cluster_id="c", namespace=OWN, node_name="n", device=0, image="muster", service_account=RESERVATION_ACCOUNT
    )
    for pod in (running, holder):
        installed.admin("POST", f"/api/v1/namespaces/{OWN}/pods", pod, dryRun="All")


def test_a_proxy_beside_the_pods_is_one_of_muster_and_meets_the_pod_security_of_its_namespace(
    installed: ControlPlane,
) -> None:
    """S028: it is named as the control plane's is, and what it is told are settings that there are."""
    by_kind = {one["kind"]: one for one in documents("proxy.yaml")}
    template = by_kind["Deployment"]["spec"]["template"]
    running = {"metadata": {"name": "proxy", **template["metadata"]}, "spec": template["spec"]}
    installed.admin("POST", f"/api/v1/namespaces/{PROXY}/pods", running, dryRun="All")
    (container,) = template["spec"]["containers"]
    told = {**by_kind["ConfigMap"]["data"], **{one["name"]: one["value"] for one in container["env"]}}
    settings = Settings(**{name.removeprefix("MUSTER_").lower(): value for name, value in told.items()})
    assert {name.removeprefix("MUSTER_").lower() for name in told} <= Settings.model_fields.keys()
    assert bounds_of(settings).cluster_id == told["MUSTER_PROXY_CLUSTER"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"http": settings.proxy_port, "health": settings.health_port}


def test_the_kustomization_names_every_manifest(installed: ControlPlane) -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    others = {
        "kustomization.yaml",
        "connection.example.yaml",
        "proxy.yaml",
        "runai-public.yaml",
        "volumes.yaml",
        "ways.yaml",
    }
    assert sorted(listed) == sorted(file.name for file in FOLDER.glob("*.yaml") if file.name not in others)
