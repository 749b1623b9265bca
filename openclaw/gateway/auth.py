"""The keys that clients send: ``Authorization: Bearer KEY``, or ``X-Api-Key: KEY``.

A keys file has one ``name:key`` or ``name: sha256:HEX`` per line; empty lines and ``#`` comments are skipped.

Guarantees: only digests are kept. Every check compares all of them in constant time, so that timing reveals neither a
prefix of a key nor its owner. Logs contain names of keys, never keys. A file that other users can read, or that does not
parse, is refused; if this happens on a reload, the previous keys remain valid. Without any key every request is
admitted, which the configuration allows on loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from openclaw.exceptions import ConfigError
from openclaw.gateway.errors import ApiError

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
ENVIRONMENT_NAME = "environment"
"""Name of the key from the environment."""
NO_KEY_NAME = "local"
"""Name of every client when no key is configured."""
Digests = dict[str, bytes]


class Keyring:
    """The digests of the keys by name; `reload` reads the file again."""

    def __init__(self, key: str | None, path: str | None = None) -> None:
        """Read the keys.

        Args:
            key: from the environment.
            path: of the keys file.

        Raises:
            ConfigError: if the file is unusable.
        """
        self._own: Digests = {ENVIRONMENT_NAME: _digest(key)} if key else {}
        self.path = Path(path) if path else None
        self._keys = self._read()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys."""
        return tuple(self._keys)

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: if it is unusable; the previous keys remain valid.
        """
        self._keys = self._read()

    def check(self, headers: Mapping[str, str]) -> str:
        """Return the name of the request's key.

        Raises:
            ApiError: 401, if the key is missing or unknown.
        """
        if not self._keys and self.path is None:
            return NO_KEY_NAME
        sent = _digest(sent_key(headers))
        names = [name for name, digest in self._keys.items() if hmac.compare_digest(digest, sent)]
        if names:
            return names[0]
        raise ApiError(
            401,
            "missing or unknown key; send 'Authorization: Bearer KEY' with a key of this server",
            code="invalid_api_key",
        )

    def holds(self, word: bytes) -> bool:
        """Return whether a word of a text is one of the keys."""
        return hashlib.sha256(word).digest() in self._keys.values()

    def _read(self) -> Digests:
        return self._own | (read_keys(self.path) if self.path else {})


def sent_key(headers: Mapping[str, str]) -> str:
    """Return the key that a request sends, empty if it sends none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def read_keys(path: Path) -> Digests:
    """Return ``{name: digest}`` of a keys file.

    Raises:
        ConfigError: naming the line, but not its contents.
    """
    where = f"OPENCLAW_API_KEYS_FILE={path}"
    check_private(path, "OPENCLAW_API_KEYS_FILE")
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not a text file; write one name:key per line") from error
    keys: Digests = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, key = (part.strip() for part in line.partition(":"))
        if not colon or not key or not NAME.fullmatch(name):
            raise ConfigError(f"{where}: line {number} is not name:key; a name has letters, digits and . _ -")
        if name in keys or name in (ENVIRONMENT_NAME, NO_KEY_NAME):
            raise ConfigError(f"{where}: line {number}: the name {name!r} is used twice; choose another")
        if key.startswith("sha256:") and not DIGEST.fullmatch(key):
            raise ConfigError(f"{where}: line {number}: write sha256: and 64 hexadecimal digits")
        hashed = DIGEST.fullmatch(key)
        digest = bytes.fromhex(hashed.group(1)) if hashed else _digest(key)
        if digest in keys.values():
            raise ConfigError(f"{where}: line {number}: the key of {name!r} is in the file twice; remove one")
        keys[name] = digest
    if not keys:
        raise ConfigError(f"{where}: contains no key; write one name:key per line")
    return keys


def check_private(path: Path, variable: str) -> None:
    """Raise ConfigError unless only the owner (this user or root) can read ``path``."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{variable}={path}: {error.strerror}; name a file") from error
    if not stat.S_ISREG(found.st_mode) or not os.access(path, os.R_OK):
        raise ConfigError(f"{variable}={path} is not a file that this user can read")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{variable}={path} can be read by other users; run: chmod 600 {path}")


def _digest(key: str | None) -> bytes:
    return hashlib.sha256((key or "").encode("utf-8", "surrogateescape")).digest()
