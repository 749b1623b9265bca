"""Read the runtime's configuration from the environment, once.

Guarantees:

* `VARIABLES` (`openclaw.config.runtime_variables`) lists every variable that the runtime process reads.
* Every variable is checked before anything starts. An invalid value is a `ConfigError` that says what to type.
* The result is immutable, and `describe` never shows a secret.

Imports only the standard library and this package's declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from groundwork.command_line import names_a_user
from groundwork.exceptions import ConfigError
from groundwork.machine import usable_cores
from groundwork.network import is_http_url, is_loopback
from groundwork.variables import Value, Variable
from openclaw.config.meters import read_prices, read_quotas
from openclaw.config.runtime_variables import DEBUG_LEVEL, VARIABLES, RuntimeVariables
from openclaw.config.train_when import TrainWhen

__all__ = ["VARIABLES", "ConfigError", "RuntimeConfig", "Value", "Variable", "key_problem", "listed"]

SHARE_OF_A_KEY = 4
"""With a keys file, one key may have this part of the server's concurrent requests, unless its variable is set."""
CORES_OF_A_WORKER, MOST_WORKERS = 4, 8
"""Of the default: engines, trainer and judge need the other cores, and one process leads."""
HOST_NAME = re.compile(r"[a-z0-9_.-]+|[0-9a-f:]*:[0-9a-f:.]*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+")

A_DIGEST = re.compile(r"(?:sha-?\d+|md5|blake2\w*|bcrypt|scrypt|argon2\w*)[:=$-]|\$\w+\$", re.IGNORECASE)
"""How a digest begins; taken as a key, it would let in whoever has read it."""
SENT = re.compile(r"[!-~]+")
"""What a header carries as it is: visible ASCII without spaces."""

HYGIENE_RULES = ("truncated", "repetition", "duplicate", "off_language", "malformed_call", "asks_back")
ANSWERS_IN_TIME = 3
SLOW_JUDGE_TOKENS_PER_SECOND = 20.0
MIN_JUDGE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig(RuntimeVariables):
    """The values of the runtime's variables; build it with `from_env`.

    ``sources`` says where each variable's value comes from: the name under which it was set, or ``default``. Tests change a
    value with ``dataclasses.replace``.
    """

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration of this environment; an empty value counts as unset.

        Raises:
            ConfigError: a variable is invalid; the message names the first one and says what to type.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for variable in VARIABLES:
            values[variable.field], sources[variable.name] = variable.read(environment)
        level = cls.declared("log_level").name
        if values["debug"] and sources[level] == "default":
            values["log_level"], sources[level] = DEBUG_LEVEL, cls.declared("debug").name
        config = cls(**values, sources=sources)
        config.validate()
        return config

    def validate(self) -> None:
        """Raise ConfigError if two values contradict each other."""
        if self.host.startswith("["):
            raise ConfigError(f"HOST={self.host} is not an address; write {self.host.strip('[]')} without brackets")
        if not is_loopback(self.host) and not self.api_key and not self.api_keys_file:
            raise ConfigError(
                f"HOST={self.host} is open to other machines, but no key is set; "
                "set SGLANG_API_KEY (or OPENCLAW_API_KEY) or OPENCLAW_API_KEYS_FILE, or use HOST=127.0.0.1"
            )
        if self.api_key and (problem := key_problem(self.api_key)):
            raise ConfigError(f"SGLANG_API_KEY (or OPENCLAW_API_KEY) {problem}; write the key as clients send it")
        read_prices(self.prices)
        read_quotas(self.quotas)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("OPENCLAW_TLS_CERT and OPENCLAW_TLS_KEY belong together; set both or none")
        for name, url in (("OPENCLAW_POLICY_URL", self.policy_url), ("OPENCLAW_JUDGE_URL", self.judge_url)):
            if url and not url.startswith(("http://", "https://")):
                raise ConfigError(f"{name}={url!r} is not an HTTP URL; write http://HOST:PORT")
        if self.alert_webhook and not is_http_url(self.alert_webhook):
            raise ConfigError("OPENCLAW_ALERT_WEBHOOK is no HTTP address; write one such as https://HOST/PATH")
        if (self.reasoning_parser == "generic") != (self.reasoning_tags is not None):
            raise ConfigError(
                "REASONING_PARSER=generic and OPENCLAW_REASONING_TAGS='<think> </think>' need each other; set both or none"
            )
        if self.reasoning_tags is not None and len(self.reasoning_tags.split()) != 2:
            raise ConfigError(
                f"OPENCLAW_REASONING_TAGS={self.reasoning_tags!r} is not two words; write two tags like '<think> </think>'"
            )
        if self.prm_max_new_tokens >= self.context_length:
            raise ConfigError(
                f"PRM_MAX_NEW_TOKENS={self.prm_max_new_tokens} leaves no room for a prompt in "
                f"CONTEXT_LENGTH={self.context_length}; lower the first or raise the second"
            )
        if self.debug and self.log_level != DEBUG_LEVEL:
            raise ConfigError(f"OPENCLAW_DEBUG=1 contradicts ROLLOUT_LOG_LEVEL={self.log_level}; unset one of them")
        self._check_judge()
        self._check_teacher()
        TrainWhen.read(self.train_when)
        if self.offline and self.pace == "session":
            raise ConfigError(
                "OPENCLAW_PACE=session is for live conversations, and OPENCLAW_OFFLINE=1 (DATA_PATH) trains logs; unset one"
            )
        if unknown := [rule for rule in listed(self.hygiene) if rule not in HYGIENE_RULES]:
            raise ConfigError(f"OPENCLAW_HYGIENE: there is no rule {unknown[0]!r}; use {', '.join(HYGIENE_RULES)}")
        if self.method and "." not in self.method:
            raise ConfigError(f"OPENCLAW_METHOD={self.method!r} names no module; write module.attribute")
        for host in listed(self.allowed_hosts):
            if not HOST_NAME.fullmatch(host):
                raise ConfigError(
                    f"OPENCLAW_ALLOWED_HOSTS: {host!r} is not a host; write names or addresses without a port, "
                    "for example gateway,10.0.0.7"
                )
        for origin in listed(self.allowed_origins):
            if not ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"OPENCLAW_ALLOWED_ORIGINS: {origin!r} is not an origin; write scheme://host or "
                    "scheme://host:port, for example https://chat.example.org"
                )

    def _check_judge(self) -> None:
        """Raise ConfigError if the variables name no judge, or two, or give a password where plans and logs show it."""
        if self.judge_base_url and names_a_user(self.judge_base_url):
            raise ConfigError(
                "OPENCLAW_JUDGE_BASE_URL: leave the name and password out of the URL; OPENCLAW_JUDGE_API_KEY holds the key"
            )
        if self.judge_base_url and self.judge_class:
            raise ConfigError("OPENCLAW_JUDGE_BASE_URL and OPENCLAW_JUDGE_CLASS both name a judge; set one of them")
        if bool(self.judge_base_url) != bool(self.judge_model):
            raise ConfigError("OPENCLAW_JUDGE_BASE_URL and OPENCLAW_JUDGE_MODEL belong together; set both or none")
        if self.judge_base_url and not self.judge_base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"OPENCLAW_JUDGE_BASE_URL={self.judge_base_url!r} is not an HTTP URL; write https://HOST/v1"
            )
        if self.judge_api_key and not self.judge_base_url:
            raise ConfigError("OPENCLAW_JUDGE_API_KEY is the key of OPENCLAW_JUDGE_BASE_URL, which is not set; set it")
        if self.judge_class and "." not in self.judge_class:
            raise ConfigError(f"OPENCLAW_JUDGE_CLASS={self.judge_class!r} names no module; write module.Class")
        if self.judged_elsewhere and self.opd_teacher == "prm":
            raise ConfigError(
                "OPENCLAW_OPD_TEACHER=prm needs a judge engine of the run; set policy, or unset the other judge"
            )
        if self.practice_rubric == "group" and self.judge_prompts == "brief" and not self.judge_class:
            raise ConfigError(
                "OPENCLAW_PRACTICE_RUBRIC=group asks a judge that follows instructions, and OPENCLAW_JUDGE_PROMPTS=brief is for one "
                "that does not; set OPENCLAW_JUDGE_PROMPTS=full with such a judge, or OPENCLAW_JUDGE_CLASS to a class with score_group"
            )

    def _check_teacher(self) -> None:
        """Raise ConfigError if the variables name two teachers, or half of one, or give a password where plans and logs show it."""
        if not self.teacher_url:
            half = {
                "OPENCLAW_TEACHER_TOKENIZER": self.teacher_tokenizer,
                "OPENCLAW_TEACHER_API_KEY": self.teacher_api_key,
            }
            for name in (name for name, value in half.items() if value):
                raise ConfigError(f"{name} belongs to OPENCLAW_TEACHER_URL, which is not set; set it")
            return
        if names_a_user(self.teacher_url):
            raise ConfigError(
                "OPENCLAW_TEACHER_URL: leave the name and password out of the URL; OPENCLAW_TEACHER_API_KEY holds the key"
            )
        if not self.teacher_url.startswith(("http://", "https://")):
            raise ConfigError(f"OPENCLAW_TEACHER_URL={self.teacher_url!r} is not an HTTP URL; write http://HOST:PORT")
        if self.opd_teacher == "prm":
            raise ConfigError(
                "OPENCLAW_TEACHER_URL and OPENCLAW_OPD_TEACHER=prm both name a teacher; unset one of them"
            )

    @property
    def judged_elsewhere(self) -> bool:
        """Return whether an endpoint or a class judges, so that the run needs no judge engine."""
        return bool(self.judge_base_url or self.judge_class)

    def require(self, *fields: str) -> None:
        """Raise ConfigError if one of ``fields`` has no value."""
        for variable in VARIABLES:
            if variable.field in fields and getattr(self, variable.field) in (None, ""):
                raise ConfigError(f"{variable.name} is not set; set it to: {variable.help}")

    @property
    def scheme(self) -> str:
        """Return ``https`` with a certificate, else ``http``."""
        return "https" if self.tls_cert else "http"

    @property
    def model_name(self) -> str:
        """Return the served model's name: ``SERVED_MODEL_NAME``, else the last part of the tokenizer's path."""
        return self.served_model_name or Path(self.tokenizer or "policy").name

    @property
    def train_token_limit(self) -> int:
        """Return the most tokens, prompt plus reply, of a turn that can be trained."""
        return self.max_train_tokens or self.context_length

    @property
    def judge_seconds(self) -> float:
        """Return the seconds that judging a turn may take: long enough for three of the longest answers."""
        answers = ANSWERS_IN_TIME * self.prm_max_new_tokens / SLOW_JUDGE_TOKENS_PER_SECOND
        return self.judge_timeout or max(MIN_JUDGE_SECONDS, answers)

    @property
    def workers(self) -> int:
        """Return how many processes answer requests for replies, 1 for the leading one alone: as set, else by the cores."""
        return self.gateway_workers or max(1, min(MOST_WORKERS, usable_cores() // CORES_OF_A_WORKER))

    @property
    def concurrent_per_key(self) -> int | None:
        """Return the most concurrent requests of a key: as set, else a share if several keys are possible."""
        if self.rate_limit_concurrent is None and self.api_keys_file:
            return max(1, self.max_requests // SHARE_OF_A_KEY)
        return self.rate_limit_concurrent

    def describe(self) -> list[tuple[str, str, str]]:
        """Return (variable, value, source) of every variable, with secrets hidden."""
        rows = []
        for variable in VARIABLES:
            value = getattr(self, variable.field)
            shown = "" if value is None else "(hidden)" if variable.secret else str(value)
            rows.append((variable.name, shown, self.sources.get(variable.name, "default")))
        return rows


def listed(value: str | None) -> tuple[str, ...]:
    """Return the entries of a comma-separated value, in lower case."""
    return tuple(entry.strip().lower() for entry in (value or "").split(",") if entry.strip())


def key_problem(key: str) -> str | None:
    """Return why a key cannot be meant as it is written, without the key, or None: no client can send it, or it is a digest."""
    if any(letter.isspace() for letter in key):
        return "has white space in it"
    if key[0] in "'\"" or key[-1] in "'\"":
        return "has quotes around it"
    if A_DIGEST.match(key):
        return "is a digest"
    if not SENT.fullmatch(key):
        return "has other characters than visible ASCII"
    return None
