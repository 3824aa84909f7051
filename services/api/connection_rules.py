"""Rules on ports and exposed URLs: R11, R12, S028 to S031. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from events.cluster import ClusterKind
from events.workload.exposure import FIRST_NODE_PORT, LAST_NODE_PORT, ProxyAddress, access_of
from events.workload.fields.connections import ExposedUrl, Port
from events.workload.spec import TrainingSpec
from services.api.issues import Issue, fault, shown
from services.runtime.identity.member import Member

LAST_PORT: Final = 65_535
MAX_TOOL_TYPE: Final = 63
"""Characters; the contract sets no limit for a URL's, and this one for a port's."""
MAX_SHOWN_GROUPS: Final = 5
_URLS: Final = "spec.exposedUrls"
_PORTS: Final = "spec.ports"


def check_connections(spec: TrainingSpec) -> Iterator[Issue]:
    """R11, R12, R37."""
    yield from _names(_URLS, spec.exposed_urls)
    yield from _names(_PORTS, spec.ports)
    reached: dict[tuple[int | None, str | None], int] = {}
    for index, url in enumerate(spec.exposed_urls):
        if not url.exclude:
            path = f"{_URLS}[{index}]"
            yield from _exposed(path, url)
            place = (None, url.url.rstrip("/").lower()) if url.url is not None else (url.container, None)
            if place in reached:
                what = f"{shown(url.url)}" if url.url is not None else f"container port {url.container} without a url"
                yield fault(path, f"{what} is given twice; leave one out, or give them different urls")
            reached[place] = index
    containers: set[int | None] = set()
    externals: set[int] = set()
    for index, port in enumerate(spec.ports):
        if port.exclude:
            continue
        path = f"{_PORTS}[{index}]"
        yield from _port(path, port)
        if port.container is not None and port.container in containers:
            yield fault(f"{path}.container", f"{port.container} is given twice; leave one out")
        if port.external is not None and port.external in externals:
            yield fault(f"{path}.external", f"{port.external} is given twice; give another one, or none")
        containers.add(port.container)
        externals |= set() if port.external is None else {port.external}


def _names(field: str, items: Sequence[ExposedUrl] | Sequence[Port]) -> Iterator[Issue]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        if item.name is not None and item.name in seen:
            yield fault(f"{field}[{index}].name", f"{shown(item.name)} is given twice; leave one out")
        seen |= set() if item.name is None else {item.name}
        if item.exclude and item.name is None:
            details = "is required where exclude is true: the name of the item to leave out"
            yield fault(f"{field}[{index}].name", details, "required", f"{field}[{index}].exclude")


def _exposed(path: str, url: ExposedUrl) -> Iterator[Issue]:
    if url.container is None:
        yield fault(f"{path}.container", "is required: the port on which the container listens", "required")
    elif not 1 <= url.container <= LAST_PORT:
        details = f"must be between 1 and {LAST_PORT}, got {url.container}"
        yield fault(f"{path}.container", details, "min" if url.container < 1 else "max")
    if len(url.tool_type) > MAX_TOOL_TYPE:
        details = f"has {len(url.tool_type)} characters; at most {MAX_TOOL_TYPE} are possible"
        yield fault(f"{path}.toolType", details, "max")
    yield from check_access(path, url)


def check_access(path: str, url: ExposedUrl) -> Iterator[Issue]:
    """R11: what a given authorizationType does not name is ignored, as the contract says."""
    kind = url.authorization_type
    if kind is None and url.authorized_users and url.authorized_groups:
        details = "is given beside authorizedUsers; leave one out, or say with authorizationType which counts"
        yield fault(f"{path}.authorizedGroups", details, "canAdd", f"{path}.authorizedUsers")
    lists = {"authorizedUsers": url.authorized_users, "authorizedGroups": url.authorized_groups}
    if kind in lists and not lists[kind]:
        details = f"is required where authorizationType is {kind}: otherwise nobody could open it"
        yield fault(f"{path}.{kind}", details, "required", f"{path}.authorizationType")
    for name, members in lists.items():
        for index, member in enumerate(members):
            if not member.strip() or not member.isprintable():
                yield fault(f"{path}.{name}[{index}]", f"{shown(member)} names nobody; leave it out", "min")


def _port(path: str, port: Port) -> Iterator[Issue]:
    if port.container is None:
        yield fault(f"{path}.container", "is required: the port on which the container listens", "required")
    if port.service_type is None:
        yield fault(f"{path}.serviceType", "is required: ClusterIP, NodePort or LoadBalancer", "required")
    if port.external is None:
        return
    least, most = (FIRST_NODE_PORT, LAST_NODE_PORT) if port.service_type == "NodePort" else (1, LAST_PORT)
    if not least <= port.external <= most:
        what = ", for a NodePort" if port.service_type == "NodePort" else ""
        details = f"must be between {least} and {most}{what}, got {port.external}; or leave it out, and one is chosen"
        yield fault(f"{path}.external", details, "min" if port.external < least else "max", f"{path}.serviceType")


def check_connections_kind(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """What only some clusters have. On a simulated one nothing listens, and nothing is missed."""
    if kind != "local":
        return
    for index, port in enumerate(spec.ports):
        path = f"{_PORTS}[{index}]"
        if port.exclude:
            continue
        if port.service_type == "LoadBalancer":
            details = "LoadBalancer is not possible on a cluster of kind local, which has none; give ClusterIP"
            yield fault(f"{path}.serviceType", details, "options", "clusterId")


def check_exposed(spec: TrainingSpec, proxy: ProxyAddress | None, member: Member) -> Iterator[Issue]:
    """What this installation, and who submits, cannot have (S028)."""
    for index, url in enumerate(spec.exposed_urls):
        path = f"{_URLS}[{index}]"
        if url.exclude:
            continue
        if proxy is None:
            yield fault(path, "is not possible: this Muster has no proxy (MUSTER_PROXY_URL is not set); leave it out")
            continue
        if url.url is not None and proxy.label(url.url) is None:
            details = (
                f"{shown(url.url)} is no address of the proxy; write it as {proxy.url('NAME')} with a NAME of small "
                "letters, digits and `-`, or leave it out, and one is generated"
            )
            yield fault(f"{path}.url", details)
        yield from check_groups(path, url, member)


def check_groups(path: str, url: ExposedUrl, member: Member) -> Iterator[Issue]:
    """Who submits must be let in (S028)."""
    access = access_of(url)
    if access.type == "authorizedGroups" and frozenset(access.members).isdisjoint(member.groups):
        yield fault(f"{path}.authorizedGroups", f"you are a member of none of them; {_groups(member)}", "options")


def _groups(member: Member) -> str:
    if not member.groups:
        return "your token names no group of yours, so give authorizedUsers"
    more = len(member.groups) - MAX_SHOWN_GROUPS
    named = ", ".join(map(shown, member.groups[:MAX_SHOWN_GROUPS])) + (f" and {more} more" if more > 0 else "")
    return f"name one that you are in: {named}"
