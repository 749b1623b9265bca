"""Checks of a run's ledger before another run trains from it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path

from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer
from openclaw.ledger.store import Ledger
from openclaw.messages.text import content_text

LOOKED_AT = 32


def check_tokens(path: Path, model: str) -> None:
    """Raise ConfigError if the ids of a ledger are not those of the model's tokenizer: no reply reads as it was recorded."""
    with closing(Ledger(path)) as ledger:
        replies = (record.turn for record in ledger.views.turn_records() if record.turn.response_ids)
        spoken = [
            (turn.response_ids, text)
            for turn in islice(replies, LOOKED_AT)
            if (text := content_text(turn.response_message.get("content")).strip())
        ]
    if not spoken:
        return
    tokenizer = load_tokenizer(model)
    size = len(tokenizer)
    if any(max(ids) < size and text in tokenizer.decode(ids) for ids, text in spoken):
        return
    raise ConfigError(
        f"{path}: its token ids are not those of {model}; name the model of that run with HF_CKPT, or train from its text: "
        f"openclaw-rl inspect {path} export FILE, then DATA_PATH=FILE"
    )


def same_batches(path: Path, batch_size: int) -> str | None:
    """Return what to set for the batches of the earlier run; None if they are the same, or it took no step."""
    with closing(Ledger(path)) as ledger:
        sizes = Counter(ledger.samples.batch_sizes())
    if not sizes or set(sizes) == {batch_size}:
        return None
    usual = sizes.most_common(1)[0][0]
    return f"its batch size was {usual} and this run's is {batch_size}; BATCH_SIZE={usual} gives the same batches"
