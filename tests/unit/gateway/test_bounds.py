"""Every bound on what a client sends is declared once, is on the page and in the dry run, and has the name it is counted by."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.config.bounds import rows
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.report import limit_lines, short_limits
from tests.helpers.syntax import parsed

WORDS = {"MAX", "MIN", "MOST", "LEAST", "LIMIT", "LONGEST", "LARGEST", "DEPTH", "TIMEOUT"}
UNITS = {"SECONDS", "BYTES", "CHARACTERS", "TOKENS", "SECOND", "DROPPED"}
# Numbers that no request can reach: pauses, caches, pages of answers, and how a bound is watched.
INTERNAL = {
    "BYTES_A_SECOND",
    "CLOSE_SECONDS",
    "DROPPED_BYTES",
    "DROP_SECONDS",
    "END_SECONDS",
    "KEY_BYTES",
    "MAX_CHOICE_DEPTH",
    "MAX_GROUP_DEPTH",
    "LARGEST_FACTOR",
    "LARGEST_SPAN",
    "LENGTH_BYTES",
    "LONGEST_REFERENCE_CHAIN",
    "LONGEST_SWEEP_SECONDS",
    "LONGEST_WHITESPACE",
    "LOOK_SECONDS",
    "MOST_CACHED_BYTES",
    "MOST_CACHED_TOKENS",
    "MOST_CHOICES",
    "MOST_MEMORY_BYTES",
    "MOST_REMEMBERED_TOKENS",
    "MOST_RESIDENT_KB",
    "MOST_TURNS",
    "MOST_UNKNOWN",
    "MOST_UNROLLED",
    "NOTICED_SECONDS",
    "OFFER_SECONDS",
    "PIECE_BYTES",
    "POLL_SECONDS",
    "PROMPT_END_TOKENS",
    "SECONDS_A_DAY",
    "SHORT_CHARACTERS",
    "SHOWN_CHARACTERS",
    "SLOT_BYTES",
    "TAIL_TOKENS",
    "TOKENS_PER_REPLY",
    "WINDOW_TOKENS",
}


def is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def numbers(tree: ast.AST) -> Iterator[str]:
    """Yield the constants of a module that look like bounds, and literal lengths of request fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                if name.isupper() and (WORDS | UNITS) & set(name.split("_")):
                    yield name
        if isinstance(node, ast.keyword) and node.arg in ("max_length", "max_items") and is_number(node.value):
            yield f"{node.arg}={ast.unparse(node.value)}"


def counted(tree: ast.AST) -> Iterator[str]:
    """Yield the names by which a module counts refusals, where it spells them out."""
    for node in ast.walk(tree):
        spelled = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("on_limit"):
            spelled = node.args
        if isinstance(node, ast.keyword) and node.arg == "limit":
            spelled = [node.value]
        yield from (each.value for each in spelled if isinstance(each, ast.Constant) and isinstance(each.value, str))


def modules(repository: Path) -> Iterator[ast.Module]:
    for folder in ("openclaw/gateway", "slime/chat_codec"):
        yield from map(parsed, (repository / folder).rglob("*.py"))


def test_no_bound_hides_in_the_gateway(repository: Path) -> None:
    found = {number for tree in modules(repository) for number in numbers(tree)}
    assert found - INTERNAL == set(), "declare bounds on what clients send in openclaw/config/bounds.py"
    assert INTERNAL - found == set(), "these are gone"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MAX_STOP = 4", "MAX_STOP"),
        ("MOST_BYTES: int = 4 << 20", "MOST_BYTES"),
        ("class A:\n    LONGEST = 2.5", "LONGEST"),
        ("a = Field(max_length=256)", "max_length=256"),
    ],
)
def test_a_hidden_bound_is_found(text: str, name: str) -> None:
    assert list(numbers(ast.parse(text))) == [name]


def test_refusals_are_counted_by_declared_names(repository: Path) -> None:
    declared = {row.name for row in rows(RuntimeConfig())}
    found = {name for tree in modules(repository) for name in counted(tree)}
    assert {"body_bytes", "connections", "requests_under_way"} <= found
    assert found - declared == set()


def test_the_dry_run_has_every_bound() -> None:
    config = RuntimeConfig(max_requests=8, api_keys_file="keys")
    lines = [line.split() for line in limit_lines(config)]
    assert [line[0] for line in lines] == [row.name for row in rows(config)]
    values = {line[0]: line[1] for line in lines}
    assert (values["requests_under_way"], values["concurrent"], values["tokens"]) == ("8", "2", "none")
    short = short_limits(config)
    assert short == "33554432 bytes and 32768 tokens a request, 8 requests at once"


def test_names_are_unique() -> None:
    names = [row.name for row in rows(RuntimeConfig())]
    assert len(names) == len(set(names))
