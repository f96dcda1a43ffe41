"""The proxy in front of a registry, as ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` of the daemon say.

Hosts of this machine have none. It is the proxy that resolves names of registries then, so that its rules
take the place of ours for what a name means; literal addresses are checked all the same.
"""

import ipaddress
from collections.abc import Mapping
from urllib.request import proxy_bypass

from yarl import URL

from ftd import environment
from ftd.errors import InvalidOption


def proxy_of(url: URL, variables: Mapping[str, str] | None = None) -> URL | None:
    """Return the proxy for ``url``; None: there is none. Lower case counts before upper case.

    variables: of the environment. Raises InvalidOption for a proxy that is none over HTTP.
    """
    found = environment.variables() if variables is None else variables

    def value(name: str) -> str:
        return found.get(name) or found.get(name.upper()) or ""

    text, host = value(f"{url.scheme}_proxy"), url.host or ""
    if not text or _is_here(host):
        return None
    if proxy_bypass(f"{host}:{url.port}", {"no": value("no_proxy")}):
        return None
    name = f"{url.scheme.upper()}_PROXY"
    try:
        proxy = URL(text if "://" in text else f"http://{text}")
    except ValueError as exc:
        # It may have a password
        raise InvalidOption(f"{name} is no address", "use http://HOST:PORT") from exc
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise InvalidOption(
            f"{name} names no proxy over HTTP: {proxy.scheme}://{proxy.host}", "use http://HOST:PORT"
        )
    return proxy


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
