"""Which network addresses a transfer may connect to.

Whoever can ask this program to pull can name any host, so addresses inside the network (private,
link-local, loopback, …) are refused unless the configuration lists the host, or a caller on this machine
asks, with ``insecure``, for a registry on this machine. The check is made on the very address that is
connected to: the resolver hands the HTTP client checked addresses only, and literal addresses are checked
before each request and each redirect. Nothing is sent before the check, so the error cannot tell an open
port from a closed one.
"""

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from ftd.errors import Forbidden, TransferError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The rule for one operation.

    ``allowed`` lists ``host`` or ``host:port`` from the configuration; ``loopback`` is the one
    ``host:port``, in lower case, that may lie on this machine, or "" for none.
    """

    allowed: tuple[str, ...] = ()
    loopback: str = ""

    def lists(self, host: str, port: int) -> bool:
        """Say whether the configuration names this host, with or without its port."""
        host = host.lower()
        names = {host, f"{host}:{port}", f"[{host}]", f"[{host}]:{port}"}
        return any(entry.lower() in names for entry in self.allowed)

    def permits(self, host: str, port: int, address: str) -> bool:
        """Say whether ``host``, asked for on ``port``, may be reached at this IP address."""
        ip = _unwrap(ipaddress.ip_address(address.partition("%")[0]))
        if self.lists(host, port) or (ip.is_global and not ip.is_multicast):
            return True
        return ip.is_loopback and self.loopback == f"{host.lower()}:{port}"

    def check_url(self, url: URL) -> None:
        """Raise Forbidden if the URL is not http(s) or names a literal address that may not be reached."""
        if url.scheme not in ("http", "https") or not url.host:
            raise TransferError(f"not a registry address: {url.scheme}://{url.host}")
        try:
            allowed = self.permits(url.host, url.port or 0, url.host)
        except ValueError:
            return
        if not allowed:
            raise refusal(url.host)


def refusal(host: str) -> Forbidden:
    """Return the one error for every address that may not be reached."""
    hint = "add the host to FTD_PRIVATE_REGISTRIES"
    if host.lower() in _THIS_MACHINE:
        hint = f"say --insecure for plain HTTP on this machine, or {hint}"
    return Forbidden(f"registry address is not allowed: {host}", hint)


def _unwrap(ip: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 form carries, if it carries one."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


class CheckedResolver(AbstractResolver):
    """A resolver that returns only addresses the policy permits, and raises Forbidden if none is left.

    trusted: host and port of what the environment names: a proxy, wherever it is.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        inner: AbstractResolver | None = None,
        trusted: Collection[tuple[str | None, int | None]] = (),
    ) -> None:
        self._policy, self._trusted = policy, trusted
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve ``host``; called by aiohttp for every connection to a host that is not a literal."""
        results = await self._inner.resolve(host, port, family)
        if (host, port) in self._trusted:
            return results
        permitted = [entry for entry in results if self._policy.permits(host, port, entry["host"])]
        if not permitted:
            raise refusal(host)
        return permitted

    async def close(self) -> None:
        """Release the inner resolver."""
        await self._inner.close()
