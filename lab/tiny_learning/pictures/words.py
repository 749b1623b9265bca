"""The words of the agent with eyes: a small byte-level BPE in which every constant part of a prompt is one token.

The split keeps the system prompt, the line that names the tool and the frame of a call whole, so each becomes one token, as does
every number that the warm start points with. They are no control tokens: a text that spells one is a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.tasks.gui.tool import SYSTEM, computer_use
from lab.tiny_models.tokenizer import END, SPECIAL_TOKENS, SPLIT

STEP = 20
"""Thousandths of the screen between two numbers that the warm start points with; 3.2 pixels across, 4.2 down."""
NUMBERS = [str(number) for number in range(STEP // 2, 1000, STEP)]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
CONTROL_TOKENS = ["<tool_call>", "</tool_call>"]
VOCABULARY = 1600
TRIPLES = SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""Splits as `SPLIT`, but leaves three digits together."""
TEMPLATE = Path(__file__).parents[1] / "chat_template.jinja"
TEXT_PART = "{% if part.type == 'text' %}"
IMAGE_PART = (
    "{% if part.type == 'image' %}" + "".join(VISION[at] for at in (0, 2, 1)) + "{% elif part.type == 'text' %}"
)


def phrases() -> list[str]:
    """Return the constant parts of prompts and calls."""
    tool: Any = computer_use("relative", (320, 420), elements=False)["function"]
    line = f"\n{tool['name']}({', '.join(tool['parameters']['properties'])})"
    begin = f'\n{{"name": "{tool["name"]}", "arguments": {{"action": "'
    return [SYSTEM, line, begin, '", "coordinate": [', "]}}\n", '", "status": "success"}}\n', '], "pixels": ']


def chat_template() -> str:
    """Return the template of the tiny agents, with placeholders for pictures."""
    text = TEMPLATE.read_text()
    assert text.count(TEXT_PART) == 1
    return text.replace(TEXT_PART, IMAGE_PART)


def build_tokenizer(instructions: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer for tasks with such instructions."""
    bpe = Tokenizer(models.BPE())
    pattern = "|".join([*map(re.escape, phrases()), TRIPLES])
    split = pre_tokenizers.Split(pattern=Regex(pattern), behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL_TOKENS, *VISION],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    roles = ["system\n", "user\nTask: ", "assistant\n", "tool\n", "tools", "The task has ended."]
    acts = ["left_click", "mouse_move", "terminate", "scroll", "-100", ", "]
    bpe.train_from_iterator([*(phrases() + NUMBERS + roles + acts) * 50, *sorted(set(instructions)) * 20], trainer)
    bpe.add_tokens([AddedToken(text, normalized=False, special=False) for text in CONTROL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=SPECIAL_TOKENS[0],
        additional_special_tokens=["<|im_start|>", END, *VISION],
        clean_up_tokenization_spaces=False,
        chat_template=chat_template(),
        model_max_length=4096,
    )
