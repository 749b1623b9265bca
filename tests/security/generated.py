"""Sends generated requests to a server, and holds each answer to what the API promises.

An answer is below 500; a 503 names the seconds to wait and is allowed only while the places are taken. An error has OpenAI's
shape. The runtime and the engine stay alive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.security.attack import happened
from tests.security.grammar import generate
from tests.security.server import ANSWER_SECONDS, CHAT, Server

AT_ONCE = 4
EVERY = 500
"""Requests after which ``/healthz`` and the processes are looked at."""
SHOWN = 5
SHARE_OF_DESCRIPTION = 10
"""One of so many requests comes from the OpenAPI description, the others from the grammar."""
BUSY = (429, 503)
QUIET = list(HealthCheck)
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
Progress = Callable[[int], object]


def broken(response: httpx.Response) -> str | None:
    """Return what is wrong with an answer to a generated request, or None."""
    if response.status_code == 200:
        text = response.text
        if response.headers["content-type"].startswith("text/event-stream"):
            return None if text.endswith("data: [DONE]\n\n") else _stream_error(text)
        return None if json.loads(text).get("object") == "chat.completion" else f"200 {text[:200]}"
    if response.status_code in BUSY and "retry-after" in response.headers:
        return None
    if response.status_code >= 500:
        return f"{response.status_code} {response.text[:200]}"
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return f"no OpenAI error: {response.status_code} {response.text[:200]}"
    return None if set(error) >= {"message", "type", "param", "code"} else f"incomplete error: {error}"


def _stream_error(text: str) -> str | None:
    """Return what a stream that ended early said, unless it blames the request."""
    last = text.rstrip().rpartition("data: ")[2]
    kind = json.loads(last).get("error", {}).get("type") if last.startswith("{") else None
    return None if kind == "invalid_request_error" else f"a stream ended with {last[:200]}"


def grammar(server: Server, seed: int, numbers: range, progress: Progress = lambda _: None) -> str:
    """Send the requests ``numbers`` of a seed, `AT_ONCE` at a time.

    Raises:
        AssertionError: names the seed and the numbers that failed, and shows the first as a command.
    """
    statuses: list[int] = []
    problems: list[str] = []
    deaths = server.engine.deaths()

    def send(number: int) -> None:
        request = generate(seed, number)
        try:
            response = client.post(
                CHAT, content=request.body, headers={"content-type": "application/json", **request.headers}
            )
            problem = broken(response)
            statuses.append(response.status_code)
        except httpx.HTTPError as error:
            problem = repr(error)
        if problem is not None:
            problems.append(f"request {number}: {problem}\n    {request.curl(server.url)[:2000]}")
        progress(1)

    with server.client("alice") as client, ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(numbers.start, numbers.stop, EVERY):
            list(pool.map(send, range(start, min(start + EVERY, numbers.stop))))
            assert server.process.alive(), f"seed {seed}: the runtime died in requests {start} to {start + EVERY}"
            died = server.engine.deaths() - deaths
            if died:
                problems.append(f"requests {start} to {start + EVERY}: the engine died {died} times")
                deaths += died
            server.healthz()
    shown = "\n".join(problems[:SHOWN])
    assert not problems, f"seed {seed}: {len(problems)} of {len(numbers)} requests, such as\n{shown}"
    return happened(statuses)


def description(server: Server, number: int, first: int, progress: Progress = lambda _: None) -> str:
    """Send about ``number`` requests out of the OpenAPI description, valid and invalid ones, to every route."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=server.headers("alice"))
    operations = [operation.ok() for operation in schema.get_all_operations()]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each = max(1, number // (len(operations) * len(modes)))
    statuses: list[int] = []
    for operation in operations:
        for mode in modes:
            if mode is GenerationMode.NEGATIVE and not operation.body:
                continue

            @seed(first)
            @settings(
                max_examples=each, deadline=None, suppress_health_check=QUIET, phases=[Phase.generate], database=None
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def holds(case: schemathesis.Case) -> None:
                response = case.call(headers=server.headers("alice"), timeout=ANSWER_SECONDS)
                statuses.append(response.status_code)
                progress(1)
                if response.status_code not in BUSY:
                    case.validate_response(response, checks=CHECKS)

            try:
                holds()
            except Exception as error:
                raise AssertionError(f"seed {first}, {operation.label}: {error}") from error
    assert server.process.alive(), "the runtime died"
    return happened(statuses)
