"""Classifies a request by its messages: main or side turn, and which messages the client wrote by itself.

Guarantees: pure functions of the request. A turn is ``main`` (the user's, or a tool result of the user's task) with
four exceptions: the client says otherwise, the client wrote the text by itself (heartbeat, cron, memory flush,
compaction), the Runtime line names a session that is not the user's (subagent, cron, internal effects), or another known
client calls for itself.

`RULES` has the calls that known agent clients make for themselves: titles, suggestions, summaries, memories, sub-agents;
one row per client and kind. A row names what must all hold; a request that fits no row is the user's. A wrong row would
keep a user's words out of training, so each asks for a sentence that only the client writes, and for the tools that it
offers there. A sub-agent of Hermes cannot be told from Hermes itself and stays a main turn.

`own_request` knows calls of other clients by their shape: requests for something about the conversation itself, or an
instruction without tools, at the end of the user's history. A user may say the same, so it excludes nothing:
`openclaw.sessions.earlier_turns` waits until the conversation goes on from the reply. A missed request is set right by
the next words of the user, so the word lists need not be complete. It looks at the first `LOOKED_AT` characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from groundwork.chat_messages import Message
from openclaw.messages.text import content_text

LOOKED_AT = 400
LABEL = r"(?-i:\[?[A-Z][A-Z ]{3,40}:)"
"""A word in capitals and a colon, before an instruction to a model."""
BEFORE_THE_VERB = (
    *(
        "please",
        "now",
        "next",
        "ok",
        "okay",
        "kindly",
        "can you",
        "could you",
        "would you",
        "you must",
        "your task is to",
    ),
    *("i want you to", "i would like you to", "i'd like you to", "ignore (?:all )?previous instructions", r"#+ task:?"),
    *(LABEL, r"\[?pause your roleplay", r"based on [^.:]{1,80}?,", r"in [\w -]{1,24}?words?(?: or (?:less|fewer))?,?"),
)
VERBS = (
    *(
        "give",
        "generate",
        "write",
        "create",
        "provide",
        "suggest",
        "produce",
        "make",
        "summari[sz]e",
        "name",
        "propose",
    ),
    *(
        "come up with",
        "pick",
        "choose",
        "return",
        "(?:reply|respond|answer) with",
        "output",
        "extract",
        "list",
        "label",
    ),
    *(
        "tag",
        "title",
        "draft",
        "compose",
        "devise",
        "think of",
        "find",
        "categori[sz]e",
        "recap",
        "condense",
        "compress",
    ),
    *("compact", "describe", "what (?:is|are|would be|should be)", "tl;?dr"),
)
WANTED = (
    *("(?:sub)?titles?", "headline", "subject line", "topics?", "names?", "labels?", "tags?", "keywords?"),
    *("categor(?:y|ies|i[sz]e)", "summar(?:y|ies|i[sz]e|i[sz]ing)", "recap", "condense", "compress", "compact"),
    *("(?:key|important) (?:points|facts)", "checkpoint"),
)
CONVERSATION = (
    *("conversations?", "chats?", "discussions?", "dialog(?:ue)?s?", "threads?", "sessions?", "exchanges?", "messages"),
    *("transcript", "history", "so far", "the above", "we(?:'ve| have)? (?:discussed|talked about|covered)"),
)
OTHER_WANTED = (
    *(
        "títulos?",
        "titulos?",
        "titres?",
        "titel",
        "titolo",
        "başlık",
        "judul",
        "название",
        "заголовок",
        "тем[уа]",
        "теги",
    ),
    *(
        r"resum\w*",
        r"r[ée]sum\w*",
        r"riassu\w*",
        r"zusammenfass\w*",
        "fasse",
        r"samenvat\w*",
        r"özet\w*",
        r"ringkas\w*",
    ),
    *(
        "резюм",
        "tóm tắt",
        "tiêu đề",
        "标题",
        "標題",
        "主题",
        "主題",
        "标签",
        "標籤",
        "总结",
        "總結",
        "概括",
        "摘要",
        "取名",
    ),
    *("命名", "タイトル", "要約", "まとめ", "題名", "제목", "요약", "태그", "عنوان", "शीर्षक"),
)
OTHER_CONVERSATION = (
    *(
        r"conversaci[oó]n",
        "conversa",
        "conversation",
        "conversazione",
        r"gespräch\w*",
        "unterhaltung",
        "chat",
        "gesprek",
    ),
    *(r"konuşma\w*", "percakapan", "разговор", "диалог", "бесед", "чат", "trò chuyện", "对话", "對話", "聊天", "会话"),
    *(
        "會話",
        "讨论",
        "这句话",
        "這句話",
        "以上",
        "会話",
        "チャット",
        "やり取り",
        "対話",
        "この文章",
        "これまで",
        "대화",
        "채팅",
    ),
    *("محادث", "बातचीत"),
)


def _any(words: tuple[str, ...], *, whole: bool = True) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b" if whole else "|".join(words), re.IGNORECASE)


BEFORE = re.compile(rf"(?:{'|'.join(BEFORE_THE_VERB)})[ .,:]*", re.IGNORECASE)
VERB, ABOUT, OF_WHAT = _any(VERBS), _any(WANTED), _any(CONVERSATION)
IN_ITSELF = _any(
    (
        r"follow[- ]?ups?",
        "(?:suggested|related) (?:questions|prompts|replies)",
        "what the user (?:might|may|would|could|will)",
        r"(?:words?|characters?),? (?:chat )?title",
    )
)
"""What names the conversation by itself."""
NOUN = re.compile(
    rf"(?:the |a )?(?:short |brief |concise )?(?:{'|'.join(WANTED)}) (?:for|of) (?:this|our|the) (?:{'|'.join(CONVERSATION)})\b",
    re.IGNORECASE,
)
WITHOUT_TOOLS = re.compile(LABEL + r"[^\n]{0,200}?\b(?i:do not|don't|never) (?i:call|use) any tools?\b")
"""With which a client keeps its own request from being taken for work."""
OTHER_ABOUT, OTHER_OF_WHAT = _any(OTHER_WANTED, whole=False), _any(OTHER_CONVERSATION, whole=False)


def own_request(words: str) -> bool:
    """Return whether a user message reads like a client's own request about the conversation, such as a title."""
    text = " ".join(words[:LOOKED_AT].split())
    if NOUN.match(text) or WITHOUT_TOOLS.match(text) or (OTHER_ABOUT.search(text) and OTHER_OF_WHAT.search(text)):
        return True
    start = 0
    while before := BEFORE.match(text, start):
        start = before.end()
    if VERB.match(text, start) is None:
        return False
    return bool(IN_ITSELF.search(text) or (ABOUT.search(text) and OF_WHAT.search(text)))


ClientCall = Literal["title", "suggestion", "compaction", "memory", "search", "subagent"]


@dataclass(frozen=True)
class Asked:
    """What a request says besides its messages.

    Attributes:
        tools: whether it offers any.
        headers: names in lower case.
    """

    tools: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One call of one client; a part that is None is not looked at.

    Attributes:
        client: who makes the call.
        kind: what for.
        tools: whether the request offers tools.
        system: matches at the start of the system text.
        words: the last text of the last user message begins with them.
        header: its name, and words that its value contains.
    """

    client: str
    kind: ClientCall
    tools: bool | None = None
    system: re.Pattern[str] | None = None
    words: str | None = None
    header: tuple[str, str] | None = None


def _begins(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


CLAUDE_SYSTEM = (
    r"(?:x-anthropic-billing-header:[^\n]{0,300}?;\n?)?You are (?:Claude Code|a Claude agent), [^\n.]{0,80}\.\s{0,4}"
)
CODEX_SYSTEM = re.compile(r"You are (?:a coding agent running in the Codex CLI|Codex, a coding agent)")

RULES: tuple[Rule, ...] = (
    Rule("Claude Code", "subagent", header=("x-claude-code-agent-id", "")),
    Rule("Claude Code", "title", False, re.compile(CLAUDE_SYSTEM + "You are naming a coding session")),
    Rule("Claude Code", "search", None, re.compile(CLAUDE_SYSTEM + "You run a web search for another Claude model")),
    Rule(
        "Claude Code",
        "compaction",
        True,
        re.compile(CLAUDE_SYSTEM),
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    ),
    Rule("Codex", "subagent", header=("x-codex-parent-thread-id", "")),
    Rule("Codex", "title", False, header=("x-codex-turn-metadata", '"thread_source":"thread_title"')),
    Rule("Codex", "title", False, CODEX_SYSTEM, "Generate a concise, single-line task title of at most"),
    Rule("Codex", "compaction", False, CODEX_SYSTEM, "You are performing a CONTEXT CHECKPOINT COMPACTION."),
    Rule("opencode", "subagent", header=("x-parent-session-id", "")),
    Rule("opencode", "title", False, _begins("You are a title generator. You output ONLY a thread title.")),
    Rule("opencode", "compaction", False, _begins("You are a context summarization agent. You are given")),
    Rule("Qwen Code", "suggestion", True, _begins("You are Qwen Code, "), "[SUGGESTION MODE:"),
    Rule("Qwen Code", "memory", True, _begins("You are now acting as the managed memory extraction subagent")),
    Rule(
        "Qwen Code",
        "compaction",
        False,
        _begins("You are the component that summarizes a conversation when its context"),
    ),
    Rule(
        "Qwen Code",
        "subagent",
        True,
        _begins("You are a general-purpose subagent working for a parent agent. Complete"),
    ),
    Rule("Hermes", "title", False, _begins("Generate a short, descriptive title (3-7 words) for a conversation that")),
)


def client_call(messages: Sequence[Message], asked: Asked) -> ClientCall | None:
    """Return what a known client makes this call for, or None for a user's turn or another client's."""
    system = next((message for message in messages if message.get("role") in ("system", "developer")), {})
    system_text = content_text(system.get("content")).lstrip()
    words = _last_text(next((message for message in reversed(messages) if message.get("role") == "user"), {}))
    return next((rule.kind for rule in RULES if _fits(rule, asked, system_text, words)), None)


def _fits(rule: Rule, asked: Asked, system: str, words: str) -> bool:
    if rule.tools not in (None, asked.tools):
        return False
    if rule.header is not None:
        name, part = rule.header
        if part not in asked.headers.get(name, "") or name not in asked.headers:
            return False
    if rule.system is not None and rule.system.match(system) is None:
        return False
    return rule.words is None or words.startswith(rule.words)


def _last_text(message: Message) -> str:
    """Return a message's last text part, or its whole text; reminders come in parts of their own before it."""
    content = message.get("content")
    parts = [part for part in content if part.get("type", "text") == "text"] if isinstance(content, list) else []
    return content_text(parts[-1:] if parts else content).lstrip()


SideKind = Literal["heartbeat", "cron", "memory_flush", "compaction", "subagent", "internal"] | ClientCall

INTERNAL_CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
DATE_PREFIX = re.compile(r"\s*\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2}[^\]]*\]\s*")
QUEUED_PREFIX = re.compile(r"\s*\[Queued user message from a previous active turn[^\]]*\]\s*")
RESUME_PREFIX = "Continue the current task from the existing transcript"
RUNTIME_PREFIX = "Runtime: agent="
RUNTIME_SESSION = re.compile(r"\bsessionId=([^\s|]+)")
RUNTIME_KEY = re.compile(r"\bsession=\S*?:(subagent|cron|internal-session-effects):")
SIDE_KEYS: dict[str, SideKind] = {"subagent": "subagent", "cron": "cron", "internal-session-effects": "internal"}
SIDE_PREFIXES: tuple[tuple[SideKind, str], ...] = (
    ("heartbeat", "[OpenClaw heartbeat poll]"),
    ("heartbeat", "Follow the heartbeat monitor scratch context"),
    ("heartbeat", "Read HEARTBEAT.md"),
    ("cron", "[cron:"),
    ("memory_flush", "Pre-compaction memory flush"),
)
NOTHING_ASKED = Asked()
OPENCLAW_SYSTEM = re.compile(r"(?i)\bopenclaw\b")
OPENCLAW_SYSTEM_CHARACTERS = 400
SUMMARISER_PREFIX = "You are a context summarization assistant"


RESUME = re.compile(
    r"\s*(?:Your response above was cut off mid-stream\. Resume directly|Output token limit hit\. Resume directly"
    r"|\[Your previous response had no visible output\. Please continue)[^\n]{0,250}"
)
"""With which Claude Code asks a model to go on with a reply that broke off, or to say what it left out."""
EMPTY_REPLY = "[Your previous response had no visible output. Please continue"
REMINDER = "<system-reminder>"


def is_internal(message: Message) -> bool:
    """Return whether the client itself wrote a message that opens no exchange.

    These are internal context that it adds to a single request, and its request to go on with the reply before it.
    """
    if message.get("role") != "user":
        return False
    return _starts_with(message, INTERNAL_CONTEXT) or _asks_to_resume(message)


def _asks_to_resume(message: Message) -> bool:
    content = message.get("content")
    if isinstance(content, str):
        return len(content) <= LOOKED_AT and RESUME.fullmatch(content.rstrip()) is not None
    parts: list[dict[str, Any]] = content or []
    if any(part.get("type", "text") != "text" for part in parts):
        return False
    said = [part["text"] for part in parts if not part["text"].lstrip().startswith(REMINDER)]
    return len(said) == 1 and RESUME.fullmatch(said[0].rstrip()) is not None


def _starts_with(message: Message, prefix: str) -> bool:
    return content_text(message.get("content")).lstrip().startswith(prefix)


def spoken(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the client's internal context."""
    return [message for message in messages if not is_internal(message)]


def user_words(message: Message) -> str:
    """Return a user message's text without the client's additions.

    Removed are the date, the note of a queued message, the request to resume, that to answer again after an empty reply, and
    the Runtime line.
    """
    return "\n\n".join(_paragraphs(message))


def _paragraphs(message: Message) -> list[str]:
    text = content_text(message.get("content")).strip()
    if text.endswith("]") and "\n" not in text[(at := text.rfind(EMPTY_REPLY)) :] and at > 0:
        text = text[:at].rstrip()
    before, _, last = text.rpartition("\n")
    if last.startswith(RUNTIME_PREFIX):
        text = before.rstrip()
    if not text.startswith("["):
        return [text]
    if match := DATE_PREFIX.match(text):
        text = text[match.end() :]
    match = QUEUED_PREFIX.match(text)
    if match is None:
        return [text]
    return [part for part in text[match.end() :].split("\n\n") if not part.startswith(RESUME_PREFIX)]


def side_kind(messages: Sequence[Message], asked: Asked = NOTHING_ASKED) -> SideKind | None:
    """Return the kind of a client's own turn, or None for a user's turn."""
    heard = spoken(messages)
    if call := client_call(heard, asked):
        return call
    first = heard[0] if heard else {}
    if first.get("role") in ("system", "developer") and _starts_with(first, SUMMARISER_PREFIX):
        return "compaction"
    users = [message for message in heard if message.get("role") == "user"]
    if not users:
        return None
    if kind := message_side_kind(users[-1]):
        return kind
    match = RUNTIME_KEY.search(_runtime_line(users[0]))
    return SIDE_KEYS[match.group(1)] if match else None


def message_side_kind(message: Message) -> SideKind | None:
    """Return the kind of a client's own text, or None for a user's words.

    A queued message is context for the text after it, which decides if there is one.
    """
    queued, *active = _paragraphs(message) or [""]
    return next(
        (kind for text in active or [queued] for kind, prefix in SIDE_PREFIXES if text.startswith(prefix)), None
    )


def answers_to_own_texts(messages: Sequence[Message]) -> set[int]:
    """Return the positions of the assistant messages whose exchange the client began, not the user."""
    answers: set[int] = set()
    own = False
    for position, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant" and own:
            answers.add(position)
        elif role == "user" and not is_internal(message):
            own = message_side_kind(message) is not None
    return answers


def runtime_session(messages: Sequence[Message]) -> str | None:
    """Return the session id in the Runtime line at the end of OpenClaw's first user message, or None.

    The system message says whether the client is OpenClaw. The users of other clients may paste such a line.
    """
    first = messages[0] if messages else {}
    opening = content_text(first.get("content"))[:OPENCLAW_SYSTEM_CHARACTERS]
    if first.get("role") not in ("system", "developer") or not OPENCLAW_SYSTEM.search(opening):
        return None
    for message in messages:
        if message.get("role") == "user":
            match = RUNTIME_SESSION.search(_runtime_line(message))
            return match.group(1) if match else None
    return None


def _runtime_line(message: Message) -> str:
    last = content_text(message.get("content")).rstrip().rpartition("\n")[2]
    return last if last.startswith(RUNTIME_PREFIX) else ""


@dataclass(frozen=True)
class Following:
    """What followed a reply in a request.

    Attributes:
        messages: of the user and of tools, up to the next assistant message.
        end: position of that assistant message; None if the request ends before one.
    """

    messages: list[Message]
    end: int | None = None


def following(messages: Sequence[Message], reply: int, side_replies: Collection[int] = ()) -> Following:
    """Return what followed the reply at position ``reply``.

    Internal context is left out. So are the client's own exchanges: those that begin with one of its own texts, and those
    that end in an assistant message at one of the positions ``side_replies``.
    """
    results: list[Message] = []
    kept = 0
    own_exchange = False
    for position in range(reply + 1, len(messages)):
        message = messages[position]
        role = message.get("role")
        if role == "assistant":
            if position in side_replies:
                del results[kept:]
            elif not own_exchange:
                return Following(results, position)
            kept = len(results)
        elif role == "user" and not is_internal(message):
            own_exchange = message_side_kind(message) is not None
        if role in ("user", "tool") and not own_exchange and not is_internal(message):
            results.append(message)
    return Following(results)


def reads_like_own_request(messages: Sequence[Message]) -> bool:
    """Return whether the last user message may be a client's own request (`own_request`)."""
    newest = next((message for message in reversed(messages) if message.get("role") == "user"), None)
    return newest is not None and own_request(user_words(newest))
