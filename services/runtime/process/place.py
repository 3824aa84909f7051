"""Where a client is, as far as limits on its connections go. Pure."""

import ipaddress


def address_of(client: tuple[str, int] | None) -> str | None:
    """What counts as one place: an IPv4 address, or the /64 that any one host of IPv6 has all of."""
    if client is None:
        return None
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
