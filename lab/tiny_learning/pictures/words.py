"""The words of the agent with eyes: a small byte-level BPE in which every constant part of a prompt is one token.

The split keeps the system prompt, the line that names the tool and the frame of a call whole, so each becomes one token, as does
every number that the warm start points with. They are no control tokens: a text that spells one is a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentrl.tasks.gui.tool import SYSTEM, computer_use
from lab.testkit.vision_model import VISION_TOKENS
from lab.tiny_models.tokenizer import SPECIAL_TOKENS, SPLIT, train_bpe

STEP = 20
"""Thousandths of the screen between two numbers that the warm start points with; 3.2 pixels across, 4.2 down."""
NUMBERS = [str(number) for number in range(STEP // 2, 1000, STEP)]
CONTROL_TOKENS = ["<tool_call>", "</tool_call>"]
VOCABULARY = 1602
TRIPLES = SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""Splits as `SPLIT`, but leaves three digits together."""
TEMPLATE = Path(__file__).parents[1] / "chat_template.jinja"
TEXT_PART = "{% if part.type == 'text' %}"
IMAGE_PART = (
    "{% if part.type == 'image' %}" + "".join(VISION_TOKENS[at] for at in (0, 2, 1)) + "{% elif part.type == 'text' %}"
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
    pattern = "|".join([*map(re.escape, phrases()), TRIPLES])
    roles = ["system\n", "user\nTask: ", "assistant\n", "tool\n", "tools", "The task has ended."]
    acts = ["left_click", "mouse_move", "terminate", "scroll", "-100", ", "]
    texts = [*(phrases() + NUMBERS + roles + acts) * 50, *sorted(set(instructions)) * 20]
    return train_bpe(
        texts, VOCABULARY, pattern, CONTROL_TOKENS, chat_template(), special_tokens=[*SPECIAL_TOKENS, *VISION_TOKENS]
    )
