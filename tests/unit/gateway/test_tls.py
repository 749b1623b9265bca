"""Certificates: what is refused before anything listens, and what the health check trusts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.tls import check_certificate, load_certificate, own_certificate_context


def write_certificate(folder: Path, name: str) -> RuntimeConfig:
    """Write a certificate for ``name`` with its key; return the configuration that serves it."""
    issued = trustme.CA().issue_cert(name)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    key.chmod(0o600)
    return RuntimeConfig(tls_cert=str(cert), tls_key=str(key))


def spoil_key(config: RuntimeConfig) -> None:
    Path(config.tls_key or "").write_text("no key")


def open_key(config: RuntimeConfig) -> None:
    Path(config.tls_key or "").chmod(0o644)


def remove_certificate(config: RuntimeConfig) -> None:
    Path(config.tls_cert or "").unlink()


def test_a_good_certificate_passes(tmp_path: Path) -> None:
    config = write_certificate(tmp_path, "gateway.test")
    check_certificate(config)
    assert config.scheme == "https"
    assert RuntimeConfig().scheme == "http"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(spoil_key, "name a PEM chain"), (open_key, "chmod 600"), (remove_certificate, "no such file")],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, spoil: Callable[[RuntimeConfig], None], words: str) -> None:
    config = write_certificate(tmp_path, "gateway.test")
    spoil(config)
    with pytest.raises(ConfigError, match=words):
        check_certificate(config)


def test_a_certificate_with_the_key_of_another(tmp_path: Path) -> None:
    config, other = write_certificate(tmp_path, "a.test"), write_certificate(tmp_path, "b.test")
    with pytest.raises(ConfigError, match="cannot be used together"):
        check_certificate(replace(config, tls_key=other.tls_key))


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key"])
def test_half_a_certificate_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        replace(write_certificate(tmp_path, "a.test"), **{missing: None}).validate()


async def test_a_renewed_certificate_is_served_to_new_connections(tmp_path: Path) -> None:
    config, renewed = write_certificate(tmp_path, "a.test"), write_certificate(tmp_path, "b.test")
    context = serving(config)
    load_certificate(context, renewed)
    await handshake(context, renewed)
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(context, config)


def serving(config: RuntimeConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, config)
    return context


async def handshake(context: ssl.SSLContext, trusted: RuntimeConfig) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=own_certificate_context(trusted.tls_cert or "")
        )
        writer.close()


async def test_the_health_check_trusts_its_own_certificate_and_no_other(tmp_path: Path) -> None:
    own, other = write_certificate(tmp_path, "public.test"), write_certificate(tmp_path, "other.test")
    await handshake(serving(own), own)
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(serving(other), own)
