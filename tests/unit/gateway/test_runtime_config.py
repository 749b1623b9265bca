"""The configuration: declared once, checked before anything starts, secrets unseen."""

from __future__ import annotations

import dataclasses
import os

import pytest

from groundwork.exceptions import ConfigError
from openclaw.config import runtime as settings
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import VARIABLES, client_key
from openclaw.runtime import serve as runtime


def test_table_and_fields_agree() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(RuntimeConfig) if field.name != "sources"}
    assert fields == {variable.field: variable.default for variable in VARIABLES}
    names = [name for variable in VARIABLES for name in variable.names]
    assert len(names) == len(set(names))
    assert RuntimeConfig.from_env({}) == RuntimeConfig()


def test_values_and_sources() -> None:
    config = RuntimeConfig.from_env(
        {"PORT": "31000", "OPENCLAW_API_KEY": "k", "OPENCLAW_EVAL_MODE": "yes", "PRM_M": ""}
    )
    assert (config.port, config.api_key, config.eval_mode, config.prm_m) == (31000, "k", True, None)
    assert config.sources["SGLANG_API_KEY"] == "OPENCLAW_API_KEY"
    assert config.sources["HOST"] == "default"


@pytest.mark.parametrize(("tokens", "seconds"), [(96, 120.0), (4096, 614.4), (8192, 1228.8)])
def test_the_judge_has_time_for_its_longest_answers(tokens: int, seconds: float) -> None:
    """Finding A7: 120 s starved long thoughts."""
    assert RuntimeConfig(prm_max_new_tokens=tokens).judge_seconds == pytest.approx(seconds)
    assert RuntimeConfig(prm_max_new_tokens=tokens, judge_timeout=5.0).judge_seconds == 5.0


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (31, 7), (32, 8), (192, 8)])
def test_workers_follow_from_the_cores_unless_they_are_set(
    cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "usable_cores", lambda: cores)
    assert RuntimeConfig.from_env({}).workers == workers
    assert [RuntimeConfig.from_env({"GATEWAY_WORKERS": str(count)}).workers for count in (1, 3)] == [1, 3]


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no rule 'tidy'; use truncated"):
        RuntimeConfig(hygiene="truncated,tidy").validate()


def test_secrets_are_hidden() -> None:
    config = RuntimeConfig.from_env({"SGLANG_API_KEY": "s3cret"})
    assert "s3cret" not in repr(config) + str(config.describe())


def test_a_client_reads_the_key_alone() -> None:
    assert client_key({"OPENCLAW_API_KEY": "k", "PORT": "of the server"}) == "k"
    assert client_key({"SGLANG_API_KEY": ""}) is None
    with pytest.raises(ConfigError, match="SGLANG_API_KEY and OPENCLAW_API_KEY name the same thing and differ"):
        client_key({"OPENCLAW_API_KEY": "a", "SGLANG_API_KEY": "b"})


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PORT": "many"}, "PORT='many' is not a whole number"),
        ({"PORT": "70000"}, "65535"),
        ({"OPENCLAW_TEMPERATURE": "nan"}, "finite"),
        ({"OPENCLAW_TOP_P": "0"}, "above 0"),
        ({"OPENCLAW_JUDGE_PROMPTS": "short"}, "full, brief"),
        ({"OPENCLAW_EVAL_MODE": "maybe"}, "1 or 0"),
        ({"HOST": "0.0.0.0"}, "SGLANG_API_KEY"),
        ({"OPENCLAW_TLS_CERT": "cert.pem"}, "OPENCLAW_TLS_KEY"),
        ({"OPENCLAW_RATE_LIMIT_REQUESTS": "0"}, "1 or more"),
        ({"HOST": "example.org"}, "SGLANG_API_KEY"),
        ({"HOST": "[::1]"}, "write ::1"),
        ({"SGLANG_API_KEY": "a", "OPENCLAW_API_KEY": "b"}, "differ"),
        ({"OPENCLAW_POLICY_URL": "localhost:1"}, "http://HOST:PORT"),
        ({"CONTEXT_LENGTH": "4096"}, "PRM_MAX_NEW_TOKENS"),
        ({"OPENCLAW_METHOD": "Combine"}, "module.attribute"),
    ],
)
def test_what_cannot_be_used_is_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RuntimeConfig.from_env(environment)


def test_an_open_address_with_a_key() -> None:
    assert RuntimeConfig.from_env({"HOST": "0.0.0.0", "SGLANG_API_KEY": "k"}).host == "0.0.0.0"
    for host in ("127.0.0.1", "::1", "localhost"):
        assert RuntimeConfig.from_env({"HOST": host}).host == host


def test_missing_values_are_named() -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_LEDGER is not set"):
        RuntimeConfig().require("ledger")


def test_the_runtime_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(runtime, "watch_lifeline", lambda: None)
    assert runtime.main() == 2
    assert capsys.readouterr().err.startswith("openclaw.runtime: OPENCLAW_POLICY_URL is not set")
