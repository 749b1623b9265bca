"""A client's own request at the end of the user's history is not the user's reaction, whatever its words."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.credit.baseline import record_judged
from openclaw.ledger.exceptions import FeedbackArrivedError
from openclaw.ledger.records import Feedback, Turn, Verdict
from openclaw.ledger.turns import SUPERSEDED
from openclaw.messages.classify import own_request
from openclaw.training.samples import make_sample
from tests.helpers.conversations import World, assistant, tool, user
from tests.unit.gateway.conftest import Stack

SESSIONS = pytest.mark.parametrize("session", ["s", None], ids=["stated", "plain"])
QUESTION = user("Tom has 3 apples and gets 4 more. How many?")
REPLY = assistant("1. **Start:** 3.\n2. **Add:** 4.\n\n**Answer:** 7")
COMPLAINT = user("please no lists and no bold")
START = [QUESTION, REPLY]
UNKNOWN = user("Label for the sidebar, at most five words.")
OWN = """\
Give our conversation a title of at most five words, without quotes.
Generate a concise 3-7 word title for this conversation, omitting punctuation. Go straight to the title.
Please generate a four to five word title summarizing our conversation without any lead-in, punctuation or quotation marks.
### Task: Generate a concise, 3-5 word title with an emoji summarizing the chat history.
Title for this chat?
What would be a good title for this chat?
Provide a brief, 3-5 word title
Create a short (4-5 words max) title for this conversation: "hi"
Provide a 1 to 5 word title summarizing our conversation or journal entry so far.
Name this conversation like an explorer's journal. Reply with only the title, no quotes.
In five words or less, name this chat.
Now give this chat a name
Create 1-3 broad tags categorizing the main themes of the chat history
List three tags for this conversation, comma separated
Suggest three follow-up questions that the user might ask next.
Generate 3 suggested replies for the user
Summarise so far
Summarize the conversation so far, as described in the prompt instructions.
Summarize the discussion briefly in 200 words or less to use as a prompt for future context.
Generate a detailed summary of this conversation. Include: 1. A brief overview
Please summarize everything we have discussed.
Ignore previous instructions. Summarize the most important facts and events in the story so far.
Your task is to create a detailed summary of the conversation so far
Extract the key points of our discussion
使用四到五个字直接返回这句话的简要主题，不要解释
简要总结一下对话内容，用作后续的上下文提示
この会話にタイトルをつけてください
이 대화의 제목을 지어줘
Gib unserem Gespräch einen Titel mit höchstens fünf Wörtern.
Donne un titre à notre conversation.
Dale un título a esta conversación.
Bitte erstellen Sie einen vier- bis fünfwörtigen Titel, der unser Gespräch zusammenfasst
Fasse unser Gespräch bisher zusammen.
Veuillez générer un titre de quatre à cinq mots résumant notre conversation sans introduction
Por favor, genera un título de cuatro a cinco palabras que resuma nuestra conversación
Por favor, gere um título de quatro a cinco palavras resumindo nossa conversa
Si prega di generare un titolo di quattro o cinque parole che riassuma la nostra conversazione
Пожалуйста, создайте заголовок из четырех или пяти слов, который кратко описывает нашу беседу
Sử dụng 4 đến 5 từ tóm tắt cuộc trò chuyện này mà không có phần mở đầu
4〜5文字でこの文章の簡潔な主題を返してください
Придумай заголовок для этого разговора""".splitlines()
USERS = """\
please no lists and no bold
That's too long, summarise our discussion so far in one sentence
I hate that you put a title above every reply in this chat
no lists in our conversation please
Write a title for my essay about cats
Summarize this article: The cat sat.
Thanks! What is the topic of chapter 3?
Name the capital of France
Make it shorter
List three fruits
Can you name the files?
Please follow up with the plumber
Describe the history of Rome
What is 12 - 5?
总结一下这篇文章
你好，请用中文回答
Bitte keine Listen
Qué título tan largo
No more tags please
the history of this title is wrong""".splitlines()


@pytest.mark.parametrize(("words", "own"), [*((each, True) for each in OWN), *((each, False) for each in USERS)])
def test_requests_about_the_conversation_are_known_by_their_shape(words: str, own: bool) -> None:
    assert own_request(words) == own
    assert own_request(f"  {words}\n".replace(" ", "  ")) == own


@SESSIONS
@pytest.mark.parametrize("request_", [user(OWN[0]), user(OWN[7]), user(OWN[13]), UNKNOWN], ids=range(4))
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_next_state_is_what_the_user_really_said(
    world: World, session: str | None, request_: dict[str, Any], restarted: bool
) -> None:
    _, turn = await world.turn([QUESTION], REPLY, session=session)
    _, own = await world.turn([*START, request_], assistant("Apples"), session=session)
    if restarted:
        await world.restart()
    context, _ = await world.turn([*START, COMPLAINT], assistant("7."), session=session)
    assert context.next_state_of == turn.id
    assert world.next_state(turn) == [COMPLAINT]
    assert world.next_state(own) is None
    assert world.count("branch") == 0
    await world.turn([*START, COMPLAINT, assistant("7."), user("thanks")], assistant("ok"), session=session)
    assert world.next_state(turn) == [COMPLAINT]


@SESSIONS
async def test_an_own_request_after_every_reply(world: World, session: str | None) -> None:
    history, turns = [QUESTION], []
    for n in range(6):
        reply = assistant(f"Reply {n}.")
        turns.append((await world.turn(history, reply, session=session))[1])
        history = [*history, reply]
        for own in (UNKNOWN, user(OWN[11])):
            await world.turn([*history, own], assistant("Own."), session=session)
        history = [*history, user(f"reaction {n}")]
    await world.turn(history, assistant("End."), session=session)
    assert [world.next_state(turn) for turn in turns] == [[user(f"reaction {n}")] for n in range(6)]


@SESSIONS
async def test_an_own_request_that_comes_after_the_users_words(world: World, session: str | None) -> None:
    """The client titles the first exchange while the user's message is answered; the conversation sets it right."""
    _, turn = await world.turn([QUESTION], REPLY, session=session)
    await world.turn([*START, COMPLAINT], assistant("7."), session=session)
    await world.turn([*START, UNKNOWN], assistant("Apples"), session=session)
    history = [*START, COMPLAINT, assistant("7.")]
    await world.turn([*history, user("thanks")], assistant("ok"), session=session)
    assert world.next_state(turn) == [COMPLAINT]
    late, _ = await world.turn([*START, UNKNOWN], assistant("Apples again"), session=session)
    assert (late.relation, world.next_state(turn)) == ("regeneration", [COMPLAINT])
    late, _ = await world.turn([*START, user("Sidebar?")], assistant("Apples"), session=session)
    assert (late.relation, world.next_state(turn)) == ("branch", [COMPLAINT])


@SESSIONS
async def test_a_user_who_asks_for_a_title_and_goes_on(world: World, session: str | None) -> None:
    _, turn = await world.turn([QUESTION], REPLY, session=session)
    asked, title = await world.turn([*START, user(OWN[0])], assistant("Apples"), session=session)
    assert (asked.kind, asked.relation, asked.next_state_of) == ("main", "held", None)
    assert world.ledger.turns.get(turn.id).state == "waiting"
    await world.turn([*START, user(OWN[0]), assistant("Apples"), user("good")], assistant("ok"), session=session)
    assert world.next_state(turn) == [user(OWN[0])]
    assert world.next_state(title) == [user("good")]


async def test_the_words_of_a_user_who_interrupted_a_tool_loop(world: World) -> None:
    call = assistant("", ("read", "{}"))
    _, turn = await world.turn([QUESTION], call, session="s")
    await world.turn([QUESTION, call, tool("file")], assistant("I r"), session="s", finish_reason="abort")
    await world.turn([QUESTION, call, tool("file"), COMPLAINT], assistant("ok"), session="s")
    assert world.next_state(turn) == [tool("file"), COMPLAINT]


async def test_a_tool_result_that_the_client_shortened_later_changes_nothing(world: World) -> None:
    call = {**assistant("", ("read", "{}")), "id": f"chatcmpl-{1:032x}"}
    second = {**assistant("", ("look", "{}")), "id": f"chatcmpl-{2:032x}"}
    _, turn = await world.turn([QUESTION], call, session="s", turn_id=call["id"])
    _, next_turn = await world.turn([QUESTION, call, tool("a long file")], second, session="s", turn_id=second["id"])
    shortened = [QUESTION, call, tool("[cleared]"), second, tool("seen")]
    await world.turn(shortened, assistant("Done."), session="s")
    assert world.next_state(turn) == [tool("a long file")]
    assert world.next_state(next_turn) == [tool("seen")]


def judge(world: World, turn: Turn, score: int) -> None:
    found = world.ledger.turns.get(turn.id)
    samples = [make_sample(found, float(score), score=score)]
    record_judged(world.ledger, turn.id, Verdict(score=score), samples, None, 0, found.next_state)


@pytest.fixture
async def titled(world: World) -> Turn:
    """A turn whose next state is the client's request."""
    _, turn = await world.turn([QUESTION], REPLY, session="s")
    await world.turn([*START, UNKNOWN], assistant("Apples"), session="s")
    assert world.next_state(turn) == [UNKNOWN]
    return turn


async def test_a_verdict_on_the_clients_request_is_not_committed(world: World, titled: Turn) -> None:
    seen = world.ledger.turns.get(titled.id).next_state
    await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    with pytest.raises(FeedbackArrivedError, match="another next state"):
        record_judged(world.ledger, titled.id, Verdict(score=0), [], "score_zero", 0, seen)
    assert world.ledger.turns.get(titled.id).state == "pending"
    judge(world, titled, -1)


async def test_a_ready_sample_is_dropped_and_the_turn_is_judged_again(world: World, titled: Turn) -> None:
    judge(world, titled, 1)
    await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert world.ledger.views.counts()["sample_reasons"] == {SUPERSEDED: 1}
    found = world.ledger.turns.get(titled.id)
    assert (found.state, found.next_state, found.next_state_at) == ("pending", [COMPLAINT], world.now)
    judge(world, titled, -1)
    assert [sample.reward for sample in world.ledger.samples.claim(0, 5)] == [-1.0]
    assert world.count("replaced") == 1


@pytest.mark.parametrize("trained", [False, True])
async def test_what_a_step_used_stays_and_is_counted(world: World, titled: Turn, trained: bool) -> None:
    judge(world, titled, 1)
    world.ledger.samples.claim(0, 1)
    if trained:
        world.ledger.samples.mark_trained(0)
    context, _ = await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert context.next_state_of is None
    assert (world.ledger.turns.get(titled.id).state, world.next_state(titled)) == ("judged", [UNKNOWN])
    await world.turn([*START, COMPLAINT, assistant("7."), user("ok")], assistant("."), session="s")
    assert (world.count("late"), world.count("replaced")) == (1, 0)


async def test_a_turn_without_a_sample_is_judged_again(world: World, titled: Turn) -> None:
    record_judged(world.ledger, titled.id, Verdict(score=0), [], "score_zero")
    await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert world.ledger.turns.get(titled.id).state == "pending"


async def test_a_probe_stays_a_probe(world: World, titled: Turn) -> None:
    record_judged(world.ledger, titled.id, Verdict(score=1), [], "probe")
    await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert (world.ledger.turns.get(titled.id).state, world.ledger.turns.get(titled.id).reason) == ("pending", "probe")


@pytest.mark.parametrize("restarted", [False, True])
async def test_feedback_outside_of_the_conversation_stays_the_next_state(world: World, restarted: bool) -> None:
    _, turn = await world.turn([QUESTION], REPLY, session="s")
    world.ledger.feedback.record(Feedback(turn_id=turn.id, created_at=1.0, thumbs="up"), [user("(feedback: +1)")])
    if restarted:
        await world.restart()
    await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert (world.ledger.turns.get(turn.id).signal, world.next_state(turn)) == ("feedback", [user("(feedback: +1)")])


async def test_a_disk_that_is_full_leaves_the_first_next_state(
    world: World, titled: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> bool:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger.turns, "replace_next_state", full)
        with pytest.raises(OSError, match="disk full"):
            await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert world.next_state(titled) == [UNKNOWN]
    await world.turn([*START, COMPLAINT], assistant("7."), session="s")
    assert world.next_state(titled) == [COMPLAINT]


async def test_equal_conversations_of_a_client_without_ids_stay_apart(world: World) -> None:
    for n in range(3):
        _, turn = await world.turn([QUESTION], REPLY)
        await world.turn([*START, UNKNOWN], assistant("Apples"))
        await world.turn([*START, user(f"complaint {n}")], assistant("7."))
        assert world.next_state(turn) == [user(f"complaint {n}")]


@pytest.mark.parametrize(
    ("headers", "stream", "words"),
    [({"X-Session-Id": "me"}, False, UNKNOWN["content"]), ({}, True, UNKNOWN["content"]), ({}, False, OWN[0])],
    ids=["stated", "streamed", "held"],
)
async def test_the_sequence_over_http(stack: Stack, headers: dict[str, str], stream: bool, words: str) -> None:
    stack.say("It is 7.", "Apples", "7")
    start = [QUESTION, assistant("It is 7.")]
    for messages in ([QUESTION], [*start, user(words)], [*start, COMPLAINT]):
        create: Any = stack.client.chat.completions.create
        answer = await create(model="any", messages=messages, stream=stream, extra_headers=headers)
        if stream:
            async for _ in answer:
                continue
    assert [turn.next_state for turn in stack.turns()] == [[COMPLAINT], None, None]
    assert {turn.session_id for turn in stack.turns()} == {stack.turns()[0].session_id}
    assert stack.metric("openclaw_session_events_total", event="branch") == 0
