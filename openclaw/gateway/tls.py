"""The gateway's certificate: checked before it listens, read again when it changes, trusted by its own health check.

Guarantees: a certificate that cannot be served is a `ConfigError` in one line; a private key that other users can read is
refused.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import ConfigError
from openclaw.gateway.auth import check_private

NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""OpenSSL's flag that leaves the dates out; a health check must not stop a run over them."""


def check_certificate(config: RuntimeConfig) -> None:
    """Raise ConfigError when certificate and key cannot be served."""
    if config.tls_cert is None or config.tls_key is None:
        return
    check_private(Path(config.tls_key), "OPENCLAW_TLS_KEY")
    if not Path(config.tls_cert).is_file():
        raise ConfigError(f"OPENCLAW_TLS_CERT={config.tls_cert}: no such file")
    try:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config)
    except ssl.SSLError as error:
        raise ConfigError(
            f"OPENCLAW_TLS_CERT={config.tls_cert} and OPENCLAW_TLS_KEY={config.tls_key} cannot be used together "
            f"({error.reason or 'not PEM'}); name a PEM chain and its own key without a password"
        ) from error


def load_certificate(context: ssl.SSLContext, config: RuntimeConfig) -> None:
    """Let ``context`` serve the certificate, new connections of a running server included.

    Raises:
        ssl.SSLError: when it cannot be used.
    """
    context.load_cert_chain(config.tls_cert or "", config.tls_key, password="")


def own_certificate_context(cert: str) -> ssl.SSLContext:
    """Return a client context that trusts exactly the gateway's own certificate, whatever name and dates are in it."""
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    return context
