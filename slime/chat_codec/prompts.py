"""Renders messages with a model's chat template, in which the template's control tokens are marked.

Guarantees: the ids are those that the tokenizer gives the template's text, except that control tokens which messages,
tools or keywords spell stay text. A template whose control tokens cannot be told from such text is refused at the
start. No sampled id is made, changed or moved. Used by one caller at a time.

A control token is an added token of the tokenizer, such as ``<|im_end|>``, ``<think>`` or ``<tool_call>``; added tokens of
white space are ordinary text. The text of each control token in the template's source gets the character `MARK` in front.
No client can send this character, because `clean` replaces it. So a control token in a rendered prompt is the
template's if and only if it is marked.

`Controls` marks and finds them. `BareTokenizer` is a copy of the tokenizer in which text never becomes a control token.
`SegmentEncoder` encodes marked prompts segment by segment, with a cache, because every request repeats the conversation's
history: the segments between control tokens are independent, so their joined ids are the ids of the whole text.

A client's strings reach the template unchanged, unless they have one of the three reserved noncharacters. What the template
compares with a control token's text is never equal to a client's. Only a marked control token gets its id; otherwise the ids are
those of ``tokenizer.encode``. Where segments may depend on each other (tokenizers that are not plain byte-level, control tokens
that strip spaces), the whole text is encoded at once.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from tokenizers import AddedToken, Tokenizer, normalizers

from chat_codec.detokenize import MARKERS
from groundwork.chat_messages import TEMPLATE_ERRORS, Message
from groundwork.exceptions import ConfigError

MARK = "\ufdd0"
"""Stands before each control token of the template."""
PLACE = "\ufdd1"
"""Stands for the content of one of our replies, see `chat_codec.renderer`."""
THOUGHT = "\ufdd2"
"""Stands for the reasoning of one of our replies."""
RESERVED = (MARK, PLACE, THOUGHT)
RESERVED_BYTES = tuple(character.encode() for character in RESERVED)
COMMON_BYTES = RESERVED_BYTES[0][:2]
ROLES = ("system", "user", "assistant", "tool")
REPLACED = dict.fromkeys(map(ord, RESERVED), "\ufffd")


class Controls:
    """The control tokens of a tokenizer; ``ids`` maps their texts to ids, ``texts`` the reverse."""

    def __init__(self, tokenizer: Any) -> None:
        """Find the control tokens of a ``transformers`` tokenizer."""
        added = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}
        self.texts = {index: text for index, text in added.items() if text.strip()}
        self.ids = {text: index for index, text in self.texts.items()}
        longest_first = sorted(self.ids, key=len, reverse=True)
        either = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._spelled = re.compile(either)
        self._cut = re.compile(f"{MARK}({either})")
        self._stray = re.compile(f"{MARK}(?!{either})")
        self._joined = {
            text.replace(role, MARK + role): MARK + text
            for text in longest_first
            for role in ROLES
            if role in text and not text.startswith(role)
        }

    def mark(self, source: str) -> str:
        """Return a template's source, or another trusted text, with its control tokens marked."""
        return self._spelled.sub(rf"{MARK}\g<0>", source)

    def spelled(self, text: str) -> bool:
        """Return whether ``text`` spells a control token."""
        return self._spelled.search(text) is not None

    def spelled_in(self, value: Any) -> bool:
        """Return whether a string or key of a JSON value spells a control token."""
        if isinstance(value, str):
            return self.spelled(value)
        if isinstance(value, dict):
            return any(self.spelled_in(key) or self.spelled_in(item) for key, item in value.items())
        return isinstance(value, list) and any(map(self.spelled_in, value))

    def broken(self, text: str, by: str) -> str:
        """Return ``text`` with ``by`` inside each control token that it spells."""
        return self._spelled.sub(lambda match: f"{match[0][:1]}{by}{match[0][1:]}", text)

    def join(self, text: str) -> str:
        """Return a prompt with `MarkedRole` roles in which whole control tokens are marked, such as ``<|user|>``."""
        for parts, whole in self._joined.items():
            text = text.replace(parts, whole)
        return self._stray.sub("", text)

    def cut(self, text: str) -> list[str]:
        """Return the parts of a marked text: ordinary text, control token, ordinary text, and so on."""
        return self._cut.split(text)


class MarkedRole(str):
    """A role that has a mark where a template prints it, and is the plain role wherever else it is used."""

    def __str__(self) -> str:
        return MARK + self[:]

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def unmarked(text: str) -> str:
    """Return a marked text without its marks."""
    return text.replace(MARK, "")


def clean(value: Any) -> Any:
    """Return a JSON value without reserved characters in its strings and keys; usually ``value`` itself."""
    return _replaced(value) if _reserved(value) else value


def _reserved(value: Any) -> bool:
    """Return whether a reserved character is in a JSON value; its whole text at once is fastest to search."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # a lone surrogate, a large number, or deep nesting
        return _reserved_inside(value)
    return COMMON_BYTES in text and any(character in text for character in RESERVED_BYTES)


def _reserved_inside(value: Any) -> bool:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if any(character in item for character in RESERVED):
                return True
        elif isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
    return False


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(REPLACED)
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item) for item in value]
    return value


class BareTokenizer:
    """Encodes text in which control tokens are marked."""

    def __init__(self, tokenizer: Any, controls: Controls) -> None:
        """Copy a ``transformers`` tokenizer.

        Raises:
            ConfigError: if it has no fast version.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} is a slow tokenizer, with which clients could forge control tokens; "
                "use a checkpoint with a tokenizer.json"
            )
        model = backend.model
        if controls.texts.keys() & set(backend.get_vocab(with_added_tokens=False).values()):
            form = json.loads(backend.to_str())
            form["added_tokens"], form["post_processor"] = [], None
            _rename(form["model"], controls)
            model = Tokenizer.from_str(json.dumps(form)).model
        self._tokenizer = bare = Tokenizer(model)
        # A control token that must be a single word and is not one here stays text, without its mark.
        unmark = normalizers.Replace(MARK, "")
        bare.normalizer = normalizers.Sequence([unmark, backend.normalizer]) if backend.normalizer else unmark
        if backend.pre_tokenizer is not None:
            bare.pre_tokenizer = backend.pre_tokenizer
        self._ids: dict[int, int] = {}
        for index, token in sorted(tokenizer.added_tokens_decoder.items()):
            control = index in controls.texts
            text = MARK + token.content if control else token.content
            flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip")}
            bare.add_tokens([AddedToken(text, normalized=token.normalized and not control, **flags)])
            if (known := bare.token_to_id(text)) is not None:
                self._ids[known] = index

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without adding control tokens."""
        known = self._ids
        return [known.get(index, index) for index in self._tokenizer.encode(text, add_special_tokens=False).ids]


def _rename(model: dict[str, Any], controls: Controls) -> None:
    """Give the control tokens in a model's vocabulary names that no text has; the unknown token keeps its own."""
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, list):  # Unigram: the position is the id
        model["vocab"] = [
            [MARK * 2 + piece if index in controls.texts and index != model.get("unk_id") else piece, score]
            for index, (piece, score) in enumerate(vocabulary)
        ]
        return
    unknown = model.get("unk_token")
    renamed = {token for token, index in vocabulary.items() if index in controls.texts and token != unknown}
    model["vocab"] = {MARK * 2 + token if token in renamed else token: index for token, index in vocabulary.items()}
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not renamed & _parts(merge)]


def _parts(merge: Any) -> set[str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return {left, right, left + right}


MAX_CACHED_TOKENS = 4_000_000  # 16 MB of ids


class SegmentEncoder:
    """Encodes the text of a prompt."""

    def __init__(self, tokenizer: Any, controls: Controls) -> None:
        """Create an encoder for a ``transformers`` tokenizer; ``cuts`` says whether its segments are independent."""
        self._tokenizer = tokenizer
        self._controls = controls
        self._bare = BareTokenizer(tokenizer, controls)
        self.cuts = bool(controls.ids) and _cuts_cleanly(tokenizer)
        self._normalises = _normalises(tokenizer)
        self._cache: OrderedDict[str, array[int]] = OrderedDict()
        self._cached_tokens = 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of a marked text, without adding control tokens."""
        if not self.cuts:
            return self._bare.encode(text)
        ids: list[int] = []
        for number, part in enumerate(self._controls.cut(text)):
            if number % 2:
                ids.append(self._controls.ids[part])
            elif part:
                ids.extend(self._part(part))
        return ids

    def forget(self) -> None:
        """Clear the cache."""
        self._cache.clear()
        self._cached_tokens = 0

    def _part(self, text: str) -> array[int]:
        value = self._cache.get(text)
        if value is not None:
            self._cache.move_to_end(text)
            return value
        if self._normalises or self._controls.spelled(text):
            value = array("i", self._bare.encode(text))
        else:
            value = array("i", self._tokenizer.encode(text, add_special_tokens=False))
        self._cache[text] = value
        self._cached_tokens += len(value)
        while self._cached_tokens > MAX_CACHED_TOKENS:
            _, oldest = self._cache.popitem(last=False)
            self._cached_tokens -= len(oldest)
        return value


def _cuts_cleanly(tokenizer: Any) -> bool:
    """Return whether segments between control tokens are tokenised independently."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.decoder).__name__ != "ByteLevel":
        return False
    if "add_prefix_space=True" in repr(backend.pre_tokenizer) or getattr(tokenizer, "split_special_tokens", False):
        return False
    added = tokenizer.added_tokens_decoder.values()
    return not any(token.lstrip or token.rstrip or token.single_word for token in added)


def _normalises(tokenizer: Any) -> bool:
    """Return whether normalisation can turn other characters into an added token."""
    added = tokenizer.added_tokens_decoder.values()
    return tokenizer.backend_tokenizer.normalizer is not None and any(token.normalized for token in added)


_ASKED: list[Message] = [{"role": "user", "content": "Hi."}]
_CALL = {"id": "call1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_TALKS: tuple[list[Message], ...] = (
    _ASKED,
    [{"role": "system", "content": "Be brief."}, *_ASKED, {"role": "assistant", "content": "Hello."}, *_ASKED],
    [
        *_ASKED,
        {"role": "assistant", "content": "", "reasoning_content": "A call.", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call1", "content": "Seen."},
    ],
)
_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}


_checked: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""Of each tokenizer: whether a template that passed the check of `Prompts` makes control tokens of roles."""


class Prompts:
    """Renders and encodes prompts of one tokenizer; ``frame`` has the control tokens that frame turns."""

    def __init__(self, tokenizer: Any) -> None:
        """Prepare the chat template of a ``transformers`` tokenizer.

        Raises:
            ConfigError: if the wall cannot hold: a slow tokenizer, or a template that puts control tokens together.
        """
        self.controls = Controls(tokenizer)
        self._tokenizer = tokenizer
        self._segments = SegmentEncoder(tokenizer, self.controls)
        self._marked: dict[str, str] = {}
        self._special = {name: self.controls.mark(text) for name, text in tokenizer.special_tokens_map.items()}
        self._marks_roles = False
        added = tokenizer.added_tokens_decoder
        special = {index for index, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        self.frame = frozenset(index for index in special if self.controls.texts.get(index, "") not in MARKERS)
        self._check()

    def ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        keywords: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a prompt.

        Raises:
            TemplateError, TypeError, KeyError: if the template refuses the messages.
        """
        return self.encode(self.write(*clean((list(messages), list(tools or ()), dict(keywords or {})))))

    def write(self, messages: Sequence[Message], tools: Sequence[Any], keywords: Mapping[str, Any]) -> str:
        """Return the marked text of a prompt from cleaned messages, tools and keywords."""
        source = self._tokenizer.get_chat_template(tools=tools or None)
        marked = self._marked.get(source)
        if marked is None:
            marked = self._marked[source] = self.controls.mark(source)
        options = {**self._special, **keywords, "chat_template": marked}
        if not self._marks_roles:
            return self._apply(messages, tools, options)
        speakers = [{**message, "role": MarkedRole(message["role"])} for message in messages]
        return self.controls.join(self._apply(speakers, tools, options))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a marked text."""
        return self._segments.encode(text)

    def reply_ids(
        self, messages: Sequence[Message], reply: Message, tools: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[list[int], list[int]]:
        """Return the ids of a prompt and of a reply to it that nobody here sampled.

        The prompt's ids are those of a request that asks for this reply. The reply's are those of what the template writes
        for it, up to and with the control token that ends it, encoded on their own as sampled ids are. A prompt that
        closes an empty thought keeps it before the reply. Messages, reply, tools and keywords are cleaned.

        Raises:
            ValueError: the template rewrites the prompt, or does not end the reply with a control token.
            TemplateError, TypeError, KeyError: the template refuses the messages.
        """
        before = self.write(messages, tools, keywords)
        whole = self.write([*messages, reply], tools, keywords)
        spoken = self.write([*messages, {"role": "assistant", "content": PLACE}], tools, keywords)
        opened, place, rest = spoken.rpartition(PLACE)
        if not place or not rest.startswith(MARK) or not whole.endswith(rest):
            raise ValueError("the chat template does not end a reply with a control token")
        if whole.startswith(before):
            start = len(before)
        elif before.startswith(opened) and whole.startswith(opened):  # the prompt for an answer closes an empty thought
            start = len(opened)
        else:
            raise ValueError("the chat template writes another prompt when a reply follows it")
        text = whole[start : max(start, len(whole) - len(rest))]
        end = self.controls.cut(rest)[1]
        return self.encode(before), self.encode(f"{text}{MARK}{end}")

    def ids_after(
        self,
        messages: Sequence[Message],
        position: int,
        sampled: Sequence[int],
        tools: Sequence[Any],
        keywords: Mapping[str, Any],
        *,
        thought: bool,
    ) -> list[int] | None:
        """Return the ids between a reply and the next one, or None if the next prompt does not extend the old one.

        The template is shown the conversation with a reserved character in place of the reply. The next prompt is the old
        prompt, the sampled ids and the ids of the rest, provided that

        * the text before the reply is that of the old prompt,
        * the template shows the reply's thought, and adds none of its own,
        * the text after the reply begins with a control token, where tokenisation starts afresh, and
        * the reply ends with that token, or with no control token, and has no turn's frame inside.

        Args:
            messages: the conversation, cleaned; the reply and what followed it included.
            position: index of the reply in ``messages``.
            sampled: the reply's ids, end token included.
            tools: that the model may call, cleaned.
            keywords: for the template, cleaned.
            thought: whether the reply has a thought.

        Raises:
            TemplateError, TypeError, KeyError: if the template refuses the messages.
        """
        if not self.cuts or not sampled or not self.frame.isdisjoint(sampled[:-1]):
            return None
        reply: Message = {"role": messages[position]["role"], "content": PLACE}
        if thought:
            reply["reasoning_content"] = THOUGHT
        before = self.write(messages[:position], tools, keywords)
        whole = self.write([*messages[:position], reply, *messages[position + 1 :]], tools, keywords)
        if not whole.startswith(before):
            return None
        inside, place, rest = whole[len(before) :].partition(PLACE)
        shown = THOUGHT in inside if thought else not inside
        if not place or not shown or not rest.startswith(MARK):
            return None
        ids = self.encode(rest)
        if sampled[-1] not in self.frame:
            return ids
        return ids[1:] if sampled[-1] == ids[0] else None

    @property
    def cuts(self) -> bool:
        """Whether parts of a text can be encoded one by one."""
        return self._segments.cuts

    def forget(self) -> None:
        """Clear the cache of past prompts."""
        self._segments.forget()

    def _apply(self, messages: Sequence[Message], tools: Sequence[Any], keywords: Mapping[str, Any]) -> str:
        return self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **keywords
        )

    def _check(self) -> None:
        """Find out whether the template makes control tokens of roles, and refuse one that does so of other parts."""
        known = _checked.setdefault(self._tokenizer, {})
        checked = json.dumps([self._tokenizer.chat_template, self._special, self.controls.texts])
        if checked in known:
            self._marks_roles = known[checked]
            return
        self._marks_roles = not self._marks_all()
        if self._marks_roles and not self._marks_all():
            raise ConfigError(
                "the chat template puts control tokens together from parts, so they cannot be told from "
                "those that a client spells; write each of them whole in the template"
            )
        known[checked] = self._marks_roles

    def _marks_all(self) -> bool:
        """Return whether every control token of harmless prompts is marked, and nothing else changes."""
        for talk in _TALKS:
            for tools in ((), (_TOOL,)):
                for keywords in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
                    try:
                        plain = self._apply(talk, tools, keywords)
                    except TEMPLATE_ERRORS:
                        continue
                    if self.write(talk, tools, keywords) != self.controls.mark(plain):
                        return False
        return True
