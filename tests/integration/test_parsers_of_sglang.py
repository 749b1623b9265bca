"""Our parsers of thoughts and tool calls read well-formed replies as SGLang's do."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chat_codec.formats import REASONING_FORMATS, TOOL_FORMATS
from chat_codec.reply_parser import MessageBuilder, ReplyParser
from slime.backends.sglang_utils.server import engine_environment

SCHEMAS = {
    "read": {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "array"}}},
    "set": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "on": {"type": "boolean"}},
    },
}
WORDS = ["a", "naïve", "🙂", "line\nbreak", 'a "quoted" word', "back\\slash", "{brace}", "日本", "1.5", "x < y & z"]
CASES_PER_PARSER = 60
JSON_PARSERS, XML_PARSERS = ("qwen25", "qwen", "hermes"), ("qwen3_coder",)
REASONING_PARSERS = ("qwen3", "deepseek-r1")


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))


def arguments(rng: random.Random, name: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "path": words(rng),
        "lines": [rng.randint(-5, 5) for _ in range(rng.randint(0, 3))],
        "name": words(rng),
        "count": rng.randint(-(10**6), 10**6),
        "on": rng.random() < 0.5,
    }
    known = list(SCHEMAS[name]["properties"])
    return {each: values[each] for each in rng.sample(known, rng.randint(1, len(known)))}


def call(rng: random.Random, parser: str) -> str:
    """A call as a model writes it: our own frame of the format, and its arguments."""
    name = rng.choice(list(SCHEMAS))
    form = TOOL_FORMATS[parser]
    assert form is not None
    before, after = form.frame(name)
    given = arguments(rng, name)
    if parser in JSON_PARSERS:
        return before + json.dumps(given, ensure_ascii=rng.random() < 0.5) + after
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    return before + "\n".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items()) + after


def cases() -> list[dict[str, Any]]:
    rng, found = random.Random(0), []
    for parser in (*JSON_PARSERS, *XML_PARSERS):
        for _ in range(CASES_PER_PARSER):
            calls = "\n".join(call(rng, parser) for _ in range(rng.randint(0, 3)))
            found.append({"parser": parser, "schemas": SCHEMAS, "text": f"{words(rng)}\n{calls}".rstrip("\n")})
    for parser in REASONING_PARSERS:
        opening = "" if parser == "deepseek-r1" else "<think>\n"
        for _ in range(CASES_PER_PARSER):
            found.append({"parser": parser, "text": f"{opening}{words(rng)}\n</think>\n\n{words(rng)}"})
    return found


@pytest.fixture(scope="module")
def answers(repository: Path) -> list[tuple[dict[str, Any], list[Any]]]:
    paths = os.pathsep.join([str(repository), str(repository / "slime")])
    asked = cases()
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.sglang_parsers"],
        input=json.dumps(asked),
        env=engine_environment(os.environ | {"PYTHONPATH": paths}, cpu=True),
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(asked, json.loads(done.stdout), strict=True))


def ours(case: dict[str, Any], pieces: random.Random) -> dict[str, Any]:
    """Our message from the same text in pieces of random length."""
    if "schemas" in case:
        form = TOOL_FORMATS[case["parser"]]
        assert form is not None
        parser = ReplyParser(reasoning=None, tools=form.parser(case["schemas"], str))
    else:
        parser = ReplyParser(reasoning=REASONING_FORMATS[case["parser"]], tools=None)
    builder, text = MessageBuilder(), case["text"]
    while text:
        length = pieces.randint(1, 9)
        for delta in parser.push(text[:length]):
            builder.add(delta)
        text = text[length:]
    for delta in parser.finish():
        builder.add(delta)
    assert parser.malformed == 0
    return builder.message()


def test_calls_and_content_are_those_of_sglang(answers: list[tuple[dict[str, Any], list[Any]]]) -> None:
    pieces, compared = random.Random(1), 0
    for case, (content, calls) in answers:
        if "schemas" not in case:
            continue
        message = ours(case, pieces)
        found = [
            [each["function"]["name"], json.loads(each["function"]["arguments"])]
            for each in message.get("tool_calls", [])
        ]
        assert found == calls, case
        assert (message["content"] or "").strip() == content.strip(), case
        compared += len(calls)
    assert compared > len(answers) / 2


def test_thoughts_are_those_of_sglang(answers: list[tuple[dict[str, Any], list[Any]]]) -> None:
    pieces = random.Random(2)
    for case, (reasoning, content) in answers:
        if "schemas" not in case:
            message = ours(case, pieces)
            assert message["reasoning_content"].strip() == reasoning.strip(), case
            assert message["content"].strip() == content.strip(), case
