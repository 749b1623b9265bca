"""What asks a server of this machine does so directly, with the key of the gateway."""

from __future__ import annotations

import importlib

import httpx
import pytest
from asking import server_client
from simulated_users.reading import find_user


async def test_a_proxy_is_asked_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    async with server_client("http://127.0.0.1:30000/v1", 5) as client:
        chosen = {
            host: type(client._client._transport_for_url(httpx.URL(f"http://{host}:30000/v1"))._pool).__name__  # type: ignore[attr-defined]
            for host in ("127.0.0.1", "localhost", "model.example")
        }
    assert chosen == {
        "127.0.0.1": "AsyncConnectionPool",
        "localhost": "AsyncConnectionPool",
        "model.example": "AsyncHTTPProxy",
    }


@pytest.mark.parametrize("name", ["SGLANG_API_KEY", "OPENCLAW_API_KEY"])
async def test_the_key_is_the_gateways(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async with server_client("http://127.0.0.1:30000/v1", 5) as client:
        assert client.api_key == "none"
    monkeypatch.setenv(name, "k")
    async with server_client("http://127.0.0.1:30000/v1", 5) as client:
        assert (client.api_key, client.max_retries, client.timeout) == ("k", 0, 5)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("chat", ["--base-url"]),
        ("chat", ["--user-base-url"]),
        ("chat", ["--workspace", "w", "--agent-url"]),
        ("openclaw.chat.__main__", ["--base-url"]),
        ("measure", ["--base-url"]),
        ("personal_run", ["--method", "rl", "--users", "student", "--report", "r.json", "--user-base-url"]),
        ("run_eval", ["--base-url"]),
        ("run_eval", ["--compare-to"]),
        ("run_judge_eval", ["--dry-run", "--judge-model", "m", "--judge-base-url"]),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(
    program: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(program)
    given = [*words, "https://me:sesame@host.example/v1"]
    monkeypatch.setattr("sys.argv", [program, *given])
    with pytest.raises(SystemExit) as ended:
        module.main(*([find_user("student"), "chat", given] if program == "chat" else []))
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert "leave the name and password out of the URL" in " ".join(told.err.split())
    assert "sesame" not in told.err + told.out
