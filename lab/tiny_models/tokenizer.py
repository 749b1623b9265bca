"""The tiny models' tokenizer: byte-level BPE with Qwen's split and control tokens, trained on generated conversations.

Guarantees: any text can be encoded; ``<think>``, ``<tool_call>`` and their likes are one token each and, as with Qwen3,
not special, so that a decoded reply shows them. The chat template is Qwen3's format (`chat_template.jinja`), except
that thinking is off unless ``enable_thinking`` is true.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lab.tiny_models.cache import TEMPLATE
from lab.tiny_models.episodes import Episode, judge_episode, policy_episode

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTROL_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
END = "<|im_end|>"
# Qwen's split: words with one leading character, single digits, runs of signs, line breaks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(vocabulary: int, conversations: int, seed: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of ``vocabulary`` tokens, control tokens included, on that many generated conversations."""
    return train_bpe(_texts(conversations, seed), vocabulary, SPLIT, CONTROL_TOKENS, TEMPLATE.read_text())


def train_bpe(
    texts: Iterable[str],
    vocabulary: int,
    split: str,
    control_tokens: Sequence[str],
    template: str,
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    end: str = END,
    context: int = 4096,
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of ``vocabulary`` tokens, control tokens included.

    Args:
        texts: what it is trained on; special and control tokens in them are left out.
        vocabulary: number of tokens.
        split: pattern of the pieces in which tokens are looked for.
        control_tokens: one token each, shown in a decoded reply.
        template: the chat template.
        special_tokens: one token each, left out of a decoded reply; the first one pads.
        end: the token that ends a reply.
        context: most tokens of a text.
    """
    bpe = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(pattern=Regex(split), behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pieces, plain])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(control_tokens),
        special_tokens=[*special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    control = re.compile("|".join(map(re.escape, [*special_tokens, *control_tokens])))
    bpe.train_from_iterator([piece for text in texts for piece in control.split(text) if piece], trainer)
    bpe.add_tokens([AddedToken(token, normalized=False, special=False) for token in control_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=end,
        pad_token=special_tokens[0],
        additional_special_tokens=[*special_tokens[1:]],
        clean_up_tokenization_spaces=False,
        chat_template=template,
        model_max_length=context,
    )


def completion_text(message: dict[str, Any]) -> str:
    """Return what the model writes for an assistant message: thought, content, tool calls, end of turn."""
    thought = message.get("reasoning_content")
    text = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    text += message["content"]
    for call in message.get("tool_calls", []):
        function = call["function"]
        body = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
        text += f"<tool_call>\n{body}\n</tool_call>"
    return text + END


def prompt_text(tokenizer: Any, episode: Episode) -> str:
    """Return the rendered messages before the target, up to where the model begins to write."""
    return tokenizer.apply_chat_template(
        episode.messages[:-1],
        tools=episode.tools or None,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=episode.thinking,
    )


def _texts(conversations: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    results: list[str] = []
    for number in range(conversations):
        episode = policy_episode(rng) if number % 3 else judge_episode(rng)
        texts = [f"{message['role']}\n{message['content']}\n" for message in episode.messages[:-1]]
        if episode.tools:
            texts.append('# Tools\n{"type": "function", "function": {"name": "", "description": "", "parameters": ')
        texts.append(completion_text(episode.messages[-1]))
        results += texts
    return results
