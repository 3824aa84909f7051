"""What follows from the ports and URLs that a workload asks for: who may open one, what it is called, which of its pods
it leads to. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from events.workload.fields.connections import AuthorizationType, ExposedUrl, Port
from events.workload.pod_sets import ContainerPort

DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_NOT_IN_LABEL: Final = re.compile(r"[^a-z0-9]+")
MOST_NAME_CHARACTERS: Final = 40
"""Of the workload's name in a generated address: with a port and an id it still fits 63 characters."""
ID_CHARACTERS: Final = 12
"""Of the workload's id: nobody can guess one, and take the address before its workload is there."""
PORT_VARIABLE: Final = "MUSTER_PORT_"
"""Before the number of a container port: the variable in a pod's environment that says on which port it must listen for
it."""
_USUAL_PORTS: Final = {"http": 80, "https": 443}
FIRST_NODE_PORT: Final = 30_000
LAST_NODE_PORT: Final = 32_767


class Access(NamedTuple):
    """Who may open a URL."""

    type: AuthorizationType
    members: tuple[str, ...] = ()
    """Users or groups; of everybody who has signed in, none."""


def access_of(url: ExposedUrl) -> Access:
    """R11: the type decides which list counts; without one, the list that is there."""
    users, groups = url.authorized_users, url.authorized_groups
    match url.authorization_type:
        case "authorizedUsers":
            return Access("authorizedUsers", users)
        case "authorizedGroups":
            return Access("authorizedGroups", groups)
        case "authenticatedUsers":
            return Access("authenticatedUsers")
        case None:
            if users and groups:
                # Rules refuse it at submission; whoever stored it all the same lets nobody in by it.
                return Access("authorizedUsers")
            if users:
                return Access("authorizedUsers", users)
            return Access("authorizedGroups", groups) if groups else Access("authenticatedUsers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAddress:
    """Where the proxy is reached: each URL is one name before its domain."""

    scheme: str
    domain: str
    """In small letters."""
    port: int | None
    """None: the scheme's usual one."""

    def url(self, label: str) -> str:
        return f"{self.scheme}://{label}.{self.domain}{'' if self.port is None else f':{self.port}'}"

    def label(self, url: str) -> str | None:
        """The name before the domain in a URL that a person gave; None where it is no address of the proxy."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return None
        fit = parts.scheme == self.scheme and parts.path in ("", "/")
        fit = fit and (None if port == _USUAL_PORTS.get(parts.scheme) else port) == self.port
        fit = fit and not (parts.query or parts.fragment or "@" in parts.netloc or "\\" in url) and url.isprintable()
        return self.label_of_host(parts.hostname or "") if fit else None

    def label_of_host(self, host: str) -> str | None:
        """Of a host name without its port."""
        label, dot, domain = host.lower().partition(".")
        return label if dot and domain == self.domain and DNS_LABEL.match(label) else None


def proxy_address(url: str) -> ProxyAddress | None:
    """From the setting; None where it is empty. Raises ValueError where it is no address of a proxy."""
    if not url:
        return None
    parts = urlsplit(url)
    domain = (parts.hostname or "").lower()
    if parts.scheme not in {"http", "https"} or not domain or parts.path not in ("", "/") or parts.query:
        raise ValueError(f"{url!r} is no address of a proxy; write it as https://apps.example.com")
    if not all(map(DNS_LABEL.match, domain.split("."))) or domain.replace(".", "").isdigit():
        raise ValueError(f"{url!r} must have the name of a domain: URLs are names before it")
    # As browsers write it.
    port = None if parts.port == _USUAL_PORTS[parts.scheme] else parts.port
    return ProxyAddress(scheme=parts.scheme, domain=domain, port=port)


def label_of(url: ExposedUrl, workload_name: str, workload_id: str) -> str:
    """The name before the proxy's domain. One that a person gave is in its URL, whatever the domain is by now."""
    if url.url is not None:
        return (urlsplit(url.url).hostname or "").partition(".")[0]
    name = _NOT_IN_LABEL.sub("-", workload_name.lower())[:MOST_NAME_CHARACTERS].strip("-")
    short = workload_id.replace("-", "")[:ID_CHARACTERS]
    return "-".join(filter(None, (name, str(url.container), short)))


def asked_labels(urls: Iterable[ExposedUrl]) -> tuple[str, ...]:
    """Names before the proxy's domain that people gave."""
    return tuple(label_of(url, "", "") for url in urls if url.url is not None and not url.exclude)


def container_ports(urls: Iterable[ExposedUrl], ports: Iterable[Port]) -> tuple[ContainerPort, ...]:
    """Every port that pods of the workload listen on, in order, each once."""
    found = {url.container: ContainerPort(container=url.container) for url in urls if url.container is not None}
    for port in ports:
        if port.container is not None:
            found[port.container] = ContainerPort(
                container=port.container, service=port.service_type, external=port.external or 0
            )
    return tuple(found[number] for number in sorted(found))


def called(item: ExposedUrl | Port) -> str:
    """What people call a URL or a port of a workload: its name, that of its tool, else its port."""
    return item.name or item.tool_name or f"{'url' if isinstance(item, ExposedUrl) else 'port'}-{item.container}"
