"""A copy of a tokenizer in which text never becomes a control token.

Guarantees: for text that spells no control token the ids are the tokenizer's. The copy knows a control token only with
`MARK` in front of it. Control tokens in the model's own vocabulary lose their names too, because some models match a
whole entry (Unigram, ``ignore_merges``); only characters that the model lacks become its unknown token. Shares the
model's memory if its vocabulary has no control tokens. Used by one caller at a time.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers

from groundwork.exceptions import ConfigError
from openclaw.rendering.controls import MARK, Controls


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
