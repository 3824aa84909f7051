"""The Secret of a pod that needs values of credentials or keys for ssh, and how the pod refers to it. Pure.

A pod's own object says names alone. Its Secret is its dependent: where nobody of Muster is there to delete it,
Kubernetes does once the pod is gone.
"""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from events.cluster_protocol import Login, Registry, SealedValues
from events.ids import name_key
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import Pod

type Manifest = dict[str, Any]

_PULL_KEY: Final = ".dockerconfigjson"
_PULL_TYPE: Final = "kubernetes.io/dockerconfigjson"
_FIT_FOR_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod finds in its Secret, without a value."""

    secret: str
    """Its name."""
    variables: tuple[str, ...] = ()
    pulls: bool = False
    """Whether it pulls its image with it."""
    logins: frozenset[str] = frozenset()
    """Paths of repositories that are cloned with a login."""
    keys: frozenset[str] = frozenset()
    """Paths of those that are cloned with a key for ssh."""
    ssh: tuple[str, ...] = ()
    """Names of the files in the folder with its keys for ssh."""


NOTHING: Final = Needs(secret="")


def needs_of(values: SealedValues, secret: str) -> Needs:
    if not (values.environment or values.registries or values.logins or values.keys or values.ssh):
        return NOTHING
    return Needs(
        secret=secret,
        variables=tuple(values.environment),
        pulls=bool(values.registries),
        logins=frozenset(values.logins),
        keys=frozenset(values.keys),
        ssh=tuple(sorted(values.ssh)),
    )


def variables(needs: Needs) -> Iterator[Manifest]:
    """Of the pod's own container."""
    for name in needs.variables:
        yield _variable(name, needs.secret, _key("variable", name))


def login_variables(needs: Needs, mount_path: str, user: str, password: str) -> list[Manifest]:
    """Of the container that clones what is found at this path; `user` and `password` name the variables."""
    if mount_path not in needs.logins:
        return []
    return [
        _variable(user, needs.secret, _key("user", mount_path)),
        _variable(password, needs.secret, _key("password", mount_path)),
    ]


def key_variables(needs: Needs, mount_path: str, private: str, known_hosts: str) -> list[Manifest]:
    """Likewise, of one over ssh."""
    if mount_path not in needs.keys:
        return []
    return [
        _variable(private, needs.secret, _key("key", mount_path)),
        _variable(known_hosts, needs.secret, _key("hosts", mount_path)),
    ]


def ssh_items(needs: Needs) -> list[Manifest]:
    """Which keys of the Secret are which files of the folder with keys for ssh."""
    return [{"key": _key("ssh", name), "path": name} for name in needs.ssh]


def secret_manifest(pod: Pod, values: SealedValues, name: str, labels: dict[str, str]) -> Manifest:
    """Kept for this pod alone."""
    data = {_key("variable", variable): value for variable, value in values.environment.items()}
    for path, login in values.logins.items():
        data |= {_key("user", path): login.user, _key("password", path): login.password}
    for path, key in values.keys.items():
        data |= {_key("key", path): key.private, _key("hosts", path): key.known_hosts}
    data |= {_key("ssh", name): content for name, content in values.ssh.items()}
    if values.registries:
        data[_PULL_KEY] = _docker_config(values.registries)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": pod.metadata.namespace,
            "labels": labels,
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
            ],
        },
        "type": _PULL_TYPE if values.registries else "Opaque",
        # Another run has another one; and nodes need not watch it.
        "immutable": True,
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def _docker_config(registries: tuple[Registry, ...]) -> str:
    return json.dumps(
        {
            "auths": {
                one.url: {
                    "username": one.user,
                    "password": one.password,
                    **({"email": one.email} if one.email else {}),
                    "auth": _basic(one),
                }
                for one in registries
            }
        }
    )


def _basic(login: Login) -> str:
    return base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _key(kind: str, name: str) -> str:
    """In the Secret: names of variables and paths may have characters that Kubernetes does not take there."""
    return f"{kind}.{name}" if _FIT_FOR_KEY.match(name) else f"{kind}-{name_key(kind, name)}"


def _variable(name: str, secret: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def pull_secret(needs: Needs) -> list[Manifest]:
    return [{"name": needs.secret}] if needs.pulls else []


def secret_name(cluster_id: str, pod: Pod) -> str:
    """Of a pod that was made."""
    return names.secret_name(cluster_id, pod.metadata.labels.pod_key, int(pod.metadata.labels.token))
