"""Pictures of a request: read once, exact in prompt, engine and ledger; refused by name where they cannot be read."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image

from agentrl.rollout.pictures import Pictures
from groundwork.images import image_tokens, one_per_image
from groundwork.processors import load_processor
from openclaw.config.bounds import PICTURE_BYTES, PICTURE_PIXELS
from openclaw.gateway.schema import UNSEEN_PICTURE
from openclaw.judge.interface import Question
from openclaw.privacy.redactor import Redactor
from openclaw.training.rollout import SamplePictures
from openclaw.training.samples import make_sample
from tests.helpers import tiny_vision
from tests.helpers.pictures import picture, png
from tests.unit.gateway.conftest import Stack, Starter

TYPED = "<|vision_start|><|image_pad|><|vision_end|>"
SECRET = "ghp_" + "a1B2" * 9
THINKING = {"enable_thinking": True}
"""The template then writes no empty thought, which it would leave out of the history."""
FIRST, SECOND = picture(24, 16), picture(33, 25)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.build(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def processor(model: Path) -> Any:
    return load_processor(str(model))


@pytest.fixture
async def seeing(start: Starter, processor: Any) -> Stack:
    """A gateway before a model that sees; its engine repeats the placeholders as SGLang does."""
    stack: Stack = await start(tokenizer=processor.tokenizer, processor=processor)

    def counted(payload: dict[str, Any]) -> int:
        images = [Image.open(io.BytesIO(decoded(url))) for url in payload.get("image_data", [])]
        return len(payload["input_ids"]) + sum(image_tokens(processor, *image.size) - 1 for image in images)

    stack.engine.prompt_tokens = counted
    return stack


def decoded(url: str) -> bytes:
    return base64.b64decode(url.partition(",")[2])


def url_of(file: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def shown(image: Any, text: str = "What is this?") -> dict[str, Any]:
    """Return a user's message with a picture: a PIL image, or its URL."""
    url = image if isinstance(image, str) else url_of(png(image))
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
    }


async def post(stack: Stack, messages: list[Any], session: str = "me", **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"X-Session-Id": session}) as client:
        return await client.post("/v1/chat/completions", json={"messages": messages, **fields})


async def ask(stack: Stack, messages: list[Any], session: str = "me", **fields: Any) -> dict[str, Any]:
    response = await post(stack, messages, session, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def expected_ids(processor: Any, messages: list[Any], images: list[Any]) -> list[int]:
    """Return what the model's own processor makes of a conversation."""
    parts = [
        {**m, "content": [{"type": "image"} if "image_url" in p else p for p in m["content"]]}
        if isinstance(m["content"], list)
        else m
        for m in messages
    ]
    text = processor.tokenizer.apply_chat_template(parts, tokenize=False, add_generation_prompt=True, **THINKING)
    return processor(text=[text], images=images, return_tensors="pt")["input_ids"][0].tolist()


async def test_turns_with_pictures_are_exact_and_stored_once(seeing: Stack, processor: Any, model: Path) -> None:
    """Two turns, a picture each, the second one streamed: ids, engine, ledger and sample belong together."""
    seeing.say("A cat.", "A dog.")
    messages: list[Any] = [shown(FIRST)]
    answer = await ask(seeing, messages, chat_template_kwargs=THINKING)
    assert answer["usage"]["prompt_tokens"] == len(expected_ids(processor, messages, [FIRST]))
    messages += [answer["choices"][0]["message"], shown(SECOND, "And this?")]
    stream = await seeing.client.chat.completions.create(
        model="any",
        messages=messages,
        stream=True,
        extra_headers={"X-Session-Id": "me"},
        extra_body={"chat_template_kwargs": THINKING},
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "A dog."
    one, two = seeing.turns()
    assert one.prompt_ids == expected_ids(processor, messages[:1], [FIRST])
    assert two.prompt_ids == expected_ids(processor, messages, [FIRST, SECOND])
    assert two.prompt_ids[: len(one.prompt_ids) + len(one.response_ids)] == one.prompt_ids + one.response_ids
    assert one.next_state
    assert "sha256" in str(one.next_state)
    assert "base64" not in str(one.next_state + two.messages)
    assert one.reason is None
    assert one.state == "pending"
    last = seeing.engine.requests[-1]
    assert last["input_ids"] == one_per_image(two.prompt_ids, frozenset({processor.image_token_id}))
    files = [each.png for each in seeing.ledger.pictures.of(two.id)]
    assert [decoded(url) for url in last["image_data"]] == files
    assert seeing.ledger.pictures.of(one.id)[0].png == files[0]
    assert len(list(seeing.ledger.pictures.files())) == 2, "the first picture, seen twice, is stored once"
    sample = make_sample(two, 1.0, score=1)
    sample.metadata["turn_id"] = two.id
    assert SamplePictures(seeing.ledger, str(model)).show(sample)
    screens = Pictures(processor)
    await screens.add([base64.b64encode(png(image)).decode() for image in (FIRST, SECOND)])
    ours, theirs = sample.multimodal_train_inputs, screens.tensors((0, 1))
    assert ours is not None
    assert theirs is not None
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert two.prompt_ids == screens.expanded(last["input_ids"], (0, 1))
    sample.tokens = sample.tokens[1:]
    sample.metadata["ledger_id"] = 7
    assert not SamplePictures(seeing.ledger, str(model)).show(sample), "the tokens have moved"


async def test_a_placeholder_in_words_is_no_picture(seeing: Stack, processor: Any) -> None:
    seeing.say("Text.", "More.")
    await ask(seeing, [shown(FIRST, TYPED)])
    await ask(seeing, [{"role": "user", "content": TYPED}], "other")
    with_one, without = seeing.turns()
    pad = processor.image_token_id
    assert with_one.prompt_ids.count(pad) == image_tokens(processor, *FIRST.size)
    assert pad not in without.prompt_ids
    assert TYPED in processor.tokenizer.decode(without.prompt_ids)
    assert [len(request.get("image_data", [])) for request in seeing.engine.requests] == [1, 0]


async def test_a_sampled_placeholder_is_not_trained_and_not_sent_again(seeing: Stack, processor: Any) -> None:
    end = processor.tokenizer.eos_token_id
    seeing.replies.append([*processor.tokenizer.encode("See", add_special_tokens=False), processor.image_token_id, end])
    answer = await ask(seeing, [shown(FIRST)])
    seeing.say("Yes.")
    await ask(seeing, [shown(FIRST), answer["choices"][0]["message"], {"role": "user", "content": "Well?"}])
    one, two = seeing.turns()
    assert (one.state, one.reason) == ("excluded", "placeholder")
    assert seeing.engine.requests[-1]["input_ids"].count(processor.image_token_id) == 1
    assert two.reason is None


def _animated() -> bytes:
    buffer = io.BytesIO()
    FIRST.save(buffer, "GIF", save_all=True, append_images=[picture(24, 16, "L")])
    return buffer.getvalue()


def _header_of(width: int, height: int) -> bytes:
    """Return the start of a PNG file that claims to be large."""
    import struct
    import zlib

    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + body
        + struct.pack(">I", zlib.crc32(body))
        + struct.pack(">I", 99)
        + b"IDAT"
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/secret.png", "fetches nothing"),
        ("https://example.org/cat.png", "fetches nothing"),
        ("file:///etc/passwd", "fetches nothing"),
        ("/etc/passwd", "fetches nothing"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "fetches nothing"),
        ("data:image/png;base64,a b", "not valid base64"),
        (url_of(b"no picture"), "cannot be read"),
        (url_of(b""), "cannot be read"),
        (url_of(png(FIRST)[:60]), "cannot be read"),
        (url_of(b"BM" + bytes(60)), "cannot be read"),
        (url_of(png(Image.new("RGB", (2000, 4)))), "200 times"),
        (url_of(_animated(), "gif"), "animated"),
        (url_of(_header_of(1 << 13, 1 << 13)), f"at most {PICTURE_PIXELS.most}"),
        (url_of(_header_of(1 << 20, 1 << 20)), "cannot be read"),
    ],
)
async def test_what_is_no_picture_here_is_refused_with_what_to_send(seeing: Stack, url: str, words: str) -> None:
    response = await post(seeing, [shown(url)])
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"]
    assert "messages.0.content.0" in error["message"]
    assert error["param"] == "messages"
    assert not seeing.engine.requests


async def test_bounds_on_bytes_pixels_roles_and_detail(seeing: Stack) -> None:
    large = await post(seeing, [shown("data:image/png;base64," + "A" * (PICTURE_BYTES.most * 4 // 3 + 8))])
    assert (large.status_code, large.headers["x-limit"]) == (400, "picture_bytes")
    pixels = await post(seeing, [shown(url_of(_header_of(1 << 13, 1 << 13)))])
    assert pixels.headers["x-limit"] == "picture_pixels"
    for role in ("system", "assistant"):
        refused = await post(seeing, [{**shown(FIRST), "role": role}, {"role": "user", "content": "Hi"}])
        assert refused.status_code == 400
        assert f"a {role} message has no pictures" in refused.text
    url = url_of(png(FIRST))
    for part in ({"url": url, "detail": "low"}, url, {"url": 5}, {}):
        content = [{"type": "image_url", "image_url": part}]
        assert (await post(seeing, [{"role": "user", "content": content}])).status_code == 400
    forged = [{"type": "image", "sha256": "0" * 64}]
    assert (await post(seeing, [{"role": "user", "content": forged}])).status_code == 400, "nobody names stored files"
    assert not seeing.engine.requests


async def test_a_model_that_sees_nothing_refuses_pictures(stack: Stack) -> None:
    response = await post(stack, [shown(FIRST)])
    assert response.status_code == 400
    assert "sees no pictures" in response.json()["error"]["message"]
    assert not stack.engine.requests
    assert not stack.turns()


async def test_a_damaged_picture_of_a_tool_is_told(seeing: Stack) -> None:
    """A refusal would end an agent's session, which sends the result again with each request."""
    seeing.say("I cannot see it.")
    called = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
    damaged = {"type": "image_url", "image_url": {"url": url_of(b"no picture")}}
    result = {"role": "tool", "tool_call_id": "c", "content": [damaged]}
    user = {"role": "user", "content": "look"}
    await ask(seeing, [user, {"role": "assistant", "content": "", "tool_calls": [called]}, result])
    assert seeing.turns()[-1].messages[-1]["content"] == [{"type": "text", "text": UNSEEN_PICTURE}]


async def test_an_engine_that_counts_other_tokens_is_an_error(seeing: Stack) -> None:
    seeing.engine.prompt_tokens = lambda payload: len(payload["input_ids"])
    seeing.say("A cat.")
    response = await post(seeing, [shown(FIRST)])
    assert response.status_code >= 500
    assert not any(turn.state == "waiting" for turn in seeing.turns())


async def test_a_reply_goes_on_with_its_pictures_when_the_engine_was_away(seeing: Stack, processor: Any) -> None:
    seeing.say("A long answer about cats.")
    seeing.engine.break_after = 2
    await ask(seeing, [shown(FIRST)])
    first, second = seeing.engine.requests
    assert first["image_data"] == second["image_data"]
    delivered = second["input_ids"][len(first["input_ids"]) :]
    (turn,) = seeing.turns()
    assert delivered == turn.response_ids[: len(delivered)]
    assert delivered


async def test_another_picture_is_another_conversation(seeing: Stack) -> None:
    """The same words to another picture are not the next state of the first."""
    seeing.say("A cat.", "Well.", "Well.")
    reply = (await ask(seeing, [shown(FIRST)], ""))["choices"][0]["message"]
    await ask(seeing, [shown(picture(24, 16).rotate(180)), reply, {"role": "user", "content": "Sure?"}], "")
    assert [turn.next_state for turn in seeing.turns()] == [None, None]
    await ask(seeing, [shown(FIRST), reply, {"role": "user", "content": "Sure?"}], "")
    assert seeing.turns()[0].next_state


async def test_pictures_go_with_the_last_session_that_saw_them(seeing: Stack) -> None:
    seeing.say("A cat.", "A cat.")
    await ask(seeing, [shown(FIRST)], "mine")
    await ask(seeing, [shown(FIRST)], "yours")
    ((_, file),) = seeing.ledger.pictures.files()
    async with httpx.AsyncClient(base_url=seeing.url, trust_env=False) as client:
        await client.delete("/v1/sessions/mine")
        assert [each for _, each in seeing.ledger.pictures.files()] == [file]
        await client.delete("/v1/sessions/yours")
    assert not list(seeing.ledger.pictures.files())
    for path in seeing.ledger.path.parent.glob("ledger.sqlite*"):
        assert file[-40:] not in path.read_bytes()


async def test_a_secret_beside_a_picture_takes_the_picture_along(seeing: Stack) -> None:
    seeing.ledger.database.redaction = Redactor("secrets")
    seeing.say("Fine.", "Fine.")
    await ask(seeing, [shown(FIRST, SECRET)])
    (turn,) = seeing.turns()
    assert turn.reason == "redacted"
    assert not list(seeing.ledger.pictures.files())
    await ask(seeing, [shown(SECOND)], "other")
    assert len(list(seeing.ledger.pictures.files())) == 1


async def test_a_judge_reads_that_there_is_a_picture(seeing: Stack) -> None:
    seeing.say("A cat.", "A dog.")
    messages = [shown(FIRST)]
    messages.append((await ask(seeing, messages))["choices"][0]["message"])
    await ask(seeing, [*messages, shown(SECOND, "No, look.")])
    turn = seeing.turns()[0]
    question = Question.about(turn.messages, turn.response_message, turn.next_state or [])
    assert question.next_state == (("user", "[image]No, look."),)
