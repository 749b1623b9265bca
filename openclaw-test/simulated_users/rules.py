"""What a user wants of a reply: a fixed rule that a program can check.

Guarantees: every condition of a rule must hold. The same reply always gets the same answer. Patterns are checked when the rule is
made, not when the first reply comes.

Trust: the function of ``call`` runs in this process with your rights, in no sandbox. Name only code that you trust. It gets the
reply as text, and must never execute it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictInt, StrictStr, ValidationInfo, model_validator

from slime.exceptions import PluginError
from slime.utils.misc import load_function

FOLDER = "folder"
"""Key of the validation context: the folder of the user's file, against which paths of Python files resolve."""


SPACELESS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Letters of Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese, which are written without spaces."""
WORD = re.compile(rf"(?=\w)[{SPACELESS}]|[^\W{SPACELESS}]+")
MARK = re.compile(r"[^\w\s]")


def token_count(text: str) -> int:
    """Return the number of words and punctuation marks, roughly a tokenizer's count."""
    return word_count(text) + len(MARK.findall(text))


def word_count(text: str) -> int:
    """Return the number of words; a number is a word, and so is each letter of a script without spaces."""
    return len(WORD.findall(text))


def load_call(path: str, info: ValidationInfo) -> Callable[..., Any]:
    """Return the function that ``module:function`` or ``file.py:function`` names.

    Raises:
        ValueError: there is none.
    """
    where, _, name = path.rpartition(":")
    if not where or not name:
        raise ValueError(f"{path!r} names no function; write module:function or file.py:function")
    if where.endswith(".py"):
        where = str(Path((info.context or {}).get(FOLDER, ".")) / where)
        path = f"{Path(where).resolve()}:{name}"
    else:
        path = f"{where}.{name}"
    try:
        function = load_function(path)
    except (PluginError, AttributeError) as error:
        raise ValueError(str(error)) from error
    if not callable(function):
        raise ValueError(f"{path} is not a function")
    return function


class Rule(BaseModel):
    """Conditions on a reply; all that are given must hold.

    Attributes:
        must_match: regular expressions that are found in the reply.
        must_not_match: regular expressions that are not.
        contains_any: texts of which the reply has one or more, in any case.
        min_words, max_words: bounds on the number of words.
        min_tokens, max_tokens: bounds on the number of words and punctuation marks.
        call: ``module:function`` or ``file.py:function``; it gets the reply and returns whether the user likes it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    must_match: tuple[StrictStr, ...] = ()
    must_not_match: tuple[StrictStr, ...] = ()
    contains_any: tuple[StrictStr, ...] = ()
    min_words: StrictInt | None = Field(None, ge=1)
    max_words: StrictInt | None = Field(None, ge=1)
    min_tokens: StrictInt | None = Field(None, ge=1)
    max_tokens: StrictInt | None = Field(None, ge=1)
    call: StrictStr | None = None

    _required: tuple[re.Pattern[str], ...] = PrivateAttr()
    _forbidden: tuple[re.Pattern[str], ...] = PrivateAttr()
    _function: Callable[[str], object] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _prepare(self, info: ValidationInfo) -> Self:
        if not self.model_fields_set:
            raise ValueError("a rule needs a condition")
        self._required, self._forbidden = _compiled(self.must_match), _compiled(self.must_not_match)
        if "" in self.contains_any:
            raise ValueError("contains_any has an empty text, which every reply contains")
        for unit in ("words", "tokens"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{unit} {low} is above max_{unit} {high}, so no reply can follow the rule")
        if self.min_words is not None and self.max_tokens is not None and self.min_words > self.max_tokens:
            raise ValueError(
                f"min_words {self.min_words} is above max_tokens {self.max_tokens}, which counts words and punctuation "
                "marks, so no reply can follow the rule"
            )
        if self.call is not None:
            self._function = load_call(self.call, info)
        return self

    def likes(self, reply: str) -> bool:
        """Return whether ``reply`` follows the rule."""
        lower = reply.lower()
        return (
            all(pattern.search(reply) for pattern in self._required)
            and not any(pattern.search(reply) for pattern in self._forbidden)
            and (not self.contains_any or any(text.lower() in lower for text in self.contains_any))
            and _within(word_count(reply), self.min_words, self.max_words)
            and _within(token_count(reply), self.min_tokens, self.max_tokens)
            and (self._function is None or bool(self._function(reply)))
        )


def _within(count: int, low: int | None, high: int | None) -> bool:
    return (low is None or count >= low) and (high is None or count <= high)


def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    results = []
    for pattern in patterns:
        try:
            results.append(re.compile(pattern))
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return tuple(results)
