"""Keys by name from a file: what is accepted, what is refused, what a changed file does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

import openclaw.gateway.app as gateway_app
from groundwork.exceptions import ConfigError
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.auth import Client, Keyring
from openclaw.gateway.errors import ApiError
from openclaw.owners import LOCAL
from tests.unit.gateway.conftest import Starter

LAPTOP, PHONE = "key-of-the-laptop", "key-of-the-phone"


def keys_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def two_keys(folder: Path) -> str:
    digest = hashlib.sha256(PHONE.encode()).hexdigest()
    return keys_file(folder, f"# who may ask\n\nlaptop:{LAPTOP}\nphone: sha256:{digest.upper()}\n")


def test_each_key_has_its_name(tmp_path: Path) -> None:
    ring = Keyring("from-outside", two_keys(tmp_path))
    assert ring.names == ("environment", "laptop", "phone")
    assert ring.check({"authorization": f"Bearer {LAPTOP}"}) == Client("laptop", "laptop")
    assert ring.check({"authorization": f"bearer  {PHONE} "}).name == "phone"
    assert ring.check({"x-api-key": PHONE}) == Client("phone", "phone")
    assert ring.check({"authorization": "Bearer from-outside"}) == Client("environment", LOCAL, admin=True)


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer ", f"Basic {LAPTOP}", f"Bearer {LAPTOP}x", "Bearer \udce9"])
def test_anything_else_is_refused_without_the_key_in_the_answer(tmp_path: Path, sent: str) -> None:
    with pytest.raises(ApiError) as caught:
        Keyring(None, two_keys(tmp_path)).check({"authorization": sent})
    assert caught.value.status == 401
    assert LAPTOP not in str(caught.value.body())


def test_a_digest_in_the_file_is_no_key(tmp_path: Path) -> None:
    digest = hashlib.sha256(PHONE.encode()).hexdigest()
    for sent in (digest, f"sha256:{digest}"):
        with pytest.raises(ApiError):
            Keyring(None, two_keys(tmp_path)).check({"authorization": f"Bearer {sent}"})


@pytest.mark.parametrize("begin", ["sha256:", "SHA256:", "Sha256: ".strip()])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_digest_is_read_however_editors_write_it(tmp_path: Path, begin: str, end: str, mark: str) -> None:
    digest = hashlib.sha256(PHONE.encode()).hexdigest()
    ring = Keyring(None, keys_file(tmp_path, f"{mark}phone: {begin}{digest}{end}"))
    assert ring.check({"x-api-key": PHONE}).name == "phone"
    for sent in (digest, f"{begin}{digest}"):
        with pytest.raises(ApiError):
            ring.check({"x-api-key": sent})


@pytest.mark.parametrize("key", ["'quoted'", "two words", f"sha256:{'a' * 64}", "caf\u00e9", "line\n"])
def test_a_key_from_the_environment_that_no_client_can_send_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^SGLANG_API_KEY \(or OPENCLAW_API_KEY\) (has|is)") as caught:
        RuntimeConfig(api_key=key).validate()
    assert key not in str(caught.value)


def test_keys_of_usual_forms_are_taken(tmp_path: Path) -> None:
    for key in ("a" * 64, "sk-proj-a_b-c", "a:b", "a=b==", "#hash", "k#1", "shark-week", "$ecret", "md5sum"):
        assert Keyring(None, keys_file(tmp_path, f"laptop: {key}\n")).check({"x-api-key": key}).name == "laptop"


def test_without_a_key_everybody_is_local() -> None:
    assert Keyring(None).check({}) == Client("local", LOCAL, admin=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains no key"),
        (f"laptop {LAPTOP}", "line 1 is not name:key"),
        (f"a:b\nla ptop:{LAPTOP}", "line 2 is not name:key"),
        ("laptop:", "line 1 is not name:key"),
        (f"laptop:{LAPTOP}\nlaptop:other", "line 2: the name 'laptop' is used twice"),
        (f"environment:{LAPTOP}", "is used twice"),
        (f"laptop:{LAPTOP}\nphone:{LAPTOP}", "line 2: the key of 'phone' is in the file twice"),
        ("laptop:sha256:abc", "64 hexadecimal digits"),
        ("laptop:SHA256:abc", "64 hexadecimal digits"),
        (f"laptop: sha256: {'a' * 64}", "line 1: the key of 'laptop' has white space in it"),
        (f"laptop:sha-256:{'a' * 64}", "line 1: the key of 'laptop' is a digest"),
        (f"laptop:sha256={'a' * 64}", "is a digest"),
        (f"laptop:sha256-{'a' * 64}", "is a digest"),
        (f"laptop:SHA512:{'a' * 128}", "is a digest"),
        (f"laptop:md5:{'a' * 32}", "is a digest"),
        ("laptop:$2b$12$abcdefgh", "is a digest"),
        ("laptop:$argon2id$v=19$x", "is a digest"),
        (f'a:b\nlaptop: "{LAPTOP}"', "line 2: the key of 'laptop' has quotes around it; write it as clients send it"),
        (f"laptop: '{LAPTOP}'", "has quotes around it"),
        (f"laptop: {LAPTOP}'", "has quotes around it"),
        (f"laptop: {LAPTOP} # mine", "has white space in it; .*comments on lines of their own"),
        (f"laptop: {LAPTOP}\t#mine", "has white space in it"),
        (f"laptop: Bearer {LAPTOP}", "has white space in it"),
        (f"laptop: {'a' * 64}  -", "has white space in it"),
        (f"laptop: {LAPTOP}\u00a0x", "has white space in it"),
        (f"laptop: {LAPTOP}é", "other characters than visible ASCII"),
        (f"laptop: {LAPTOP}\u200b", "other characters than visible ASCII"),
        (f"laptop\ndesk/tests:{LAPTOP}", "line 1 is not name:key"),
        (f"desk/tests:{LAPTOP}", "line 1: 'desk/tests' is a child of 'desk', which has no key here"),
        (f"desk:x\ndesk//tests:{LAPTOP}", "line 2 is not name:key"),
        (f"desk:x\ndesk/tests (admin):{LAPTOP}", "line 2: the child key 'desk/tests' cannot be an admin key"),
        (f"desk:x\ndesk (admin):{LAPTOP}", "line 2: the name 'desk' is used twice"),
        (f"desk (root):{LAPTOP}", "line 1 is not name:key"),
        (f"desk ({LAPTOP}):x", "line 1 is not name:key"),
        (f"desk (sampled={LAPTOP}):x", "line 1 is not name:key"),
        (f"desk (sampled=5,):{LAPTOP}", "line 1 is not name:key"),
        (f"desk ():{LAPTOP}", "line 1 is not name:key"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Keyring(None, keys_file(tmp_path, text))
    assert LAPTOP not in str(caught.value)


def test_a_key_may_have_quotas(tmp_path: Path) -> None:
    ring = Keyring(None, keys_file(tmp_path, "a (sampled=5): x\nb (admin, total=7,sampled=1): y\nc: z\n"))
    assert [ring.quotas(name) for name in ("a", "b", "c", "environment")] == [
        {"sampled": 5},
        {"total": 7, "sampled": 1},
        {},
        {},
    ]
    assert [ring.check({"x-api-key": key}).admin for key in "xyz"] == [False, True, False]


def test_a_key_may_be_an_admin_key_or_a_child(tmp_path: Path) -> None:
    ring = Keyring(None, keys_file(tmp_path, f"desk/tests/one: c\ndesk/tests: b\nlaptop (admin): {LAPTOP}\ndesk:a\n"))
    assert ring.check({"x-api-key": LAPTOP}) == Client("laptop", "laptop", admin=True)
    assert ring.check({"x-api-key": "c"}) == Client("desk/tests/one", "desk/tests/one")


def test_a_key_of_the_file_is_not_that_of_the_environment(tmp_path: Path) -> None:
    """The key from the environment is the operator's; its holder would read every conversation."""
    with pytest.raises(ConfigError, match="the key of 'phone' is also the key from the environment"):
        Keyring(PHONE, two_keys(tmp_path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        Keyring(None, keys_file(tmp_path, f"laptop:{LAPTOP}", mode))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Keyring(None, str(tmp_path / "keys"))


async def test_a_changed_file_counts_without_a_restart(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_app, "POLL_SECONDS", 0.01)
    stack = await start(api_keys_file=two_keys(tmp_path))

    async def status(key: str) -> int:
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
            return (await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code

    assert (await status(LAPTOP), await status("new")) == (200, 401)
    keys_file(tmp_path, "desk:new\n")
    await eventually(lambda: status("new"), 200)
    assert await status(LAPTOP) == 401

    keys_file(tmp_path, "no key here\n")
    await eventually(lambda: stack.metric("openclaw_reload_failures_total") >= 1, True)
    assert await status("new") == 200, "a file that cannot be used must leave the keys of before"


async def test_the_sdk_with_and_without_a_key(start: Starter, tmp_path: Path) -> None:
    stack = await start(api_keys_file=two_keys(tmp_path))
    stack.say("hi")
    question = {"model": "any", "messages": [{"role": "user", "content": "Hello?"}]}
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=PHONE, max_retries=0) as client:
        assert (await client.chat.completions.create(**question)).choices[0].message.content == "hi"
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(AuthenticationError):
            await client.chat.completions.create(**question)
    assert stack.metric("openclaw_key_requests_total", key="phone", code="200") == 1
    assert stack.metric("openclaw_key_tokens_total", key="phone", kind="generated") == len(
        stack.turns()[0].response_ids
    )
    assert stack.metric("openclaw_unauthorized_total") == 1
    assert stack.metric("openclaw_requests_total", code="401") == 1


async def test_every_route_but_two_needs_a_key(start: Starter) -> None:
    stack = await start(api_key="s3cret")
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/nothing", "/healthz/", "/%2Fhealthz", "/%2F"):
            for method in ("GET", "POST", "DELETE"):
                assert (await client.request(method, path)).status_code == 401, (method, path)
        for path in ("/healthz", "/"):
            assert (await client.get(path)).status_code == 200


def test_a_keyring_knows_its_keys_in_a_text(tmp_path: Path) -> None:
    ring = Keyring("from-outside", two_keys(tmp_path))
    assert ring.holds(LAPTOP.encode())
    assert ring.holds(b"from-outside")
    assert not ring.holds(LAPTOP[:-1].encode())
