"""Asks who has the address that a daemon wanted."""

import http.client
import json

from ftd.address import Address

_PROBE_S = 1.0


def who_answers(address: Address) -> str:
    """Say what answers at an address, as far as it lets us know."""
    host = address.url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=_PROBE_S)
    try:
        connection.request("GET", "/api/version")
        response = connection.getresponse()
        server = response.headers.get("Server", "")
        version = json.loads(response.read(1 << 16))["version"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()
    if server.startswith("ftd/"):
        return f", by another ftd daemon ({server})"
    return f", by an Ollama server (version {version})"
