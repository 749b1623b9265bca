"""The gateway's certificate: checked at start, reloaded on change, trusted by the gateway's own health check.

Guarantees: an unusable certificate is a `ConfigError` of one line. A private key that other users can read is refused.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.auth import check_private

NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""OpenSSL's flag to ignore the validity dates: an expired certificate must not fail the health check of a run."""


def check_certificate(config: RuntimeConfig) -> None:
    """Raise ConfigError if the gateway cannot serve the certificate and key."""
    if config.tls_cert is None or config.tls_key is None:
        return
    check_private(Path(config.tls_key), "OPENCLAW_TLS_KEY")
    if not Path(config.tls_cert).is_file():
        raise ConfigError(f"OPENCLAW_TLS_CERT={config.tls_cert}: no such file; name a PEM certificate chain")
    try:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config)
    except ssl.SSLError as error:
        raise ConfigError(
            f"OPENCLAW_TLS_CERT={config.tls_cert} and OPENCLAW_TLS_KEY={config.tls_key} cannot be used together "
            f"({error.reason or 'not PEM'}); name a PEM chain and its own key without a password"
        ) from error


def load_certificate(context: ssl.SSLContext, config: RuntimeConfig) -> None:
    """Load the certificate into ``context``; new connections of a running server use it.

    Raises:
        ssl.SSLError: if it is unusable.
    """
    context.load_cert_chain(config.tls_cert or "", config.tls_key, password="")


def own_certificate_context(cert: str) -> ssl.SSLContext:
    """Return a client context that trusts only the gateway's own certificate, ignoring its name and dates."""
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    return context
