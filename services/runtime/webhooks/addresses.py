"""Which addresses webhooks may post to: rules on a URL, and on the network addresses that its name stands for. Pure.

Whoever administers a project chooses the URL, and the control plane stands where it can reach more than they can. So a
name must stand for public addresses alone, unless the operator names networks that are allowed, too.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from events.webhooks import MAX_URL

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address
type Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HTTPS_PORT: Final = 443
HTTP_PORT: Final = 80
FIRST_FREE_PORT: Final = 1024
"""From here on; below it stand mail, name and file servers, which nobody means."""
MAX_HOST: Final = 253

_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
"""The only part of IPv6 that is given out for the public. Outside it are loopback, links, sites, groups, and ways to
write an IPv4 address."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""How networks without IPv4 write an IPv4 address: its last 32 bits."""
_TRAPS: Final = tuple(
    map(
        ipaddress.ip_network,
        # Tunnels to an IPv4 address that stands within (6to4, Teredo), and the relays of one of them.
        ("2002::/16", "2001::/32", "192.88.99.0/24"),
    )
)


class BadAddressError(ValueError):
    """Nothing may be posted there; the message says why, as the end of a sentence about the URL."""


class Target(NamedTuple):
    """What a URL says, ready to be used."""

    secure: bool
    host: str
    """In ASCII, without brackets."""
    port: int
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """As the header Host has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = HTTPS_PORT if self.secure else HTTP_PORT
        return host if self.port == usual else f"{host}:{self.port}"


def target_of(url: str, allowed: Iterable[Network]) -> Target:
    """Raises BadAddressError. What a name stands for is looked up when something is posted, each time."""
    networks = tuple(allowed)
    if len(url) > MAX_URL:
        raise BadAddressError(f"has {len(url)} characters, and may have {MAX_URL}")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise BadAddressError("may only hold visible ASCII characters; percent-encode others")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadAddressError(f"cannot be read: {error}") from None
    if parts.scheme not in {"https", "http"}:
        raise BadAddressError("must begin with https://")
    if parts.scheme == "http" and not networks:
        raise BadAddressError("must begin with https:// (the operator has allowed no network for http://)")
    if "@" in parts.netloc:
        raise BadAddressError("may hold no user and no password: check the signature instead")
    if parts.fragment or url.endswith("#"):
        raise BadAddressError("may hold no fragment (#…), which is never sent")
    if not host or len(host) > MAX_HOST:
        raise BadAddressError("must name a host")
    if "%" in host:
        # With one, an address differs from the same address without, and so from those that are known as ours.
        raise BadAddressError("may hold no % in its host: no name has one, and no public address has a zone")
    secure = parts.scheme == "https"
    target = Target(
        secure=secure,
        host=host,
        port=port if port is not None else HTTPS_PORT if secure else HTTP_PORT,
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )
    if target.port < FIRST_FREE_PORT and target.port not in {HTTPS_PORT, HTTP_PORT}:
        raise BadAddressError(f"may have port {HTTPS_PORT}, or one from {FIRST_FREE_PORT} on, not {target.port}")
    literal = as_address(host)
    if literal is not None:
        check_addresses(target, [literal], networks)
    elif not secure and not f".{host}".endswith(".localhost") and all(network.is_loopback for network in networks):
        raise BadAddressError("must begin with https://; http:// is possible for localhost alone")
    return target


def as_address(host: str) -> Address | None:
    """None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def check_addresses(
    target: Target,
    addresses: Iterable[Address],
    allowed: Iterable[Network],
    *,
    own: Iterable[Address] = (),
    own_ports: frozenset[int] = frozenset(),
) -> None:
    """Raises BadAddressError unless all of them may be posted to. Which they are it never says: whoever chose the name
    would learn what names mean inside.

    Args:
        allowed: networks of the operator's choice.
        own: addresses of this machine. They may be public, and still lead past what keeps others out.
        own_ports: of the control plane's servers; closed also in networks that are allowed.
    """
    networks, ours = tuple(allowed), frozenset(own)
    for address in addresses:
        meant = list(_meant(address))
        inside = any(one.version == network.version and one in network for one in meant for network in networks)
        if inside:
            if target.port in own_ports:
                raise BadAddressError(f"may not have port {target.port}: a server of Muster listens there")
            continue
        if any(one in ours for one in meant) or not all(map(_is_public, meant)):
            raise BadAddressError(
                "must stand for a public address, or one in a network that the operator allows "
                "(MUSTER_WEBHOOK_ALLOW_NETWORKS)"
            )
        if not target.secure:
            raise BadAddressError("must begin with https://, except in networks that the operator has allowed")


def _meant(address: Address) -> Iterator[Address]:
    """The address, or that which is written in it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
            return
        if address in _NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
            return
    yield address


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_V6:
        return False
    if any(address.version == trap.version and address in trap for trap in _TRAPS):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not address.is_unspecified


def networks_of(text: str) -> tuple[Network, ...]:
    """From a list in CIDR form, separated by commas. Raises ValueError, which names the part."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
