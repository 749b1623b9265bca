"""Requests for something about the conversation itself: a title, tags, questions to ask next, a summary.

Many clients send such a request of their own at the end of the user's history. A user may say the same, so it excludes
nothing: `openclaw.sessions.turn_matching` waits until the conversation goes on from the reply.

Guarantees: pure functions, which look at the first `LOOKED_AT` characters. A missed request is set right by the next
words of the user (`openclaw.sessions.turn_matching.relate`), so the word lists need not be complete.
"""

from __future__ import annotations

import re

LOOKED_AT = 400
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
    *(r"\[?pause your roleplay", r"based on [^.:]{1,80}?,", r"in [\w -]{1,24}?words?(?: or (?:less|fewer))?,?"),
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
        r"(?:words?|characters?),? (?:chat )?title",
    )
)
"""What names the conversation by itself."""
NOUN = re.compile(
    rf"(?:the |a )?(?:short |brief |concise )?(?:{'|'.join(WANTED)}) (?:for|of) (?:this|our|the) (?:{'|'.join(CONVERSATION)})\b",
    re.IGNORECASE,
)
OTHER_ABOUT, OTHER_OF_WHAT = _any(OTHER_WANTED, whole=False), _any(OTHER_CONVERSATION, whole=False)


def own_request(words: str) -> bool:
    """Return whether a user message reads like a client's own request about the conversation, such as a title."""
    text = " ".join(words[:LOOKED_AT].split())
    if NOUN.match(text) or (OTHER_ABOUT.search(text) and OTHER_OF_WHAT.search(text)):
        return True
    start = 0
    while before := BEFORE.match(text, start):
        start = before.end()
    if VERB.match(text, start) is None:
        return False
    return bool(IN_ITSELF.search(text) or (ABOUT.search(text) and OF_WHAT.search(text)))
