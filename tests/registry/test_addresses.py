"""Which addresses may be called, checked against special addresses typed by hand (RFC 6890 and others)."""

import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from ftd.errors import Forbidden, TransferError
from ftd.registry.addresses import AddressPolicy, CheckedResolver

INSIDE = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1",
    "2002:7f00:1::", "2002:a00:1::",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_the_network_is_refused(address: str) -> None:
    assert not AddressPolicy().permits("evil.example", 443, address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_a_public_address_is_permitted(address: str) -> None:
    assert AddressPolicy().permits("registry.example", 443, address)


@pytest.mark.parametrize(
    ("entry", "host", "port", "permitted"),
    [
        ("reg.corp", "reg.corp", 443, True),
        ("REG.corp", "reg.CORP", 5000, True),
        ("reg.corp:5000", "reg.corp", 5000, True),
        ("reg.corp:5000", "reg.corp", 5001, False),
        ("reg.corp", "xreg.corp", 443, False),
        ("10.0.0.1", "10.0.0.1", 80, True),
        ("[fd00::1]:5000", "fd00::1", 5000, True),
        ("", "reg.corp", 443, False),
    ],
)
def test_the_configuration_names_hosts_and_ports(entry: str, host: str, port: int, permitted: bool) -> None:
    assert AddressPolicy((entry,)).permits(host, port, "10.0.0.1") is permitted


def test_this_machine_is_permitted_for_one_host_and_port_only() -> None:
    policy = AddressPolicy(loopback="localhost:5000")
    assert policy.permits("LocalHost", 5000, "127.0.0.1")
    assert policy.permits("localhost", 5000, "::1")
    assert not policy.permits("localhost", 5001, "127.0.0.1")
    assert not policy.permits("evil.example", 5000, "127.0.0.1")
    assert not policy.permits("localhost", 5000, "10.0.0.1")


@pytest.mark.parametrize("url", ["http://127.0.0.1/x", "https://[::1]:1/x", "http://169.254.169.254/"])
def test_a_literal_address_is_checked_before_the_request(url: str) -> None:
    with pytest.raises(Forbidden, match="registry address is not allowed"):
        AddressPolicy().check_url(URL(url))


@pytest.mark.parametrize(
    ("url", "wanted"),
    [("http://127.0.0.1/x", True), ("http://[::1]/x", True), ("http://10.0.0.1/x", False)],
)
def test_for_this_machine_the_hint_names_the_flag(url: str, wanted: bool) -> None:
    with pytest.raises(Forbidden) as caught:
        AddressPolicy().check_url(URL(url))
    assert ("--insecure" in str(caught.value.hint)) is wanted
    assert "FTD_PRIVATE_REGISTRIES" in str(caught.value.hint)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/", "/relative"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(TransferError, match="not a registry address"):
        AddressPolicy().check_url(URL(url))


def test_names_and_public_literals_pass_the_check_of_the_url() -> None:
    AddressPolicy().check_url(URL("https://registry.example/x"))
    AddressPolicy().check_url(URL("https://1.1.1.1/x"))


class FixedResolver(AbstractResolver):
    """Resolves every name to the addresses it was given."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.is_closed = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self.addresses
        ]

    async def close(self) -> None:
        self.is_closed = True


async def test_only_permitted_addresses_of_a_name_are_connected_to() -> None:
    resolver = CheckedResolver(AddressPolicy(), FixedResolver("10.0.0.1", "1.1.1.1"))
    assert [entry["host"] for entry in await resolver.resolve("registry.example", 443)] == ["1.1.1.1"]


async def test_a_name_that_resolves_inside_the_network_is_refused() -> None:
    inner = FixedResolver("10.0.0.1", "::1")
    resolver = CheckedResolver(AddressPolicy(), inner)
    with pytest.raises(Forbidden, match=r"registry address is not allowed: rebinding\.example"):
        await resolver.resolve("rebinding.example", 443)
    await resolver.close()
    assert inner.is_closed
