"""A history whose tool calls have arguments that are not an object can go on, whatever the chat template does with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from chat_codec.renderer import Renderer, RenderError
from lab.testkit import tiny_random
from tests.helpers.conversations import assistant, tool, user
from tests.unit.gateway.conftest import Starter

ITERATING = {
    "items filter": "{% for key, value in call.function.arguments|items %}<{{ key }}>{{ value }}{% endfor %}",
    "items method": "{% for key, value in call.function.arguments.items() %}<{{ key }}>{{ value }}{% endfor %}",
    "dictsort": "{% for key, value in call.function.arguments|dictsort %}<{{ key }}>{{ value }}{% endfor %}",
    "raises": "{% if call.function.arguments is not mapping %}{{ raise_exception('no object') }}{% endif %}"
    "{{ call.function.arguments|tojson }}",
}
PRINTING = {
    "tojson": "{{ call.function.arguments|tojson }}",
    "text or tojson": "{{ call.function.arguments if call.function.arguments is string"
    " else call.function.arguments|tojson }}",
}
BAD = [
    "null",
    "[1]",
    "[]",
    "{bad",
    "3",
    '"text"',
    "true",
    "x=1",
    "[" * 200 + "]" * 200,
    '{"a": "\\ud800"}',
    '{"a": 1}}',
]
EMPTY = ["", " ", "{}"]


@cache
def tokenizer_of(body: str) -> Any:
    tokenizer = tiny_random.build_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        f"{{% for call in message.tool_calls or [] %}}({{{{ call.function.name }}}} {body}){{% endfor %}}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


@cache
def renderer_of(body: str) -> Renderer:
    return Renderer(tokenizer_of(body))


def history(*arguments: str) -> list[dict[str, Any]]:
    return [user("read"), assistant("", *(("read", each) for each in arguments)), tool("no"), user("again")]


@pytest.mark.parametrize("body", ITERATING.values(), ids=ITERATING.keys())
@pytest.mark.parametrize("arguments", [*BAD, *EMPTY])
def test_a_template_that_goes_through_arguments_shows_none(body: str, arguments: str) -> None:
    renderer, messages = renderer_of(body), history(arguments)
    assert renderer.render(messages) == renderer.render(history("{}"))
    good = '{"path": "a"}'
    assert renderer.render(history(good, arguments)) == renderer.render(history(good, "{}"))
    asked, reply = messages[:1], messages[1]
    assert renderer.render_reply(asked, reply) == renderer.render_reply(asked, history("{}")[1])


@pytest.mark.parametrize("body", PRINTING.values(), ids=PRINTING.keys())
@pytest.mark.parametrize(("arguments", "shown"), [*((each, each) for each in ("null", "[1]", "3", "true")), ("", "{}")])
def test_a_template_that_prints_arguments_shows_them(body: str, arguments: str, shown: str) -> None:
    ids = renderer_of(body).render(history(arguments))
    assert f"(read {shown})" in tokenizer_of(body).decode(ids)
    assert "{bad" in tokenizer_of(body).decode(renderer_of(body).render(history("{bad")))


def test_what_the_template_refuses_for_another_reason_is_refused() -> None:
    body = "{{ raise_exception('no calls') }}"
    for arguments in ("{}", "null"):
        with pytest.raises(RenderError, match="no calls"):
            renderer_of(body).render(history(arguments))


@pytest.mark.parametrize("arguments", ["null", "{bad"])
async def test_the_conversation_goes_on(start: Starter, arguments: str) -> None:
    stack = await start(tokenizer=tokenizer_of(ITERATING["items filter"]))
    stack.say("Fine.")
    answer = await stack.client.chat.completions.create(model="any", messages=history(arguments))
    assert answer.choices[0].message.content == "Fine."
    [turn] = stack.turns()
    assert turn.messages == history(arguments)
    assert turn.prompt_ids == renderer_of(ITERATING["items filter"]).render(history("{}"))
