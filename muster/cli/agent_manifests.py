"""The manifests of deploy/kubernetes, and those with which one cluster's agent connects. Nothing here calls anybody."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

NAMESPACE: Final = "muster-system"
CONNECTION: Final = "muster-agent-connection"
CA_PATH: Final = "/etc/muster/connection/ca.crt"
IMAGE: Final = "muster"
"""As the manifests name it."""
NATS_PORT: Final = 4222
_LABELS: Final = {"app.kubernetes.io/part-of": "muster"}
_WAYS: Final = "ways.yaml"
_PREPARATION: Final = ("namespace.yaml", "accounts.yaml", "reservations.yaml")

type Manifest = dict[str, Any]


def preparation() -> list[Manifest]:
    """What an agent that runs outside its cluster needs inside: a namespace, and who holds shared devices there."""
    return _read(_PREPARATION)


def agent(
    *, cluster_id: str, nats_url: str, password: str, authority: str, image: str, ways: bool = False
) -> list[Manifest]:
    """Everything that an agent needs which runs in its cluster. `authority`: PEM of the one that signed the servers'
    certificate, where it is one of your own. `ways`: with the rights for ways into pods.
    """
    settings = {"MUSTER_AGENT_CLUSTER": cluster_id, "MUSTER_NATS_URL": nats_url}
    secret = {"password": password}
    if authority:
        settings["MUSTER_NATS_CA_FILE"] = CA_PATH
        secret["ca.crt"] = authority
    listed = yaml.safe_load((_folder() / "kustomization.yaml").read_text())["resources"]
    namespace, *others = _read([*listed, *([_WAYS] if ways else [])])
    for manifest in others:
        if manifest["kind"] == "Deployment":
            _set_image(manifest, image)
        if manifest["kind"] == "NetworkPolicy":
            _open_ports(manifest, nats_url)
    connection = [
        _made("ConfigMap", data=settings),
        _made("Secret", stringData=secret),
    ]
    return [namespace, *connection, *others]


def _folder() -> Path:
    """In the package where it was built into one, else in the source tree."""
    packaged = Path(__file__).parents[1] / "kubernetes_manifests"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "deploy" / "kubernetes"


def _read(files: Iterable[str]) -> list[Manifest]:
    return [manifest for file in files for manifest in yaml.safe_load_all((_folder() / file).read_text())]


def _made(kind: str, **fields: Any) -> Manifest:
    metadata = {"name": CONNECTION, "namespace": NAMESPACE, "labels": dict(_LABELS)}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _set_image(deployment: Manifest, image: str) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    container["image"] = image
    for variable in container["env"]:
        if variable["name"] == "MUSTER_KUBERNETES_RESERVATION_IMAGE":
            variable["value"] = image


def _open_ports(policy: Manifest, nats_url: str) -> None:
    """The servers' own ports in place of the usual one."""
    ports = sorted({urlsplit(url.strip()).port or NATS_PORT for url in nats_url.split(",")})
    for rule in policy["spec"]["egress"]:
        if [port["port"] for port in rule["ports"]] == [NATS_PORT]:
            rule["ports"] = [{"protocol": "TCP", "port": port} for port in ports]
