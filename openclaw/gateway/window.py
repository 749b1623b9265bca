"""The window: pages on which people see what the model learned from them, and say what they think.

``GET /window/events`` tells an open page that it has changed (`openclaw.gateway.window_events`).
``GET /window/{view}`` is a page and ``GET /window/json/{view}`` its twin for programs; `openclaw.window` has the views.
The pages' own script (``/window/window.js``) is the only one that the content policy allows, and all works without it.
``POST /window/log_in`` and ``/window/log_out`` are for browsers (`openclaw.gateway.log_in`). ``POST /window/say`` asks the model
in a conversation of the window's own, or in two with two versions of the weights, and ``POST /window/ask_version`` asks a version
what a turn was asked. The other forms change what routes of the API change: ``/window/feedback``, ``/window/lessons``,
``/window/adapter``, ``/window/forget``, ``/window/forget_conversation``, and for an admin ``/window/weights``.
``GET /window/export`` is a person's own adapter.

Guarantees: a key sees what it owns and its children own, an admin key everything; any other id gets the 404 of an unknown one.
Nothing is rendered or read in this process: another one does (`openclaw.runtime.window`), so that a page costs no reply its
time. A form changes what its key could change by the API, by the same code, and ends in a redirection, so that loading the page
again repeats nothing. Stateless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
from fastapi import FastAPI, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp

from groundwork.chat_messages import Message
from openclaw.config.bounds import FORM_FIELDS
from openclaw.gateway.adapters import AdapterDesk
from openclaw.gateway.auth import Client, sender
from openclaw.gateway.chat import ChatService, count, streamed
from openclaw.gateway.dialects import CHAT
from openclaw.gateway.dialects.dialect import Question
from openclaw.gateway.earlier import MARK
from openclaw.gateway.errors import ApiError, bad_request, headers_of
from openclaw.gateway.guard import WINDOW_ASK_VERSION, WINDOW_FEEDBACK, WINDOW_SAY, client_of, note_refusal, note_reply
from openclaw.gateway.lessons import LessonDesk
from openclaw.gateway.limits import take_body
from openclaw.gateway.log_in import HEADERS, LogIns, log_in_page, plain_page
from openclaw.gateway.routes import forget_meant
from openclaw.gateway.stream import Connected, EventStream
from openclaw.gateway.turns import parse_feedback
from openclaw.gateway.usage import UsageDesk
from openclaw.gateway.window_events import PageEvents
from openclaw.gateway.window_views import (
    CHAT_NAME,
    EVENTS,
    LOG_IN,
    LOG_OUT,
    SCRIPT,
    SILENT,
    STYLE,
    WINDOW,
    Asked,
    ChangeError,
    Form,
    UnknownViewError,
    Views,
    new_chat,
)
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.owners import COMMAND_ANSWER, owner_of, root, stored_id

FIRST_VIEW = "learning"
TWINS = f"{WINDOW}/json/"
SEE_OTHER = 303
CHAT_WORDS = ("id", "version", "beside", "other")
"""Which conversation the chat shows, and with which version; then the same of one beside it."""


def fields_of(request: Request) -> dict[str, str]:
    """Return the filled fields of a form.

    Raises:
        ApiError: 400 for a body that no form sends.
    """
    try:
        body = take_body(request.scope).decode()
        if body.count("&") >= FORM_FIELDS.most:
            raise bad_request(f"send at most {FORM_FIELDS.most} fields", bound=FORM_FIELDS)
        pairs = parse_qsl(body, errors="strict")
    except ValueError as error:
        raise bad_request("the form cannot be read; load the page again") from error
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def streams(request: Request) -> bool:
    """Return whether the pages' script asks, which reads events and no page."""
    return EventStream.media_type in request.headers.get("accept", "")


def with_headers(response: Response) -> Response:
    """Return a response with the headers of every answer of the window."""
    response.headers.update(HEADERS)
    return response


def to_view(view: str, **words: str) -> Response:
    """Return the redirection to a view."""
    query = f"?{urlencode(words)}" if words else ""
    return RedirectResponse(f"{WINDOW}/{view}{query}", SEE_OTHER, HEADERS)


def _page(words: str, back: str = f"{WINDOW}/", status: int = 200, headers: Mapping[str, str] = HEADERS) -> Response:
    """Return a page that only says something, and leads back."""
    kind = 'class="told" role="status"' if status == 200 else 'class="problem" role="alert"'
    body = f'<p {kind}>{escape(words)}</p>\n<p><a href="{escape(back)}">Go back</a></p>'
    return plain_page("OpenClaw-RL", body, status, headers)


def _problem(error: ApiError) -> Response:
    """Return the page of a refusal."""
    return _page(error.message, status=error.status, headers=HEADERS | headers_of(error))


LESSON_CHANGES: Mapping[str, Mapping[str, bool]] = {
    "on": {"on": True},
    "off": {"on": False},
    "pin": {"pinned": True},
    "unpin": {"pinned": False},
}
"""What the buttons of a lesson change, as ``PATCH /v1/lessons/{id}`` takes it."""


async def change_lessons(desk: LessonDesk, fields: Mapping[str, str], client: Client) -> str:
    """Change a person's lessons as a form says, and return what the page then tells.

    Raises:
        ApiError: as the routes of lessons do.
    """
    do, lesson = fields.get("do", ""), fields.get("id", "")
    words = orjson.dumps({"text": fields.get("text", "").strip()})
    if do == "add":
        await desk.add(words, client)
    elif do == "edit":
        await desk.change(lesson, words, client)
    elif do == "mode":
        await desk.choose(orjson.dumps({"lessons": fields.get("lessons", "")}), client)
    elif do == "remove":
        await desk.remove(lesson, client)
        return "removed"
    else:
        await desk.change(lesson, orjson.dumps(LESSON_CHANGES.get(do, {})), client)
    return "saved"


async def change_weights(views: Views, fields: Mapping[str, str], client: Client) -> str:
    """Go back, or accept a change, for the weights that all share; return what the page then tells.

    Raises:
        ApiError: 403 for a key that is no admin's, 409 for what is not possible.
    """
    if not client.admin:
        raise ApiError(403, "all share these weights; an admin key decides about them", code="admin_key_required")
    try:
        if fields.get("do") == "accept":
            await views.accept()
            return "accepted"
        await views.roll_back(fields.get("to", ""))
    except ChangeError as error:
        raise ApiError(409, str(error), code="not_possible") from error
    return "asked"


async def say(service: ChatService, fields: Mapping[str, str], request: Request) -> ASGIApp:
    """Ask the model with a form's words, after the conversation that it names, or after each of two beside each other.

    Who accepts a stream gets the reply as chat completions stream it; anybody else returns to the conversation, which has it. If
    one of two does not answer, the page says which: the reply of the other one is recorded, and the same words again would
    count against it.

    Raises:
        ApiError: as a chat completion does; 400 without words or a conversation.
    """
    talks = [(fields.get("id", ""), fields.get("version", ""))]
    if "beside" in fields:
        talks.append((fields["beside"], fields.get("other", "")))
    text = fields.get("text", "").strip()
    if not all(CHAT_NAME.fullmatch(name) for name, _ in talks) or not text:
        raise bad_request("type something to say", param="text")
    client, is_streamed = client_of(request.scope), streams(request) and len(talks) == 1

    def history(name: str) -> list[Message]:
        turns = service.ledger.views.newest_of_session(stored_id(client.owner, name))
        if not turns:
            return []
        last = service.ledger.turns.get(turns[0])
        return [*last.messages, last.response_message]

    questions = []
    for name, version in talks:
        messages = [*await asyncio.to_thread(history, name), {"role": "user", "content": text}]
        body = {"messages": messages, "session_id": name, "stream": is_streamed}
        questions.append(await _of_version(service, body, version))
    if is_streamed:
        return streamed(service, questions[0], client, HEADERS)
    answers = await _wholes(service, questions, request)
    answered = [each for each in answers if not isinstance(each, ApiError)]
    if answered[0]["id"].startswith(COMMAND_ANSWER):
        return _page(answered[0]["choices"][0]["message"]["content"], f"{WINDOW}/chat?{urlencode(chat_words(fields))}")
    silent = [said for said, each in zip(SILENT, answers, strict=False) if isinstance(each, ApiError)]
    return to_view("chat", **chat_words(fields), **({"said": silent[0]} if silent else {}))


def chat_words(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the words of the query that lead back to where a form of the chat was."""
    return {name: fields[name] for name in CHAT_WORDS if name in fields}


async def ask_version(service: ChatService, fields: Mapping[str, str], request: Request) -> Response:
    """Ask a version what was asked in a turn of one's own, in a new conversation, and lead there.

    Raises:
        ApiError: as a chat completion does; 404 for a turn that is unknown or not one's own.
    """
    client, name, version = client_of(request.scope), new_chat(), fields.get("version", "")

    def asked() -> dict[str, Any]:
        turn = service.ledger.turns.get(fields.get("turn", ""))
        if owner_of(turn.session_id) != client.owner:
            raise UnknownRecordError(turn.id)
        return {"messages": turn.messages, "session_id": name} | ({"tools": turn.tools} if turn.tools else {})

    try:
        body = await asyncio.to_thread(asked)
    except UnknownRecordError as error:
        raise ApiError(404, "there is no turn of that name, or it is not yours", code="not_found") from error
    await _wholes(service, [await _of_version(service, body, version)], request)
    return to_view("chat", id=name, **({"version": version} if version else {}))


async def _of_version(service: ChatService, body: dict[str, Any], version: str) -> Question:
    """Return the question of a chat completion to a version; empty: to the one that serves."""
    name = {"model": f"{service.config.model_name}{MARK}{version}"} if version else {}
    return await service.question(CHAT, orjson.dumps(body | name))


async def _wholes(
    service: ChatService, questions: Sequence[Question], request: Request
) -> list[dict[str, Any] | ApiError]:
    """Return the replies to questions that are asked at once, or why one has none; raise the first error if none has any."""
    client = client_of(request.scope)

    async def whole(question: Question) -> dict[str, Any]:
        try:
            async with service.reply(question, {}, client) as reply:
                await reply.begun()
                note_reply(request.scope, reply)
                answer = await reply.whole()
        except ApiError as error:
            count(service.metrics, error.status)
            raise
        count(service.metrics, 200)
        return answer

    async with Connected(request.receive):
        ended = await asyncio.gather(*map(whole, questions), return_exceptions=True)
    found: list[dict[str, Any] | ApiError] = []
    for each in ended:
        if isinstance(each, BaseException) and not isinstance(each, ApiError):
            raise each
        found.append(each)
    if isinstance(found[0], ApiError) and all(isinstance(each, ApiError) for each in found):
        raise found[0]
    return found


def add_window_routes(
    app: FastAPI,
    service: ChatService,
    own: AdapterDesk,
    views: Views,
    log_ins: LogIns,
    pages: PageEvents,
    meters: UsageDesk,
) -> None:
    """Add the routes; ``own``: answers for people's own adapters; ``pages``: that are open; ``meters``: know prices and quotas."""

    def asked(view: str, form: Form, request: Request, client: Client, taken: Container[str] = ()) -> Asked:
        owner = None if client.admin else client.owner
        words = {name: word for name, word in request.query_params.items() if name not in taken}
        whose = (client.name, owner, root(client.owner))
        return Asked(view, words, form, *whose, log_ins.needed, meters.prices, meters.quotas_of(client.name))

    async def shown(view: str, form: Form, request: Request) -> bytes:
        try:
            return await views.show(asked(view, form, request, client_of(request.scope)))
        except UnknownViewError as error:
            raise ApiError(404, str(error), code="not_found") from error

    def route(path: str, *methods: str) -> Callable[[Callable[[Request], Awaitable[ASGIApp]]], None]:
        def add(work: Callable[[Request], Awaitable[ASGIApp]]) -> None:
            async def handle(request: Request) -> Any:
                try:
                    return await work(request)
                except ApiError as error:
                    if not path.startswith(TWINS) and not streams(request):
                        return _problem(error)
                    return Response(
                        orjson.dumps(error.body()), error.status, HEADERS | headers_of(error), "application/json"
                    )

            app.router.add_route(path, handle, methods=list(methods), include_in_schema=False)

        return add

    def file(path: str, media_type: str, *sources: tuple[str, str]) -> None:
        body = b"\n".join(files(package).joinpath(name).read_bytes() for package, name in sources)

        @route(path, "GET")
        async def shown_file(request: Request) -> Response:
            return Response(body, headers=HEADERS, media_type=media_type)

    file(STYLE, "text/css", ("openclaw.report", "style.css"), ("openclaw.window", "style.css"))
    file(SCRIPT, "text/javascript", ("openclaw.window", "window.js"))

    @route(LOG_IN, "GET")
    async def reload(request: Request) -> Response:
        return to_view("")  # where a browser loads the page of a wrong key again

    @route(LOG_IN, "POST")
    async def log_in(request: Request) -> Response:
        response = to_view("")
        try:
            key = fields_of(request).get("key", "").strip()
            origin = request.headers.get("origin", "").lower()  # TLS may end at a proxy, which only the browser sees
            secure = request.url.scheme == "https" or origin.startswith("https://")
            log_ins.begin(key, response, secure=secure, address=sender(request.scope))
        except ApiError as error:
            note_refusal(service.metrics, error)
            said = "This server has no such key." if error.status == 401 else error.message
            return log_in_page(said, error.status, HEADERS | headers_of(error))
        return response

    @route(LOG_OUT, "POST")
    async def log_out(request: Request) -> Response:
        response = to_view("")
        log_ins.end(request.headers, response)
        return response

    @route(WINDOW_FEEDBACK, "POST")
    async def feedback(request: Request) -> Response:
        fields = fields_of(request)
        turn, back = fields.pop("response_id", ""), chat_words(fields)
        for name in back:
            del fields[name]
        answer = await service.turns.give(
            parse_feedback(orjson.dumps({"response_id": turn, **fields})), client_of(request.scope)
        )
        said = "counts" if answer["applied"] else str(answer["reason"])
        return to_view("chat", **back, said=said) if back else to_view("turn", id=turn, said=said)

    @route(WINDOW_SAY, "POST")
    async def talk(request: Request) -> ASGIApp:
        return await say(service, fields_of(request), request)

    @route(WINDOW_ASK_VERSION, "POST")
    async def ask_again(request: Request) -> Response:
        return await ask_version(service, fields_of(request), request)

    @route(f"{WINDOW}/lessons", "POST")
    async def lessons(request: Request) -> Response:
        return to_view("mine", said=await change_lessons(service.lessons, fields_of(request), client_of(request.scope)))

    @route(f"{WINDOW}/adapter", "POST")
    async def adapter(request: Request) -> Response:
        fields, client = fields_of(request), client_of(request.scope)
        if fields.get("do") == "accept":
            await own.accept(client)
            return to_view("mine", said="accepted")
        await own.roll_back(orjson.dumps({"to": fields.get("to", "")}), client)
        return to_view("mine", said="asked")

    @route(f"{WINDOW}/export", "GET")
    async def export(request: Request) -> Response:
        return with_headers(await own.export(client_of(request.scope)))

    @route(f"{WINDOW}/weights", "POST")
    async def weights(request: Request) -> Response:
        return to_view("learning", said=await change_weights(views, fields_of(request), client_of(request.scope)))

    @route(f"{WINDOW}/forget", "POST")
    async def forget(request: Request) -> Response:
        if fields_of(request).get("sure") != "yes":
            raise bad_request("tick that you are sure, then everything of yours is deleted", param="sure")
        await own.forget(client_of(request.scope))
        return to_view("mine", said="forgotten")

    @route(f"{WINDOW}/forget_conversation", "POST")
    async def forget_conversation(request: Request) -> Response:
        await forget_meant(service, fields_of(request).get("id", ""), client_of(request.scope))
        return to_view("conversations")

    @route(EVENTS, "GET")
    async def events(request: Request) -> ASGIApp:
        client, words = client_of(request.scope), request.query_params
        look = asked(words.get("view", ""), "page", request, client, ("view", "revision"))

        def still() -> bool:
            try:
                return log_ins.client(request.headers, sender(request.scope)) == client
            except ApiError:
                return False

        return with_headers(pages.stream(look, client.name, words.get("revision", ""), still))

    @route(f"{TWINS}{{view}}", "GET")
    async def twin(request: Request) -> Response:
        body = await shown(request.path_params["view"], "json", request)
        return Response(body, headers=HEADERS, media_type="application/json")

    @route(f"{WINDOW}/{{view}}", "GET")
    async def page(request: Request) -> Response:
        return HTMLResponse(await shown(request.path_params["view"], "page", request), headers=HEADERS)

    @route(f"{WINDOW}/", "GET")
    async def first(request: Request) -> Response:
        return to_view(FIRST_VIEW)
