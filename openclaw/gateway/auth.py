"""The keys that clients send: ``Authorization: Bearer KEY``, or ``X-Api-Key: KEY``.

A keys file has one ``name:key`` or ``name: sha256:HEX`` per line; empty lines and ``#`` comments are skipped. A child
key is named ``PARENT/CHILD``; ``name (admin)`` marks an admin key, ``name (sampled=N, total=N)`` gives a key quotas of its own
(`openclaw.gateway.usage`). A line whose key no client could send as it stands is
refused: quotes around it, a comment behind it, another digest than sha256. A key's name is the owner of what its clients
send.

Guessing has a limit: an address that sent `WRONG_KEYS` unknown keys within a minute gets 429 for the rest of it. It locks
nobody else out: the limit is of that address alone, and there only for keys that have not worked from it before. Without
that a guess that is right would pass, and the limit would hinder nobody. Keys of episodes and cookies of the window are
random, so they always pass. Memory is bounded: of so many addresses, and of so many for each key.

Guarantees: only digests are kept. Every check compares all of them in constant time, so that timing reveals neither a
prefix of a key nor its owner. The keys of episodes, which the server makes itself, are random, shown once and found by
their digest; one that has ended or expired is found no more. Logs contain names of keys, never keys. A file that other
users can read, or that does not parse, is refused; if this happens on a reload, the previous keys remain valid. Without
any key every request is admitted, which the configuration allows on loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.network import is_loopback
from openclaw.config.bounds import WRONG_KEYS
from openclaw.config.meters import read_quotas
from openclaw.config.runtime import key_problem
from openclaw.gateway.errors import ApiError
from openclaw.gateway.limits import RateLimitError
from openclaw.owners import CHILD, ENVIRONMENT_NAME, EPISODE, LOCAL, MARK, NO_KEY_NAME, owns, split_id, stored_id
from openclaw.privacy.secret_finder import kept_id

logger = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}(?:/[A-Za-z0-9._-]{1,64})*")
MARKED = re.compile(r"(.+?)\s*\((.*)\)")
ADMIN = "admin"
DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request.

    Attributes:
        name: of the key, in logs and metrics.
        owner: of the sessions and turns that the client makes, see `openclaw.owners`.
        admin: whether the client reaches what belongs to any owner.
        episode: the episode whose agent it is; such a client may only ask the model.
    """

    name: str
    owner: str = LOCAL
    admin: bool = False
    episode: str | None = None

    def reaches(self, stored: str) -> bool:
        """Return whether the client may act on a session, given its stored id."""
        return self.admin or self.has(stored)

    def has(self, stored: str) -> bool:
        """Return whether a session belongs to the client or its children; an admin reaches the others, but has none of them."""
        return owns(self.owner, split_id(stored)[0])

    def meant(self, session_id: str) -> Sequence[str]:
        """Return the stored ids that a session id in a route may mean: the client's own session first.

        The other one is a stored id of another owner that the client reaches. ``@:ID`` is the session ID of `LOCAL`.
        """
        own = stored_id(self.owner, kept_id(session_id))
        if session_id.startswith(MARK) and self.reaches(session_id):
            owner, meant = split_id(session_id)
            return list(dict.fromkeys((own, stored_id(owner, kept_id(meant)))))
        return [own]


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its digest, who sends it, and its own quotas (`openclaw.config.meters.read_quotas`)."""

    digest: bytes
    client: Client
    quotas: Mapping[str, int] = field(default_factory=dict[str, int])


Keys = dict[str, Key]
OPERATOR = Client(ENVIRONMENT_NAME, LOCAL, admin=True)
EVERYBODY = Client(NO_KEY_NAME, LOCAL, admin=True)
"""Every client of a server without keys."""


ADDRESSES = 4096
"""Of those that sent unknown keys within a minute; a further one replaces the first."""
ADDRESSES_OF_A_KEY = 64
"""From which a key is known to work; a further one replaces the one that was quiet for longest."""
MINUTE = 60.0
FORWARDED = b"x-forwarded-for"
PORTED = re.compile(r"\[(?P<six>[^\]]+)\](:\d+)?|(?P<four>[\d.]+):\d+", re.ASCII)
"""An address as some proxies write it: an IPv6 one in brackets, either with the port of the connection."""
IPV6_PREFIX = 64
"""Bits of an IPv6 address that say whose it is; whoever has one has all below it."""


def sender(scope: Mapping[str, Any]) -> str:
    """Return the address that sent a request of an ASGI scope; for IPv6 its network.

    Of a proxy on this machine it is the last address of ``X-Forwarded-For``, the one that the proxy saw, with or without a port.
    """
    peer = scope["client"][0] if scope.get("client") else ""
    if is_loopback(peer):
        said = [value for name, value in scope["headers"] if name == FORWARDED]
        seen = said[-1].decode("latin-1").rpartition(",")[2].strip() if said else ""
        if ported := PORTED.fullmatch(seen):
            seen = ported["six"] or ported["four"]
        return _network(seen) or _network(peer)
    return _network(peer)


def _network(address: str) -> str:
    """Return the network of one person, empty for what is no address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((int(parsed), IPV6_PREFIX), strict=False))
    return str(parsed)


class WrongKeys:
    """How many unknown keys each address has sent in its minute, which begins with the first of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, address: str) -> None:
        """Count an unknown key.

        Raises:
            RateLimitError: if the address is at its limit.
        """
        self.check(address)
        until, sent = self._counts.get(address, (self._clock() + MINUTE, 0))
        self._counts[address] = until, sent + 1
        if len(self._counts) > ADDRESSES:
            self._counts.popitem(last=False)
        if sent + 1 == WRONG_KEYS.most:
            logger.warning("%d unknown keys came from %s; others have to wait", WRONG_KEYS.most, address)

    def check(self, address: str) -> None:
        """Raise RateLimitError if the address is at its limit."""
        now = self._clock()
        while self._counts and next(iter(self._counts.values()))[0] <= now:
            self._counts.popitem(last=False)
        until, sent = self._counts.get(address, (0.0, 0))
        if sent >= WRONG_KEYS.most:
            raise RateLimitError(
                "wrong_keys",
                f"your address has sent {WRONG_KEYS.most} unknown keys within a minute",
                max(1, math.ceil(until - now)),
            )


class Keyring:
    """The keys by name; `reload` reads the file again."""

    def __init__(self, key: str | None, path: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the keys.

        Args:
            key: from the environment.
            path: of the keys file.
            clock: seconds, for the limit of unknown keys.

        Raises:
            ConfigError: if the file is unusable.
        """
        self.episodes = EpisodeKeys()
        self.wrong = WrongKeys(clock)
        self._worked: dict[bytes, OrderedDict[str, None]] = {}
        self._own: Keys = {ENVIRONMENT_NAME: Key(key_digest(key), OPERATOR)} if key else {}
        self.path = Path(path) if path else None
        self._keys = self._read()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys."""
        return tuple(self._keys)

    @property
    def shared(self) -> bool:
        """Whether the server has several keys, so that its metrics are not of one user alone."""
        return len(self._keys) > 1

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: if it is unusable; the previous keys remain valid.
        """
        self._keys = self._read()
        known = {key.digest for key in self._keys.values()}
        self._worked = {digest: addresses for digest, addresses in self._worked.items() if digest in known}

    def check(self, headers: Mapping[str, str], address: str = "") -> Client:
        """Return who sends a request with these headers from an address (`sender`).

        Raises:
            ApiError: 401, if the key is missing or unknown; 429 instead of it and for a key that is new at the address,
                if that has sent too many unknown ones.
        """
        key = sent_key(headers)
        keyless = not self._keys and self.path is None
        sent = key_digest(key)
        if (client := self.find(sent)) is not None:
            self._admit(sent, address)
            return client
        if (minted := self.episodes.find(sent)) and (keyless or minted.parent in self._keys):
            return Client(minted.parent, minted.owner, episode=minted.episode)
        if keyless and not key.startswith(EPISODE_KEY):  # the key of an episode that has ended is nobody's
            return EVERYBODY
        if key and not EPISODE_FORM.fullmatch(key):  # an agent may go on after its episode; nobody guesses such a key
            self.wrong.count(address)
        raise ApiError(
            401,
            "missing or unknown key; send 'Authorization: Bearer KEY' with a key of this server",
            code="invalid_api_key",
        )

    def worked(self, digest: bytes, address: str) -> bool:
        """Return whether a key has worked from an address before."""
        return address in self._worked.get(digest, ())

    def works(self, digest: bytes, address: str) -> bool:
        """Return whether a key works from an address now; like `check`, for a worker (`openclaw.gateway.shared`)."""
        if self.find(digest) is None:
            return False
        try:
            self._admit(digest, address)
        except RateLimitError:
            return False
        return True

    def _admit(self, digest: bytes, address: str) -> None:
        addresses = self._worked.setdefault(digest, OrderedDict())
        if address not in addresses:
            self.wrong.check(address)
            addresses[address] = None
        addresses.move_to_end(address)
        if len(addresses) > ADDRESSES_OF_A_KEY:
            addresses.popitem(last=False)

    def find(self, digest: bytes) -> Client | None:
        """Return who has the key of a digest, or None; the key of an episode is nobody's here."""
        clients = [known.client for known in self._keys.values() if hmac.compare_digest(known.digest, digest)]
        return clients[0] if clients else None

    def quotas(self, name: str) -> Mapping[str, int]:
        """Return the quotas that the keys file gives the key with this name."""
        key = self._keys.get(name)
        return {} if key is None else key.quotas

    def holds(self, word: bytes) -> bool:
        """Return whether a word of a text is one of the keys."""
        digest = hashlib.sha256(word).digest()
        return any(key.digest == digest for key in self._keys.values())

    def _read(self) -> Keys:
        keys = read_keys(self.path) if self.path else {}
        own = {key.digest for key in self._own.values()}
        if name := next((name for name, key in keys.items() if key.digest in own), None):
            raise ConfigError(
                f"OPENCLAW_API_KEYS_FILE={self.path}: the key of {name!r} is also the key from the environment, "
                "which is an admin key; give each its own"
            )
        return self._own | keys


def sent_key(headers: Mapping[str, str]) -> str:
    """Return the key that a request sends, empty if it sends none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def read_keys(path: Path) -> Keys:
    """Return the keys of a keys file by name.

    Raises:
        ConfigError: naming the line, but not its contents.
    """
    where = f"OPENCLAW_API_KEYS_FILE={path}"
    check_private(path, "OPENCLAW_API_KEYS_FILE")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not a text file; write one name:key per line") from error
    keys: Keys = {}
    places: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, key = (part.strip() for part in line.partition(":"))
        marked = MARKED.fullmatch(name)
        name, marks = marked.groups() if marked else (name, None)
        try:
            admin, quotas = read_marks(marks)
            said = bool(colon and key and NAME.fullmatch(name))
        except ConfigError:
            admin, quotas, said = False, {}, False
        if not said:  # what stands there is not repeated
            raise ConfigError(
                f"{where}: line {number} is not name:key; a name has letters, digits and . _ -, a child key is "
                "PARENT/CHILD:key, an admin key is name (admin):key, one with a quota name (sampled=100000):key"
            )
        if name.rpartition(CHILD)[2].startswith(EPISODE):
            raise ConfigError(
                f"{where}: line {number}: names that begin with {EPISODE!r} are of episodes; choose another"
            )
        if name in keys or name in (ENVIRONMENT_NAME, NO_KEY_NAME):
            raise ConfigError(f"{where}: line {number}: the name {name!r} is used twice; choose another")
        if admin and CHILD in name:
            raise ConfigError(f"{where}: line {number}: the child key {name!r} cannot be an admin key; remove (admin)")
        hashed = DIGEST.fullmatch(key)
        if hashed is None and (problem := key_problem(key)):
            raise ConfigError(
                f"{where}: line {number}: the key of {name!r} {problem}; write it as clients send it, or sha256: and 64 "
                "hexadecimal digits, and comments on lines of their own"
            )
        digest = bytes.fromhex(hashed.group(1)) if hashed else key_digest(key)
        if any(digest == other.digest for other in keys.values()):
            raise ConfigError(f"{where}: line {number}: the key of {name!r} is in the file twice; remove one")
        keys[name] = Key(digest, Client(name, name, admin=admin), quotas)
        places[name] = number
    for name, number in places.items():
        parent = name.rpartition(CHILD)[0]
        if parent and parent not in keys:
            raise ConfigError(
                f"{where}: line {number}: {name!r} is a child of {parent!r}, which has no key here; add one"
            )
    if not keys:
        raise ConfigError(f"{where}: contains no key; write one name:key per line")
    return keys


def read_marks(marks: str | None) -> tuple[bool, Mapping[str, int]]:
    """Return whether a key is an admin's, and its quotas, from what stands in brackets after its name; None: nothing does.

    Raises:
        ConfigError: it means something else.
    """
    if marks is None:
        return False, {}
    words = [word.strip() for word in marks.split(",")]
    if "" in words:
        raise ConfigError("empty brackets, or a comma too many")
    return ADMIN in words, read_quotas(",".join(word for word in words if word != ADMIN))


def check_private(path: Path, variable: str) -> None:
    """Raise ConfigError unless only the owner (this user or root) can read ``path``."""
    try:
        result = path.stat()
    except OSError as error:
        raise ConfigError(f"{variable}={path}: {error.strerror}; name a file") from error
    if not stat.S_ISREG(result.st_mode) or not os.access(path, os.R_OK):
        raise ConfigError(f"{variable}={path} is not a file that this user can read")
    if result.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or result.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{variable}={path} can be read by other users; run: chmod 600 {path}")


EPISODE_KEY = "sk-episode-"
"""How such a key begins, so that redaction finds it in a text (`openclaw.privacy.secret_finder`)."""
KEY_LENGTH = 32
EPISODE_FORM = re.compile(rf"{EPISODE_KEY}[\w-]{{43}}", re.ASCII)
"""Of the keys that `new_key` makes."""


def new_key() -> str:
    """Return a new key."""
    return EPISODE_KEY + secrets.token_urlsafe(KEY_LENGTH)


def key_digest(key: str) -> bytes:
    """Return what memory and ledger keep of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Who sends a key.

    Attributes:
        episode: id of the episode.
        owner: of the agent's turns, see `openclaw.owners`.
        parent: name of the key that created the episode; limits and metrics count the agent's requests for it.
        expires_at: seconds since the epoch.
    """

    episode: str
    owner: str
    parent: str
    expires_at: float


class EpisodeKeys:
    """The keys of the open episodes, by digest."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._keys: dict[bytes, EpisodeKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, digest: bytes, key: EpisodeKey) -> None:
        """Accept a key from now on."""
        self._keys[digest] = key

    def find(self, digest: bytes) -> EpisodeKey | None:
        """Return who sends the key with this digest; None if it is of no open episode."""
        key = self._keys.get(digest)
        return None if key is None or key.expires_at <= self.clock() else key

    def move_expiry(self, seconds: float) -> None:
        """Let all keys expire later by ``seconds``."""
        self._keys = {digest: replace(key, expires_at=key.expires_at + seconds) for digest, key in self._keys.items()}

    def end(self, episode: str) -> None:
        """Accept the key of an episode no more; no-op without one."""
        self._keys = {digest: key for digest, key in self._keys.items() if key.episode != episode}
