"""TLS contexts against those that Python makes by itself."""

import ssl
import subprocess
import sys

from ftd import certificates


def test_nothing_is_read_inside_and_everything_after() -> None:
    with certificates.unread():
        assert ssl.create_default_context().cert_store_stats()["x509"] == 0
    assert ssl.create_default_context().cert_store_stats() == certificates.context().cert_store_stats()


def test_clients_check_who_they_talk_to() -> None:
    context = certificates.context()
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert context is certificates.context()


def test_aiohttp_reads_none_while_it_is_imported() -> None:
    """And its own contexts fail closed: they still want a certificate, and know none."""
    program = (
        "from ftd import certificates\n"
        "with certificates.unread():\n    import aiohttp.connector as c\n"
        "print(c._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'], c._SSL_CONTEXT_VERIFIED.verify_mode.name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "CERT_REQUIRED"]
