"""``ftd version``: the versions of client and daemon."""

import argparse

import ftd
from ftd.cli import background, output
from ftd.cli.client import DaemonUnreachable


def run(options: argparse.Namespace) -> int:
    """Print this program's version and, where a daemon answers, the API version that it reports."""
    try:
        client = background.connect(start=False)
        url, api_version = client.address.url, client.call("GET", "/api/version")["version"]
    except DaemonUnreachable as exc:
        url, api_version = None, None
        unreachable = exc.message
    if options.json:
        output.print_json({"version": ftd.__version__, "daemon": url, "api_version": api_version})
        return 0
    print(f"ftd version is {ftd.__version__}")
    if url:
        print(f"the daemon at {url} speaks Ollama API {api_version}")
    else:
        output.note(f"warning: {unreachable}")
    return 0
