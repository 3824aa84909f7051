"""Whom a TLS client of ours trusts. Standard library alone: the command line and the container `nats` use it too."""

import ssl
from pathlib import Path


def trusting(ca_file: Path | str | None) -> ssl.SSLContext:
    """A context that trusts the authorities in a PEM file and no other; None: those that Python finds by itself. Raises
    OSError.

    From Python 3.13 on the default wants extensions in certificates that browsers and curl do not ask for, and that an
    authority made with OpenSSL's own commands lacks. That is left out: signatures, names and dates are still checked.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
