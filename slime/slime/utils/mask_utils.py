"""Token ids of a conversation, and a mask of those that the assistant wrote.

Guarantees: the ids come from one rendering of the tokenizer's chat template, of messages in the form in which serving
renders them (`groundwork.chat_messages`). A masked-in token is one that the policy would sample when serving this
conversation: from the start of generation to the end marker of an assistant message. Prompt and message are tokenised
separately, so no token crosses the border. A conversation whose text is indistinguishable from the template's markers is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import (
    TEMPLATE_ERRORS,
    Message,
    check_messages,
    content_text,
    in_template_form,
    is_trained,
    read_tools,
)
from groundwork.exceptions import ConfigError

MASK_TYPES = ("qwen", "qwen3", "distill_qwen", "qwen3_5")

_IM_START, _IM_END = "<|im_start|>", "<|im_end|>"
_ASSISTANT = _IM_START + "assistant\n"
_DISTILL_ASSISTANT = "<｜Assistant｜>"
_DISTILL_END = "<｜end▁of▁sentence｜>"
_THINK, _END_THINK = "<think>", "</think>"
_THOUGHT = re.compile(r"<think>\s*(.*?)\s*</think>", re.DOTALL)


@dataclass(frozen=True)
class _Span:
    """Characters ``[start, end)`` of an assistant message in the rendered conversation."""

    start: int
    end: int


class MultiTurnLossMaskGenerator:
    """Ids and masks for the chat template of ``tokenizer``.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        tokenizer_type: ``qwen`` and ``qwen3`` are ChatML templates whose replies start after the assistant's header; ``qwen3``
            leaves an assistant message out of the mask when the template dropped its reasoning (the policy never wrote
            it like that); ``qwen3_5`` is like ``qwen3`` with replies that start after the whole generation prompt, which
            opens the reasoning; ``distill_qwen`` is the DeepSeek-R1 template, where only the last message is trained.

    Raises:
        ConfigError: the tokenizer's template is of another type.
    """

    def __init__(self, tokenizer: Any, tokenizer_type: str = "qwen") -> None:
        if tokenizer_type not in MASK_TYPES:
            raise ConfigError(f"--loss-mask-type {tokenizer_type}: use one of {', '.join(MASK_TYPES)}")
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("the tokenizer has no chat template; use a chat model as --hf-checkpoint")
        self.tokenizer = tokenizer
        self.tokenizer_type = tokenizer_type
        question = [{"role": "user", "content": "a"}]
        prompt, plain = self._render(question, generate=True), self._render(question)
        self._opening = prompt.removeprefix(plain) if prompt.startswith(plain) else prompt
        header = _DISTILL_ASSISTANT if tokenizer_type == "distill_qwen" else _ASSISTANT
        if not self._opening.startswith(header):
            raise ConfigError(
                f"--loss-mask-type {tokenizer_type} does not fit this model: its chat template starts a reply with "
                f"{self._opening[-60:]!r}, not {header!r}; use another of {', '.join(MASK_TYPES)}"
            )

    def get_loss_mask(
        self, messages: Sequence[Message], tools: list[Any] | str | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the conversation's token ids ``[N]`` and mask ``[N]``, 1 on trained tokens.

        A message with ``"step_loss_mask": 0`` or ``"weight": 0`` has mask 0. Tools may be their JSON text.

        Raises:
            ConfigError: these are not messages or tools, the template refuses them, or they cannot be found in the
                rendered text.
        """
        write = self._distill if self.tokenizer_type == "distill_qwen" else self._chatml
        try:
            text, spans = write(check_messages(list(messages), parts=("text", "image")), read_tools(tools))
        except ConfigError:
            raise
        except TEMPLATE_ERRORS as error:
            raise ConfigError(f"the chat template refuses the messages: {error}") from error
        ids: list[int] = []
        mask: list[int] = []
        position = 0
        for span in spans:
            for end, trained in ((span.start, 0), (span.end, 1)):
                piece = self.tokenizer.encode(text[position:end], add_special_tokens=False)
                ids += piece
                mask += [trained] * len(piece)
                position = end
        rest = self.tokenizer.encode(text[position:], add_special_tokens=False)
        return ids + rest, mask + [0] * len(rest)

    def get_loss_mask_with_multimodal_alignment(
        self, messages: Sequence[Message], input_ids: Sequence[int], tools: list[Any] | None = None
    ) -> tuple[list[int], list[int]]:
        """Return ``input_ids``, which include media tokens, and the text's mask, left-padded with zeros.

        Raises:
            ConfigError: the text alone has more tokens.
        """
        _, mask = self.get_loss_mask(messages, tools)
        missing = len(input_ids) - len(mask)
        if missing < 0:
            raise ConfigError(f"the text has {len(mask)} tokens, more than the {len(input_ids)} input ids")
        return list(input_ids), [0] * missing + mask

    def get_response_lengths(self, loss_masks: Sequence[Sequence[int]]) -> list[int]:
        """Return the tokens from the first masked-in one to the end, per conversation; 0 without one."""
        return [len(mask) - list(mask).index(1) if 1 in mask else 0 for mask in loss_masks]

    def get_text_from_loss_mask(self, token_ids: Sequence[int], loss_masks: Sequence[int]) -> list[str]:
        """Return the text of each run of masked-in tokens."""
        runs: list[list[int]] = []
        before = 0
        for token, trained in zip(token_ids, loss_masks, strict=True):
            if trained and not before:
                runs.append([])
            if trained:
                runs[-1].append(token)
            before = trained
        return [self.tokenizer.decode(run) for run in runs]

    def _render(self, messages: Sequence[Message], tools: list[Any] | None = None, *, generate: bool = False) -> str:
        return in_template_form(
            messages,
            lambda plain: self.tokenizer.apply_chat_template(
                plain, tools=tools, tokenize=False, add_generation_prompt=generate
            ),
        )

    def _chatml(self, messages: Sequence[Message], tools: list[Any] | None) -> tuple[str, list[_Span]]:
        text = self._render(messages, tools)
        replies = [message for message in messages if message["role"] == "assistant"]
        headers = [match.start() for match in re.finditer(re.escape(_ASSISTANT), text)]
        if len(headers) != len(replies) or text.count(_IM_START) != text.count(_IM_END):
            raise ConfigError(
                f"the template rendered {len(headers)} replies for {len(replies)} assistant messages: does a message contain "
                f"{_IM_START} or {_IM_END}?"
            )
        spans = []
        for header, message in zip(headers, replies, strict=True):
            whole = self.tokenizer_type == "qwen3_5" and text.startswith(self._opening, header)
            start = header + len(self._opening if whole else _ASSISTANT)
            end = text.index(_IM_END, start) + len(_IM_END)
            if is_trained(message) and not self._lost_reasoning(message, text[header:end]):
                spans.append(_Span(start, end))
        return text, spans

    def _lost_reasoning(self, message: Message, rendered: str) -> bool:
        if self.tokenizer_type == "qwen":
            return False
        reasoning = message.get("reasoning_content")
        if not reasoning:
            match = _THOUGHT.search(content_text(message.get("content")))
            reasoning = match.group(1) if match else None
        return bool(reasoning) and reasoning.strip() not in rendered

    def _distill(self, messages: Sequence[Message], tools: list[Any] | None) -> tuple[str, list[_Span]]:
        *before, last = messages
        if last["role"] != "assistant":
            raise ConfigError("--loss-mask-type distill_qwen trains the last message, which must be the assistant's")
        prompt = self._render(before, tools, generate=True)
        content = content_text(last.get("content"))
        if last.get("tool_calls"):
            raise ConfigError("--loss-mask-type distill_qwen trains texts; the last message has tool_calls")
        reasoning = last.get("reasoning_content")
        if reasoning:
            content = f"{_THINK}\n{reasoning}\n{_END_THINK}\n\n{content}"
        if prompt.rstrip().endswith(_THINK) and content.startswith(_THINK):
            content = content.removeprefix(_THINK).removeprefix("\n")
        text = prompt + content + _DISTILL_END
        return text, [_Span(len(prompt), len(text))] if is_trained(last) else []
