"""Where webhooks may post to: nothing that is not public, however it is written, unless the operator allows it."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from services.runtime.webhooks.addresses import (
    BadAddressError,
    Target,
    check_addresses,
    networks_of,
    target_of,
)

SECURE = Target(secure=True, host="example.com", port=443, path="/")
PLAIN = Target(secure=False, host="example.com", port=8000, path="/")
ALLOWED = networks_of("10.20.0.0/16, fd00::/8")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", Target(secure=True, host="example.com", port=443, path="/")),
        ("https://Example.com:8443/a?b=c", Target(secure=True, host="example.com", port=8443, path="/a?b=c")),
        ("https://93.184.216.34/", Target(secure=True, host="93.184.216.34", port=443, path="/")),
        ("https://[2606:2800:220:1::1]/", Target(secure=True, host="2606:2800:220:1::1", port=443, path="/")),
        ("https://xn--bcher-kva.example/x", Target(secure=True, host="xn--bcher-kva.example", port=443, path="/x")),
    ],
)
def test_a_good_address_is_read(url: str, target: Target) -> None:
    assert target_of(url, ()) == target


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "https://"),
        ("ftp://example.com/", "https://"),
        ("//example.com/", "https://"),
        ("https://user@example.com/", "user"),
        ("https://user:word@example.com/", "user"),
        ("https://@example.com/", "user"),
        ("https:///path", "host"),
        ("https://example.com/#x", "fragment"),
        ("https://example.com/#", "fragment"),
        ("https://example.com:25/", "port"),
        ("https://example.com:0/", "port"),
        ("https://example.com:65536/", "read"),
        ("https://example.com:x/", "read"),
        ("https://[::1/", "read"),
        ("https://example.com\\@evil.example/", "ASCII"),
        ("https://exämple.com/", "ASCII"),
        ("https://example.com/\r\nHost: x", "ASCII"),
        ("https://127.0.0.1/", "public"),
        ("https://169.254.169.254/latest/meta-data", "public"),
        ("https://[::1]/", "public"),
        ("https://[::ffff:10.0.0.1]/", "public"),
        ("https://[2606:2800:220:1::1%1]/", "zone"),
        ("https://[2606:2800:220:1::1%25eth0]/", "zone"),
        ("https://exam%70le.com/", "%"),
    ],
)
def test_a_bad_address_is_refused_and_says_why(url: str, why: str) -> None:
    with pytest.raises(BadAddressError, match=why):
        target_of(url, ())


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.8.9.1", "169.254.169.254", "172.16.0.1"),
        *("192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
        *("64:ff9b:1::1", "100::1", "2001:0:1::1", "2001:db8::1", "2002:7f00:1::", "2002:5db8:d822::", "fc00::1"),
        *("fd12::1", "fe80::1", "fec0::1", "ff02::1", "ff0e::1"),
    ],
)
def test_what_is_not_public_is_refused_also_beside_what_is(address: str) -> None:
    public, other = ipaddress.ip_address("93.184.216.34"), ipaddress.ip_address(address)
    for found in ([other], [public, other]):
        with pytest.raises(BadAddressError, match="public") as refused:
            check_addresses(SECURE, found, ())
        assert address not in str(refused.value), "who chose the name learns what it means inside"


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::808:808"])
def test_what_is_public_is_taken(address: str) -> None:
    check_addresses(SECURE, [ipaddress.ip_address(address)], ())


def test_a_public_address_of_this_machine_is_refused() -> None:
    address = ipaddress.ip_address("93.184.216.34")
    with pytest.raises(BadAddressError, match="public"):
        check_addresses(SECURE, [address], (), own=[address])


def test_allowed_networks_are_open_also_to_http_but_not_to_ports_of_muster() -> None:
    inside, mapped = ipaddress.ip_address("10.20.1.1"), ipaddress.ip_address("::ffff:10.20.1.1")
    for target in (SECURE, PLAIN):
        check_addresses(target, [inside, mapped, ipaddress.ip_address("fd00::1")], ALLOWED)
    with pytest.raises(BadAddressError, match="Muster"):
        check_addresses(PLAIN, [inside], ALLOWED, own_ports=frozenset({PLAIN.port}))
    with pytest.raises(BadAddressError, match="https"):
        check_addresses(PLAIN, [ipaddress.ip_address("93.184.216.34")], ALLOWED)
    with pytest.raises(BadAddressError, match="public"):
        check_addresses(PLAIN, [ipaddress.ip_address("10.21.0.1")], ALLOWED)
    loopback = networks_of("127.0.0.0/8,::1/128")
    for host in ("localhost", "a.localhost", "127.0.0.1", "[::1]"):
        assert not target_of(f"http://{host}:8000/", loopback).secure
    for host in ("example.com", "notlocalhost"):
        with pytest.raises(BadAddressError, match="https"):
            target_of(f"http://{host}/", loopback)
    assert target_of("http://example.com/", ALLOWED) == Target(secure=False, host="example.com", port=80, path="/")


@given(some.ip_addresses())
def test_nothing_private_is_ever_taken(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    try:
        check_addresses(SECURE, [address], ())
    except BadAddressError:
        return
    assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")
    assert not any((address.is_private, address.is_loopback, address.is_link_local, address.is_multicast))


@given(some.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for url in (text, f"https://{text}"):
        try:
            target = target_of(url, ())
        except BadAddressError:
            continue
        assert target.host
        assert 0 < target.port < 65_536


@pytest.mark.parametrize("text", ["10.20.1.1/16", "10.0.0.0/33", "x", "10.0.0.0/8;::1"])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        networks_of(text)
