"""However a model writes a call's arguments and a client writes them again, it is the same call, with the ids that were sampled."""

from __future__ import annotations

import json
from array import array
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chat_codec.formats import TOOL_FORMATS, ReplyFormat
from chat_codec.renderer import Renderer, Served, ServedReply
from openclaw.messages.fingerprint import message_digest
from tests.helpers.qwen_tokenizers import qwen3

NAMES = st.sampled_from(["path", "line", "é", "a b", '"', "</tool_call>"])
NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=6) | NAMES
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
WHOLE = 10**21
"""From here on JavaScript writes numbers with an exponent."""


def written(value: Any, draw: st.DrawFn) -> str:
    """Return some JSON text of a value, as a model may write it."""
    space = draw(st.sampled_from(["", " ", "\n  "]))
    if isinstance(value, dict):
        names = draw(st.permutations(list(value)))
        fields = [f"{written(name, draw)}{space}:{space}{written(value[name], draw)}" for name in names]
        if names and draw(st.booleans()):  # of a name that comes twice, the last one counts
            fields.insert(0, f"{written(names[0], draw)}:null")
        return f"{{{space}{f'{space},'.join(fields)}{space}}}"
    if isinstance(value, list):
        return f"[{f',{space}'.join(written(each, draw) for each in value)}{space}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=draw(st.booleans()))
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    spellings = [repr(value), f"{float(value):.17e}", f"{float(value):.17E}"]
    return draw(st.sampled_from([*spellings, f"{value}.0", f"{value}e0"] if isinstance(value, int) else spellings))


def as_javascript(value: Any) -> Any:
    """Return a value that Python writes with the numbers that JavaScript would."""
    if isinstance(value, dict):
        return {name: as_javascript(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_javascript(each) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < WHOLE else number


def a_call(arguments: str) -> dict[str, Any]:
    function = {"name": "read", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@given(ARGUMENTS, st.data())
def test_a_call_has_one_digest_in_all_writings(arguments: dict[str, Any], data: st.DataObject) -> None:
    said = written(arguments, data.draw)
    digest = message_digest(a_call(said))
    in_javascript = json.dumps(as_javascript(json.loads(said)), ensure_ascii=False, separators=(",", ":"))
    in_python = json.dumps(json.loads(said), sort_keys=data.draw(st.booleans()))
    assert [message_digest(a_call(text)) for text in (in_javascript, in_python)] == [digest, digest]


@given(ARGUMENTS, ARGUMENTS)
def test_calls_of_other_values_have_other_digests(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = json.dumps(as_javascript(one), sort_keys=True) == json.dumps(as_javascript(other), sort_keys=True)
    assert (message_digest(a_call(json.dumps(one))) == message_digest(a_call(json.dumps(other)))) == same


@cache
def made() -> tuple[Any, Renderer]:
    tokenizer = qwen3()
    return tokenizer, Renderer(tokenizer)


@settings(deadline=None)
@given(ARGUMENTS, st.data())
def test_a_call_keeps_its_ids_in_all_writings(arguments: dict[str, Any], data: st.DataObject) -> None:
    tokenizer, renderer = made()
    form = ReplyFormat(None, TOOL_FORMATS["hermes"])
    question = {"role": "user", "content": "Read."}
    prompt = renderer.render([question])
    frame = data.draw(st.sampled_from(['\n{{"name": "read", "arguments": {}}}\n', '{{"name":"read","arguments":{}}}']))
    said = written(arguments, data.draw)
    opening, closing = tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    sampled = [opening, *renderer.encode_text(frame.format(said)), closing]
    back = json.dumps(as_javascript(json.loads(said)), ensure_ascii=False)
    reply = ServedReply(array("i", [*sampled, tokenizer.eos_token_id]), array("i", prompt[-16:]))
    for _ in range(2):  # what is known of the reply by then changes nothing
        served = Served({1: reply}, form)
        ids = renderer.render([question, a_call(back), {"role": "tool", "content": "Done."}], served=served)
        assert ids[len(prompt) :][: len(sampled)] == sampled
        assert served.rendered == 0
